"""What the tests of the engine share: a look behind the queue's back, and scripts called raw."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import hiredis
import msgspec
import redis

from conftest import Clock
from holdfast import Lease, NewJob, Queue, ServerRefused
from holdfast.engine import calls
from holdfast.engine.calls import Call, Failure
from holdfast.engine.script import Script
from holdfast.keys import NAMES, queue_keys
from support import Kind, TestServer, command_on

T = TypeVar("T")

_READS = {
    b"zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    b"hash": ("HGETALL",),
    b"list": ("LRANGE", 0, -1),
    b"string": ("GET",),
}


class Behind:
    """A client that goes to the keys of a queue without asking the queue."""

    def __init__(self, client: redis.Redis, queue: Queue) -> None:
        self.client = client
        self.queue = queue
        self.keys = dict(zip(NAMES, queue_keys(queue.name), strict=True))

    def __call__(self, command: str, key: str, *args: Any) -> Any:
        """Run a command on one key, named as in `keys.NAMES`."""
        return command_on(self.client, command, self.keys[key], *args)

    def everything(self) -> dict[str, tuple[bytes, Any]]:
        """Return type and content of every key that exists."""
        with self.client.pipeline(transaction=False) as pipeline:
            for key in self.keys.values():
                command_on(pipeline, "TYPE", key)
            types = dict(zip(self.keys, pipeline.execute(), strict=True))
            found = {name: type for name, type in types.items() if type != b"none"}
            for name, type in found.items():
                command, *rest = _READS[type]
                command_on(pipeline, command, self.keys[name], *rest)
            contents = pipeline.execute()
        return {
            name: (type, content)
            for (name, type), content in zip(found.items(), contents, strict=True)
        }

    def facts(self, id: str) -> dict[str, Any]:
        """Return what is kept about a job beside its payload."""
        packed = self("HGET", "facts", id)
        return msgspec.msgpack.decode(packed) if packed else {}

    def ask(self, call: Call[T], caller: str, number: int, now: int | None = None) -> T:
        """Make a call under a caller and a number of the test's own."""
        head = ["" if now is None else now, *((caller, number) if call.script.changes else ())]
        return call.read(self.run(call.script, *head, *call.args))

    def run(self, script: Script, *args: Any) -> Any:
        """Run a script with any arguments; an error reply is raised as redis-py raises it."""
        command = ("EVALSHA", script.sha, len(NAMES), *self.keys.values(), *args)
        try:
            return command_on(self.client, *command)
        except redis.exceptions.NoScriptError:
            self.client.script_load(script.text)
            return command_on(self.client, *command)


def take(queue: Queue, seconds: float = 30) -> Lease:
    """Lease a job that must be there."""
    lease = queue.lease(seconds)
    assert lease is not None
    return lease


def command_calls(client: redis.Redis, command: str) -> int:
    """Return how often the server has run a command since its start."""
    stats = command_on(client, "INFO", "commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def refused(ask: Callable[[], object]) -> ServerRefused | None:
    """Return the server's no, if it was one."""
    try:
        ask()
    except ServerRefused as error:
        return error
    return None


def ids(leases: Iterable[Lease]) -> list[str]:
    return [lease.id for lease in leases]


def pack(**facts: object) -> bytes:
    return msgspec.msgpack.encode(facts)


def words(packed: bytes) -> list[bytes]:
    """Read a command as the server would."""
    reader = hiredis.Reader()
    reader.feed(packed)
    command: list[bytes] = reader.gets()
    return command


@contextmanager
def own_server(
    *options: str, tcp: bool = False, kind: Kind = "plain", binary: Path | None = None
) -> Iterator[TestServer]:
    """Run a server that the test may stop, fill or lock."""
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        server = TestServer(Path(directory), *options, tcp=tcp, kind=kind, binary=binary)
        try:
            yield server
        finally:
            server.stop()


# ------------------------------------------------------- a queue with all in it

Held = dict[str, Lease]


def populate(queue: Queue, clock: Clock) -> Held:
    """Leave something for every change to do, three seconds on; return what is held, by id."""
    queue.add(b"x", id="old", result_for=3, keep=True)
    queue.add(b"x", id="kept", result_for=3600)
    queue.complete_many((lease, b"result") for lease in queue.lease_many(2, 60))
    queue.add(b"x", id="handled", max_lapses=0, priority=60)
    queue.release(take(queue), lapsed="crashed")
    held = queue.lease_many(1, 3600, failed=True)
    queue.add(b"x", id="failed", max_lapses=0)
    queue.release(take(queue), lapsed="crashed")
    queue.add(b"x", id="lapsing")
    queue.add(b"x", id="poison", max_lapses=0, priority=80)
    queue.lease_many(2, 3)
    queue.add(b"x", id="done", result_for=3600)
    queue.add(b"x", id="spent", max_lapses=0, max_failures=0)
    queue.add(b"x", id="back", priority=70)
    queue.add(b"x", id="marked", result_for=3600)
    queue.add(b"x", id="replaced", result_for=3600)
    queue.add(b"x", id="overtaken", max_lapses=0, max_failures=0)
    held += queue.lease_many(6, 3600)
    queue.set_result("replaced", b"so far")
    queue.add(b"y", id="replaced", on_conflict="update", delay=3)
    queue.add(b"y", id="overtaken", on_conflict="update", handler="h")
    queue.cancel("marked")
    queue.add(b"x", id="due", delay=3, priority=90)
    queue.add(b"x", id="later", delay=3600, result_for=3600)
    queue.add(b"x", id="ready", handler="h")
    queue.add(b"x", id="last")
    clock.advance(3)
    return {lease.id: lease for lease in held}


def populate_plainly(queue: Queue, clock: Clock) -> Held:
    """Leave plain jobs only, about which nothing is kept but their payloads."""
    queue.add(b"x", id="lapsing")
    queue.lease(3)
    queue.add_many([NewJob(b"x", id=id) for id in ("done", "spent", "back")])
    held = queue.lease_many(3, 3600)
    queue.add_many([NewJob(b"x", id=id) for id in ("ready", "last")])
    clock.advance(3)
    return {lease.id: lease for lease in held}


_NEW = (
    NewJob(b"x" * 100),
    NewJob(b"x", priority=90, delay=0.5, handler="h"),
    NewJob(b"x", id="kept", handler="h"),
    NewJob(b"x", id="ready"),
    NewJob(b"x", id="marked"),
)
_CHANGED = (
    NewJob(b"z" * 100, id="new"),
    NewJob(b"z", id="ready", delay=0.5, priority=90),
    NewJob(b"z", id="later"),
    NewJob(b"z", id="failed"),
    NewJob(b"z", id="kept", handler="h"),
    NewJob(b"z", id="lapsing", result_for=5),
    NewJob(b"z", id="replaced", handler="h"),
    NewJob(b"z", id="replaced"),
)


def _failures(held: Held) -> list[Failure]:
    return [(lease.id, lease.token, 500, b"why") for lease in held.values()]


CHANGES: dict[str, Callable[[Queue, Held], object]] = {
    "add": lambda queue, held: queue.add_many(_NEW),
    "update": lambda queue, held: queue.add_many(_CHANGED, on_conflict="update"),
    "lease": lambda queue, held: queue.lease_many(
        3, 60, complete=[(held["done"], b"result"), *held.values()]
    ),
    "lease_failed": lambda queue, held: queue.lease_many(3, 60, failed=True),
    "complete": lambda queue, held: queue.complete_many(
        [(held["done"], b"result"), *held.values()]
    ),
    "complete_by_force": lambda queue, held: queue.complete("failed", b"result", force=True),
    "complete_and_add": lambda queue, held: queue.complete(held["done"], b"result", add=_NEW),
    "retry": lambda queue, held: queue._run(calls.retry(_failures(held))),
    "fail": lambda queue, held: queue._run(calls.fail(_failures(held))),
    "release": lambda queue, held: queue.release_many(held.values()),
    "release_lapsed": lambda queue, held: queue.release_many(held.values(), lapsed="crashed"),
    "release_later": lambda queue, held: queue.release_many(
        held.values(), lapsed="crashed", after=0.5
    ),
    "extend": lambda queue, held: queue.extend_many(held.values(), 7200),
    "cancel": lambda queue, held: queue._run(
        calls.cancel(["ready", "later", "failed", "done", "replaced", "nobody"])
    ),
    "cancel_matching": lambda queue, held: queue.cancel_matching(b"x"),
    "revive": lambda queue, held: queue._run(calls.revive(["failed", "ready", "nobody"])),
    "set_result": lambda queue, held: queue._run(calls.set_result("done", b"result")),
    "fail_worker": lambda queue, held: queue.fail_worker(held["done"]),
    "register": lambda queue, held: queue.register(queues=["some"]),
    "tidy": lambda queue, held: queue.tidy(force=True, failed_longer_than=0),
    "repair": lambda queue, held: queue.repair(),
    "pause": lambda queue, held: queue.pause(),
    "resume": lambda queue, held: queue.resume(),
    "delete": lambda queue, held: queue.delete(),
}
"""What changes a queue, each doing as much as it can to a populated one."""


class _CaughtError(Exception):
    def __init__(self, call: Call[Any]) -> None:
        self.call = call


class _Catching(Queue):
    def _run(self, call: Call[Any]) -> Any:
        raise _CaughtError(call)


def script_of(kind: str, queue: Queue, held: Held) -> Script:
    return call_of(lambda queue: CHANGES[kind](queue, held), queue).script


def call_of(ask: Callable[[Queue], object], queue: Queue) -> Call[Any]:
    """Return the first call that a method of a queue makes, without making it."""
    try:
        ask(_Catching(queue.name, queue.server))
    except _CaughtError as caught:
        return caught.call
    raise AssertionError("no call was made")
