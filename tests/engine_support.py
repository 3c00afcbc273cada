"""What the tests of the engine share: a look behind the queue's back, and scripts called raw."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args
from unittest.mock import patch

import hiredis
import msgspec
import redis

from holdfast import (
    Lease,
    NewJob,
    Queue,
    Request,
    Row,
    ServerRefused,
    Staged,
    UnsupportedServer,
)
from holdfast.client.status import PartState
from holdfast.engine import calls, claim_calls, library, request_calls, write_calls
from holdfast.engine.call import Call, Entry, Failed
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.library import Function
from holdfast.engine.replies import RECORD_FORMAT, Record, read_record
from support import Clock, Kind, TestServer, command_on, wait_until

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

    def records(self) -> dict[str, dict[str, Any]]:
        """Return what is kept about each request and group."""
        found = self("HGETALL", "requests").items()
        return {
            name.decode(): msgspec.structs.asdict(record)
            for name, packed in found
            if not name.endswith(b"/end") and (record := read_record(packed))
        }

    def ask(self, call: Call[T], caller: str, number: int, now: int | None = None) -> T:
        """Make a call under a caller and a number of the test's own."""
        head = ["" if now is None else now, *((caller, number) if call.function.changes else ())]
        return call.read(self.run(call.function, *head, *call.args))

    def run(self, function: Function, *args: Any) -> Any:
        """Call a function with any arguments; an error reply is raised as redis-py raises it."""
        raw = [arg.encode(errors="surrogateescape") if type(arg) is str else arg for arg in args]
        command = ("FCALL", function.called, len(NAMES), *self.keys.values(), *raw)
        try:
            return command_on(self.client, *command)
        except redis.exceptions.ResponseError as error:
            if "Function not found" not in str(error):
                raise
            load_library(self.client)
            return command_on(self.client, *command)


def load_library(client: redis.Redis) -> None:
    """Let a server have the library, so that a call is one request."""
    if not command_on(client, "FUNCTION", "LIST", "LIBRARYNAME", library.library_name()):
        command_on(client, "FUNCTION", "LOAD", library.library())


def take(queue: Queue, seconds: float = 30) -> Lease:
    """Lease a job that must be there."""
    lease = queue.lease(seconds)
    assert lease is not None
    return lease


def command_calls(client: redis.Redis, command: str) -> int:
    """Return how often the server has run a command since its start."""
    stats = command_on(client, "INFO", "commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def engine_calls(client: redis.Redis) -> int:
    """Return how often the server has run a function or script of ours since its start."""
    return sum(command_calls(client, command) for command in ("fcall", "fcall_ro", "evalsha"))


def refused(ask: Callable[[], object]) -> ServerRefused | None:
    """Return the server's no, if it was one."""
    try:
        ask()
    except ServerRefused as error:
        return error
    except UnsupportedServer as error:
        return ServerRefused(str(error), "LAYOUT")
    return None


def ids(leases: Iterable[Lease]) -> list[str]:
    return [lease.id for lease in leases]


def pack(**facts: object) -> bytes:
    return msgspec.msgpack.encode(facts)


def pack_record(**fields: Any) -> bytes:
    """Write what is kept about a request, as the engine does."""
    record = Record(**fields)
    *numbers, _ = msgspec.structs.astuple(record)
    return struct.pack(RECORD_FORMAT, *numbers) + record.reason.encode()


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


SLOWLY = ("--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024")


@contextmanager
def slow_server() -> Iterator[TestServer]:
    """A server that loads a job and many other keys, for half a minute or until it is let go."""
    with own_server("--rdbcompression", "no") as server:
        with server.client() as client, Queue("q", server.url) as queue:
            queue.add("x", id="before")
            client.eval("for n = 1, 6000 do redis.call('SET', n, string.rep('x', 1000)) end", 0)
            client.save()
        server.kill()
        server.launch(*SLOWLY)
        wait_until(lambda: is_loading(server), "a server that loads")
        yield server


def is_loading(server: TestServer) -> bool:
    with server.client() as client, suppress(redis.RedisError):
        return bool(client.info("persistence")["loading"])
    return False


def let_go(server: TestServer) -> None:
    with server.client() as client:
        client.config_set("key-load-delay", 0)


# ------------------------------------------------------- a queue with all in it


class Held(dict[str, Lease]):
    """What is held, by id; the stamp of the queue that it is of; whether it has writes."""

    stamp = b""
    writes = False


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
    held += _populate_a_request(queue)
    held += _populate_requests(queue)
    held += _populate_groups(queue)
    queue.add(b"x", id="due", delay=3, priority=90)
    queue.add(b"x", id="later", delay=3600, result_for=3600)
    queue.add(b"x", id="ready", handler="h")
    queue.add(b"x", id="last")
    opened(queue, "open", 3, limit=2, priority=60)
    _populate_writes(queue)
    _populate_claims(queue)
    clock.advance(3)
    filled = _held(queue, held)
    filled.writes = True
    return filled


def opened(queue: Queue, id: str, parts: int, **options: Any) -> Request:
    """Open a request with so many parts."""
    request = queue.request(id, **options)
    request.open()
    request.add_many([b"x"] * parts)
    return request


def _open_reader(queue: Queue) -> None:
    """Leave a reader with one claim of one job, and another that is begun."""
    reader = queue.reader("steady")
    reader.open()
    queue.add_many([NewJob(b"x", id="claimed"), NewJob(b"x", id="next")], priority=99)
    assert reader.claim(0, 1).jobs == 1
    queue._run(claim_calls.claim("steady", 1, 1, 0, 1, claim_ms=3_600_000))


def _held(queue: Queue, leases: Iterable[Lease]) -> Held:
    held = Held((lease.id, lease) for lease in leases)
    held.stamp = queue._run(calls.audit()).stamp
    return held


def _populate_a_request(queue: Queue) -> list[Lease]:
    """Leave a request without a free place that has parts in every state."""
    request = opened(queue, "all", 6)
    done, handled, handling, failed, leased, marked = queue.lease_many(6, 3600)
    queue.complete(done, b"result")
    queue.fail(handled, error="why")
    queue.fail(handling, error="why")
    handled, handling = queue.lease_many(2, 3600, failed=True)
    queue.complete(handled)
    queue.fail(failed, error="why")
    request.add(b"x", max_lapses=0)
    queue.lease(3)
    request.add(b"x", delay=3, priority=90)
    request.add(b"x", delay=3600)
    request.set_limit(0)
    request.add_many([b"x"] * 4)
    queue.cancel("all/9")
    queue.cancel(marked.id)
    queue.set_result("all/10", b"so far")
    request.set_limit(request.status().running)
    assert {part.state for part in request.results()} == set(get_args(PartState))
    return [handling, leased, marked]


def _populate_requests(queue: Queue) -> list[Lease]:
    """Leave requests for which something is to follow, now or three seconds on."""
    ending = opened(queue, "ending", 1, follow_up=NewJob(b"x", group="new", group_limit=1))
    held = queue.lease_many(1, 3600)
    ending.seal()
    stopped = opened(queue, "stopped", 1)
    held += queue.lease_many(1, 3600)
    stopped.add(b"x")
    stopped.cancel()
    fast = opened(queue, "fast", 0, limit=1, on_failure="fail_fast", follow_up=b"x")
    fast.add_many([b"x"] * 3, max_failures=0, max_lapses=0)
    fast.add(b"x", delay=3600)
    held += queue.lease_many(1, 3600)
    with queue.request("forgotten", keep_for=3) as forgotten:
        forgotten.add_many([b"x", b"x"])
        queue.cancel("forgotten/1")
    queue.complete(take(queue), b"result")
    with queue.request("failed", limit=1) as failed:
        failed.add(b"x")
    queue.fail(take(queue), error="why")
    opened(queue, "late", 1, limit=0, open_for=3).add(b"x", delay=3600)
    opened(queue, "done", 1, follow_up=NewJob(b"x", handler="h"))
    queue.complete(take(queue))
    with queue.request("waiting", limit=0, follow_up=b"x") as waiting:
        waiting.add(b"x")
    states = {status.id: status.state for status in queue.requests()}
    assert states == {
        "all": "open",
        "ending": "sealed",
        "stopped": "stopping",
        "fast": "open",
        "forgotten": "completed",
        "failed": "failed",
        "late": "open",
        "done": "open",
        "waiting": "sealed",
    }
    return held


def _populate_groups(queue: Queue) -> list[Lease]:
    """Leave a group without a free place, and one that is gone with its only job."""
    queue.add(b"x", id="grouped", group="full", group_limit=1)
    queue.add(b"x", id="alone", group="small", result_for=3600)
    held = queue.lease_many(2, 3600)
    queue.add_many([NewJob(b"x", id=f"parked-{n}", group="full", priority=90) for n in range(3)])
    queue.add(b"x", id="grouped-later", delay=3, group="full")
    return [*held]


def _populate_writes(queue: Queue) -> None:
    """Leave what is staged, adopted and committed, some of it for three seconds."""
    queue.write("late").stage([b"x"] * 2, partition=0, attempt=0, keep_for=3)
    queue.write("fresh").stage([b"x"], partition=0, attempt=0)
    adopted(queue, "orphaned", [b"x"], keep_for_ms=3000)
    adopted(queue, "adopted", [b"x"])
    rows = [
        Row(b"x" * 100),
        Row(b"y", id="ready", priority=90),
        Row(b"y", id="failed"),
        Row(b"y", id="replaced", handler="h"),
        Row(b"y", id="kept", delay=3600),
        Row(b"y", id="all/3"),
        Row(b"y", group="full"),
        Row(b"y", request="open"),
        Row(b"y", request="failed"),
        Row(b"y", request="nobody", delay=3600),
    ]
    adopted(queue, "committed", rows)
    queue._run(write_calls.commit("committed", "", 0, 1, keep_for_ms=60_000, how=b"1=11"))


def _populate_claims(queue: Queue) -> None:
    """Leave readers with claims of all kinds of jobs: settled, sealed, open, lapsing."""
    claimed = [
        NewJob(b"x", id="claimed"),
        NewJob(b"x", id="claimed-kept", result_for=3600),
        NewJob(b"x", id="claimed-grouped", group="claimed", group_limit=1),
        NewJob(b"x", id="claimed-cancelled"),
        NewJob(b"x", id="claimed-updated"),
    ]
    for name, seconds in (("steady", 3600), ("lapsing", 3)):
        jobs = [msgspec.structs.replace(job, id=f"{name}-{job.id}") for job in claimed]
        jobs[2] = msgspec.structs.replace(jobs[2], group=name)
        queue.add_many(jobs, priority=99)
        with queue.request(f"{name}-request", priority=99, limit=1) as request:
            request.add_many([b"x"] * 2)
        reader = queue.reader(name)
        reader.open()
        assert reader.claim(0, 6, claim_for=seconds).jobs == 6
        queue.add(b"y", id=f"{name}-claimed-updated", on_conflict="update", delay=3600)
        queue.cancel(f"{name}-claimed-cancelled")
        queue.add(b"x", id=f"{name}-next", priority=99)
        call = claim_calls.claim(name, 1, 1, 0, 1, claim_ms=seconds * 1000)
        queue._run(call)


def adopted(queue: Queue, write: str, rows: list[Any], keep_for_ms: int = 60_000) -> Staged:
    """Stage rows and adopt them, so that they can be committed."""
    staged = queue.write(write).stage(rows, partition=0, attempt=0)
    winners = [(f"{write}/0.0", staged.chunks)]
    queue._run(write_calls.adopt(write, "", 0, 0, winners, keep_for_ms=keep_for_ms))
    return staged


def populate_plainly(queue: Queue, clock: Clock) -> Held:
    """Leave plain jobs only, about which nothing is kept but their payloads."""
    queue.add(b"x", id="lapsing")
    queue.lease(3)
    queue.add_many([NewJob(b"x", id=id) for id in ("done", "spent", "back")])
    held = queue.lease_many(3, 3600)
    queue.add_many([NewJob(b"x", id=id) for id in ("ready", "last")])
    _open_reader(queue)
    clock.advance(3)
    return _held(queue, held)


def populate_with_successors(queue: Queue, clock: Clock) -> Held:
    """Leave plain jobs whose successors are of a group, which is not there yet."""
    jobs = [NewJob(b"x", id=id) for id in ("done", "spent", "back", "lapsing")]
    queue.add_many(jobs)
    held = queue.lease_many(3, 3600)
    queue.lease(3)
    queue.add_many(jobs, on_conflict="update", group="new", group_limit=1)
    _open_reader(queue)
    clock.advance(3)
    return _held(queue, held)


Fill: TypeAlias = Callable[[Queue, Clock], Held]
FRESH_MS = 600_000
_copies: dict[tuple[Fill, int], tuple[dict[str, bytes], Held, int]] = {}


def filled(behind: Behind, clock: Clock, fill: Fill = populate) -> Held:
    """Leave what `fill` leaves, and nothing else.

    It is filled once and then copied: that is one request, and filling is a hundred.
    """
    made = fill, clock.ms // FRESH_MS
    if made not in _copies:
        behind.queue.delete()
        held = fill(behind.queue, clock)
        dumps = {name: behind("DUMP", name) for name in NAMES}
        _copies[made] = {name: dump for name, dump in dumps.items() if dump}, held, clock.ms
        return held
    dumps, held, clock.ms = _copies[made]
    with behind.client.pipeline(transaction=False) as pipeline:
        pipeline.unlink(*behind.keys.values())
        for name, dump in dumps.items():
            command_on(pipeline, "RESTORE", behind.keys[name], 0, dump)
        pipeline.execute()
    return held


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
    NewJob(b"z", id="last", group="new", group_limit=1),
    NewJob(b"z", id="parked-0"),
    NewJob(b"z", id="parked-1", group="full", group_limit=2),
    NewJob(b"z", id="grouped", group="new"),
)
_GROUPED = (
    *_NEW,
    NewJob(b"x", group="full", group_limit=2),
    NewJob(b"x", id="parked-0", group="full"),
    NewJob(b"x", id="new", group="new", delay=0.5),
    NewJob(b"x", id="old", group="new"),
)
_FOLLOW_UP = Entry("-", b"x", True, 60, b"+500", pack(handler="h"))


_STANDING = ["ready", "later", "failed", "lapsing", "parked-0", "grouped-later", "alone"]
_STANDING += ["all/3", "all/8", "all/10", "all/4", "fast/1", "ending/0", "failed/0", "waiting/0"]
_STANDING += ["open/0", "open/1", "open/2"]
_COUNTED = {
    "all": (4, 1, 3, 2, 1, 1, 2),
    "full": (1, 0, 3, 1, *[0] * 3),
    "nobody": (1, 1, 1, *[0] * 4),
}


def _failures(held: Held) -> list[Failed]:
    return [Failed(lease.id, lease.token, b"+500", b"why", b"{}", b"-") for lease in held.values()]


CHANGES: dict[str, Callable[[Queue, Held], object]] = {
    "add": lambda queue, held: queue.add_many(_NEW),
    "add_grouped": lambda queue, held: queue.add_many(_GROUPED),
    "update": lambda queue, held: queue.add_many(_CHANGED, on_conflict="update"),
    "tick": lambda queue, held: queue._run(
        calls.tick("hourly", None, 1_700_000_000_000, [*queue._entries.many(_GROUPED)])
    ),
    "lease": lambda queue, held: queue.lease_many(
        3, 60, complete=[(held["done"], b"result"), *held.values()]
    ),
    "lease_failed": lambda queue, held: queue.lease_many(3, 60, failed=True),
    "complete": lambda queue, held: queue.complete_many(
        [(held["done"], b"result"), *held.values()]
    ),
    "complete_without_results": lambda queue, held: queue.complete_many(held.values()),
    "complete_by_force": lambda queue, held: queue._run(
        calls.complete([(id, "-", b"result") for id in _STANDING], force=True)
    ),
    "complete_and_add": lambda queue, held: queue.complete(held["done"], b"result", add=_NEW),
    "complete_and_add_grouped": lambda queue, held: queue.complete(
        held.get("ending/0", held["done"]), b"result", add=_GROUPED
    ),
    "retry": lambda queue, held: queue._run(calls.retry(_failures(held))),
    "fail": lambda queue, held: queue._run(calls.fail(_failures(held))),
    "release": lambda queue, held: queue.release_many(held.values()),
    "release_lapsed": lambda queue, held: queue.release_many(held.values(), lapsed="crashed"),
    "release_later": lambda queue, held: queue.release_many(
        held.values(), lapsed="crashed", after=0.5
    ),
    "extend": lambda queue, held: queue.extend_many(held.values(), 7200),
    "cancel": lambda queue, held: queue._run(
        calls.cancel(["done", "replaced", "nobody", *_STANDING])
    ),
    "cancel_matching": lambda queue, held: queue.cancel_matching(b"x"),
    "revive": lambda queue, held: queue._run(
        calls.revive(["failed", "ready", "nobody", "all/3", "failed/0"])
    ),
    "set_result": lambda queue, held: queue._run(calls.set_result("done", b"result")),
    "set_result_of_a_part": lambda queue, held: queue._run(calls.set_result("all/11", b"result")),
    "fail_worker": lambda queue, held: queue.fail_worker(held["done"]),
    "register": lambda queue, held: queue.register(queues=["some"]),
    "tidy": lambda queue, held: queue.tidy(force=True, failed_longer_than=0),
    "repair": lambda queue, held: queue.repair(),
    "recount": lambda queue, held: queue._run(request_calls.recount(held.stamp, _COUNTED)),
    "open_request": lambda queue, held: queue._run(
        request_calls.open_request("new", limit=1, open_for_ms=500, follow_up=_FOLLOW_UP)
    ),
    "open_request_again": lambda queue, held: queue._run(
        request_calls.open_request("all", open_for_ms=500)
    ),
    "add_parts": lambda queue, held: queue._run(request_calls.add_parts("open", 1, [b"x"] * 9)),
    "add_first_parts": lambda queue, held: queue._run(
        request_calls.add_parts("done", None, [b"x" * 100], options=pack(handler="h"))
    ),
    "add_parts_later": lambda queue, held: queue._run(
        request_calls.add_parts("all", None, [b"x"] * 2, priority=90, due=b"+500")
    ),
    "seal": lambda queue, held: queue._run(request_calls.change_request("done", seal=True)),
    "stop": lambda queue, held: queue._run(request_calls.change_request("all", cancel=True)),
    "stop_at_once": lambda queue, held: queue._run(
        request_calls.change_request("open", cancel=True)
    ),
    "set_limit": lambda queue, held: queue._run(request_calls.change_request("all", limit=b"9")),
    "set_no_limit": lambda queue, held: queue._run(
        request_calls.change_request("full", limit=b"-", group=True)
    ),
    "hold_up": lambda queue, held: queue._run(request_calls.change_request("open", limit=b"0")),
    "set_priority": lambda queue, held: queue._run(
        request_calls.change_request("open", priority=99)
    ),
    "stage": lambda queue, held: queue.write("new").stage(_NEW, partition=0, attempt=0),
    "adopt": lambda queue, held: queue._run(
        write_calls.adopt(
            "new",
            "stream",
            1,
            0,
            [("fresh/0.0", 1)] if held.writes else [],
            keep_for_ms=1000,
            requests=["open"] if held.writes else [],
        )
    ),
    "adopt_instead": lambda queue, held: queue._run(
        write_calls.adopt(
            "adopted", "", 0, 0, [("fresh/0.0", 1)] if held.writes else [], keep_for_ms=1000
        )
    ),
    "commit": lambda queue, held: queue._run(
        write_calls.commit("adopted", "stream", 1, int(held.writes), keep_for_ms=1000)
    ),
    "commit_nothing": lambda queue, held: queue._run(
        write_calls.commit("new", "", 0, 0, keep_for_ms=1000)
    ),
    "publish": lambda queue, held: queue.publish(),
    "abort": lambda queue, held: queue._run(
        write_calls.abort([f"{name}/0.0" for name in ("fresh", "adopted", "committed", "nobody")])
    ),
    "open_reader": lambda queue, held: queue.reader("steady").open(),
    "claim": lambda queue, held: queue._run(
        claim_calls.claim("steady", 1, 1, 1, 5, claim_ms=1000, seal=True)
    ),
    "claim_again": lambda queue, held: queue._run(
        claim_calls.claim("steady", 1, 0, 0, 5, claim_ms=1000)
    ),
    "renew_claims": lambda queue, held: queue.reader("steady", epoch=1).renew(claim_for=9),
    "settle_claims": lambda queue, held: queue._run(claim_calls.settle_claims("steady", 1, 1)),
    "return_claim": lambda queue, held: queue._run(claim_calls.return_claim("steady", 1, 0)),
    "pause": lambda queue, held: queue.pause(),
    "resume": lambda queue, held: queue.resume(),
    "delete": lambda queue, held: queue.delete(),
}
"""What changes a queue, each doing as much as it can to a populated one."""


class _CaughtError(Exception):
    def __init__(self, call: Call[Any]) -> None:
        self.call = call


class _Catching(Queue):
    def _run(self, call: Call[Any], of: str = "") -> Any:
        raise _CaughtError(call)


def function_of(kind: str, queue: Queue, held: Held) -> Function:
    return call_of(lambda queue: CHANGES[kind](queue, held), queue).function


def call_of(ask: Callable[[Queue], object], queue: Queue) -> Call[Any]:
    """Return the first call that a method of a queue makes, without making it."""
    try:
        ask(_Catching(queue.name, queue.server))
    except _CaughtError as caught:
        return caught.call
    raise AssertionError("no call was made")


class _DiedError(BaseException):
    pass


def ends_within(queue: Queue, most: int, act: Callable[[], object]) -> bool:
    """Let a client die after so many calls of what it does; return whether it ended before."""
    made = count()
    run = queue._run

    def run_or_die(call: Call[Any], of: str = "") -> Any:
        if next(made) >= most:
            raise _DiedError
        return run(call, of)

    with patch.object(queue, "_run", run_or_die):
        try:
            act()
        except _DiedError:
            return False
    return True
