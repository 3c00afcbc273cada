"""The server as an event loop sees it: `server.py` with `await`, over `streams.py`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from holdfast.connection import credentials as logins
from holdfast.connection import protocol
from holdfast.connection.address import Address, Node, parse
from holdfast.connection.caller import Caller
from holdfast.connection.credentials import Credentials
from holdfast.connection.incarnation import Incarnation
from holdfast.connection.server import (
    FIND_LEAST_SECONDS,
    OTHERS_SECONDS,
    Changes,
    embedded_at,
    embedded_path,
    log,
    warn_once,
    with_last_words,
)
from holdfast.connection.settings import LEAST_SECONDS, Settings
from holdfast.connection.sockets import CONNECT_SECONDS, REPLY_SECONDS
from holdfast.connection.streams import AsyncLink, open_link
from holdfast.connection.topology import FIND_SECONDS, Finding, RoutedTries, topology_of
from holdfast.engine.call import Call
from holdfast.errors import InvalidArgument, ServerRefused
from holdfast.job import Duration
from holdfast.server.embedded import PATIENCE as START_SECONDS

if TYPE_CHECKING:
    from typing import Self, Unpack

    from holdfast.connection.server import Server

T = TypeVar("T")


class AsyncServer:
    """A Redis or Valkey server, or several that are one, for one event loop.

    For the arguments see `Server`. A `credentials` function may be async; a plain one runs in a
    thread.
    """

    def __init__(
        self,
        url: str | Address | None = None,
        *,
        patience: Duration | None = None,
        reply_within: Duration | None = None,
        credentials: Credentials | None = None,
        client_name: str | None = None,
    ) -> None:
        address = url if isinstance(url, Address) else parse(url)
        self.settings = Settings(address, patience, reply_within, credentials, client_name)
        self.address = self.settings.address
        self.incarnation: Incarnation[Caller[AsyncLink]] = Incarnation(Caller)
        self._patience = self.settings.patience_seconds
        self._embedded = embedded_at(self.address)
        self._topology = topology_of(self.address)
        self._renewable = logins.is_renewable(self.address, self.settings.credentials)
        self._introduction = protocol.Introduction(self.settings.client_name)
        self._copies = protocol.pack_copies(self.address.replicas, self._reply_seconds)
        self._unchecked = True
        self._listens = True  # False where this user may not: then it asks from time to time.
        self._undoing: set[asyncio.Task[object]] = set()

    @classmethod
    def like(cls, other: Server | AsyncServer, **changes: Unpack[Changes]) -> Self:
        """Return another client of the same server, with the same settings but for `changes`.

        It has a holder and connections of its own.
        """
        settings = replace(other.settings, **changes)
        return cls(
            settings.address,
            patience=settings.patience,
            reply_within=settings.reply_within,
            credentials=settings.credentials,
            client_name=settings.client_name,
        )

    def __repr__(self) -> str:
        return f"AsyncServer({str(self.address)!r})"

    async def run(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> T:
        """Carry a call to the server and bring back what it answers.

        Goes on trying for `patience` seconds, then raises `ServerUnavailable`. When the
        task is cancelled meanwhile, what the call may have taken is given back.
        """
        self._enter_loop()
        caller = self.incarnation.take_caller()
        caller.number += 1
        try:
            answer = await self._converse(caller, packer, call, now, call.wait)
        except asyncio.CancelledError:
            if call.undo is None:
                self.incarnation.give_caller(caller)
            else:
                self._later(self._undo(caller, packer, call, now))
            raise
        except BaseException:
            self.incarnation.give_caller(caller)
            raise
        self.incarnation.give_caller(caller)
        return answer

    def _enter_loop(self) -> None:
        """Begin anew in another event loop, as connections cannot go over; refuse two at once."""
        loop, last = asyncio.get_running_loop(), self.incarnation.loop
        if loop is last:
            return
        if last is not None and last.is_running():
            raise InvalidArgument(
                f"{self!r} is in use by another event loop: make a queue, or an AsyncServer, in "
                "each loop"
            )
        for caller in self.incarnation.take_callers():
            if last is not None and not last.is_closed():
                caller.close()
        self._undoing.clear()
        self.incarnation.loop = loop

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
        self._undoing.add(task)
        task.add_done_callback(self._undone)

    def _undone(self, task: asyncio.Task[object]) -> None:
        self._undoing.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%r: what a cancelled call may have taken lapses: %s", self, error)

    async def _converse(
        self,
        caller: Caller[AsyncLink],
        packer: protocol.Packer,
        call: Call[T],
        now: bytes,
        wait: float,
    ) -> T:
        packed = packer.pack(call, now, caller.name, caller.number)
        first = b""
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            await asyncio.sleep(wait)
        begun = time.time()
        # What waits for work is patient from the first trouble on.
        since = None if wait else time.monotonic()
        tries: protocol.Tries | None = None
        clean, ahead, copied = False, 1, False
        if self._copies and call.script.changes:
            packed, copied = packed + self._copies, True
        try:
            while True:
                clean = sent = False
                try:
                    if self._topology is None:
                        link = caller.link or await self._open_link(caller, tries)
                    else:
                        link = await self._turn(caller, packer.slot, tries)
                    if tries and self.settings.reply_within is None:
                        link.limit(self._step(self._reply_seconds, tries.left))
                    sent = True
                    if first:
                        before, reply = await link.ask_both(first, packed, wait, ahead)
                    else:
                        before, reply = None, await link.ask(packed)
                    replicas = await link.read() if copied else 0
                    clean = True
                except OSError as error:
                    caller.drop()
                    tries = tries or self._tries(packer.slot, call, begun, since=since)
                    if self._embedded and sent:
                        error = with_last_words(error, self._embedded)
                    pause = tries.after_loss(error, sent=sent, node=caller.node)
                except ServerRefused as error:
                    tries = tries or self._tries(packer.slot, call, begun, since=since)
                    pause = tries.after_no_entry(error, caller.node)
                else:
                    if isinstance(reply, hiredis.ReplyError):
                        if protocol.word_of(reply) in protocol.ELSEWHERE:
                            caller.drop()
                        tries = tries or self._tries(packer.slot, call, begun, since=since)
                        pause = tries.after_refusal(before, reply, caller.node)
                    elif copied and not protocol.are_enough(replicas, self.address.replicas):
                        tries = tries or self._tries(packer.slot, call, begun, since=since)
                        pause = tries.after_few_copies(replicas, self.address.replicas, caller.node)
                    else:
                        if wait and protocol.word_of(before) == "NOPERM":
                            self._listens = False
                        if tries:
                            link.limit(self._reply_seconds)
                        # Of several servers another one may have answered.
                        if protocol.away and (tries or self._topology is None):
                            protocol.note_back(self.address)
                        return call.read(reply)
                # A wake may have been heard already: ask at once.
                first, ahead, wait = tries.first, tries.ahead, 0
                await asyncio.sleep(pause)
        finally:
            if not clean:
                caller.drop()

    async def _undo(
        self, caller: Caller[AsyncLink], packer: protocol.Packer, call: Call[T], now: bytes
    ) -> None:
        """Learn what a cancelled call was answered, by asking it again, and give it back."""
        assert call.undo is not None
        try:
            answer = await self._converse(caller, packer, call, now, 0)
        finally:
            self.incarnation.give_caller(caller)
        undo = call.undo(answer)
        if undo is not None:
            await self.run(packer, undo, now)

    def _tries(self, slot: int, *about: Any, since: float | None = None) -> protocol.Tries:
        more: Any = {"since": since, "renewable": self._renewable}
        if self._topology is None:
            return protocol.Tries(self.address, self._patience, *about, **more)
        return RoutedTries(self._topology, slot, self.address, self._patience, *about, **more)

    @property
    def _reply_seconds(self) -> float:
        """How long a reply is waited for when a call has all of its patience."""
        if (said := self.settings.reply_seconds) is not None:
            return said
        return self._step(OTHERS_SECONDS if self._topology else REPLY_SECONDS)

    def _step(self, seconds: float, left: float | None = None) -> float:
        """Return how long a step of a call may take: no longer than there is patience left."""
        if not self._patience:
            return seconds
        return min(seconds, max(self._patience if left is None else left, LEAST_SECONDS))

    @asynccontextmanager
    async def subscribe(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Listen to the events of queues until none came for `idle` seconds; reconnects by itself.

        One connection is enough: a cluster carries what is published on one node to all.
        """
        async with aclosing(self._messages(queues, idle)) as messages:
            await anext(messages)  # Subscribed before the caller goes on.
            yield messages

    async def _messages(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> AsyncGenerator[bytes, None]:
        slot = queues[0].slot
        listen = protocol.pack(b"SUBSCRIBE", *(packer.events for packer in queues))
        quiet_at = time.monotonic() + idle
        tries: protocol.Tries | None = None
        begun = False
        while True:
            link = None
            try:
                link = await self.connect(slot)
                link.send(listen)
                for _ in queues:
                    if isinstance(reply := await link.read(), hiredis.ReplyError):
                        raise protocol.refusal(reply)
                tries = None
                if not begun:
                    begun = True
                    yield b""
                    quiet_at = time.monotonic() + idle
                asked = False
                while (left := quiet_at - time.monotonic()) > 0:
                    message = await link.read_within(min(left, REPLY_SECONDS))
                    if message is None and asked:
                        raise TimeoutError
                    asked = message is None
                    if asked:
                        link.send(protocol.pack(b"PING"))
                    elif isinstance(message, list) and message[0] == b"message":
                        yield message[2]
                        quiet_at = time.monotonic() + idle
                return
            except OSError as error:
                self.forget(slot)
                tries = tries or self._tries(slot)
                await asyncio.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(slot)
                tries = tries or self._tries(slot)
                await asyncio.sleep(tries.after_no_entry(error))
            finally:
                if link is not None:
                    link.close()

    async def queues(self) -> list[str]:
        """Return the names of the queues on this server, or on all primaries of a cluster.

        Walks all keys of the database, some at a time, so that nobody else waits. A queue that
        was never used, or was deleted, has none; one whose slot moves meanwhile may be missed.
        """
        tries: protocol.Tries | None = None
        while True:
            try:
                found: set[str] = set()
                for node in await self.primaries():
                    found |= await self._queues_at(node)
                return sorted(found)
            except OSError as error:
                self.forget(0)
                tries = tries or self._tries(0)
                await asyncio.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(0)
                tries = tries or self._tries(0)
                await asyncio.sleep(tries.after_no_entry(error))

    async def _queues_at(self, node: Node | None) -> set[str]:
        link = await self.connect_to(node)
        try:
            position, found = protocol.read_scan(await link.ask(protocol.pack_scan(b"0")))
            while position != b"0":
                position, some = protocol.read_scan(await link.ask(protocol.pack_scan(position)))
                found |= some
            return found
        finally:
            link.close()

    async def primaries(self) -> Sequence[Node | None]:
        """Return who has queues; None is the one server that there is."""
        if self._topology is None:
            return [None]
        found = self._topology.primaries()
        if found is None:
            await self._find(self._topology.find())
            found = self._topology.primaries()
        if found is None:
            raise ConnectionError("the servers are changing places")
        if not found:
            raise ServerRefused(
                "the cluster does not tell its nodes: this user needs +cluster|slots", "NOPERM"
            )
        return found

    async def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        self._enter_loop()
        if self._undoing:
            await asyncio.wait(self._undoing)
        for caller in self.incarnation.take_callers():
            caller.close()
        if self._embedded:
            self._embedded.leave()

    def forget(self, slot: int) -> None:
        """Ask who serves a slot before the next call, as a connection there was of no use."""
        if self._topology is not None:
            self._topology.forget(slot)

    async def _turn(
        self, caller: Caller[AsyncLink], slot: int, tries: protocol.Tries | None
    ) -> AsyncLink:
        """Return a caller's link to the one who serves a slot, or whom it shall ask this time."""
        left = tries.left if tries else None
        caller.turn_to((tries and tries.ask_at) or await self.where(slot, left))
        return caller.link or await self._open_link(caller, tries)

    async def where(self, slot: int, left: float | None = None) -> Node:
        """Return which of several servers has a slot; trouble is an OSError or a refusal."""
        assert self._topology is not None
        node = self._topology.where(slot)
        if node is None:
            await self._find(self._topology.find(), left)
            node = self._topology.where(slot)
        if node is None:
            raise ConnectionError("the servers are changing places")
        return node

    async def _find(self, finding: Finding, left: float | None = None) -> None:
        """Ask whom a topology wants asked."""
        until = time.monotonic() + self._step(math.inf, left)
        try:
            address, question = next(finding)
            while True:
                try:
                    seconds = min(FIND_SECONDS, max(until - time.monotonic(), FIND_LEAST_SECONDS))
                    reply = await self._ask_once(address, question, seconds)
                except (OSError, ServerRefused) as error:
                    address, question = finding.throw(error)
                else:
                    address, question = finding.send(reply)
        except StopIteration:
            pass

    async def _ask_once(self, address: Address, question: bytes, seconds: float) -> Any:
        link = await self._link(address, "", seconds, seconds)
        try:
            return await link.ask(question)
        finally:
            link.close()

    async def _open_link(
        self, caller: Caller[AsyncLink], tries: protocol.Tries | None
    ) -> AsyncLink:
        caller.link = await self.connect_to(caller.node, tries.left if tries else None)
        return caller.link

    async def _link(self, address: Address, path: str, reply: float, connect: float) -> AsyncLink:
        try:
            async with asyncio.timeout(connect):
                login = await logins.async_login(address, self.settings.credentials)
        except TimeoutError:
            raise TimeoutError(f"there were no credentials within {connect:.3g} s") from None
        return await open_link(address, path, login, self._introduction, reply, connect)

    async def connect(self, slot: int) -> AsyncLink:
        """Open a connection to who serves a slot; trouble is an OSError or a refusal."""
        return await self.connect_to(await self.where(slot) if self._topology else None)

    async def connect_to(self, node: Node | None, left: float | None = None) -> AsyncLink:
        """Open a connection to one of several servers, or to the one that there is.

        `left` is how long the call that needs it is still tried.
        """
        address = self.address.at(node) if node else self.address
        path = address.path
        if self._embedded:
            seconds = self._step(START_SECONDS, left)
            starting = asyncio.create_task(
                asyncio.to_thread(embedded_path, self._embedded, seconds)
            )
            self._undoing.add(starting)  # Cancelled or not, it goes on: `close` waits for it.
            starting.add_done_callback(self._undoing.discard)
            path = await asyncio.shield(starting)
        connect = self._step(FIND_SECONDS if node else CONNECT_SECONDS, left)
        link = await self._link(address, path, self._reply_seconds, connect)
        try:
            if self._unchecked:
                warnings = protocol.check_health(address, await link.ask(protocol.INFO))
                if self._copies:
                    protocol.check_copies(await link.ask(protocol.NO_COPIES))
                self._unchecked = False
                warn_once(address, warnings)
            if node and self._topology and self._topology.doubts(node):
                await link.show_life()
                self._topology.found(node)
        except BaseException:
            link.close()
            raise
        return link
