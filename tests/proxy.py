"""A bad connection on purpose: a TCP proxy before a server, told what to do to each request.

A request is one command of a client, together with the BLPOP or FUNCTION LOAD that it sent right
before it. Each request, on whatever connection it comes, takes the next step of the plan; when
the plan is used up, requests pass. So does the name by which a client introduces itself.
The proxy knows where a request and its reply end, and so can cut exactly between what the server
did and what the client hears of it.

It runs in a thread of its own, on an ephemeral port of 127.0.0.1, from `with` to its end.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

MAX_CONNECTIONS = 64
MAX_SECONDS = 30.0
DRIPS = 16
DRIP_SECONDS = 0.001
TRICKLE_SECONDS = 0.08

_LEADING = (
    b"BLPOP",
    b"FUNCTION",
    b"SCRIPT",
)  # What a client sends before the command that it goes with.
_NAMES = b"CLIENT"  # How it introduces itself, before its first request or with it.


class Kind(Enum):
    """What happens to one request."""

    PASS = "it and its reply go through"
    CUT_REQUEST = "both sides are closed before the server has it"
    CUT_REPLY = "both sides are closed after the server did it, before the client has the reply"
    GARBLE = "the server does it, and the client gets something that is no reply"
    DRIP = "the server gets it slowly, a few bytes at a time"
    TRICKLE = "the client gets its reply slowly, a few bytes at a time"
    HOLD = "the server does it, the client gets no reply, and nothing is closed"
    HALF_OPEN = "the server does not get it, and nothing is closed"
    LATE = "the client's side is closed, and the server gets it when the test says so"


@dataclass(frozen=True)
class Step:
    """What to do to one request."""

    kind: Kind
    keep: float = 0
    """Of a cut: what still gets through. An int is bytes, negative from the end; else a share."""
    during: Callable[[], object] | None = None
    """Called when the request has been dealt with, before the proxy waits for the reply."""
    after: Callable[[], object] | None = None
    """Called when the server has answered, before the client hears of it."""

    def kept(self, data: bytes) -> bytes:
        if isinstance(self.keep, int):
            return data[: self.keep]
        return data[: int(len(data) * self.keep)]


PASS = Step(Kind.PASS)
GARBLE = Step(Kind.GARBLE)
DRIP = Step(Kind.DRIP)
TRICKLE = Step(Kind.TRICKLE)
HOLD = Step(Kind.HOLD)
HALF_OPEN = Step(Kind.HALF_OPEN)
LATE = Step(Kind.LATE)


def cut_request(keep: float = 0) -> Step:
    return Step(Kind.CUT_REQUEST, keep)


def cut_reply(keep: float = 0) -> Step:
    return Step(Kind.CUT_REPLY, keep)


class Frames:
    """Cuts a stream of the protocol into whole commands, or whole replies."""

    def __init__(self) -> None:
        self._stream = bytearray()

    def feed(self, data: bytes) -> None:
        self._stream += data

    def has_one(self) -> bool:
        return _end_of_frame(self._stream, 0) is not None

    def take(self) -> bytes | None:
        """Return the next frame, or None when it is not all there."""
        end = _end_of_frame(self._stream, 0)
        if end is None:
            return None
        frame = bytes(self._stream[:end])
        del self._stream[:end]
        return frame


def _end_of_frame(stream: bytearray, at: int) -> int | None:
    line = stream.find(b"\r\n", at)
    if line < 0:
        return None
    kind, end = bytes(stream[at : at + 1]), line + 2
    if kind not in (b"$", b"*"):
        return end
    size = int(stream[at + 1 : line])
    if kind == b"$":
        end += size + 2 if size >= 0 else 0
        return end if end <= len(stream) else None
    for _ in range(size):
        inner = _end_of_frame(stream, end)
        if inner is None:
            return None
        end = inner
    return end


def _command_of(frame: bytes) -> bytes:
    return frame.split(b"\r\n", 3)[2].upper()


class Side:
    """One of the two connections that the proxy stands between."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._frames = Frames()
        self.is_lent = False
        """It has a late request to carry, and outlives the other side."""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, data)

    async def send_slowly(self, data: bytes, pause: float) -> None:
        size = -(-len(data) // DRIPS)
        for start in range(0, len(data), size):
            await self.send(data[start : start + size])
            await asyncio.sleep(pause)

    async def frame(self) -> bytes:
        """Return the next frame; EOFError when this side was closed."""
        while (frame := self._frames.take()) is None:
            self._frames.feed(await self._receive())
        return frame

    async def ready(self) -> None:
        """Wait until a frame is there, and leave it. Whoever cancels this loses nothing."""
        while not self._frames.has_one():
            await self._readable()
            data = self._connection.recv(65536)
            if not data:
                raise EOFError
            self._frames.feed(data)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._connection, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._connection)

    async def request(self) -> list[bytes]:
        """Return the commands up to the one that the leading ones go with."""
        commands = [await self.frame()]
        while _command_of(commands[-1]) in _LEADING:
            commands.append(await self.frame())
        return commands

    async def replies(self, number: int) -> bytes:
        return b"".join([await self.frame() for _ in range(number)])

    async def swallow(self) -> None:
        """Take what comes, until this side is closed."""
        while True:
            await self._receive()

    async def _receive(self) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._connection, 65536)
        if not data:
            raise EOFError
        return data

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Late:
    """A request that is still on its way, though its client has given it up."""

    server: Side
    commands: list[bytes]


class Proxy:
    """A proxy before the server that listens on a unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: Iterator[Step] = iter(())
        self._connections: set[asyncio.Task[None]] = set()
        self._late: deque[Late] = deque()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self.made: list[Kind] = []
        """What was done since the last plan, other than to let requests pass."""
        self.requests = 0
        """How many requests came since the last plan."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread.start()
        assert self._listening.wait(MAX_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(MAX_SECONDS)
        assert not self._thread.is_alive(), "the proxy did not end"

    def plan(self, steps: Iterable[Step] = ()) -> None:
        """Say what to do to the requests from now on; those beyond the plan pass."""
        self.made = []
        self.requests = 0
        self._steps = iter(steps)

    def cut_all(self) -> None:
        """Close every connection, as a firewall does to idle ones, and forget late requests."""
        self._wait_for(self._cut_all())

    def deliver_late(self) -> bytes:
        """Let the server have the oldest late request, and return what it answers."""
        return self._wait_for(self._deliver(self._late.popleft()))

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(MAX_SECONDS)

    # ------------------------------------------------------- in the proxy's thread

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._listener.setblocking(False)
        accepting = asyncio.create_task(self._accept())
        self._listening.set()
        await self._stopped.wait()
        accepting.cancel()
        await asyncio.wait([accepting])
        self._listener.close()
        await self._cut_all()

    async def _accept(self) -> None:
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._connections) >= MAX_CONNECTIONS:
                client.close()
                continue
            connection = asyncio.create_task(self._connect(Side(client)))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _cut_all(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        while self._late:
            self._late.popleft().server.close()

    async def _connect(self, client: Side) -> None:
        server = None
        try:
            server = await self._open_server()
            await self._serve(client, server)
        except (OSError, EOFError):
            pass  # One side hung up: so do we, on both.
        finally:
            client.close()
            if server is not None and not server.is_lent:
                server.close()

    async def _open_server(self) -> Side:
        connection = socket.socket(socket.AF_UNIX)
        server = Side(connection)
        try:
            await self._loop.sock_connect(connection, str(self._path))
        except BaseException:
            server.close()
            raise
        return server

    async def _serve(self, client: Side, server: Side) -> None:
        named = 0  # Names that the server has not answered yet.
        while True:
            commands = await self._request(client, server, named)
            if commands is None:
                await client.send(await server.frame())
                named -= 1
                continue
            if _command_of(commands[0]) == _NAMES:
                await server.send(b"".join(commands))
                named += len(commands)
                continue
            for _ in range(named):
                commands.insert(0, b"")  # Their answers come first.
            named = 0
            self.requests += 1
            step = next(self._steps, PASS)
            if step.kind is not Kind.PASS:
                self.made.append(step.kind)
            if not await self._do(step, commands, client, server):
                return

    async def _request(self, client: Side, server: Side, named: int) -> list[bytes] | None:
        """Return the next request, or None when the server answers to a name before it."""
        if not named:
            return await client.request()
        asking = asyncio.create_task(client.ready())
        answering = asyncio.create_task(server.ready())
        try:
            await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
                return await client.request()
            answering.result()
            return None
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.wait({asking, answering})

    async def _do(self, step: Step, commands: list[bytes], client: Side, server: Side) -> bool:
        """Take one step; False when both sides shall be closed."""
        request = b"".join(commands)
        match step.kind:
            case Kind.CUT_REQUEST:
                await server.send(step.kept(request))
            case Kind.DRIP:
                await server.send_slowly(request, DRIP_SECONDS)
            case Kind.LATE:
                server.is_lent = True
                self._late.append(Late(server, commands))
            case Kind.PASS | Kind.CUT_REPLY | Kind.GARBLE | Kind.HOLD | Kind.TRICKLE:
                await server.send(request)
        if step.during:
            step.during()
        if step.kind in (Kind.CUT_REQUEST, Kind.LATE):
            return False
        if step.kind is Kind.HALF_OPEN:
            await client.swallow()
        reply = await server.replies(len(commands))
        if step.after:
            step.after()
        match step.kind:
            case Kind.CUT_REPLY:
                await client.send(step.kept(reply))
                return False
            case Kind.GARBLE:
                await client.send(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return False
            case Kind.HOLD:
                await client.swallow()
            case Kind.TRICKLE:
                await client.send_slowly(reply, TRICKLE_SECONDS)
            case _:
                await client.send(reply)
        return True

    async def _deliver(self, late: Late) -> bytes:
        try:
            await late.server.send(b"".join(late.commands))
            return await late.server.replies(len(late.commands))
        finally:
            late.server.close()
