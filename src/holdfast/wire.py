"""What goes over a connection, as bytes, with no I/O: commands out, and what an error reply means.

Replies are parsed by hiredis. Used by `server.py`, `aserver.py` and `doctor.py`.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import hiredis

from holdfast.address import Node
from holdfast.engine.call import Call
from holdfast.engine.script import Script
from holdfast.errors import (
    Fenced,
    HoldfastError,
    InvalidArgument,
    JobExists,
    QueueFull,
    Refused,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
    WrongState,
)
from holdfast.health import NEEDS, read_health
from holdfast.keys import META_PATTERN, NAMES, queue_keys, queue_of, slot_of
from holdfast.readers import lost, settled

log = logging.getLogger("holdfast")

RETRIABLE: Final = frozenset(
    {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MAXCLIENTS"}
)
"""The server answers, but not yet: nothing was done, ask again."""

ELSEWHERE: Final = frozenset({"READONLY", "MAXCLIENTS", "DENIED"})
"""Said on a connection that is of no more use. The next one may find a primary, or be let in."""

NOT_HERE: Final = frozenset({"MOVED", "ASK", "UNBLOCKED", "READONLY"})
"""Said to who listens to a queue that is served by another node now."""

FORGOTTEN_SECONDS: Final = 300.0
"""A call that was sent so long ago is not sent again: callers are remembered for ten minutes."""

TELL_AFTER_SECONDS: Final = 1.0
"""A server that is away for so long is worth a line in the log,"""
TELL_EVERY_SECONDS: Final = 10.0
"""not from every call that waits for it."""

COPIES_SECONDS: Final = 1.0
"""How long replicas are waited for before the call is made again."""

_SCRIPT_WORDS: Final = frozenset(
    {"EXISTS", "INVALID", "STALE", "LAYOUT", "BROKEN", "PART", "WRONG", "GAP", "TAKEN"}
    | {"GONE", "CLOSED", "FENCED", "LAPSED", "SETTLED"}
)
"""Said by a script, which knows whether it has answered this call before."""

_SAID_AS_ERR: Final = {
    "ERR ACL failure": "NOPERM",
    "ERR The user executing the script can't run": "NOPERM",
    "ERR max number of clients": "MAXCLIENTS",
    "ERR Error compiling script": "TOO_OLD",  # The first line of ours is for Redis 7.0 and later.
}
"""What some errors should have had for a first word."""

_ADVICE: Final = {
    "BROKEN": "somebody else wrote into this queue's `meta` key: mend it, or delete the queue",
    "READONLY": "this server is a read-only replica: connect to its primary",
    "LOADING": "the server is still loading its data: try again in a moment",
    "BUSY": "the server is busy with a long script: try again, or look at its slow log",
    "MISCONF": "the server cannot write to its disk: free space or mend its persistence",
    "NOAUTH": "the server wants a password: put user and password into the URL",
    "WRONGPASS": "the server does not know this user and password: check the URL",
    "NOPERM": "this user may not run what a queue needs: see SECURITY.md for the ACL rule",
    "MASTERDOWN": "the server lost its primary: try again when the replica has one",
    "NOREPLICAS": "too few replicas for a write: see min-replicas-to-write",
    "MAXCLIENTS": "the server takes no more clients: close some, or raise its maxclients",
    "DENIED": "the server is in protected mode: give it a password, or connect from its machine",
    "CLUSTERDOWN": "the cluster is down: try again when all its slots are served",
    "TRYAGAIN": "this queue is moving to another node of its cluster: try again in a moment",
    "ASK": "this queue is moving to another node of a cluster: begin the URL with redis+cluster://",
    "MOVED": "this queue is on another node of a cluster: begin the URL with redis+cluster://",
}


def pack(*command: bytes) -> bytes:
    """Return a command as RESP."""
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # any length
    return packed


SCAN_KEYS: Final = 1000
"""How many keys the server looks at in one go: less than a millisecond."""


def pack_scan(position: bytes) -> bytes:
    """Return the command that looks for queues among some keys."""
    return pack(b"SCAN", position, b"MATCH", META_PATTERN, b"COUNT", b"%d" % SCAN_KEYS)


def read_scan(reply: Any) -> tuple[bytes, set[str]]:
    """Return where to go on (b"0" at the end), and the queues that were found."""
    if isinstance(reply, hiredis.ReplyError):
        raise refusal(reply)
    position, keys = reply
    return position, {name for key in keys if (name := queue_of(key)) is not None}


INFO: Final = pack(b"INFO")  # All of it: those that are too old take no list of sections.
PING: Final = pack(b"PING")


NO_COPIES: Final = pack(b"WAIT", b"0", b"0")


def pack_copies(replicas: int, reply_seconds: float | None) -> bytes:
    """Return what, after a change, waits a moment until so many replicas have it; b"" for none."""
    if not replicas:
        return b""
    seconds = min(COPIES_SECONDS, (reply_seconds or math.inf) / 2)
    return pack(b"WAIT", b"%d" % replicas, b"%d" % math.ceil(seconds * 1000))


class Packer:
    """Packs calls to one queue: all that is the same for every call is packed once."""

    def __init__(self, queue: str) -> None:
        self._keys = queue_keys(queue)
        self.slot = slot_of(queue)
        self._wake = self._keys[NAMES.index("wake")]
        self.events = self._keys[NAMES.index("events")]
        self._heads: dict[Script, tuple[int, bytes]] = {}

    def pack(self, call: Call[Any], now: bytes, caller: bytes, number: int) -> bytes:
        """Return a call as RESP."""
        head = self._heads.get(call.script)
        if head is None:
            head = self._heads[call.script] = self._head(call.script)
        words, prefix = head
        if call.script.changes:
            args = [now, caller, b"%d" % number, *call.args]
        else:
            args = [now, *call.args]
        return b"*%d\r\n%b%b" % (words + len(args), prefix, _words(args))

    def pack_wait(self, seconds: float) -> bytes:
        """Return the blocking pop of the wake that goes before a call that waits.

        The server runs the script behind it the moment that the pop answers, so a job
        that was waited for costs one round trip, not two.
        """
        return pack(b"BLPOP", self._wake, b"%.3f" % seconds)

    def _head(self, script: Script) -> tuple[int, bytes]:
        words = [b"EVALSHA", script.sha, b"%d" % len(self._keys), *self._keys]
        return len(words), _words(words)


def _words(words: list[bytes]) -> bytes:
    if len(words) < 16:
        return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    packed = pack(*words)
    return packed[packed.index(b"\n") + 1 :]


def word_of(reply: object) -> str:
    """Return the word that says of what kind an error reply is: its first one, if it has one."""
    if not isinstance(reply, hiredis.ReplyError):
        return ""
    text = str(reply)
    for beginning, word in _SAID_AS_ERR.items():
        if text.startswith(beginning):
            return word
    return text.partition(" ")[0]


def refusal(reply: hiredis.ReplyError, ids: Sequence[str] = ()) -> HoldfastError:
    """Return the error that an error reply means to a caller who spoke of these ids."""
    text = str(reply)
    word = word_of(reply)
    fact = text.partition(" ")[2].partition(" script: ")[0]
    match word:
        case "EXISTS":
            return JobExists(f"{ids[int(fact)]}: there is a job with this id; nothing was added")
        case "PART":
            return WrongState(
                f"{ids[int(fact)]}: the job is a part of a request, and parts are not changed"
            )
        case "GAP":
            return WrongState(
                f"{ids[0]}: the request has {fact} parts, so the next number is {fact}"
            )
        case "TAKEN":
            return JobExists(
                f"{ids[0]}/{fact}: a job that is no part has this id; no part was added"
            )
        case "GONE":
            return WrongState(
                f"{ids[int(fact)]}: what was staged is gone: aborted, forgotten after keep_for, or "
                "committed before. Nothing was committed: stage it anew, as another attempt"
            )
        case "CLOSED":
            return WrongState(
                f"{ids[int(fact)]}: rows are to be parts of this request, but it is not open. "
                "Nothing was committed"
            )
        case "FENCED":
            return Fenced(
                f"{ids[0]}: a newer reader of this name was opened, or the queue was deleted: stop "
                "this one"
            )
        case "LAPSED":
            return lost(ids[0], ids[1], fact)
        case "SETTLED":
            return settled(ids[0], ids[1])
        case "WRONG":
            return WrongState(f"the call does not fit what is there: {fact}")
        case "INVALID":
            return InvalidArgument(f"the server refused an argument: {fact}")
        case "STALE":
            return Refused(
                "this call came after a later one of the same caller and was not applied"
            )
        case "OOM":
            return QueueFull("the server is out of memory: finish jobs or raise its maxmemory")
        case "LAYOUT":
            return UnsupportedServer(
                f"this queue was written by a newer Holdfast (layout {fact}): update this one"
            )
        case "TOO_OLD":
            return UnsupportedServer(f"this server cannot run the scripts of a queue: {NEEDS}")
    if word in _ADVICE:
        return ServerRefused(_ADVICE[word], word)
    return ServerRefused(f"the server refused the call: {text[:200]}", word)


_told_at: dict[str, float] = {}


class Tries:
    """The tries of one call: how long to pause before the next, and when to give up.

    `node` is the one of several servers that a try went to; with one server there is none.
    """

    retriable: ClassVar[frozenset[str]] = RETRIABLE

    def __init__(
        self, server: object, seconds: float, call: Call[Any] | None = None, begun: float = 0
    ) -> None:
        self.first = b""
        """What to send in front of the call next time,"""
        self.ahead = 0
        """as so many commands,"""
        self.ask_at: Node | None = None
        """and to whom, if not to the one whose slot it is."""
        self._begun = begun or time.time()
        self._server = server
        self._tell_at = time.monotonic() + TELL_AFTER_SECONDS
        self._until = time.monotonic() + seconds
        self._call = call
        self._pause = 0.01
        self._loaded = False
        self._unknown = False
        self._said: HoldfastError | None = None

    def after_loss(self, error: OSError, *, sent: bool, node: Node | None = None) -> float:  # noqa: ARG002
        """Return seconds to pause after a connection was lost or could not be made."""
        self.forget_script()  # The next connection may be to a server that starts anew.
        self._unknown = self._unknown or sent
        if isinstance(error, ssl.SSLCertVerificationError):
            raise ServerRefused(
                f"{self._server}: its certificate is not to be trusted "
                f"({error.verify_message}): name its authority with ?ca=<file> in the URL",
                "TLS",
            ) from error
        # A server that turns a client away says why, and closes: often that is all one hears.
        closed = isinstance(error, BrokenPipeError | ConnectionResetError)
        return self._pause_or_raise(self._said if closed and self._said else error)

    def forget_script(self) -> None:
        """Send nothing in front; the script may be unknown to whom we talk to next."""
        self.first, self.ahead = b"", 0
        self._loaded = False

    def after_refusal(
        self,
        before: object,
        reply: hiredis.ReplyError,
        node: Node | None = None,  # noqa: ARG002
    ) -> float:
        """Return seconds to pause after an error reply; `before` is the reply to `first`."""
        assert self._call is not None
        if word_of(reply) == "NOSCRIPT" and not self._loaded:
            self._loaded = True
            self.first, self.ahead = pack(b"SCRIPT", b"LOAD", self._call.script.text), 1
            return 0
        if self.first and isinstance(before, hiredis.ReplyError):
            reply = before  # The script could not be loaded, and that is why.
        self.first, self.ahead = b"", 0
        return self._after_no(word_of(reply), refusal(reply, self._call.ids))

    def after_few_copies(self, replicas: object, wanted: int, node: Node | None = None) -> float:  # noqa: ARG002
        """Return seconds to pause after a change that too few replicas have.

        The call is made again: it is answered the same, and its answer is written once more,
        so that what is waited for includes it.
        """
        self.forget_script()
        self._unknown = True
        told = replicas if isinstance(replicas, int) else 0
        return self._pause_or_raise(
            ConnectionError(f"only {told} replicas have the change, not {wanted}")
        )

    def after_no_entry(self, error: ServerRefused, node: Node | None = None) -> float:  # noqa: ARG002
        """Return seconds to pause after a server did not let us in; nothing was sent to it."""
        return self._after_no(error.word, error)

    def _after_no(self, word: str, error: HoldfastError) -> float:
        # What the server refused before the script ran says nothing about an earlier try.
        if word in self.retriable or (self._unknown and word not in _SCRIPT_WORDS):
            self._said = error
            return self._pause_or_raise(error)
        raise error

    def _pause_or_raise(self, trouble: Exception) -> float:
        left = self._until - time.monotonic()
        # Frozen or asleep for minutes: the server may have forgotten that it knows this call.
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
                "Whether the last call was applied is unknown: ask again, with the same id "
                "where you add"
            )
        raise ServerUnavailable(f"{self._server}: {describe(trouble)}. {outcome}") from trouble

    def _tell(self, trouble: Exception, left: float) -> None:
        now, server = time.monotonic(), str(self._server)
        if now >= max(self._tell_at, _told_at.get(server, -math.inf) + TELL_EVERY_SECONDS):
            _told_at[server] = now
            log.warning("%s: %s; tried again for %.0f s more", server, describe(trouble), left)


def are_enough(replicas: object, wanted: int) -> bool:
    """Whether so many replicas have a change, as the server says."""
    return isinstance(replicas, int) and replicas >= wanted


def check_copies(reply: object) -> None:
    """Refuse a user who may not wait for replicas, before anything is changed."""
    if isinstance(reply, hiredis.ReplyError) and word_of(reply) == "NOPERM":
        raise ServerRefused(
            "this user may not wait for replicas: allow +wait, or take `replicas` out of the URL",
            "NOPERM",
        )


def describe(error: Exception) -> str:
    """Return an error of the connection as words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def check_health(server: object, reply: object) -> list[str]:
    """Refuse a server that is too old; return warnings about one that may lose jobs.

    `reply` is INFO's. A user who may not ask will learn from the scripts what they need.
    """
    if isinstance(reply, hiredis.ReplyError) and word_of(reply) in _ADVICE.keys() - {"NOPERM"}:
        raise refusal(reply)
    if not isinstance(reply, bytes):
        return []
    health = read_health(reply)
    if health.too_old:
        raise UnsupportedServer(f"{server} is {health.name}: {NEEDS}")
    return health.warnings()
