"""One connection to a server, for an event loop: `sockets.py` as an asyncio protocol."""

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
"""What waits here to be read, about: who is slow to take events leaves the rest to the server."""


class AsyncLink(asyncio.Protocol):
    """One connection: bytes out, replies in. Any trouble with it is an OSError."""

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
        """Log in, and send our names; what comes of those is read with the next reply."""
        self._introduction = introduction
        self._unheard = greeting.names
        self._transport.write(greeting.packed)
        for _ in range(greeting.must):
            if isinstance(reply := await self._read_first(), hiredis.ReplyError):
                raise protocol.refusal(reply)

    async def send(self, packed: bytes) -> None:
        """Send a command; its reply is read later."""
        self._transport.write(packed)

    async def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply; an error reply is returned, not raised."""
        self._transport.write(packed)
        return await self.read()

    async def ask_both(
        self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1
    ) -> tuple[Any, Any]:
        """Send two commands at once, of which the first may take `wait` seconds.

        Where the first is several, `ahead` of them, it is the reply to the first of those.
        """
        self._transport.write(first + second)
        before = await self.read(wait + self._reply_seconds)
        for _ in range(ahead - 1):
            await self.read()
        return before, await self.read()

    async def read(self, seconds: float | None = None) -> Any:
        """Return the next reply; as long as something is taken or arrives, it is waited for."""
        if self._unheard and (refused := await self._hear_names(seconds)):
            return refused  # The server turns us away: that is all that comes.
        return await self._read(seconds)

    async def settle(self) -> None:
        """Read the answers to our names, so that the next thing to be read is what was asked."""
        if refused := await self._hear_names():
            raise protocol.refusal(refused)

    async def _hear_names(self, seconds: float | None = None) -> hiredis.ReplyError | None:
        """Read what came of our names; return why the server turns us away, if it does."""
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
        """Return the next reply, or None when there is none in time."""
        try:
            return await self.read(seconds)
        except TimeoutError:
            return None

    def limit(self, seconds: float) -> None:
        """Wait so long for each reply from now on."""
        self._reply_seconds = seconds

    async def show_life(self) -> None:
        """Have an answer, soon, or else an OSError: it was lost before."""
        self._transport.write(protocol.PING)
        await self.read(FIND_SECONDS)

    def close(self) -> None:
        """Close at once; what is under way is lost."""
        self._transport.abort()


async def open_link(
    address: Address,
    path: str,
    login: Login,
    introduction: protocol.Introduction,
    reply_seconds: float,
    connect_seconds: float,
) -> AsyncLink:
    """Connect and introduce ourselves."""
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
