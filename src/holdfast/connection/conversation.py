"""What a client and its servers say to each other, one step after the other. No I/O.

A call goes out under a caller: a random name and a number that counts up. When the connection
breaks, the same call is sent again under the same number, and the engine answers it as it did
before. So a lost reply neither doubles nor hides anything.

A conversation is a generator. It yields steps, functions with their arguments, and is sent what
they return, or thrown what they raise. `server.py` carries steps out in a thread, `async_server.py`
in an event loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypedDict, TypeVar

import hiredis

from holdfast.connection import credentials as logins
from holdfast.connection import protocol
from holdfast.connection.address import Address, Node, parse
from holdfast.connection.credentials import Credentials
from holdfast.connection.session import LEAST_SECONDS, Caller, Session, Settings
from holdfast.connection.sockets import CONNECT_SECONDS, REPLY_SECONDS
from holdfast.connection.topology import FIND_SECONDS, Finding, RoutedTries, topology_of
from holdfast.engine.call import Call
from holdfast.errors import ServerRefused
from holdfast.job import Duration
from holdfast.server.embedded import PATIENCE as START_SECONDS
from holdfast.server.embedded import Embedded

if TYPE_CHECKING:
    from typing import Self, Unpack

T = TypeVar("T")

log = logging.getLogger("holdfast")

OTHERS_SECONDS = 3.0
"""How long one of several servers is waited for: another may have its place by now."""

FIND_LEAST_SECONDS = 0.25
"""How long one more server is asked where to go when there is no patience left."""

Step: TypeAlias = tuple[Any, ...]
"""A function and its arguments."""

Steps: TypeAlias = Generator[Any, Any, T]
"""Steps to carry out, and what they come to. A link that is yielded is no step: see `converse`."""


class Link(Protocol):
    """One connection, for a thread or an event loop. Any trouble with it is an OSError."""

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply; an error reply is returned, not raised."""

    def ask_both(self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1) -> Any:
        """Send two commands at once, of which the first may take `wait` seconds."""

    def send(self, packed: bytes) -> Any:
        """Send a command; its reply is read later."""

    def read(self) -> Any:
        """Return the next reply."""

    def read_within(self, seconds: float) -> Any:
        """Return the next reply, or None when there is none in time."""

    def settle(self) -> Any:
        """Read what is not an answer to a command of ours."""

    def show_life(self) -> Any:
        """Answer soon, or raise an OSError: it was lost before."""

    def limit(self, seconds: float) -> None:
        """Wait so long for each reply from now on."""

    def close(self) -> None:
        """Close at once; replies that are under way are lost."""


L = TypeVar("L", bound=Link)


class Changes(TypedDict, total=False):
    """The settings that another client of a server may have for itself: see `Server.like`."""

    patience: Duration | None
    reply_within: Duration | None
    credentials: Credentials | None
    client_name: str | None


class Conversations(Generic[L]):
    """The steps of all that a client asks its servers. `Server` and `AsyncServer` take them."""

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
        self.address = address = self.settings.address
        self.session: Session[L] = Session()
        self._patience = self.settings.patience_seconds
        self._embedded = (
            Embedded(address.path or None, by_default=address.by_default)
            if address.embedded
            else None
        )
        self._topology = topology_of(address)
        self._renewable = logins.is_renewable(address, self.settings.credentials)
        self._introduction = protocol.Introduction(self.settings.client_name)
        self._copies = protocol.pack_copies(address.replicas, self._reply_seconds)
        self._for_ever = False
        """Whether its user repeats a call that gave up, as a worker does. For the log."""
        self._unchecked = True
        self._listens = True  # False if this user may not: then it asks from time to time.

    @classmethod
    def like(cls, other: Conversations[Any], **changes: Unpack[Changes]) -> Self:
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
        return f"{type(self).__name__}({str(self.address)!r})"

    def forget(self, slot: int) -> None:
        """Ask who serves a slot before the next call, as a connection there was of no use."""
        if self._topology is not None:
            self._topology.forget(slot)

    # ------------------------------------------------------ what carries steps out

    def _open(self, address: Address, path: str, reply: float, connect: float) -> Any:
        """Connect and log in; `path` is of a unix socket, `reply` and `connect` are seconds."""
        raise NotImplementedError

    def _start(self, seconds: float) -> Any:
        """Start the embedded server unless it runs, and return its socket."""
        raise NotImplementedError

    def _sleep(self, seconds: float) -> Any:
        """Wait, as somebody wanted to."""
        raise NotImplementedError

    def _pause(self, seconds: float) -> Any:
        """Wait until a server may be there again."""
        raise NotImplementedError

    # ---------------------------------------------------------------------- a call

    def _converse(
        self,
        caller: Caller[L],
        packer: protocol.Packer,
        call: Call[T],
        now: bytes,
        wait: float,
        *,
        watched: bool = False,
    ) -> Steps[T]:
        """Make a call, and make it again until it is answered or patience is over.

        If it is `watched` its link is yielded once, when the call is on its way: nothing but the
        answer makes that link readable.
        """
        packed = packer.pack(call, now, caller.name, caller.number)
        first = b""
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            yield self._sleep, wait
        begun = time.time()
        # A call that waits for work, or that is not waited for, is patient from the first trouble.
        since = None if wait or watched else time.monotonic()
        tries: protocol.Tries | None = None
        clean, ahead, copied = False, 1, False
        if self._copies and call.script.changes:
            packed, copied = packed + self._copies, True
        try:
            while True:
                clean = sent = False
                try:
                    if self._topology is None:
                        link = caller.link or (yield from self._open_link(caller, tries))
                    else:
                        link = yield from self._turn(caller, packer.slot, tries)
                    if tries and self.settings.reply_within is None:
                        link.limit(self._step(self._reply_seconds, tries.left))
                    if watched:
                        yield (link.settle,)
                    sent = True
                    if first:
                        before, reply = yield link.ask_both, first, packed, wait, ahead
                    elif watched:
                        yield link.send, packed
                        watched = False
                        yield link
                        before, reply = None, (yield (link.read,))
                    else:
                        before, reply = None, (yield link.ask, packed)
                    replicas = (yield (link.read,)) if copied else 0
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
                yield self._pause, pause
        finally:
            if not clean:
                caller.drop()

    def _tries(self, slot: int, *about: Any, since: float | None = None) -> protocol.Tries:
        more: Any = {"since": since, "renewable": self._renewable, "for_ever": self._for_ever}
        if self._topology is None:
            return protocol.Tries(self.address, self._patience, *about, **more)
        return RoutedTries(self._topology, slot, self.address, self._patience, *about, **more)

    @property
    def _reply_seconds(self) -> float:
        """How long a reply is waited for when a call has all of its patience."""
        if (given := self.settings.reply_seconds) is not None:
            return given
        return self._step(OTHERS_SECONDS if self._topology else REPLY_SECONDS)

    def _step(self, seconds: float, left: float | None = None) -> float:
        """Return how long a step of a call may take: no longer than there is patience left."""
        if not self._patience:
            return seconds
        return min(seconds, max(self._patience if left is None else left, LEAST_SECONDS))

    # ---------------------------------------------------------------- connections

    def _turn(self, caller: Caller[L], slot: int, tries: protocol.Tries | None) -> Steps[L]:
        """Return a caller's link to the server of a slot, or to the one that it shall ask once."""
        left = tries.left if tries else None
        caller.turn_to((tries and tries.ask_at) or (yield from self._where(slot, left)))
        return caller.link or (yield from self._open_link(caller, tries))

    def _open_link(self, caller: Caller[L], tries: protocol.Tries | None) -> Steps[L]:
        link = yield from self._connect_to(caller.node, tries.left if tries else None)
        caller.link = link
        return link

    def connecting(self, slot: int) -> Steps[L]:
        """Connect to the server of a slot; trouble is an OSError or a refusal."""
        node = (yield from self._where(slot)) if self._topology else None
        link = yield from self._connect_to(node)
        try:
            yield (link.settle,)
        except BaseException:
            link.close()
            raise
        return link

    def _connect_to(self, node: Node | None, left: float | None = None) -> Steps[L]:
        """Connect to one of several servers, or to the only one.

        `left` is how long the call that needs it is still tried.
        """
        address = self.address.at(node) if node else self.address
        path = address.path
        if self._embedded:
            path = yield self._start, self._step(START_SECONDS, left)
        connect = self._step(FIND_SECONDS if node else CONNECT_SECONDS, left)
        link: L = yield self._open, address, path, self._reply_seconds, connect
        try:
            if self._unchecked:
                warnings = protocol.check_health(address, (yield link.ask, protocol.INFO))
                if self._copies:
                    protocol.check_copies((yield link.ask, protocol.NO_COPIES))
                self._unchecked = False
                warn_once(address, warnings)
            if node and self._topology and self._topology.doubts(node):
                yield (link.show_life,)
                self._topology.found(node)
        except BaseException:
            link.close()
            raise
        return link

    # ------------------------------------------------------------- several servers

    def _where(self, slot: int, left: float | None = None) -> Steps[Node]:
        """Return which of several servers has a slot; trouble is an OSError or a refusal."""
        assert self._topology is not None
        node = self._topology.where(slot)
        if node is None:
            yield from self._find(self._topology.find(), left)
            node = self._topology.where(slot)
        if node is None:
            raise ConnectionError("the servers are changing places")
        return node

    def _primaries(self) -> Steps[Sequence[Node | None]]:
        """Return the servers that have queues; None stands for the only one."""
        if self._topology is None:
            return [None]
        found = self._topology.primaries()
        if found is None:
            yield from self._find(self._topology.find())
            found = self._topology.primaries()
        if found is None:
            raise ConnectionError("the servers are changing places")
        if not found:
            raise ServerRefused(
                "the cluster does not tell its nodes: this user needs +cluster|slots", "NOPERM"
            )
        return found

    def _find(self, finding: Finding, left: float | None = None) -> Steps[None]:
        """Ask the servers that a topology wants asked."""
        until = time.monotonic() + self._step(math.inf, left)
        try:
            address, question = next(finding)
            while True:
                try:
                    seconds = min(FIND_SECONDS, max(until - time.monotonic(), FIND_LEAST_SECONDS))
                    reply = yield from self._ask_once(address, question, seconds)
                except (OSError, ServerRefused) as error:
                    address, question = finding.throw(error)
                else:
                    address, question = finding.send(reply)
        except StopIteration:
            pass

    def _ask_once(self, address: Address, question: bytes, seconds: float) -> Steps[Any]:
        link: L = yield self._open, address, "", seconds, seconds
        try:
            return (yield link.ask, question)
        finally:
            link.close()

    # ---------------------------------------------------------------------- queues

    def _queues(self) -> Steps[list[str]]:
        tries: protocol.Tries | None = None
        while True:
            try:
                found: set[str] = set()
                for node in (yield from self._primaries()):
                    found |= yield from self._queues_at(node)
                return sorted(found)
            except (OSError, ServerRefused) as error:
                tries = yield from self.recover(0, tries, error)

    def _queues_at(self, node: Node | None) -> Steps[set[str]]:
        link = yield from self._connect_to(node)
        try:
            reply = yield link.ask, protocol.pack_scan(b"0")
            position, found = protocol.read_scan(reply)
            while position != b"0":
                reply = yield link.ask, protocol.pack_scan(position)
                position, some = protocol.read_scan(reply)
                found |= some
            return found
        finally:
            link.close()

    def recover(
        self, slot: int, tries: protocol.Tries | None, error: OSError | ServerRefused
    ) -> Steps[protocol.Tries]:
        """Pause after trouble with what is no call; raise when patience is over."""
        self.forget(slot)
        tries = tries or self._tries(slot)
        if isinstance(error, OSError):
            yield self._pause, tries.after_loss(error, sent=False)
        else:
            yield self._pause, tries.after_no_entry(error)
        return tries


class Subscription(Generic[L]):
    """The events of queues, until none came for `idle` seconds; reconnects by itself.

    One connection is enough: a cluster carries what is published on one node to all.
    """

    def __init__(
        self, server: Conversations[L], queues: Sequence[protocol.Packer], idle: float
    ) -> None:
        self._server = server
        self._slot = queues[0].slot
        self._count = len(queues)
        self._listen = protocol.pack(b"SUBSCRIBE", *(packer.events for packer in queues))
        self._idle = idle
        self._link: L | None = None

    def begin(self, tries: protocol.Tries | None = None) -> Steps[None]:
        """Subscribe."""
        while self._link is None:
            try:
                link = self._link = yield from self._server.connecting(self._slot)
                yield link.send, self._listen
                for _ in range(self._count):
                    if isinstance(reply := (yield (link.read,)), hiredis.ReplyError):
                        raise protocol.refusal(reply)
            except (OSError, ServerRefused) as error:
                self.close()
                tries = yield from self._server.recover(self._slot, tries, error)

    def next(self) -> Steps[bytes | None]:
        """Return the next message; None when none came in time."""
        quiet_at = time.monotonic() + self._idle
        while True:
            yield from self.begin()
            assert self._link is not None
            try:
                asked = False
                while (left := quiet_at - time.monotonic()) > 0:
                    message = yield self._link.read_within, min(left, REPLY_SECONDS)
                    if message is None and asked:
                        raise TimeoutError
                    asked = message is None
                    if asked:
                        yield self._link.send, protocol.PING
                    elif isinstance(message, list) and message[0] == b"message":
                        content: bytes = message[2]
                        return content
                return None
            except (OSError, ServerRefused) as error:
                self.close()
                tries = yield from self._server.recover(self._slot, None, error)
                yield from self.begin(tries)

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None


_warned: set[tuple[str, str]] = set()


def warn_once(address: Address, warnings: list[str]) -> None:
    """Warn about a server, once in the life of this process, however many connect to it."""
    for warning in warnings:
        if (line := (str(address), warning)) not in _warned:
            _warned.add(line)
            log.warning("%s: %s", *line)


def with_last_words(error: OSError, embedded: Embedded) -> OSError:
    """Return why a connection was lost, with what the embedded server wrote as it exited."""
    words = embedded.last_words()
    if not words:
        return error
    return ConnectionResetError(
        f"{error}, as it cannot write to the disk of {embedded.directory}, which may be full: free "
        f"space there. Its log says: {words}"
    )
