"""The protocol between a client and its servers, as generators of steps. No I/O.

Each call carries a caller: a random name and an increasing number. When the connection breaks, the
call is sent again with the same number, and the engine repeats its earlier answer. So a lost reply
neither applies a call twice nor loses its result.

A conversation is a generator. It yields steps, which are functions with their arguments, and is
sent their results or thrown their exceptions. `server.py` carries out steps in a thread,
`async_server.py` in an event loop. They make the first try of a call themselves if its link is
open, and start a conversation only if that gets no plain answer.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import hiredis

from holdfast import arguments
from holdfast.codec import random_name
from holdfast.connection import protocol, retries
from holdfast.connection.address import Address, Credentials, Node, parse
from holdfast.connection.retries import Tries
from holdfast.connection.topology import FIND_SECONDS, Cluster, Finding, Sentinels, Topology
from holdfast.engine.call import Call
from holdfast.errors import InvalidArgument, ServerRefused, ServerUnavailable
from holdfast.escaping import logger
from holdfast.job import Duration
from holdfast.server.embedded import PATIENCE as START_SECONDS
from holdfast.server.embedded import Embedded

if TYPE_CHECKING:
    import asyncio
    from typing import Self, Unpack

T = TypeVar("T")

log = logger(__name__)

PATIENCE_SECONDS = 15.0

LEAST_SECONDS = 1.0
"""The least timeout of one step of a call, even if the patience is shorter: a busy server is not
lost."""

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0

OTHERS_SECONDS = 3.0
"""How long to wait for the reply of one of several servers: another may have replaced it."""

SCRIPT_SECONDS = 60.0
"""For how long the library is run as a script before functions are tried again."""

FIND_LEAST_SECONDS = 0.25
"""How long to wait for a node or Sentinel when the patience is used up."""

Steps: TypeAlias = Generator[Any, Any, T]
"""Yields steps and returns a result. A link may be yielded too, which is not a step: see
`converse`."""


class Link(Protocol):
    """One connection, for a thread or an event loop. Its failures are OSErrors."""

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""

    def send(self, packed: bytes) -> Any:
        """Send commands without reading their replies."""

    def read(self) -> Any:
        """Return the next reply."""

    def settle(self) -> Any:
        """Read the replies to the client names, so that the next reply is that of the call.

        Returns an error reply if the server rejected the connection, else None.
        """

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""


L = TypeVar("L", bound=Link)


# ------------------------------------------------------------------- settings, callers


@dataclass(frozen=True)
class Settings:
    """The arguments of `Server` and `AsyncServer`."""

    address: Address
    patience: Duration | None = None
    reply_within: Duration | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    client_name: str | None = None


class Changes(TypedDict, total=False):
    """The settings that `Server.like` can change."""

    patience: Duration | None
    reply_within: Duration | None
    credentials: Credentials | None
    client_name: str | None


class Caller(Generic[L]):
    """The name and number of calls, one in flight at a time, and their connection.

    With several servers it keeps a link to each that it has used; `link` is the one to `node`.
    """

    __slots__ = ("link", "name", "node", "number", "others")

    def __init__(self) -> None:
        self.name = random_name().encode()
        self.number = 0
        self.link: L | None = None
        self.node: Node | None = None
        self.others: dict[Node, L] = {}

    def turn_to(self, node: Node) -> None:
        """Switch to another server, and to the link to it, if there is one."""
        if node != self.node:
            if self.node and self.link:
                self.others[self.node] = self.link
            self.node, self.link = node, self.others.pop(node, None)

    def drop(self) -> None:
        """Close the link: an outstanding reply must not be taken for the reply to the next call."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def close(self) -> None:
        """Close all links."""
        self.drop()
        while self.others:
            self.others.popitem()[1].close()


class Session(Generic[L]):
    """The state of a client that must be new in every process.

    It consists of the holder, the number of its lease calls, and its idle callers with their
    connections. A forked child with the state of its parent would hold the parent's leases, repeat
    its call numbers and write to its connections.
    """

    give_caller: Callable[[Caller[L]], None]
    """Make a caller available again."""

    def __init__(self) -> None:
        self.renew()
        _alive.add(self)

    def renew(self) -> None:
        """Reset to a new holder without callers."""
        self.holder = random_name()
        self._leases = count(1)
        self._idle: list[Caller[L]] = []
        self.give_caller = self._idle.append
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of its callers, if they belong to one."""
        self.undoing: set[asyncio.Task[Any]] = set()
        """Tasks that release what cancelled calls have leased."""

    def next_token(self) -> str:
        """Return the token for the next lease call."""
        return f"{self.holder}.{next(self._leases)}"

    def take_caller(self) -> Caller[L]:
        """Return an idle or new caller for exclusive use. Return it with `give_caller`."""
        try:
            return self._idle.pop()
        except IndexError:  # Another thread may have taken the last one.
            return Caller()

    def take_callers(self) -> Iterator[Caller[L]]:
        """Remove and return all idle callers."""
        with suppress(IndexError):
            while True:
                yield self._idle.pop()


_alive: weakref.WeakSet[Session[Any]] = weakref.WeakSet()


def _renew_all() -> None:
    for session in list(_alive):
        session.renew()


if hasattr(os, "register_at_fork"):  # Windows has none.
    os.register_at_fork(after_in_child=_renew_all)


class Tried(NamedTuple):
    """The first try of a call, on an open link, that got no plain answer."""

    begun: float
    """When the call began, by the wall clock."""
    since: float | None
    """When its patience began, on the monotonic clock; None if that is now."""
    met: Exception
    """An OSError or an error reply."""


# ----------------------------------------------------------------------- conversations


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
        self.address = address = url if isinstance(url, Address) else parse(url)
        self.settings = Settings(address, patience, reply_within, credentials, client_name)
        if credentials is not None and not callable(credentials):
            raise InvalidArgument(
                "credentials must be a function that returns a password or (user, password), not "
                f"{type(credentials).__name__}"
            )
        if client_name is not None and not isinstance(client_name, str):
            raise InvalidArgument(f"client_name must be a str, not {type(client_name).__name__}")
        self.session: Session[L] = Session()
        if patience is None:
            patience = PATIENCE_SECONDS if address.patience is None else address.patience
        self._patience = arguments.duration_ms("patience", patience, forever=True) / 1000
        self._reply_within = arguments.seconds_or_none("reply_within", reply_within)
        self._embedded = (
            Embedded(address.path or None, by_default=address.by_default)
            if address.embedded
            else None
        )
        self._topology: Topology | None = None
        if address.kind:
            self._topology = (Cluster if address.kind == "cluster" else Sentinels)(address)
        self._introduction = protocol.Introduction(client_name)
        self._copies = b""
        """The command that makes a change wait for replicas, if the URL requires it."""
        if address.replicas:
            self._copies = protocol.pack_copies(address.replicas, self._reply_seconds)
        self._for_ever = False
        """Whether the user repeats failed calls for ever, as a worker does. For log messages."""
        self._unchecked = True
        self._script_until = 0.0
        """Until when the library is run as a script, before functions are tried again; 0: not."""
        self._listens = True  # False if the ACL forbids BLPOP: then it polls.

    @classmethod
    def like(cls, other: Conversations[Any], **changes: Unpack[Changes]) -> Self:
        """Return another client of the same server, with the same settings except `changes`.

        It has its own holder and connections. It does not check the server again, unless its user
        may be another.
        """
        settings: dict[str, Any] = {**vars(other.settings), **changes}
        made = cls(settings.pop("address"), **settings)
        made._unchecked = other._unchecked or "credentials" in changes
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r})"

    @property
    def runs_scripts(self) -> bool:
        """Whether calls run as scripts at present, as the library cannot be loaded or called."""
        return self._script_until > 0

    def forget(self, slot: int) -> None:
        """Look up the server of a slot again before the next call: a connection failed."""
        if self._topology is not None:
            self._topology.forget(slot)

    # ----------------------------------------------------------------------- steps

    def _open(self, address: Address, path: str, reply: float, connect: float) -> Any:
        """Connect and log in. `path` is a unix socket; `reply` and `connect` are seconds."""
        raise NotImplementedError

    def _start(self, seconds: float) -> Any:
        """Start the embedded server unless it is running, and return its socket.

        Raises OSError for a temporary problem, which is retried, else `ServerNotStarted`.
        """
        assert self._embedded
        try:
            return str(self._embedded.ensure(seconds))
        except ServerUnavailable as error:
            raise ConnectionError(str(error)) from error

    def _sleep(self, seconds: float) -> Any:
        """Wait because the caller asked for it."""
        raise NotImplementedError

    def _pause(self, seconds: float) -> Any:
        """Wait before a retry."""
        raise NotImplementedError

    # ---------------------------------------------------------------------- a call

    def warm_link(self, caller: Caller[L], slot: int, call: Call[Any]) -> L | None:
        """Return the open link on which a call can be tried, if one reply is all that it needs."""
        if call.wait or self._copies or self._script_until or retries.away:
            return None
        if self._topology is not None:
            node = self._topology.where(slot)
            if node is None:
                return None
            caller.turn_to(node)
        return caller.link

    def converse(
        self,
        caller: Caller[L],
        packer: protocol.Packer,
        call: Call[T],
        now: bytes,
        tried: Tried | None = None,
        *,
        wait: float = 0,
        watched: bool = False,
        give_back: bool = False,
    ) -> Steps[T]:
        """Make a call, and retry it until it is answered or the patience is used up.

        If `watched`, the link is yielded once, after the call was sent: only the answer (or a lost
        connection) makes that link readable. At the end the caller is given back, if asked for.
        """
        if as_script := time.monotonic() < self._script_until:
            packed = packer.pack_as_script(call, now, caller.name, caller.number)
        else:
            packed = packer.pack(call, now, caller.name, caller.number)
            self._script_until = 0.0
        first, ahead = b"", 0
        if wait and call.listen and self._listens:
            first, ahead = packer.pack_wait(wait), 1
        elif wait:
            yield self._sleep, wait
        begun, since, met = tried or (time.time(), time.monotonic(), None)
        # For a call that waits for work, or whose answer is read later, the patience starts with
        # the first error.
        new_tries = partial(
            self._tries, packer.slot, call, begun, None if wait or watched else since, as_script
        )
        tries: Tries | None = None
        copies = self._copies if call.function.changes else b""
        clean = False
        try:
            while True:
                clean, sent = False, met is not None
                before: Any = None
                replicas: Any = 0
                try:
                    if met is None:
                        link = yield from self._link(caller, packer.slot, tries)
                        seconds = self._reply_seconds
                        if tries and self._reply_within is None:
                            seconds = self._step(seconds, tries.left)
                        if watched and (refused := (yield (link.settle,))):
                            raise protocol.refusal(refused)
                        link.limit(seconds + wait if first else seconds)
                        sent = True
                        yield link.send, first + packed + copies
                        if watched:
                            watched = False
                            yield link
                        for n in range(ahead):
                            answer = yield (link.read,)
                            before = before if n else answer
                            link.limit(seconds)
                        reply = yield (link.read,)
                        if copies:
                            replicas = yield (link.read,)
                    elif isinstance(met, OSError):
                        raise met
                    else:
                        reply, met = met, None
                    clean = True
                except OSError as error:
                    met = None
                    caller.drop()
                    tries = tries or new_tries()
                    if self._embedded and sent:
                        error = with_last_words(error, self._embedded)
                    pause = tries.after_loss(error, sent=sent, node=caller.node)
                except ServerRefused as error:
                    tries = tries or new_tries()
                    pause = tries.after_no_entry(error, caller.node)
                else:
                    if isinstance(reply, hiredis.ReplyError):
                        if protocol.word_of(reply) in protocol.ELSEWHERE:
                            caller.drop()
                        tries = tries or new_tries()
                        pause = tries.after_refusal(before, reply, caller.node)
                    elif copies and not (
                        isinstance(replicas, int) and replicas >= self.address.replicas
                    ):
                        tries = tries or new_tries()
                        pause = tries.after_few_copies(replicas, self.address.replicas, caller.node)
                    else:
                        if wait and protocol.word_of(before) == "NOPERM":
                            self._listens = False
                        link.limit(self._reply_seconds)
                        # With several servers, another server may have answered.
                        if retries.away and (tries or self._topology is None):
                            retries.note_back(self.address)
                        return call.read(reply)
                # The pop may have taken the wake already, so do not wait for another.
                first, ahead, wait = tries.first, tries.ahead, 0
                if tries.as_script != as_script:
                    as_script = tries.as_script
                    pack = packer.pack_as_script if as_script else packer.pack
                    packed = pack(call, now, caller.name, caller.number)
                    self._script_until = time.monotonic() + SCRIPT_SECONDS if as_script else 0.0
                yield self._pause, pause
        finally:
            if not clean:
                caller.drop()
            if give_back:
                self.session.give_caller(caller)

    def _tries(
        self,
        slot: int,
        call: Call[Any] | None = None,
        begun: float = 0,
        since: float | None = None,
        as_script: bool = False,
    ) -> Tries:
        return Tries(
            self.address,
            self._patience,
            call,
            begun=begun,
            since=since,
            renewable=bool(
                self.settings.credentials
                or self.address.password_file
                or self.address.sentinel_password_file
            ),
            for_ever=self._for_ever,
            topology=self._topology,
            slot=slot,
            as_script=as_script,
        )

    @property
    def _reply_seconds(self) -> float:
        """The timeout of replies before any of the patience is used up."""
        if self._reply_within is not None:
            return self._reply_within
        return self._step(OTHERS_SECONDS if self._topology else REPLY_SECONDS)

    def _step(self, seconds: float, left: float | None = None) -> float:
        """Return the timeout of one step: `seconds`, but at most the patience that is left."""
        if not self._patience:
            return seconds
        return min(seconds, max(self._patience if left is None else left, LEAST_SECONDS))

    # ---------------------------------------------------------------- connections

    def _link(self, caller: Caller[L], slot: int, tries: Tries | None) -> Steps[L]:
        """Return a caller's link to the server of a slot, or to the target of an ASK redirect."""
        left = tries.left if tries else None
        if self._topology is not None:
            caller.turn_to((tries and tries.ask_at) or (yield from self._where(slot, left)))
        if caller.link is None:
            caller.link = yield from self._connect_to(caller.node, left)
        return caller.link

    def _connecting(self, slot: int) -> Steps[L]:
        """Connect to the server of a slot; raise OSError or ServerRefused on failure."""
        node = (yield from self._where(slot)) if self._topology else None
        link = yield from self._connect_to(node)
        try:
            if refused := (yield (link.settle,)):
                raise protocol.refusal(refused)
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
                # It was lost before: use it only if it answers soon.
                link.limit(FIND_SECONDS)
                yield link.ask, protocol.PING
                link.limit(self._reply_seconds)
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
                    link: L = yield self._open, address, "", seconds, seconds
                    try:
                        reply = yield link.ask, question
                    finally:
                        link.close()
                except (OSError, ServerRefused) as error:
                    address, question = finding.throw(error)
                else:
                    address, question = finding.send(reply)
        except StopIteration:
            pass

    # ---------------------------------------------------------------------- queues

    def _queues(self) -> Steps[list[str]]:
        tries: Tries | None = None
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
        found: set[str] = set()
        position = b"0"
        try:
            while True:
                reply = yield link.ask, protocol.pack_scan(position)
                position, some = protocol.read_scan(reply)
                found |= some
                if position == b"0":
                    return found
        finally:
            link.close()

    def _recover(
        self, slot: int, tries: Tries | None, error: OSError | ServerRefused
    ) -> Steps[Tries]:
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

    def begin(self, tries: Tries | None = None) -> Steps[None]:
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
                    self._link.limit(min(left, REPLY_SECONDS))
                    try:
                        message = yield (self._link.read,)
                    except TimeoutError:
                        if asked:
                            raise
                        yield self._link.send, protocol.PING
                        asked = True
                        continue
                    asked = False
                    if isinstance(message, list) and message[0] == b"message":
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
