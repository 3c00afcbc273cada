"""Servers for an event loop: the steps of conversations are awaited."""

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
    """A Redis or Valkey server, or several that are one, for one event loop.

    For the arguments see `Server`. A `credentials` function may be async; a plain one runs in a
    thread.
    """

    async def run(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> T:
        """Carry a call to the server and bring back what it answers.

        Goes on trying for `patience` seconds, then raises `ServerUnavailable`. When the
        task is cancelled meanwhile, what the call may have taken is given back.
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
        """Listen to the events of queues until none came for `idle` seconds; reconnects by itself.

        One connection is enough: a cluster carries what is published on one node to all.
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

        Walks all keys of the database in small steps, which holds up no other client. A queue that
        was never used, or was deleted, has no name here; one whose slot moves may be missed.
        """
        return await carry_out(self._queues())

    async def primaries(self) -> Sequence[Node | None]:
        """Return the servers that have queues; None stands for the only one."""
        return await carry_out(self._primaries())

    async def where(self, slot: int) -> Node:
        """Return which of several servers has a slot; trouble is an OSError or a refusal."""
        return await carry_out(self._where(slot))

    async def connect(self, slot: int) -> AsyncLink:
        """Open a connection to the server of a slot; trouble is an OSError or a refusal."""
        return await carry_out(self.connecting(slot))

    async def connect_to(self, node: Node | None) -> AsyncLink:
        """Open a connection to one of several servers, or to the only one."""
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
        """Begin anew in another event loop, as connections cannot go over; refuse two at once."""
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
        """Undo what a block has done, in the background, if its task is cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            if (undoing := undo()) is not None:
                self._later(undoing)
            raise

    def _later(self, undoing: Coroutine[Any, Any, object]) -> None:
        """Give back, when there is time, what nobody is there any more to take."""
        task = asyncio.create_task(undoing)
        self.session.undoing.add(task)
        task.add_done_callback(self._undone)

    def _undone(self, task: asyncio.Task[object]) -> None:
        self.session.undoing.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%r: what a cancelled call may have taken lapses: %s", self, error)

    async def _undo(
        self, caller: Caller[AsyncLink], packer: protocol.Packer, call: Call[T], now: bytes
    ) -> None:
        """Learn what a cancelled call was answered, by asking it again, and give it back."""
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
        self.session.undoing.add(starting)  # Cancelled or not, it goes on: `close` waits for it.
        starting.add_done_callback(self.session.undoing.discard)
        return await asyncio.shield(starting)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def carry_out(steps: Steps[T]) -> T:
    """Carry out steps, and return what they come to."""
    try:
        step = steps.send(None)
        while True:
            try:
                answer = await step[0](*step[1:])
            except BaseException as error:  # noqa: BLE001  # It is theirs, also a cancellation.
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
    """Act every so many seconds until the block ends, whatever goes wrong meanwhile."""

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
