"""What happens between a queue and its server: lost scripts, lost connections, noes, secrets."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import select
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
import redis

import holdfast
from engine_support import Behind, own_server, take
from faults.shells import SHELLS, Shell
from holdfast import (
    AsyncQueue,
    AsyncServer,
    HoldfastError,
    InvalidArgument,
    NewJob,
    Queue,
    Server,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.codec import MAX_PAYLOAD_BYTES
from holdfast.connection import protocol, retries
from holdfast.connection.address import Address
from holdfast.connection.protocol import check_health
from holdfast.connection.server import Link, Sent
from holdfast.engine import calls
from holdfast.engine.call import Call
from holdfast.server.health import read_health
from support import (
    DEADLINE,
    TestServer,
    command_on,
    is_redis_7_0,
    kill_connections,
    wait_until,
    with_login,
)

SECRET = "hunter2-$ecret"
IN_URL = "hunter2-%24ecret"


@pytest.fixture(scope="module")
def own() -> Iterator[TestServer]:
    """A server on a port, with a password where a test sets one."""
    with own_server(tcp=True) as server:
        yield server


@pytest.fixture
def locked(own: TestServer) -> Iterator[TestServer]:
    """A server that wants a password."""
    with own.client() as client:
        client.config_set("requirepass", SECRET)
        yield own
        command_on(client, "AUTH", SECRET)
        client.config_set("requirepass", "")


async def _use(queue: AsyncQueue, ask: Callable[[AsyncQueue], Any]) -> Any:
    try:
        return await ask(queue)
    finally:
        await queue.close()


def in_both_shells(url: str, patience: float, ask: Callable[[Any], Any]) -> list[HoldfastError]:
    """Ask the same of both shells, and return the errors."""
    errors = []
    with Queue("q", Server(url, patience=patience)) as queue:
        try:
            ask(queue)
        except HoldfastError as error:
            errors.append(error)
    queue_of_loop = AsyncQueue("q", AsyncServer(url, patience=patience))
    try:
        asyncio.run(_use(queue_of_loop, ask))
    except HoldfastError as error:
        errors.append(error)
    assert len(errors) == 2
    return errors


# --------------------------------------------------------------------- lost scripts


def test_a_server_that_lost_the_scripts_is_given_them_again(
    queue: Queue, client: redis.Redis
) -> None:
    def flushed() -> Queue:
        client.script_flush()
        return queue

    flushed().add(b"x", id="a")
    lease = take(flushed())
    flushed().extend(lease, 60)
    flushed().release(lease)
    assert flushed().lease_many(1, 30, wait=1)[0].lapses == 0
    flushed().pause()
    flushed().resume()
    assert flushed().complete("a", force=True, add=[b"follow-up"])
    flushed().tidy()
    assert flushed().counts().ready == 1
    assert flushed().audit() == []
    flushed().delete()


def test_a_server_that_lost_the_scripts_while_a_client_slept_is_given_them_again(
    queue: Queue, client: redis.Redis
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.lease, 30, wait=DEADLINE)
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "a sleeper")
        queue.add(b"x")
        client.script_flush()
        lease = waiting.result(DEADLINE)
    assert lease is not None
    assert lease.data == b"x"


# ------------------------------------------------------------------ lost connections


def test_a_connection_killed_between_two_calls_is_replaced(
    queue: Queue, client: redis.Redis
) -> None:
    for n in range(5):
        queue.add(b"%d" % n)
        kill_connections(client)
        lease = take(queue)
        assert (lease.data, lease.lapses) == (b"%d" % n, 0)
        kill_connections(client)
        assert queue.complete(lease)


def test_a_connection_killed_between_two_calls_of_an_event_loop_is_replaced(
    test_server: TestServer, queue_name: str, client: redis.Redis
) -> None:
    async def main() -> None:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            for n in range(5):
                await queue.add(b"%d" % n)
                kill_connections(client)
                lease = await queue.lease(60)
                assert lease is not None
                assert (lease.data, lease.lapses) == (b"%d" % n, 0)
                kill_connections(client)
                assert await queue.complete(lease)
            await queue.delete()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_one_event_loop_after_the_other_can_use_a_queue(
    test_server: TestServer, queue_name: str
) -> None:
    queue = AsyncQueue(queue_name, AsyncServer(test_server.url, patience=0))
    asyncio.run(queue.add(b"x"))
    with asyncio.Runner() as runner:
        assert runner.run(queue.counts()).ready == 1
        gc.collect()  # What the first loop left behind, which was not told to close.
        with asyncio.Runner() as other:
            other.run(queue.delete())
            assert runner.run(queue.counts()).ready == 0
        runner.run(queue.close())


def test_two_event_loops_at_once_are_told_to_have_a_queue_each(
    test_server: TestServer, queue_name: str
) -> None:
    async def main() -> None:
        async with AsyncQueue(queue_name, test_server.url) as queue:
            await queue.counts()
            with pytest.raises(InvalidArgument, match="in each loop"):
                await asyncio.to_thread(lambda: asyncio.run(queue.counts()))
            assert (await queue.counts()).ready == 0

    asyncio.run(main())


def test_a_connection_killed_while_the_client_sleeps_is_replaced(
    queue: Queue, client: redis.Redis
) -> None:
    def asleep() -> bool:
        return int(client.info("clients")["blocked_clients"]) == 1

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.lease, 30, wait=DEADLINE)
        wait_until(asleep, "a sleeper")
        kill_connections(client)
        wait_until(asleep, "a sleeper again")
        queue.add(b"x")
        lease = waiting.result(DEADLINE)
    assert lease is not None
    assert (lease.data, lease.lapses) == (b"x", 0)


@contextmanager
def slow_way_to(server: TestServer, directory: Path) -> Iterator[str]:
    """Lead to a server by a way on which a payload takes a while, though it never stops."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "slow"))
    listener.listen()

    def carry() -> None:
        client, _ = listener.accept()
        with client, socket.socket(socket.AF_UNIX) as end:
            end.connect(str(server.socket))
            while ready := select.select([client, end], [], [])[0]:
                for one in ready:
                    some = one.recv(1 << 16)
                    if not some:
                        return
                    (client if one is end else end).sendall(some)
                    time.sleep(0.03 if len(some) == 1 << 16 else 0)

    carrier = threading.Thread(target=carry)
    carrier.start()
    with listener:
        yield f"unix://{directory}/slow"
        carrier.join(DEADLINE)


@pytest.mark.parametrize("shell", SHELLS)
def test_what_takes_long_to_send_is_waited_for_as_long_as_something_is_taken(
    test_server: TestServer, queue_name: str, tmp_path: Path, shell: Shell
) -> None:
    payload = b"x" * MAX_PAYLOAD_BYTES  # At 64 KiB in 30 ms, longer than a reply may take.

    async def add(url: str) -> None:
        server = AsyncServer(url, patience=0, reply_within=2)
        async with AsyncQueue(queue_name, server) as queue:
            assert await queue.add(payload)

    with slow_way_to(test_server, tmp_path) as url:
        if shell == "AsyncQueue":
            asyncio.run(add(url))
        else:
            with Queue(queue_name, Server(url, patience=0, reply_within=2)) as queue:
                assert queue.add(payload)
    with Queue(queue_name, test_server.url) as queue:
        assert queue.counts().ready == 1
        queue.delete()


T = TypeVar("T")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def sent_by(queue: Queue, call: Call[T]) -> Sent[T]:
    return queue.server.send(queue._packer, call)


def steps_of(act: Callable[[], object]) -> int:
    """Return how many functions of ours run in this thread."""
    home = str(Path(holdfast.__file__).parent)
    ran: list[str] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(home):
            ran.append(frame.f_code.co_name)

    sys.setprofile(follow)
    try:
        act()
    finally:
        sys.setprofile(None)
    return len(ran)


def test_calls_on_an_open_connection_take_few_steps(
    test_server: TestServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "away", {})  # Another test's server may be away.
    with Queue(queue_name, test_server.url) as queue:
        queue.add_many([b"x"] * 3)
        first = queue.lease(60)
        assert first
        queue.complete(first)
        second = queue.lease(60)
        assert second
        sent_by(queue, calls.counts()).result()
        assert steps_of(lambda: queue.add(b"x")) <= 16
        assert steps_of(lambda: queue.lease(60)) <= 28
        assert steps_of(lambda: queue.complete(second)) <= 20
        assert steps_of(lambda: sent_by(queue, calls.counts()).result()) <= 14
        queue.delete()


def test_an_answer_can_be_read_later(queue: Queue) -> None:
    queue.counts()  # Now the server has the script.
    first, second = sent_by(queue, calls.counts()), sent_by(queue, calls.counts())
    for sent in (first, second):
        assert select.select([sent], [], [], DEADLINE)[0], "no answer came"
    queue.add(b"x")
    assert second.result().ready == 0
    assert sent_by(queue, calls.counts()).result().ready == 1
    assert first.result().ready == 0


def test_an_answer_that_is_lost_while_nobody_reads_it_is_asked_for_again(
    queue: Queue, client: redis.Redis
) -> None:
    assert queue.lease(30) is None  # Now the server has the script.
    queue.add(b"x", id="a")
    sent = sent_by(queue, calls.lease("holder.1", 30_000, 1))
    wait_until(lambda: queue.counts().leased == 1, "it to be leased")
    kill_connections(client)
    assert [lease.id for lease in sent.result().leases] == ["a"]
    assert queue.counts().leased == 1


@pytest.mark.parametrize("listens", [True, False])
def test_only_who_listens_for_work_has_longer_for_its_reply(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """Who may not listen sleeps first, and then asks."""
    limits: list[float] = []
    limit = Link.limit

    def note(link: Link, seconds: float) -> None:
        limits.append(seconds)
        limit(link, seconds)

    queue.counts()
    monkeypatch.setattr(queue.server, "_listens", listens)
    monkeypatch.setattr(Link, "limit", note)
    assert queue.lease(30, wait=0.05) is None
    usual = queue.server._reply_seconds
    assert (max(limits) > usual) is listens
    assert limits[-1] == usual


def test_a_call_that_is_cut_while_it_is_sent_is_sent_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add(b"x")
    real, cut = Link.send, [True]

    def send(self: Link, packed: bytes) -> None:
        if cut:
            cut.clear()
            raise ConnectionResetError("it is cut")
        real(self, packed)

    monkeypatch.setattr(Link, "send", send)
    sent = sent_by(queue, calls.counts())
    assert select.select([sent], [], [], DEADLINE)[0], "no answer came"
    assert sent.result().ready == 1
    assert not cut


def test_an_answer_that_nobody_wants_is_not_taken_for_that_of_the_next_call(queue: Queue) -> None:
    queue.add(b"x")
    sent_by(queue, calls.totals()).forget()
    assert queue.counts().ready == 1


def test_a_call_that_cannot_be_sent_says_so_when_it_is_sent() -> None:
    server = Server("redis://127.0.0.1:1", patience=0)
    with Queue("q", server) as queue, pytest.raises(ServerUnavailable):
        sent_by(queue, calls.counts())


def test_a_restart_between_two_calls_loses_nothing() -> None:
    with own_server(*DURABLE) as server, Queue("q", server.url) as queue:
        queue.add(b"1", id="a")
        queue.add(b"2", id="b", delay=3600)
        lease = take(queue, 60)
        server.kill()
        server.start()
        assert queue.complete(lease)
        assert not queue.add(b"", id="b")
        assert queue.counts().delayed == 1
        assert queue.audit() == []


def test_a_call_made_while_the_server_is_away_is_answered_when_it_is_back() -> None:
    with (
        own_server(*DURABLE) as server,
        Queue("q", server.url) as queue,
        ThreadPoolExecutor(2) as threads,
    ):
        queue.add(b"before")
        server.kill()
        calls = [threads.submit(queue.add, b"x", id="away") for _ in range(2)]
        server.start()
        assert sorted(bool(call.result(DEADLINE)) for call in calls) == [False, True]
        assert queue.counts().ready == 2


def test_a_call_made_while_the_server_is_busy_is_answered_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        own_server("--busy-reply-threshold", "10") as server,
        server.client() as client,
        Queue("q", server.url) as queue,
        ThreadPoolExecutor(1) as threads,
    ):
        queue.add(b"before")
        met = []
        after_refusal = retries.Tries.after_refusal

        def free_the_server(tries: retries.Tries, before: object, reply: Any, *node: Any) -> float:
            met.append(protocol.word_of(reply))
            with suppress(redis.ResponseError):  # It may be free already.
                client.script_kill()
            return after_refusal(tries, before, reply, *node)

        def run_for_ever() -> None:
            with server.client() as other, pytest.raises(redis.RedisError):
                other.eval("while true do end", 0)

        def is_busy() -> bool:
            try:
                return not client.ping()
            except redis.RedisError as error:
                return "BUSY" in str(error)

        running = threads.submit(run_for_ever)
        wait_until(is_busy, "a busy server")
        monkeypatch.setattr(retries.Tries, "after_refusal", free_the_server)
        assert queue.add(b"x")
        assert set(met) == {"BUSY"}
        running.result(DEADLINE)
        assert queue.counts().ready == 2


# ------------------------------------------------------------------ nobody is there


def test_where_nothing_listens_the_server_is_unavailable(own: TestServer) -> None:
    with own_server(tcp=True) as gone:
        url = gone.url
    for address in (url, f"unix://{own.directory}/nothing", f"unix://{own.directory}/log"):
        for error in in_both_shells(address, 0.02, lambda queue: queue.add(b"")):
            assert isinstance(error, ServerUnavailable)
            assert "Nothing was changed" in str(error)


def test_without_patience_there_is_one_try(own: TestServer) -> None:
    for error in in_both_shells(f"unix://{own.directory}/nothing", 0, lambda q: q.counts()):
        assert isinstance(error, ServerUnavailable)


def test_what_a_cancelled_call_cannot_give_back_is_said_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        server = AsyncServer("redis://127.0.0.1:1", patience=2)
        async with AsyncQueue("q", server) as queue:
            task = asyncio.create_task(queue.lease(30))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gc.collect()

    asyncio.run(main())
    (said,) = (text for text in caplog.messages if "trying again" not in text)
    assert "left to lapse: redis://127.0.0.1" in said


@pytest.mark.parametrize("sent", [False, True])
def test_what_was_sent_minutes_ago_is_not_sent_again(sent: bool) -> None:
    """The server may have forgotten that it knows it. What was never sent has all the patience."""
    begun = time.time() - retries.FORGOTTEN_SECONDS - 1
    tries = retries.Tries("there", 3600, calls.resume(), begun=begun)
    if sent:
        with pytest.raises(ServerUnavailable, match="unknown"):
            tries.after_loss(ConnectionResetError(), sent=True)
    else:
        assert tries.after_loss(ConnectionRefusedError(), sent=False) > 0


def test_who_listens_to_nobody_is_told_so(own: TestServer) -> None:
    server = Server(f"unix://{own.directory}/nothing", patience=0)
    with Queue("q", server) as queue, pytest.raises(ServerUnavailable), queue.events():
        pass


# ------------------------------------------------------------------------ its noes


def test_a_read_only_replica_refuses_to_change_anything() -> None:
    with own_server() as server, server.client() as client, Queue("q", server.url) as queue:
        queue.add(b"x", id="a")
        before = Behind(client, queue).everything()
        command_on(client, "REPLICAOF", "127.0.0.1", "1")
        for call in (
            lambda: queue.add(b""),
            lambda: queue.lease(30),
            lambda: queue.complete("a", force=True),
            queue.tidy,
            queue.pause,
            queue.delete,
        ):
            with pytest.raises(ServerRefused, match="primary") as refused:
                call()
            assert refused.value.word == "READONLY"
        assert queue.counts().ready == 1
        assert Behind(client, queue).everything() == before
        command_on(client, "REPLICAOF", "NO", "ONE")
        assert queue.complete("a", force=True)


@pytest.mark.parametrize("login", [":wrong-$ecret", "nobody:wrong-$ecret", "default:"])
def test_a_wrong_password_is_refused(locked: TestServer, login: str) -> None:
    for error in in_both_shells(with_login(locked.url, login), 1, lambda q: q.add(b"")):
        assert isinstance(error, ServerRefused)
        assert error.word in ("WRONGPASS", "NOAUTH")
        assert "password" in str(error)


def test_no_password_is_refused_where_one_is_wanted(locked: TestServer) -> None:
    for error in in_both_shells(locked.url, 1, lambda q: q.add(b"")):
        assert isinstance(error, ServerRefused)
        assert error.word == "NOAUTH"


def test_the_right_password_is_let_in(locked: TestServer) -> None:
    for login in (f":{IN_URL}", f"default:{IN_URL}"):
        with Queue("q", with_login(locked.url, login)) as queue:
            assert queue.add(b"")
            queue.delete()
        url = with_login(locked.url, login)
        assert asyncio.run(_use(AsyncQueue("q", url), lambda q: q.add(b"")))


def test_a_database_that_is_not_there_is_refused(own: TestServer) -> None:
    for error in in_both_shells(f"{own.url}/99", 1, lambda q: q.add(b"")):
        assert isinstance(error, ServerRefused)


def test_databases_are_kept_apart(own: TestServer) -> None:
    with Queue("d", f"{own.url}/0") as zero, Queue("d", f"{own.url}/3") as three:
        three.add(b"x")
        assert (zero.counts().ready, three.counts().ready) == (0, 1)
        three.delete()


# --------------------------------------------------------------------- its password


def all_that_is_said(error: BaseException) -> str:
    said = [repr(error), str(error), "".join(traceback.format_exception(error))]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join([*said, *([all_that_is_said(cause)] if cause else [])])


def test_the_password_is_said_nowhere(
    own: TestServer, locked: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    right = with_login(own.url, f"default:{IN_URL}")
    with own_server(tcp=True) as other:
        gone = other.url
    urls = [
        right,
        f"{right}/99",
        with_login(own.url, f"nobody:{IN_URL}"),
        with_login(gone, f"default:{IN_URL}"),
        with_login(f"unix://{own.directory}/nothing", f"default:{IN_URL}"),
    ]
    said = []
    for url in urls:
        for server in (Server(url, patience=0.02), AsyncServer(url, patience=0.02)):
            said += [repr(server), str(server), str(server.address), repr(server.address)]
        with Queue("q", Server(url, patience=0.02)) as queue:
            said += [repr(queue), str(queue)]
            try:
                queue.add(b"", id="a")
            except HoldfastError as error:
                said.append(all_that_is_said(error))
        loop_queue = AsyncQueue("q", AsyncServer(url, patience=0.02))
        said += [repr(loop_queue), str(loop_queue)]
        try:
            asyncio.run(_use(loop_queue, lambda q: q.add(b"", id="a")))
        except HoldfastError as error:
            said.append(all_that_is_said(error))
    for broken in (
        f"redis://default:{IN_URL}@host:port",
        f"redis://default:{IN_URL}@host/zero",
        f"redis://default:{IN_URL}@host?colour=red",
        f"http://default:{IN_URL}@host",
        f"default:{IN_URL}@host",
        f"redis://default:{IN_URL}@[::1",
        f"unix://default:{IN_URL}@",
        f"redis://default:{SECRET}#@host:1",
        f"redis://default:{SECRET}/@host:1",
    ):
        try:
            said.append(repr(Server(broken)))
        except HoldfastError as error:
            said.append(all_that_is_said(error))
    assert len(said) > 50
    for text in (*said, caplog.text):
        assert "hunter2" not in text
        assert SECRET not in text
        assert IN_URL not in text


def test_that_it_is_away_is_told_soon_and_not_by_every_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connection.retries.TELL_AFTER_SECONDS", 0.1)

    def call() -> list[str]:
        with pytest.raises(ServerUnavailable):
            queue.counts()
        return warnings_in(caplog)

    with Queue("q", Server(f"unix://{tmp_path}/nobody", patience=0.5)) as queue:
        wait_until(call, "a call that was held up by nothing but the server")
        (said,) = call()
    assert "nobody: [Errno 2] No such file or directory; trying again for" in said


# ------------------------------------------------------------------------ its health


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("holdfast.connection.")
    ]


@pytest.fixture
def not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was warned yet, about any server."""
    monkeypatch.setattr("holdfast.connection.conversation._warned", set())


@pytest.mark.usefixtures("not_warned")
def test_what_may_cost_jobs_is_said_once_per_server_not_per_call(
    own: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        with Queue("q", own.url) as queue:
            for _ in range(3):
                queue.add(b"")
                kill_connections(client)
            another = Queue("another", queue.server)
            another.counts()
            eviction, persistence = warnings_in(caplog)
            assert "allkeys-lru" in eviction
            assert "noeviction" in eviction
            assert "appendonly" in persistence
            queue.delete()
        caplog.clear()
        client.config_set("maxmemory-policy", "noeviction")
        with Queue("q", own.url) as queue:
            queue.counts()
        assert warnings_in(caplog) == []


def test_a_durable_server_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    if is_redis_7_0():
        pytest.skip("everybody is warned of Redis 7.0")
    with own_server("--appendonly", "yes") as server, Queue("q", server.url) as queue:
        queue.add(b"")
    assert warnings_in(caplog) == []


@pytest.mark.usefixtures("not_warned")
def test_many_first_calls_at_once_warn_once(
    own: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncQueue("q", own.url) as queue:
            await asyncio.gather(*(queue.counts() for _ in range(8)))

    asyncio.run(main())
    assert len(warnings_in(caplog)) == 1


INFO = "# Server\r\n{}\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"


@pytest.mark.parametrize(
    "version",
    [
        "redis_version:7.2.4\r\nvalkey_version:8.0.0",
        "redis_version:7.2.4\r\nvalkey_version:9.1.2",
        "redis_version:7.0.0",
        "redis_version:7.4.0-v1",
        "redis_version:8.2.1",
        "redis_version:255.255.255",
        "redis_version:10.0.0",
    ],
)
def test_a_server_that_is_new_enough_is_taken(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_health("here", INFO.format(version).encode())
    assert warnings_in(caplog) == []


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("redis_version:6.2.14", "Redis 6.2.14"),
        ("redis_version:5.0.0", "Redis 5.0.0"),
        ("redis_version:7.2.4\r\nvalkey_version:7.2.9", "Valkey 7.2.9"),
        ("redis_version:", "Redis"),
        ("nothing:here", "Redis"),
    ],
)
def test_a_server_that_is_too_old_is_refused(version: str, named: str) -> None:
    with pytest.raises(UnsupportedServer, match=rf"here is {named}.* needs Valkey 8.0 or Redis 7"):
        check_health("here", INFO.format(version).encode())


def test_a_server_that_may_not_be_asked_is_taken_on_trust(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_health("here", redis.ResponseError("NOPERM"))
    assert warnings_in(caplog) == []


def test_health_is_what_the_server_says() -> None:
    info = b"redis_version:7.2.4\r\nmaxmemory_policy:volatile-lru\r\naof_enabled:0\r\n"
    health = read_health(info)
    assert (health.product, health.version) == ("Redis", (7, 2, 4))
    assert len(health.warnings()) == 2
    assert read_health(b"").warnings() == []


# ----------------------------------------------------------------------------- threads


def test_threads_share_a_queue_and_nothing_is_lost_or_doubled(live_queue: Queue) -> None:
    threads_, rounds = 16, 40
    added: list[str] = []
    completed: list[str] = []
    begin = threading.Barrier(threads_)

    def work(number: int) -> None:
        dice = random.Random(number)
        held: list[Any] = []
        begin.wait()
        for n in range(rounds):
            id = f"{number}-{n}"
            assert live_queue.add(id.encode(), id=id, priority=dice.randrange(100))
            added.append(id)
            many = [NewJob(b"%d-%d-%d" % (number, n, m), id=f"{id}-{m}") for m in range(2)]
            assert all(live_queue.add_many(many))
            added.extend(f"{id}-{m}" for m in range(2))
            done, held = held, []
            leases = live_queue.lease_many(dice.randrange(1, 6), 60, complete=done)
            assert leases.completed == [True] * len(done)
            completed.extend(lease.id for lease in done)
            for lease in leases:
                assert lease.data.decode() == lease.id
                match dice.randrange(4):
                    case 0:
                        assert live_queue.complete(lease)
                        completed.append(lease.id)
                    case 1:
                        live_queue.release(lease)
                    case 2:
                        live_queue.extend(lease, 60)
                        held.append(lease)
                    case _:
                        held.append(lease)
        live_queue.release_many(held)

    with ThreadPoolExecutor(threads_) as threads:
        for future in [threads.submit(work, number) for number in range(threads_)]:
            future.result(DEADLINE)
    waiting = []
    while leases := live_queue.lease_many(1000, 60):
        waiting += [lease.id for lease in leases]
        assert all(lease.lapses == 0 for lease in leases)
    assert Counter(completed + waiting) == Counter(added)


def test_a_closed_queue_can_be_used_again(queue: Queue, test_server: TestServer) -> None:
    with Queue(queue.name, test_server.url) as other:
        other.add(b"x")
    other.add(b"y")
    assert other.counts().ready == 2
    other.close()
    other.close()


def test_an_address_is_shown_without_its_password() -> None:
    address = Address(host="host", user="me", password=SECRET)
    assert str(address) == "redis://me:***@host:6379/0"
    assert SECRET not in repr(address)
