"""Servers for asyncio: makes calls, and carries out conversations, in an event loop.

Also the connection on which it does so, an asyncio protocol.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar, cast

import hiredis

from holdfast.connection import protocol
from holdfast.connection.address import Address, Login, Node, no_credentials, read_password
from holdfast.connection.conversation import Caller, Conversations, Steps, Subscription, Tried
from holdfast.connection.server import explained, unspoken
from holdfast.engine.call import Call
from holdfast.errors import InvalidArgument
from holdfast.escaping import logger

T = TypeVar("T")

log = logger(__name__)

MOST_REPLIES: Final = 1000
"""About how many unread replies are buffered. A slow reader of events leaves the rest to the
server."""


class AsyncLink(asyncio.Protocol):
    """A connection that sends bytes and reads replies. Its failures are OSErrors."""

    def __init__(
        self, address: Address, introduction: protocol.Introduction, reply_seconds: float
    ) -> None:
        self._address = address
        self._introduction = introduction
        self._unheard: list[bytes] = []
        self._reply_seconds = reply_seconds
        self._reader = hiredis.Reader()
        self._replies: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self._lost: OSError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.Transport", transport)  # That of uvloop is no subclass.

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

    async def introduce(self, login: Login) -> None:
        """Log in, and send the client names, whose replies are read with the next reply."""
        greeting, must, names = self._introduction.pack(login, self._address.db)
        self._transport.write(greeting)
        try:
            for _ in range(must):
                if isinstance(reply := await self.read(), hiredis.ReplyError):
                    raise protocol.refusal(reply)
        except OSError as error:
            raise unspoken(error, self._address) from None
        self._unheard = names

    async def send(self, packed: bytes) -> None:
        """Send commands without reading their replies."""
        self._transport.write(packed)

    async def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""
        self._transport.write(packed)
        return await self.read()

    async def read(self) -> Any:
        """Return the next reply. The timeout starts again while data is being sent."""
        if self._unheard and (refused := await self.settle()):
            return refused  # No reply follows.
        while not self._replies:
            if self._lost is not None:
                raise self._lost
            self._transport.resume_reading()
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            unsent = self._transport.get_write_buffer_size()
            timer = loop.call_later(self._reply_seconds, self._stop_waiting, unsent)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self._replies.popleft()

    def _stop_waiting(self, unsent: int) -> None:
        """End the wait for a reply with an error, or restart it if data was sent meanwhile."""
        if self._transport.get_write_buffer_size() < unsent:
            self._wake()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    async def settle(self) -> hiredis.ReplyError | None:
        """Read the replies to the client names, so that the next reply is that of the call.

        Returns an error reply if the server rejected the connection, else None.
        """
        names, self._unheard = self._unheard, []
        try:
            for name in names:
                if not self._introduction.hear(name, reply := await self.read()):
                    refused: hiredis.ReplyError = reply
                    return refused
        except OSError as error:
            raise unspoken(error, self._address) from None
        return None

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""
        self._reply_seconds = seconds

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""
        self._transport.abort()


class AsyncServer(Conversations[AsyncLink]):
    """A Redis or Valkey server, a cluster, or a primary watched by Sentinels, for one event loop.

    For the arguments see `Server`. The `credentials` function may be async; a plain function runs
    in a thread.
    """

    async def run(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> T:
        """Make a call to the server and return its result.

        Retries for `patience` seconds, then raises `ServerUnavailable`. If the task is cancelled
        meanwhile, jobs that the call may have leased are released.
        """
        self._enter_loop()
        caller = self.session.take_caller()
        caller.number += 1
        cancelled = False
        try:
            return await self._run(caller, packer, call, now, call.wait)
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            if cancelled and call.undo is not None:
                self._later(self._undo(caller, packer, call, now))
            else:
                self.session.give_caller(caller)

    async def _run(
        self,
        caller: Caller[AsyncLink],
        packer: protocol.Packer,
        call: Call[T],
        now: bytes,
        wait: float = 0,
    ) -> T:
        tried = None
        if link := self.warm_link(caller, packer.slot, call):
            begun, since = time.time(), time.monotonic()
            try:
                reply = await link.ask(packer.pack(call, now, caller.name, caller.number))
            except OSError as error:
                reply = error
            except BaseException:
                caller.drop()
                raise
            if not isinstance(reply, Exception):
                return call.read(reply)
            tried = Tried(begun, since, reply)
        return await carry_out(self.converse(caller, packer, call, now, tried, wait=wait))

    @asynccontextmanager
    async def subscribe(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Listen to events of queues until none arrives for `idle` seconds. Reconnects by itself.

        One connection is enough: a cluster forwards published messages to all its nodes.
        """
        subscription = Subscription(self, queues, idle)
        try:
            await carry_out(subscription.begin())  # Before the block begins.
            async with aclosing(_messages(subscription)) as messages:
                yield messages
        finally:
            subscription.close()

    async def queues(self) -> list[str]:
        """Return the names of the queues on this server, or on all primaries of a cluster.

        Scans all keys of the database in small steps, so that other clients are not held up. Queues
        that were never used or were deleted are not listed. A queue whose slot is being migrated
        may be missed.
        """
        return await carry_out(self._queues())

    async def primaries(self) -> Sequence[Node | None]:
        """Return the servers that hold queues; None stands for a single server."""
        return await carry_out(self._primaries())

    async def where(self, slot: int) -> Node:
        """Return the node that serves a slot; raise OSError or ServerRefused on failure."""
        return await carry_out(self._where(slot))

    async def connect(self, slot: int) -> AsyncLink:
        """Connect to the server of a slot; raise OSError or ServerRefused on failure."""
        return await carry_out(self._connecting(slot))

    async def connect_to(self, node: Node | None) -> AsyncLink:
        """Connect to a node; None stands for a single server."""
        return await carry_out(self._connect_to(node))

    async def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        self._enter_loop()
        if self.session.undoing:
            await asyncio.wait(self.session.undoing)
        for caller in self.session.take_callers():
            caller.close()
        if self._embedded:
            self._embedded.leave()

    # ----------------------------------------------------------------- event loops, tasks

    def _enter_loop(self) -> None:
        """Drop connections of an earlier event loop; refuse use in two running loops."""
        loop, last = asyncio.get_running_loop(), self.session.loop
        if loop is last:
            return
        if last is not None and last.is_running():
            raise InvalidArgument(
                f"{self!r} is in use by another event loop: make a queue, or an AsyncServer, in "
                "each loop"
            )
        for caller in self.session.take_callers():
            if last is not None and not last.is_closed():
                caller.close()
        self.session.undoing.clear()
        self.session.loop = loop

    @asynccontextmanager
    async def _undone_by(
        self, undo: Callable[[], Coroutine[Any, Any, object] | None]
    ) -> AsyncIterator[None]:
        """If its task is cancelled, undo in the background what a block has done."""
        try:
            yield
        except asyncio.CancelledError:
            if (undoing := undo()) is not None:
                self._later(undoing)
            raise

    def _later(self, undoing: Coroutine[Any, Any, object]) -> None:
        """Run the undoing of a cancelled call in the background."""
        task = asyncio.create_task(undoing)
        self.session.undoing.add(task)
        task.add_done_callback(self._undone)

    def _undone(self, task: asyncio.Task[object]) -> None:
        self.session.undoing.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%r: leases of a cancelled call are left to lapse: %s", self, error)

    async def _undo(
        self, caller: Caller[AsyncLink], packer: protocol.Packer, call: Call[T], now: bytes
    ) -> None:
        """Repeat a cancelled call to learn its answer, and release what it leased."""
        assert call.undo is not None
        try:
            answer = await self._run(caller, packer, call, now)
        finally:
            self.session.give_caller(caller)
        undo = call.undo(answer)
        if undo is not None:
            await self.run(packer, undo, now)

    # -------------------------------------------------------------------------- steps

    async def _open(self, address: Address, path: str, reply: float, connect: float) -> AsyncLink:
        try:
            async with asyncio.timeout(connect):
                login = await self._login(address)
        except TimeoutError:
            raise TimeoutError(f"there were no credentials within {connect:.3g} s") from None
        loop = asyncio.get_running_loop()
        link = AsyncLink(address, self._introduction, reply)
        try:
            async with asyncio.timeout(connect):
                if path:
                    await loop.create_unix_connection(lambda: link, path)
                else:
                    tls = address.tls_context() if address.tls else None
                    await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
        except OSError as error:
            raise explained(error, address, connect) from None
        try:
            await link.introduce(login)
        except BaseException:
            link.close()
            raise
        return link

    async def _login(self, address: Address) -> Login:
        """Return the login for a new connection. What may block runs in a thread."""
        credentials = self.settings.credentials
        if credentials is None or address.is_sentinel or address.embedded:
            if address.password_file:
                return address.user, await asyncio.to_thread(read_password, address.password_file)
            return address.user, address.password
        try:
            if inspect.iscoroutinefunction(credentials):
                said: Any = await credentials()
            else:
                said = await asyncio.to_thread(credentials)
                if inspect.isawaitable(said):
                    said = await said
        except Exception as error:
            raise no_credentials(error) from error
        return address.login_from(said)

    async def _start(self, seconds: float) -> str:
        starting = asyncio.create_task(asyncio.to_thread(super()._start, seconds))
        self.session.undoing.add(starting)  # It continues if the call is cancelled; `close` waits.
        starting.add_done_callback(self.session.undoing.discard)
        return await asyncio.shield(starting)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def carry_out(steps: Steps[T]) -> T:
    """Carry out the steps of a conversation and return its result."""
    try:
        step = steps.send(None)
        while True:
            try:
                answer = await step[0](*step[1:])
            except BaseException as error:  # noqa: BLE001  # The steps handle it, even a cancellation.
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        found: T = done.value
        return found
    finally:
        steps.close()


async def _messages(subscription: Subscription[AsyncLink]) -> AsyncGenerator[bytes, None]:
    while (message := await carry_out(subscription.next())) is not None:
        yield message


@asynccontextmanager
async def repeat(
    seconds: float, act: Callable[[], Awaitable[object]], name: str
) -> AsyncIterator[None]:
    """Call `act` every `seconds` until the block ends. Exceptions are logged."""

    async def go_on() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await act()
            except Exception:
                log.exception("could not %s; trying again", name)

    task = asyncio.create_task(go_on(), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
