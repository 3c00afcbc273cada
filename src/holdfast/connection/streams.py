"""An asyncio connection to a server: `sockets.py` as an asyncio protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import hiredis

from holdfast.connection import protocol
from holdfast.connection.address import Address
from holdfast.connection.credentials import Login
from holdfast.connection.sockets import explained, unspoken
from holdfast.connection.topology import FIND_SECONDS

MOST_REPLIES: Final = 1000
"""About how many unread replies are buffered. A slow reader of events leaves the rest to the
server."""


class AsyncLink(asyncio.Protocol):
    """A connection that sends bytes and reads replies. Its failures are OSErrors."""

    def __init__(self, address: Address, reply_seconds: float) -> None:
        self._address = address
        self._reply_seconds = reply_seconds
        self._reader = hiredis.Reader()
        self._replies: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._lost: OSError | None = None
        self._introduction: protocol.Introduction
        self._unheard: tuple[bytes, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._replies.append(reply)
        except hiredis.ProtocolError as error:
            try:
                self._replies.append(protocol.misread(self._address, data, error))
            except ConnectionResetError as lost:
                self._lost = lost
            self._transport.abort()
        if len(self._replies) > MOST_REPLIES:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        if self._lost is None:
            lost = ConnectionResetError("the server closed the connection")
            self._lost = exc if isinstance(exc, OSError) else lost
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def introduce(
        self, introduction: protocol.Introduction, greeting: protocol.Greeting
    ) -> None:
        """Log in, and send the client names, whose replies are read with the next reply."""
        self._introduction = introduction
        self._unheard = greeting.names
        self._transport.write(greeting.packed)
        for _ in range(greeting.must):
            if isinstance(reply := await self._read_first(), hiredis.ReplyError):
                raise protocol.refusal(reply)

    async def send(self, packed: bytes) -> None:
        """Send a command without reading its reply."""
        self._transport.write(packed)

    async def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""
        self._transport.write(packed)
        return await self.read()

    async def ask_both(
        self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1
    ) -> tuple[Any, Any]:
        """Send two commands at once. The first may take `wait` seconds.

        `first` may contain `ahead` commands; then only the reply to the first of them is returned.
        """
        self._transport.write(first + second)
        before = await self.read(wait + self._reply_seconds)
        for _ in range(ahead - 1):
            await self.read()
        return before, await self.read()

    async def read(self, seconds: float | None = None) -> Any:
        """Return the next reply. The timeout starts again while data is being sent."""
        if self._unheard and (refused := await self._hear_names(seconds)):
            return refused  # The connection was rejected: no reply follows.
        return await self._read(seconds)

    async def settle(self) -> None:
        """Read the replies to the client names, so that the next reply is that of the call."""
        if refused := await self._hear_names():
            raise protocol.refusal(refused)

    async def _hear_names(self, seconds: float | None = None) -> hiredis.ReplyError | None:
        """Read the replies to the client names. Return an error that rejects the connection."""
        while self._unheard:
            name, *others = self._unheard
            if not self._introduction.hear(name, reply := await self._read_first(seconds)):
                refused: hiredis.ReplyError = reply
                return refused
            self._unheard = tuple(others)
        return None

    async def _read_first(self, seconds: float | None = None) -> Any:
        try:
            return await self._read(seconds)
        except OSError as error:
            raise unspoken(error, self._address) from None

    async def _read(self, seconds: float | None = None) -> Any:
        while not self._replies:
            if self._lost is not None:
                raise self._lost
            self._transport.resume_reading()
            unsent = self._transport.get_write_buffer_size()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(self._reply_seconds if seconds is None else seconds):
                    await self._waiter
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= unsent:
                    raise
        return self._replies.popleft()

    async def read_within(self, seconds: float) -> Any:
        """Return the next reply, or None after a timeout."""
        try:
            return await self.read(seconds)
        except TimeoutError:
            return None

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""
        self._reply_seconds = seconds

    async def show_life(self) -> None:
        """Ping a server that was lost before; raise OSError if it does not answer soon."""
        self._transport.write(protocol.PING)
        await self.read(FIND_SECONDS)

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""
        self._transport.abort()


async def open_link(
    address: Address,
    path: str,
    login: Login,
    introduction: protocol.Introduction,
    reply_seconds: float,
    connect_seconds: float,
) -> AsyncLink:
    """Connect and log in."""
    loop = asyncio.get_running_loop()
    link = AsyncLink(address, reply_seconds)
    try:
        async with asyncio.timeout(connect_seconds):
            if path:
                await loop.create_unix_connection(lambda: link, path)
            else:
                tls = address.tls_context() if address.tls else None
                await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
    except OSError as error:
        raise explained(error, address, connect_seconds) from None
    try:
        await link.introduce(introduction, introduction.pack(login, address.db))
    except BaseException:
        link.close()
        raise
    return link
