"""The server as a thread sees it: connect by URL, run a call, ask again when a reply is lost.

A call goes out under a caller: a random name and a number that counts up. When the
connection breaks, the same call is sent again under the same number, and the engine
answers it as it did before. So a lost reply neither doubles nor hides anything.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import hiredis

from holdfast.connection import credentials as logins
from holdfast.connection import protocol
from holdfast.connection.address import Address, Node, parse
from holdfast.connection.caller import Caller
from holdfast.connection.credentials import Credentials
from holdfast.connection.incarnation import Incarnation
from holdfast.connection.settings import LEAST_SECONDS, PATIENCE_SECONDS, Settings
from holdfast.connection.sockets import CONNECT_SECONDS, REPLY_SECONDS, Link
from holdfast.connection.topology import FIND_SECONDS, Finding, RoutedTries, topology_of
from holdfast.engine.call import Call
from holdfast.errors import ServerRefused, ServerUnavailable
from holdfast.job import Duration
from holdfast.server.embedded import PATIENCE as START_SECONDS
from holdfast.server.embedded import Embedded

if TYPE_CHECKING:
    from typing import Self, Unpack

    from holdfast.connection.async_server import AsyncServer

__all__ = ["PATIENCE_SECONDS", "Sent", "Server"]

T = TypeVar("T")

log = logging.getLogger("holdfast")

OTHERS_SECONDS = 3.0

FIND_LEAST_SECONDS = 0.25
"""How long one more server is asked where to go when there is no patience left."""


class Changes(TypedDict, total=False):
    """The settings that another client of a server may have for itself: see `Server.like`."""

    patience: Duration | None
    reply_within: Duration | None
    credentials: Credentials | None
    client_name: str | None


_warned: set[tuple[str, str]] = set()


def warn_once(address: Address, warnings: list[str]) -> None:
    """Warn about a server, once in the life of this process, however many connect to it."""
    for warning in warnings:
        if (said := (str(address), warning)) not in _warned:
            _warned.add(said)
            log.warning("%s: %s", *said)


def embedded_at(address: Address) -> Embedded | None:
    """Return a user of the embedded server, where the address is that of one."""
    if not address.embedded:
        return None
    return Embedded(address.path or None, by_default=address.by_default)


def warn_of_blocking(address: Address) -> None:
    """Warn, once, where a call that has to wait for the server stops an event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    blocks = "a call of Queue blocks the event loop while the server is away: use AsyncQueue there"
    warn_once(address, [blocks])


def embedded_path(embedded: Embedded, seconds: float) -> str:
    """Start the embedded server where it does not run, and return its socket.

    Trouble that may pass is an OSError, to be tried again; other trouble is `ServerNotStarted`.
    """
    try:
        return str(embedded.ensure(seconds))
    except ServerUnavailable as error:
        raise ConnectionError(str(error)) from error


def with_last_words(error: OSError, embedded: Embedded) -> OSError:
    """Return why a connection was lost, with what the embedded server wrote as it exited."""
    words = embedded.last_words()
    if not words:
        return error
    return ConnectionResetError(
        f"{error}, as it cannot write to the disk of {embedded.directory}, which may be full: free "
        f"space there. Its log says: {words}"
    )


class Sent(Generic[T]):
    """A call that was sent, and whose answer was not read."""

    __slots__ = ("_asking", "_link")

    def __init__(self, asking: Generator[Link, None, T], link: Link | None = None) -> None:
        self._asking = asking
        self._link = link

    def fileno(self) -> int:
        """Return what becomes readable when the answer comes, or the connection is lost."""
        assert self._link is not None
        return self._link.fileno()

    def result(self) -> T:
        """Return the answer; where it is lost the call is made again, as by `Server.run`."""
        try:
            while True:
                next(self._asking)
        except StopIteration as done:
            answer: T = done.value
            return answer

    def forget(self) -> None:
        """Do without the answer."""
        self._asking.close()


class Server:
    """A Redis or Valkey server, or several that are one.

    Threads share it; a forked child begins anew.

    url           where it is; without one HOLDFAST_URL, else the embedded server
    patience      seconds after which a call gives up when the server is away; 15 unless the URL
                  has `?patience=`
    reply_within  seconds after which a connection that does not answer is taken for lost
    credentials   a function that returns a password, or (user, password), for each new connection
    client_name   the middle of the name in `CLIENT LIST`: `holdfast:<client_name>:<host>:<pid>`;
                  the name of the program unless given
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
        self.incarnation: Incarnation[Caller[Link]] = Incarnation(Caller)
        self._patience = self.settings.patience_seconds
        self._embedded = embedded_at(self.address)
        self._topology = topology_of(self.address)
        self._renewable = logins.is_renewable(self.address, self.settings.credentials)
        self._introduction = protocol.Introduction(self.settings.client_name)
        self._copies = protocol.pack_copies(self.address.replicas, self._reply_seconds)
        self._for_ever = False
        """Whether its user makes a call again that gave up: so a worker does. For the log."""
        self._unchecked = True
        self._listens = True  # False where this user may not: then it asks from time to time.

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
        return f"Server({str(self.address)!r})"

    def run(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> T:
        """Carry a call to the server and bring back what it answers.

        Goes on trying for `patience` seconds, then raises `ServerUnavailable`.
        """
        return Sent(self._ask(packer, call, now)).result()

    def send(self, packer: protocol.Packer, call: Call[T], now: bytes = b"") -> Sent[T]:
        """Send a call, and let its answer be read later: the server works meanwhile.

        Goes on trying as `run` does, until it could be sent. Not for a call that waits for work.
        """
        assert not call.wait
        asking = self._ask(packer, call, now, watched=True)
        return Sent(asking, next(asking))

    @contextmanager
    def _undone_by(self, undo: Callable[[], object]) -> Iterator[None]:  # noqa: ARG002
        """Run a block. `AsyncServer` undoes what it has done if it is cancelled: no thread is."""
        yield

    def _ask(
        self, packer: protocol.Packer, call: Call[T], now: bytes, *, watched: bool = False
    ) -> Generator[Link, None, T]:
        """Make a call. Yields once, when it is on its way: the link by which the answer comes.

        Where the link is `watched`, nothing but that answer makes it readable.
        """
        caller = self.incarnation.take_caller()
        caller.number += 1
        packed = packer.pack(call, now, caller.name, caller.number)
        first, wait = b"", call.wait
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            time.sleep(wait)
        begun = time.time()
        # What waits for work, or is not waited for, is patient from the first trouble on.
        since = None if wait or watched else time.monotonic()
        tries: protocol.Tries | None = None
        clean, ahead, copied, told = False, 1, False, False
        if self._copies and call.script.changes:
            packed, copied = packed + self._copies, True
        try:
            while True:
                clean = sent = False
                try:
                    if self._topology is None:
                        link = caller.link or self._open_link(caller, tries)
                    else:
                        link = self._turn(caller, packer.slot, tries)
                    if tries and self.settings.reply_within is None:
                        link.limit(self._step(self._reply_seconds, tries.left))
                    if watched:
                        link.settle()
                    sent = True
                    if first:
                        before, reply = link.ask_both(first, packed, wait, ahead)
                    else:
                        link.send(packed)
                        if not told:
                            told = True
                            yield link
                        before, reply = None, link.read()
                    replicas = link.read() if copied else 0
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
                if pause:
                    warn_of_blocking(self.address)
                time.sleep(pause)
        finally:
            if not clean:
                caller.drop()
            self.incarnation.give_caller(caller)

    def _tries(self, slot: int, *about: Any, since: float | None = None) -> protocol.Tries:
        more: Any = {"since": since, "renewable": self._renewable, "for_ever": self._for_ever}
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

    @contextmanager
    def subscribe(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> Iterator[Iterator[bytes]]:
        """Listen to the events of queues until none came for `idle` seconds; reconnects by itself.

        One connection is enough: a cluster carries what is published on one node to all.
        """
        messages = self._messages(queues, idle)
        next(messages)  # Subscribed before the caller goes on.
        try:
            yield messages
        finally:
            messages.close()

    def _messages(
        self, queues: Sequence[protocol.Packer], idle: float
    ) -> Generator[bytes, None, None]:
        slot = queues[0].slot
        listen = protocol.pack(b"SUBSCRIBE", *(packer.events for packer in queues))
        quiet_at = time.monotonic() + idle
        tries: protocol.Tries | None = None
        begun = False
        while True:
            link = None
            try:
                link = self.connect(slot)
                link.send(listen)
                for _ in queues:
                    if isinstance(reply := link.read(), hiredis.ReplyError):
                        raise protocol.refusal(reply)
                tries = None
                if not begun:
                    begun = True
                    yield b""
                    quiet_at = time.monotonic() + idle
                asked = False
                while (left := quiet_at - time.monotonic()) > 0:
                    message = link.read_within(min(left, REPLY_SECONDS))
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
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(slot)
                tries = tries or self._tries(slot)
                time.sleep(tries.after_no_entry(error))
            finally:
                if link is not None:
                    link.close()

    def queues(self) -> list[str]:
        """Return the names of the queues on this server, or on all primaries of a cluster.

        Walks all keys of the database, some at a time, so that nobody else waits. A queue that
        was never used, or was deleted, has none; one whose slot moves meanwhile may be missed.
        """
        tries: protocol.Tries | None = None
        while True:
            try:
                found: set[str] = set()
                for node in self.primaries():
                    found |= self._queues_at(node)
                return sorted(found)
            except OSError as error:
                self.forget(0)
                tries = tries or self._tries(0)
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                self.forget(0)
                tries = tries or self._tries(0)
                time.sleep(tries.after_no_entry(error))

    def _queues_at(self, node: Node | None) -> set[str]:
        link = self.connect_to(node)
        try:
            position, found = protocol.read_scan(link.ask(protocol.pack_scan(b"0")))
            while position != b"0":
                position, some = protocol.read_scan(link.ask(protocol.pack_scan(position)))
                found |= some
            return found
        finally:
            link.close()

    def primaries(self) -> Sequence[Node | None]:
        """Return who has queues; None is the one server that there is."""
        if self._topology is None:
            return [None]
        found = self._topology.primaries()
        if found is None:
            self._find(self._topology.find())
            found = self._topology.primaries()
        if found is None:
            raise ConnectionError("the servers are changing places")
        if not found:
            raise ServerRefused(
                "the cluster does not tell its nodes: this user needs +cluster|slots", "NOPERM"
            )
        return found

    def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        for caller in self.incarnation.take_callers():
            caller.close()
        if self._embedded:
            self._embedded.leave()

    def forget(self, slot: int) -> None:
        """Ask who serves a slot before the next call, as a connection there was of no use."""
        if self._topology is not None:
            self._topology.forget(slot)

    def _turn(self, caller: Caller[Link], slot: int, tries: protocol.Tries | None) -> Link:
        """Return a caller's link to the one who serves a slot, or whom it shall ask this time."""
        left = tries.left if tries else None
        caller.turn_to((tries and tries.ask_at) or self.where(slot, left))
        return caller.link or self._open_link(caller, tries)

    def where(self, slot: int, left: float | None = None) -> Node:
        """Return which of several servers has a slot; trouble is an OSError or a refusal."""
        assert self._topology is not None
        node = self._topology.where(slot)
        if node is None:
            self._find(self._topology.find(), left)
            node = self._topology.where(slot)
        if node is None:
            raise ConnectionError("the servers are changing places")
        return node

    def _find(self, finding: Finding, left: float | None = None) -> None:
        """Ask whom a topology wants asked."""
        until = time.monotonic() + self._step(math.inf, left)
        try:
            address, question = next(finding)
            while True:
                try:
                    seconds = min(FIND_SECONDS, max(until - time.monotonic(), FIND_LEAST_SECONDS))
                    reply = self._ask_once(address, question, seconds)
                except (OSError, ServerRefused) as error:
                    address, question = finding.throw(error)
                else:
                    address, question = finding.send(reply)
        except StopIteration:
            pass

    def _ask_once(self, address: Address, question: bytes, seconds: float) -> Any:
        link = self._link(address, "", seconds, seconds)
        try:
            return link.ask(question)
        finally:
            link.close()

    def _open_link(self, caller: Caller[Link], tries: protocol.Tries | None) -> Link:
        caller.link = self.connect_to(caller.node, tries.left if tries else None)
        return caller.link

    def _link(self, address: Address, path: str, reply: float, connect: float) -> Link:
        login = logins.login(address, self.settings.credentials)
        return Link(address, path, login, self._introduction, reply, connect)

    def connect(self, slot: int) -> Link:
        """Open a connection to who serves a slot; trouble is an OSError or a refusal."""
        link = self.connect_to(self.where(slot) if self._topology else None)
        try:
            link.settle()
        except BaseException:
            link.close()
            raise
        return link

    def connect_to(self, node: Node | None, left: float | None = None) -> Link:
        """Open a connection to one of several servers, or to the one that there is.

        `left` is how long the call that needs it is still tried.
        """
        address = self.address.at(node) if node else self.address
        path = address.path
        if self._embedded:
            path = embedded_path(self._embedded, self._step(START_SECONDS, left))
        connect = self._step(FIND_SECONDS if node else CONNECT_SECONDS, left)
        link = self._link(address, path, self._reply_seconds, connect)
        try:
            if self._unchecked:
                warnings = protocol.check_health(address, link.ask(protocol.INFO))
                if self._copies:
                    protocol.check_copies(link.ask(protocol.NO_COPIES))
                self._unchecked = False
                warn_once(address, warnings)
            if node and self._topology and self._topology.doubts(node):
                link.show_life()
                self._topology.found(node)
        except BaseException:
            link.close()
            raise
        return link
