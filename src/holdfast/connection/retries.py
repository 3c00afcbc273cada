"""Retries: which errors may pass, when a call is sent again, and to which server. No I/O.

It also remembers which servers are away, so that their loss and return are logged once.
"""

from __future__ import annotations

import math
import random
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

import hiredis

from holdfast.connection.address import Node
from holdfast.connection.protocol import (
    RETRIABLE,
    describe,
    lacks_library,
    pack,
    refusal,
    untrusted,
    word_of,
)
from holdfast.engine import library
from holdfast.engine.call import Call
from holdfast.errors import HoldfastError, QueueFull, ServerRefused, ServerUnavailable
from holdfast.escaping import logger

if TYPE_CHECKING:
    from holdfast.connection.topology import Topology

log = logger(__name__)

PASSING: Final = RETRIABLE | {"READONLY", "NOREPLICAS", "MISCONF"}
"""Errors that may pass without a change of URL or permissions: a worker waits for that."""

ROUTED: Final = RETRIABLE | {"READONLY", "NOREPLICAS", "MOVED", "ASK"}
"""Errors that are retried if there are several servers."""

LOGIN: Final = frozenset({"NOAUTH", "WRONGPASS"})
"""Errors of the login: the password may have changed meanwhile."""

FORGOTTEN_SECONDS: Final = 300.0
"""An older call is not sent again: the server remembers callers for ten minutes."""

TELL_AFTER_SECONDS: Final = 1.0
"""How long a server must be away before it is logged."""
TELL_EVERY_SECONDS: Final = 10.0
"""The least time between two such log lines, however many calls wait."""

SPARE_SECONDS: Final = 2.0
"""How long a call may exceed its patience: connecting and a reply may take a second each."""

HOPS: Final = 3
"""How many redirects are followed without a pause. After more, the nodes disagree and need time."""

_SCRIPT_WORDS: Final = frozenset(
    {"EXISTS", "INVALID", "STALE", "LAYOUT", "BROKEN", "PART", "WRONG", "GAP", "TAKEN"}
    | {"GONE", "CLOSED", "FENCED", "LAPSED", "SETTLED"}
)
"""Errors of our functions. They have checked whether they answered the call before."""

_ASKING: Final = pack(b"ASKING")

_told_at: dict[str, float] = {}

away: Final[dict[str, float]] = {}
"""Servers whose loss was logged, with the time of the loss on the monotonic clock."""


def is_passing(error: HoldfastError) -> bool:
    """Return whether an error may pass without a change of configuration, so that waiting helps."""
    if isinstance(error, ServerRefused):
        return error.word in PASSING
    return isinstance(error, ServerUnavailable | QueueFull)


def is_away(error: HoldfastError) -> bool:
    """Return whether the server serves no calls at all now, not only refuses some."""
    if isinstance(error, ServerRefused):
        return error.word in RETRIABLE
    return isinstance(error, ServerUnavailable)


def note_away(server: object, since: float) -> None:
    """Record that a server is lost and that its loss was logged."""
    away.setdefault(str(server), since)


def note_back(server: object) -> None:
    """Log that a server answers again, if its loss was logged."""
    since = away.pop(str(server), None)
    if since is not None:
        log.warning("%s: answers again after %.1f s", server, time.monotonic() - since)


class Tries:
    """The retries of one call: when and where the next one is made, and when to give up.

    With several servers, `node` is the one that was tried, and the topology learns from its errors.
    """

    def __init__(
        self,
        server: object,
        seconds: float,
        call: Call[Any] | None = None,
        *,
        begun: float = 0,
        since: float | None = None,
        renewable: bool = False,
        for_ever: bool = False,
        topology: Topology | None = None,
        slot: int = 0,
        as_script: bool = False,
    ) -> None:
        self.first = b""
        """Commands to send before the call on the next try."""
        self.ahead = 0
        """How many commands `first` contains."""
        self.ask_at: Node | None = None
        """The node for the next try, if it is not the node that serves the slot."""
        self._begun = begun or time.time()
        self._server = server
        now = self._since = time.monotonic()
        # If the process was stopped, or sending took long, it was not waiting for the server.
        if since is None or now - since > seconds + SPARE_SECONDS:
            since = now
        self._until = since + seconds
        self._renewals = int(renewable)
        self._call = call
        self._for_ever = for_ever
        self._topology = topology
        self._slot = slot
        self._retriable = ROUTED if topology else RETRIABLE
        self._hops = 0
        self._pause = 0.01
        self.as_script = as_script
        """Whether the next try runs the library as a script."""
        self._loaded = False
        self._missing = False
        """Whether the library is not there and could not be loaded."""
        self._denied = False
        """Whether this user may not run it as a script either."""
        self._unknown = False
        self._hung_up = False
        self._said: HoldfastError | None = None

    @property
    def left(self) -> float:
        """Remaining seconds of patience."""
        return self._until - time.monotonic()

    def after_loss(self, error: OSError, *, sent: bool, node: Node | None = None) -> float:
        """Return the pause, in seconds, after a connection was lost or could not be opened."""
        self._leave(node)  # The server may have restarted.
        self._unknown = self._unknown or sent
        if isinstance(error, ssl.SSLCertVerificationError):
            what, advice = untrusted(error)
            raise ServerRefused(f"{self._server}: {what}: {advice}", "TLS") from error
        # A server that rejects a client sends the reason and closes the connection. Often only the
        # close is seen on the next try, so keep the reason.
        closed = isinstance(error, BrokenPipeError | ConnectionResetError)
        self._hung_up = closed if sent else self._hung_up
        return self._pause_or_raise(self._said if closed and self._said else error)

    def after_no_entry(self, error: ServerRefused, node: Node | None = None) -> float:
        """Return the pause, in seconds, after a server refused a connection; nothing was sent."""
        self._leave(node)
        return self._after_no(error.word, error)

    def after_few_copies(self, replicas: object, wanted: int, node: Node | None = None) -> float:
        """Return the pause, in seconds, after a change that too few replicas have.

        The call is retried: the server repeats its answer and writes that once more, so the next
        WAIT covers the change.
        """
        self._leave(node)  # One of its replicas may be the primary by now.
        self._unknown = True
        told = replicas if isinstance(replicas, int) else 0
        return self._pause_or_raise(
            ConnectionError(f"only {told} replicas have the change, not {wanted}")
        )

    def after_refusal(
        self, before: object, reply: hiredis.ReplyError, node: Node | None = None
    ) -> float:
        """Return the pause, in seconds, after an error reply. `before` is the reply to `first`."""
        assert self._call is not None
        word = word_of(reply)
        if word in ("MOVED", "ASK") and node:
            return self._redirect(word, reply, node)
        if lacks_library(reply) and self._provide(word):
            return 0
        if self._topology and word in ROUTED - {"TRYAGAIN"}:
            self._leave(node)
        elif self.first and isinstance(before, hiredis.ReplyError):
            reply = before  # The reason why the script could not be loaded.
        self.first, self.ahead, self.ask_at = b"", 0, None
        if self._missing and word_of(reply) in ("NOPERM", "NO_FUNCTION"):
            self.as_script, self._denied = False, True
            reply = hiredis.ReplyError("NOT_LOADED")
        if word_of(reply) == "HTTP":  # From a proxy: the server was not a web server before.
            return self.after_loss(ConnectionResetError("an answer in HTTP"), sent=True, node=node)
        return self._after_no(word_of(reply), refusal(reply, self._call.ids))

    def _provide(self, word: str) -> bool:
        """Prepare a try that brings what the server lacks; return False if that was tried."""
        assert self._call is not None
        if self._denied or (word == "NOSCRIPT" and self._loaded):
            return False
        commands = [_ASKING] if self.ask_at else []
        if word == "NOSCRIPT":
            text = library.script(self._call.function.flags)
            commands.insert(0, pack(b"SCRIPT", b"LOAD", text))
            self._loaded = True
        elif word == "NO_FUNCTION" and not self._loaded:
            commands.insert(0, pack(b"FUNCTION", b"LOAD", library.library()))
            self._loaded = True
        else:  # The library cannot be loaded, or functions cannot be called: run it as a script.
            self._missing = word == "NO_FUNCTION"
            self.as_script, self._loaded = True, False
        self.first, self.ahead = b"".join(commands), len(commands)
        return True

    def _redirect(self, word: str, reply: hiredis.ReplyError, teller: Node) -> float:
        assert self._topology is not None
        node = self._topology.target(str(reply), teller)
        self._leave(None)
        if word == "MOVED":
            self._topology.moved(self._slot, node)
        else:  # For this call only: the slot is being migrated, so no node owns all its keys yet.
            self.ask_at, self.first, self.ahead = node, _ASKING, 1
        self._hops += 1
        trouble: HoldfastError = refusal(reply)
        return 0 if self._hops <= HOPS else self._pause_or_raise(trouble)

    def _leave(self, node: Node | None) -> None:
        """Forget what was known of the server: the next one may be another, without the library."""
        self.first, self.ahead, self.ask_at = b"", 0, None
        self._loaded = False
        if node and self._topology:
            self._topology.lost(node)

    def _after_no(self, word: str, error: HoldfastError) -> float:
        if word in LOGIN and self._renewals:
            self._renewals -= 1  # The next connection reads the password anew.
            return 0
        # An error from before the script ran says nothing about the outcome of an earlier try.
        if word in self._retriable or (self._unknown and word not in _SCRIPT_WORDS):
            self._said = error
            return self._pause_or_raise(error)
        raise error

    def _pause_or_raise(self, trouble: Exception) -> float:
        left = self.left
        # Suspended for minutes: the server may not remember the call any more.
        if self._unknown and abs(time.time() - self._begun) > FORGOTTEN_SECONDS:
            left = 0
        if left > 0:
            self._tell(trouble, left)
            pause, self._pause = self._pause * random.uniform(0.5, 1.0), min(self._pause * 2, 1.0)
            return min(pause, left)
        if isinstance(trouble, HoldfastError) and not self._unknown:
            raise trouble
        outcome = "Nothing was changed"
        if self._unknown:
            outcome = (
                "Whether the last call was applied is unknown: try again, with the same id "
                "if it adds a job"
            )
        if self._hung_up and "Its log says" not in str(trouble):
            outcome += (
                ". The server closed the connection after it got the call: if it exited, its log "
                "says why. With `appendfsync always` it exits when its disk is full"
            )
        raise ServerUnavailable(f"{self._server}: {describe(trouble)}. {outcome}") from trouble

    def _tell(self, trouble: Exception, left: float) -> None:
        now, server = time.monotonic(), str(self._server)
        tell_at = max(
            self._since + TELL_AFTER_SECONDS, _told_at.get(server, -math.inf) + TELL_EVERY_SECONDS
        )
        if now >= tell_at:
            _told_at[server] = now
            note_away(server, self._since)
            how_long = "until the server answers" if self._for_ever else f"for {left:.0f} s more"
            log.warning("%s: %s; trying again %s", server, describe(trouble), how_long)
