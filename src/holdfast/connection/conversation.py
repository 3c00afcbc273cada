"""The protocol between a client and its servers, as generators of steps. No I/O.

Each call carries a caller: a random name and an increasing number. When the connection breaks, the
call is sent again with the same number, and the engine repeats its earlier answer. So a lost reply
neither applies a call twice nor loses its result.

A conversation is a generator. It yields steps, which are functions with their arguments, and is
sent their results or thrown their exceptions. `server.py` carries out steps in a thread,
`async_server.py` in an event loop.
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
"""How long to wait for the reply of one of several servers: another may have replaced it."""

SCRIPT_SECONDS = 60.0
"""For how long the library is run as a script before functions are tried again."""

FIND_LEAST_SECONDS = 0.25
"""How long to wait for a node or Sentinel when the patience is used up."""

Step: TypeAlias = tuple[Any, ...]
"""A function and its arguments."""

Steps: TypeAlias = Generator[Any, Any, T]
"""Yields steps and returns a result. A link may be yielded too, which is not a step: see
`_converse`."""


class Link(Protocol):
    """One connection, for a thread or an event loop. Its failures are OSErrors."""

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""

    def ask_both(self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1) -> Any:
        """Send two commands at once. The first may take `wait` seconds."""

    def send(self, packed: bytes) -> Any:
        """Send a command without reading its reply."""

    def read(self) -> Any:
        """Return the next reply."""

    def read_within(self, seconds: float) -> Any:
        """Return the next reply, or None after a timeout."""

    def settle(self) -> Any:
        """Read the replies to the client names, so that the next reply is that of the call."""

    def show_life(self) -> Any:
        """Ping a server that was lost before; raise OSError if it does not answer soon."""

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""


L = TypeVar("L", bound=Link)


class Changes(TypedDict, total=False):
    """The settings that `Server.like` can change."""

    patience: Duration | None
    reply_within: Duration | None
    credentials: Credentials | None
    client_name: str | None


class Conversations(Generic[L]):
    """The conversations of a client with its servers. Base of `Server` and `AsyncServer`."""

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
        """Whether the user repeats failed calls for ever, as a worker does. For log messages."""
        self._unchecked = True
        self._script_until = 0.0  # Until when the library is run as a script without asking.
        self._listens = True  # False if the ACL forbids BLPOP: then it polls.

    @classmethod
    def like(cls, other: Conversations[Any], **changes: Unpack[Changes]) -> Self:
        """Return another client of the same server, with the same settings except `changes`.

        It has its own holder and connections.
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
        """Look up the server of a slot again before the next call: a connection failed."""
        if self._topology is not None:
            self._topology.forget(slot)

    # ------------------------------------------------------ steps, by subclasses

    def _open(self, address: Address, path: str, reply: float, connect: float) -> Any:
        """Connect and log in. `path` is a unix socket; `reply` and `connect` are seconds."""
        raise NotImplementedError

    def _start(self, seconds: float) -> Any:
        """Start the embedded server unless it is running, and return its socket."""
        raise NotImplementedError

    def _sleep(self, seconds: float) -> Any:
        """Wait because the caller asked for it."""
        raise NotImplementedError

    def _pause(self, seconds: float) -> Any:
        """Wait before a retry."""
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
        """Make a call, and retry it until it is answered or the patience is used up.

        If `watched`, the link is yielded once, after the call was sent: only the answer (or a lost
        connection) makes that link readable.
        """
        as_script = time.monotonic() < self._script_until
        packed = self._pack(packer, call, now, caller, as_script=as_script)
        first = b""
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            yield self._sleep, wait
        begun = time.time()
        # For a call that waits for work, or whose answer is read later, the patience starts with
        # the first error.
        since = None if wait or watched else time.monotonic()
        tries: protocol.Tries | None = None
        clean, ahead = False, 1
        copied = bool(self._copies) and call.function.changes
        about = {"since": since, "as_script": as_script}
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
                    tries = tries or self._tries(packer.slot, call, begun, **about)
                    if self._embedded and sent:
                        error = with_last_words(error, self._embedded)
                    pause = tries.after_loss(error, sent=sent, node=caller.node)
                except ServerRefused as error:
                    tries = tries or self._tries(packer.slot, call, begun, **about)
                    pause = tries.after_no_entry(error, caller.node)
                else:
                    if isinstance(reply, hiredis.ReplyError):
                        if protocol.word_of(reply) in protocol.ELSEWHERE:
                            caller.drop()
                        tries = tries or self._tries(packer.slot, call, begun, **about)
                        pause = tries.after_refusal(before, reply, caller.node)
                    elif copied and not protocol.are_enough(replicas, self.address.replicas):
                        tries = tries or self._tries(packer.slot, call, begun, **about)
                        pause = tries.after_few_copies(replicas, self.address.replicas, caller.node)
                    else:
                        if wait and protocol.word_of(before) == "NOPERM":
                            self._listens = False
                        if tries:
                            link.limit(self._reply_seconds)
                        # With several servers, another server may have answered.
                        if protocol.away and (tries or self._topology is None):
                            protocol.note_back(self.address)
                        return call.read(reply)
                # The pop may have taken the wake already, so do not wait for another.
                first, ahead, wait = tries.first, tries.ahead, 0
                if tries.as_script != as_script:
                    as_script = tries.as_script
                    packed = self._pack(packer, call, now, caller, as_script=as_script)
                    self._script_until = time.monotonic() + SCRIPT_SECONDS if as_script else 0.0
                yield self._pause, pause
        finally:
            if not clean:
                caller.drop()

    def _pack(
        self,
        packer: protocol.Packer,
        call: Call[Any],
        now: bytes,
        caller: Caller[L],
        *,
        as_script: bool,
    ) -> bytes:
        pack = packer.pack_as_script if as_script else packer.pack
        packed = pack(call, now, caller.name, caller.number)
        return packed + self._copies if call.function.changes else packed

    def _tries(self, slot: int, *about: Any, **more: Any) -> protocol.Tries:
        more |= {"renewable": self._renewable, "for_ever": self._for_ever}
        if self._topology is None:
            return protocol.Tries(self.address, self._patience, *about, **more)
        return RoutedTries(self._topology, slot, self.address, self._patience, *about, **more)

    @property
    def _reply_seconds(self) -> float:
        """The timeout of replies before any of the patience is used up."""
        if (given := self.settings.reply_seconds) is not None:
            return given
        return self._step(OTHERS_SECONDS if self._topology else REPLY_SECONDS)

    def _step(self, seconds: float, left: float | None = None) -> float:
        """Return the timeout of one step: `seconds`, but at most the patience that is left."""
        if not self._patience:
            return seconds
        return min(seconds, max(self._patience if left is None else left, LEAST_SECONDS))

    # ---------------------------------------------------------------- connections

    def _turn(self, caller: Caller[L], slot: int, tries: protocol.Tries | None) -> Steps[L]:
        """Return a caller's link to the server of a slot, or to the target of an ASK redirect."""
        left = tries.left if tries else None
        caller.turn_to((tries and tries.ask_at) or (yield from self._where(slot, left)))
        return caller.link or (yield from self._open_link(caller, tries))

    def _open_link(self, caller: Caller[L], tries: protocol.Tries | None) -> Steps[L]:
        link = yield from self._connect_to(caller.node, tries.left if tries else None)
        caller.link = link
        return link

    def _connecting(self, slot: int) -> Steps[L]:
        """Connect to the server of a slot; raise OSError or ServerRefused on failure."""
        node = (yield from self._where(slot)) if self._topology else None
        link = yield from self._connect_to(node)
        try:
            yield (link.settle,)
        except BaseException:
            link.close()
            raise
        return link

    def _connect_to(self, node: Node | None, left: float | None = None) -> Steps[L]:
        """Connect to a node; None stands for a single server.

        `left` is the remaining patience of the call.
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
        """Return the node that serves a slot; raise OSError or ServerRefused on failure."""
        assert self._topology is not None
        node = self._topology.where(slot)
        if node is None:
            yield from self._find(self._topology.find(), left)
            node = self._topology.where(slot)
        if node is None:
            raise ConnectionError("the servers are changing places")
        return node

    def _primaries(self) -> Steps[Sequence[Node | None]]:
        """Return the servers that hold queues; None stands for a single server."""
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
        """Ask the servers that a topology names, until it knows enough."""
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
                tries = yield from self._recover(0, tries, error)

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

    def _recover(
        self, slot: int, tries: protocol.Tries | None, error: OSError | ServerRefused
    ) -> Steps[protocol.Tries]:
        """Pause after an error outside of a call; raise when the patience is used up."""
        self.forget(slot)
        tries = tries or self._tries(slot)
        if isinstance(error, OSError):
            yield self._pause, tries.after_loss(error, sent=False)
        else:
            yield self._pause, tries.after_no_entry(error)
        return tries


class Subscription(Generic[L]):
    """The events of queues, until none arrives for `idle` seconds. Reconnects by itself.

    One connection is enough: a cluster forwards published messages to all its nodes.
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
                link = self._link = yield from self._server._connecting(self._slot)
                yield link.send, self._listen
                for _ in range(self._count):
                    if isinstance(reply := (yield (link.read,)), hiredis.ReplyError):
                        raise protocol.refusal(reply)
            except (OSError, ServerRefused) as error:
                self.close()
                tries = yield from self._server._recover(self._slot, tries, error)

    def next(self) -> Steps[bytes | None]:
        """Return the next message, or None after `idle` seconds without one."""
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
                tries = yield from self._server._recover(self._slot, None, error)
                yield from self.begin(tries)

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None


_warned: set[tuple[str, str]] = set()


def warn_once(address: Address, warnings: list[str]) -> None:
    """Log warnings about a server once per process, however many clients connect to it."""
    for warning in warnings:
        if (line := (str(address), warning)) not in _warned:
            _warned.add(line)
            log.warning("%s: %s", *line)


def with_last_words(error: OSError, embedded: Embedded) -> OSError:
    """Return the error of a lost connection, with the reason from the embedded server's log."""
    words = embedded.last_words()
    if not words:
        return error
    return ConnectionResetError(
        f"{error}, as it cannot write to the disk of {embedded.directory}, which may be full: free "
        f"space there. Its log says: {words}"
    )
