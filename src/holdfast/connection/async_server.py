"""Servers for asyncio: awaits the steps of conversations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from holdfast.connection import credentials as logins
from holdfast.connection import protocol
from holdfast.connection.address import Address, Node
from holdfast.connection.conversation import Conversations, Steps, Subscription
from holdfast.connection.server import embedded_path
from holdfast.connection.session import Caller
from holdfast.connection.streams import AsyncLink, open_link
from holdfast.engine.call import Call
from holdfast.errors import InvalidArgument

T = TypeVar("T")

log = logging.getLogger("holdfast")


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
        try:
            answer = await carry_out(self._converse(caller, packer, call, now, call.wait))
        except asyncio.CancelledError:
            if call.undo is None:
                self.session.give_caller(caller)
            else:
                self._later(self._undo(caller, packer, call, now))
            raise
        except BaseException:
            self.session.give_caller(caller)
            raise
        self.session.give_caller(caller)
        return answer

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
            answer = await carry_out(self._converse(caller, packer, call, now, 0))
        finally:
            self.session.give_caller(caller)
        undo = call.undo(answer)
        if undo is not None:
            await self.run(packer, undo, now)

    # -------------------------------------------------------------------------- steps

    async def _open(self, address: Address, path: str, reply: float, connect: float) -> AsyncLink:
        try:
            async with asyncio.timeout(connect):
                login = await logins.async_login(address, self.settings.credentials)
        except TimeoutError:
            raise TimeoutError(f"there were no credentials within {connect:.3g} s") from None
        return await open_link(address, path, login, self._introduction, reply, connect)

    async def _start(self, seconds: float) -> str:
        assert self._embedded
        starting = asyncio.create_task(asyncio.to_thread(embedded_path, self._embedded, seconds))
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
