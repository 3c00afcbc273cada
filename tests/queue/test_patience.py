"""With a short patience a call ends soon, wherever the server does not answer.

What is usually waited for is an hour here, so that a test ends only if patience is honoured.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from engine_support import own_server
from faults.shells import SHELLS, Shell, open_queue
from holdfast import AsyncQueue, AsyncServer, Queue, Server, ServerUnavailable
from holdfast.connection import retries
from holdfast.connection.conversation import LEAST_SECONDS
from support import DEADLINE, TestServer, wait_until

BRIEFLY = 0.3
HOUR = 3600.0


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Shell:
    shell: Shell = request.param
    return shell


@pytest.fixture(autouse=True)
def for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all wait for an hour who do not know about patience."""
    for name in ("CONNECT", "REPLY", "FIND", "OTHERS", "START"):
        monkeypatch.setattr(f"holdfast.connection.conversation.{name}_SECONDS", HOUR)


@pytest.fixture
def server() -> Iterator[TestServer]:
    with own_server(tcp=True) as server:
        yield server


def gives_up(queue: Queue) -> str:
    with pytest.raises(ServerUnavailable) as raised:
        queue.add(b"x", id="a")
    return str(raised.value)


def test_a_server_that_does_not_answer_any_more(shell: Shell, server: TestServer) -> None:
    with open_queue(shell, "q", server.url, patience=BRIEFLY) as queue:

        def adds(id: str) -> bool:
            with suppress(ServerUnavailable):  # A slow machine is not a silent server.
                queue.add(b"x", id=id)
                return True
            return False

        wait_until(lambda: adds("before"))
        server.freeze()
        assert "unknown: try again" in gives_up(queue)
        server.thaw()
        wait_until(lambda: adds("a"))
        assert [job.id for job in queue.peek(9)] == ["before", "a"]


def test_the_patience_of_a_call_begins_with_its_try_on_an_open_connection(
    shell: Shell, server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connection.retries.SPARE_SECONDS", HOUR)
    with open_queue(shell, "q", server.url, patience=BRIEFLY) as queue:

        def adds() -> bool:
            with suppress(ServerUnavailable):  # A slow machine is not a silent server.
                queue.add(b"x")
                return True
            return False

        wait_until(adds)
        kind = AsyncServer if shell == "AsyncQueue" else Server
        opened: list[object] = []

        def count(*about: Any) -> Any:
            opened.append(about)
            return open_link(*about)

        open_link = kind._open
        monkeypatch.setattr(kind, "_open", count)
        server.freeze()
        assert "unknown: try again" in gives_up(queue)
        assert not opened  # The try took longer than the patience, so there is no other.
        server.thaw()


def test_a_server_that_never_answered(shell: Shell, server: TestServer) -> None:
    server.freeze()
    with open_queue(shell, "q", server.url, patience=BRIEFLY) as queue:
        assert "no answer in time" in gives_up(queue)


def test_a_server_that_is_back_is_waited_for_as_before(shell: Shell, server: TestServer) -> None:
    """A connection that was opened in a hurry is not in a hurry for ever."""
    with open_queue(shell, "q", server.url, patience=HOUR) as queue:
        queue.add(b"x")
        server.kill()
        server.start()
        queue.add(b"x")
        inner: Any = queue
        inner = inner._thing if shell == "AsyncQueue" else inner
        (caller,) = inner.server.session.take_callers()
        assert caller.link._reply_seconds == HOUR
        caller.close()


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port whose host drops all that is sent to it, as a firewall does."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # Its backlog is full.
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_a_host_that_cannot_be_reached(shell: Shell, scheme: str) -> None:
    with (
        deaf_port() as port,
        open_queue(shell, "q", f"{scheme}://127.0.0.1:{port}", patience=BRIEFLY) as queue,
    ):
        assert "Nothing was changed" in gives_up(queue)


@pytest.mark.parametrize("url", ["redis+cluster://{0},{1}", "redis+sentinel://{0},{1}/mymaster"])
def test_several_that_do_not_answer(shell: Shell, server: TestServer, url: str) -> None:
    with own_server(tcp=True) as other:
        both = [f"127.0.0.1:{one.port}" for one in (server, other)]
        server.freeze()
        other.freeze()
        with open_queue(shell, "q", url.format(*both), patience=BRIEFLY) as queue:
            assert "Nothing was changed" in gives_up(queue)


@pytest.fixture
def silent_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Host names that are asked for; nobody answers until the test is over."""
    over, asked = threading.Event(), []
    real = socket.getaddrinfo

    def ask(host: Any, *args: Any, **options: Any) -> Any:
        if options.get("flags", 0) & socket.AI_NUMERICHOST or host != "silent.example":
            return real(host, *args, **options)
        asked.append(host)
        over.wait(DEADLINE)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield asked
    over.set()


def test_a_resolver_that_does_not_answer(silent_dns: list[str]) -> None:
    with Queue("q", Server("redis://silent.example", patience=BRIEFLY)) as queue:
        for _ in range(3):
            assert "'silent.example' was not resolved" in gives_up(queue)
    assert silent_dns == ["silent.example"]  # They all wait for one answer.


def test_a_resolver_that_does_not_answer_to_an_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async def ask(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(HOUR)

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", ask)
        queue = AsyncQueue("q", AsyncServer("redis://silent.example", patience=BRIEFLY))
        with pytest.raises(ServerUnavailable):
            await queue.add(b"x")
        await queue.close()

    asyncio.run(main())


def test_credentials_that_do_not_come(server: TestServer) -> None:
    async def token() -> str:
        await asyncio.sleep(HOUR)
        return "x"

    async def main() -> None:
        queue = AsyncQueue("q", AsyncServer(server.url, patience=BRIEFLY, credentials=token))
        with pytest.raises(ServerUnavailable, match="there were no credentials within"):
            await queue.add(b"x")
        await queue.close()

    asyncio.run(main())


def test_an_embedded_server_that_is_being_started(shell: Shell, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    with (directory / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open_queue(shell, "q", f"embedded://{directory}", patience=BRIEFLY) as queue:
            assert "is being started by another process" in gives_up(queue)


@pytest.mark.parametrize("kind", [Server, AsyncServer])
@pytest.mark.parametrize(
    ("url", "said", "seconds"),
    [
        ("redis://host", None, 15),
        ("redis://host?patience=1", None, 1),
        ("redis+cluster://a,b?patience=0.5", None, 0.5),
        ("unix:///s?patience=2", None, 2),
        ("embedded:///d?patience=2", None, 2),
        ("redis://host?patience=1", 7, 7),
        ("redis://host", 0, 0),
    ],
)
def test_patience_may_stand_in_the_url(
    kind: Callable[..., Any], url: str, said: float | None, seconds: float
) -> None:
    assert kind(url, patience=said)._patience == seconds


def test_a_step_takes_no_longer_than_there_is_patience() -> None:
    def step(patience: float, *step: float) -> float:
        return Server("redis://host", patience=patience)._step(*step)

    assert step(15, 5) == 5
    assert step(2, 5) == 2
    assert step(15, 5, 3) == 3
    assert step(15, 5, -1) == LEAST_SECONDS  # What is tried has a chance.
    assert step(0.1, 5) == LEAST_SECONDS
    assert step(0, 5) == 5  # One try, as long as it takes.


@pytest.mark.parametrize(("ago", "some"), [(0, True), (14, True), (16, False), (100, True)])
def test_a_process_that_was_stopped_did_not_use_up_its_patience(ago: float, some: bool) -> None:
    tries = retries.Tries("there", 15, since=time.monotonic() - ago)
    assert (tries.left > 0) is some


def test_a_reply_within_of_ones_own_is_not_cut_short(shell: Shell, server: TestServer) -> None:
    kind: Any = Server if shell == "Queue" else AsyncServer
    mine = kind(server.url, patience=BRIEFLY, reply_within=7)
    assert mine._reply_seconds == 7


def test_who_blocks_an_event_loop_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connection.conversation._warned", set())

    def call() -> list[str]:
        with Queue("q", Server("redis://127.0.0.1:1", patience=0.05)) as queue:
            gives_up(queue)
        return [text for text in caplog.messages if "use AsyncQueue" in text]

    async def main() -> None:
        wait_until(call, "a call that was held up by nothing but the server")
        assert len(call()) == 1

    assert call() == []
    asyncio.run(main())
