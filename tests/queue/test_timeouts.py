"""A server that says nothing is noticed within `reply_within`, whoever keeps the timeout."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from engine_support import own_server
from holdfast import Queue, Server, ServerUnavailable
from holdfast.codec import MAX_PAYLOAD_BYTES
from holdfast.connection import server as connection
from support import DEADLINE, TestServer, wait_until

BRIEFLY = 0.3
HOUR = 3600.0

needs_kernel = pytest.mark.skipif(
    not connection.KERNEL_TIMEOUTS, reason="the kernel keeps no timeouts here"
)


@pytest.fixture(params=["kernel", "Python"])
def keeper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who keeps the timeouts."""
    if request.param == "Python":
        monkeypatch.setattr(connection, "KERNEL_TIMEOUTS", False)
    elif not connection.KERNEL_TIMEOUTS:
        pytest.skip("the kernel keeps no timeouts here")
    keeper: str = request.param
    return keeper


@pytest.fixture(params=[True, False], ids=["TCP", "unix socket"])
def server(request: pytest.FixtureRequest) -> Iterator[TestServer]:
    with own_server(tcp=request.param) as server:
        yield server


def warm(url: str, reply_within: float) -> Queue:
    """Return a queue with an open connection, whose calls are made once."""
    queue = Queue("q", Server(url, patience=0, reply_within=reply_within))
    wait_until(lambda: adds(queue))  # A slow machine is not a silent server.
    return queue


def adds(queue: Queue) -> bool:
    with suppress(ServerUnavailable):
        queue.add(b"x")
        return True
    return False


def socket_of(queue: Queue) -> socket.socket:
    [caller] = queue.server.session._idle
    assert caller.link
    return caller.link._socket


@pytest.mark.parametrize("payload", [b"x", b"x" * MAX_PAYLOAD_BYTES], ids=["short", "long"])
def test_a_server_that_falls_silent_is_noticed(
    server: TestServer, keeper: str, payload: bytes
) -> None:
    """The long one is cut while it is sent, as the server reads nothing."""
    with warm(server.url, BRIEFLY) as queue:
        assert (socket_of(queue).gettimeout() is None) is (keeper == "kernel")
        server.freeze()
        with pytest.raises(ServerUnavailable, match=r": no answer in time\. "):
            queue.add(payload)
        server.thaw()
        wait_until(lambda: adds(queue))


def test_a_server_that_is_silent_from_the_first_is_noticed(server: TestServer, keeper: str) -> None:
    assert keeper
    server.freeze()
    with (
        Queue("q", Server(server.url, patience=0, reply_within=BRIEFLY)) as queue,
        pytest.raises(ServerUnavailable, match=r": no answer in time\. Nothing was changed"),
    ):
        queue.add(b"x")
    server.thaw()


@needs_kernel
def test_the_timeout_of_a_wait_is_longer_and_then_as_before(server: TestServer) -> None:
    with warm(server.url, 7) as queue:
        opened = socket_of(queue)
        assert seconds_of(opened) == [7, 7]
        queue.lease(60)
        waiting = threading.Thread(target=lambda: queue.lease(1, wait=DEADLINE))
        waiting.start()
        wait_until(lambda: min(seconds_of(opened)) > 7, "it to wait")
        adds(queue)
        waiting.join(DEADLINE)
        assert seconds_of(opened) == [7, 7]


def seconds_of(opened: socket.socket) -> list[float]:
    """Return the kernel's timeouts of a socket."""
    found = []
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        raw = opened.getsockopt(socket.SOL_SOCKET, option, 16)
        whole, micro = (int.from_bytes(half, "little") for half in (raw[:8], raw[8:]))
        found.append(whole + micro / 1_000_000)
    return found


class Alarm(Exception):
    pass


@contextmanager
def alarm(handle: Callable[..., object], first: float, then: float = 0) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, first, then)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_raises_ends_a_call(server: TestServer, keeper: str) -> None:
    def ring(*_: object) -> None:
        raise Alarm

    assert keeper
    with warm(server.url, HOUR) as queue:
        server.freeze()
        with pytest.raises(Alarm), alarm(ring, BRIEFLY):
            queue.add(b"x")
        server.thaw()
        assert queue.counts().ready in (1, 2)  # Its answer is not taken for that of this call.


def test_a_signal_handler_that_returns_does_not(server: TestServer, keeper: str) -> None:
    rung: list[float] = []
    assert keeper
    with warm(server.url, HOUR) as queue:
        server.freeze()

        def thaw() -> None:
            wait_until(lambda: len(rung) > 3, "signals")
            server.thaw()

        thawing = threading.Thread(target=thaw)
        thawing.start()
        with alarm(lambda *_: rung.append(time.monotonic()), 0.05, 0.05):
            assert queue.add(b"x")
        thawing.join(DEADLINE)
        assert queue.counts().ready == 2
