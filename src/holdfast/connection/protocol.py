"""What goes over a connection, as bytes, with no I/O: commands out, and what an error reply means.

Replies are parsed by hiredis. Used by `server.py`, `async_server.py` and `doctor.py`.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import random
import re
import ssl
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import hiredis

from holdfast.connection.address import Address, Node
from holdfast.engine.call import Call
from holdfast.engine.claim_calls import lost, settled
from holdfast.engine.keys import META_PATTERN, NAMES, queue_keys, queue_of, slot_of
from holdfast.engine.scripts import Script
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
from holdfast.server.health import NEEDS, read_health

log = logging.getLogger("holdfast")

RETRIABLE: Final = frozenset(
    {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MAXCLIENTS"}
)
"""The server answers, but not yet: nothing was done, ask again."""

PASSING: Final = RETRIABLE | {"READONLY", "NOREPLICAS", "MISCONF"}
"""Said by a server that may serve us later with the same URL and rights: a worker waits for it."""

ELSEWHERE: Final = frozenset({"READONLY", "MAXCLIENTS", "DENIED", "NOAUTH", "WRONGPASS", "HTTP"})
"""Said on a connection that is of no more use. The next one may find a primary, or be let in."""

LOGIN: Final = frozenset({"NOAUTH", "WRONGPASS"})
"""Said about a password, which may be another one by now."""

_TURNED_AWAY: Final = frozenset({"MAXCLIENTS", "DENIED", "HTTP"})
"""Said to whoever connects, before anything is asked; then the server hangs up."""

NOT_HERE: Final = frozenset({"MOVED", "ASK", "UNBLOCKED", "READONLY"})
"""Said to who listens to a queue that is served by another node now."""

FORGOTTEN_SECONDS: Final = 300.0
"""A call that was sent so long ago is not sent again: callers are remembered for ten minutes."""

TELL_AFTER_SECONDS: Final = 1.0
"""A server that is away for so long is worth a line in the log,"""
TELL_EVERY_SECONDS: Final = 10.0
"""not from every call that waits for it."""

SPARE_SECONDS: Final = 2.0
"""What a call may take beyond its patience: connecting and a reply have a second each."""

COPIES_SECONDS: Final = 0.5
"""How long replicas are waited for before the call is made again. Less than `LEAST_SECONDS`, which
the last try has: else it hears nothing instead of how many have the change."""

_SCRIPT_WORDS: Final = frozenset(
    {"EXISTS", "INVALID", "STALE", "LAYOUT", "BROKEN", "PART", "WRONG", "GAP", "TAKEN"}
    | {"GONE", "CLOSED", "FENCED", "LAPSED", "SETTLED"}
)
"""Said by a script, which knows whether it has answered this call before."""

_OTHER_HOST: Final = frozenset({62, 64})
"""What OpenSSL says of a certificate for another host name, or another IP address."""

_WEB_PAGE: Final = (b"http/", b"<!doctype html", b"<html")
"""How a web server begins its answer to what it does not understand."""

_SAID_AS_ERR: Final = {
    "ERR ACL failure": "NOPERM",
    "ERR The user executing the script can't run": "NOPERM",
    "ERR max number of clients": "MAXCLIENTS",
    "ERR AUTH <password> called without": "NOPASSWORD",
    "ERR unknown command 'EVALSHA'": "TOO_OLD",
    "ERR Error compiling script": "TOO_OLD",  # The first line of ours is for Redis 7.0 and later.
}
"""What some errors should have had for a first word."""

_ADVICE: Final = {
    "BROKEN": "somebody else wrote into this queue's `meta` key: mend it, or delete the queue",
    "READONLY": "this server is a read-only replica: connect to its primary",
    "LOADING": "the server is still loading its data: try again in a moment",
    "BUSY": "the server is busy with a long script: try again, or look at its slow log",
    "NOAUTH": "the server wants a password: put user and password into the URL, or name a password "
    "file with HOLDFAST_PASSWORD_FILE",
    "WRONGPASS": "the server does not know this user and password: check the URL, or the file or "
    "function that the password comes from",
    "NOPASSWORD": "the server wants no password from its default user: take the password out of "
    "the URL and the environment, or name a user",
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


class Greeting(NamedTuple):
    """What a new connection says first, as one packet."""

    packed: bytes
    must: int
    """How many of its commands, from the first, have to succeed."""
    names: tuple[bytes, ...]
    """What the others are about. They may fail, and need not be waited for."""


class Introduction:
    """How connections introduce themselves: the login, and the names in `CLIENT LIST`.

    A server may refuse the names: an old one does not know all of these commands, and a user may
    lack the right to them. Then they are left out, so that its ACL LOG stays short. Their answers
    are read with the next one, so that they cost no round trip.
    """

    def __init__(self, called: str | None = None) -> None:
        self._called = called
        # Not when it connects: a fork meanwhile would leave the child waiting for an import.
        self._version = _version()
        self._names: tuple[bytes, ...] = (b"SETNAME", b"LIB-NAME", b"LIB-VER")

    def pack(self, login: tuple[str, str], db: int) -> Greeting:
        """Return what to send."""
        commands: list[tuple[bytes, ...]] = []
        user, password = (word.encode(errors="surrogateescape") for word in login)
        if user or password:
            commands.append((b"AUTH", user, password) if user else (b"AUTH", password))
        if db:
            commands.append((b"SELECT", b"%d" % db))
        must, names = len(commands), self._names
        for name in names:
            match name:
                case b"SETNAME":
                    commands.append((b"CLIENT", name, client_name(self._called)))
                case b"LIB-NAME":
                    commands.append((b"CLIENT", b"SETINFO", name, b"holdfast"))
                case _:
                    commands.append((b"CLIENT", b"SETINFO", name, self._version))
        return Greeting(b"".join(pack(*command) for command in commands), must, names)

    def hear(self, name: bytes, reply: object) -> bool:
        """Take note of the answer to a name; False if the server turns us away with it."""
        if isinstance(reply, hiredis.ReplyError):
            if word_of(reply) in _TURNED_AWAY:
                return False
            self._names = tuple(one for one in self._names if one != name)
        return True


MOST_OF_A_NAME: Final = 40
"""Characters of each piece of a client's name."""


def client_name(called: str | None = None) -> bytes:
    """Return what this process is called: `holdfast:<role or program>:<host>:<pid>`."""
    called = called or os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119
    pieces = (called, platform.node(), str(os.getpid()))
    clean = (re.sub(r"[^A-Za-z0-9._-]+", "-", piece)[:MOST_OF_A_NAME] for piece in pieces)
    return ":".join(("holdfast", *clean)).encode()


@cache
def _version() -> bytes:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # It is slow.

    try:
        return version("holdfast").encode()
    except PackageNotFoundError:
        return b"unknown"


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


def _printable(text: str) -> str:
    """Return what a server said, short and on one line."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()


def misread(address: Address, chunk: bytes, error: hiredis.ProtocolError) -> hiredis.ReplyError:
    """Return what an answer that is no reply means; ConnectionResetError where it is unknown."""
    if chunk[:20].lower().startswith(_WEB_PAGE):
        return hiredis.ReplyError(f"HTTP {address}")
    raise ConnectionResetError(f"what came is not a reply: {error}") from error


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
        case "LAYOUT" if not fact.isdigit():
            return UnsupportedServer(
                "the layout of this queue is unknown: another program wrote to its keys, or they "
                "are damaged. Nothing was changed. If you know that Holdfast wrote the queue, set "
                "the field 'layout' of its key 'meta' to 1; else use another name"
            )
        case "LAYOUT":
            return UnsupportedServer(
                f"this queue was written by a newer Holdfast (layout {fact}): update this one"
            )
        case "MISCONF":
            return ServerRefused(
                "the server cannot write to its disk, which may be full, and takes no changes: "
                f"free space there, or mend its persistence. It said: {_printable(fact)}",
                word,
            )
        case "HTTP":
            return ServerRefused(
                f"{fact} is a web server, which answers in HTTP: correct the host and port of the "
                "URL",
                word,
            )
        case "TOO_OLD":
            return UnsupportedServer(f"this server cannot run the scripts of a queue: {NEEDS}")
    if word in _ADVICE:
        return ServerRefused(_ADVICE[word], word)
    return ServerRefused(f"the server refused the call: {_printable(text)}", word)


_told_at: dict[str, float] = {}

away: Final[dict[str, float]] = {}
"""Servers whose loss was logged, and since when they are lost, by the monotonic clock."""


def is_passing(error: HoldfastError) -> bool:
    """Whether the trouble may be over without a change of configuration: then waiting helps."""
    if isinstance(error, ServerRefused):
        return error.word in PASSING
    return isinstance(error, ServerUnavailable | QueueFull)


def is_away(error: HoldfastError) -> bool:
    """Whether the server does not serve anything now; not that it refuses some calls."""
    if isinstance(error, ServerRefused):
        return error.word in RETRIABLE
    return isinstance(error, ServerUnavailable)


def note_away(server: object, since: float) -> None:
    """Note that a server is lost, and that this was logged."""
    away.setdefault(str(server), since)


def note_back(server: object) -> None:
    """Log that a server answers again, and after how long, if its loss was logged."""
    since = away.pop(str(server), None)
    if since is not None:
        log.warning("%s: answers again after %.1f s", server, time.monotonic() - since)


class Tries:
    """The tries of one call: how long to pause before the next, and when to give up.

    `node` is the one of several servers that a try went to; with one server there is none.
    """

    retriable: ClassVar[frozenset[str]] = RETRIABLE

    def __init__(
        self,
        server: object,
        seconds: float,
        call: Call[Any] | None = None,
        begun: float = 0,
        *,
        since: float | None = None,
        renewable: bool = False,
        for_ever: bool = False,
    ) -> None:
        self.first = b""
        """What to send in front of the call next time,"""
        self.ahead = 0
        """as so many commands,"""
        self.ask_at: Node | None = None
        """and to whom, if not to the one whose slot it is."""
        self._begun = begun or time.time()
        self._server = server
        now = self._since = time.monotonic()
        self._tell_at = now + TELL_AFTER_SECONDS
        # A process that was stopped, or sent for long, was not waiting for the server all the time.
        if since is None or now - since > seconds + SPARE_SECONDS:
            since = now
        self._until = since + seconds
        self._renewals = int(renewable)
        self._call = call
        self._for_ever = for_ever
        self._pause = 0.01
        self._loaded = False
        self._unknown = False
        self._hung_up = False
        self._said: HoldfastError | None = None

    @property
    def left(self) -> float:
        """Seconds for which the call is still tried."""
        return self._until - time.monotonic()

    def after_loss(self, error: OSError, *, sent: bool, node: Node | None = None) -> float:  # noqa: ARG002
        """Return seconds to pause after a connection was lost or could not be made."""
        self.forget_script()  # The next connection may be to a server that starts anew.
        self._unknown = self._unknown or sent
        if isinstance(error, ssl.SSLCertVerificationError):
            what, advice = untrusted(error)
            raise ServerRefused(f"{self._server}: {what}: {advice}", "TLS") from error
        # A server that turns a client away says why, and closes: often that is all one hears.
        closed = isinstance(error, BrokenPipeError | ConnectionResetError)
        self._hung_up = closed if sent else self._hung_up
        return self._pause_or_raise(self._said if closed and self._said else error)

    def forget_script(self) -> None:
        """Send nothing in front; the script may be unknown to whom we talk to next."""
        self.first, self.ahead = b"", 0
        self._loaded = False

    def after_refusal(
        self,
        before: object,
        reply: hiredis.ReplyError,
        node: Node | None = None,
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
        if word_of(reply) == "HTTP":  # It was no web server before: a proxy took the reply.
            return self.after_loss(ConnectionResetError("an answer in HTTP"), sent=True, node=node)
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
        if word in LOGIN and self._renewals:
            self._renewals -= 1  # The next connection asks for the password anew.
            return 0
        # What the server refused before the script ran says nothing about an earlier try.
        if word in self.retriable or (self._unknown and word not in _SCRIPT_WORDS):
            self._said = error
            return self._pause_or_raise(error)
        raise error

    def _pause_or_raise(self, trouble: Exception) -> float:
        left = self.left
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
        if self._hung_up and "Its log says" not in str(trouble):
            outcome += (
                ". The server closed the connection when it had the call: if it exited, its log "
                "says why. With `appendfsync always` it exits when its disk is full"
            )
        raise ServerUnavailable(f"{self._server}: {describe(trouble)}. {outcome}") from trouble

    def _tell(self, trouble: Exception, left: float) -> None:
        now, server = time.monotonic(), str(self._server)
        if now >= max(self._tell_at, _told_at.get(server, -math.inf) + TELL_EVERY_SECONDS):
            _told_at[server] = now
            note_away(server, self._since)
            how_long = "until the server answers" if self._for_ever else f"for {left:.0f} s more"
            log.warning("%s: %s; trying again %s", server, describe(trouble), how_long)


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


def untrusted(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """Return what is wrong with a server's certificate, and what to do."""
    told = error.verify_message.rstrip(".")
    if error.verify_code not in _OTHER_HOST:
        return (
            f"its certificate is not to be trusted ({told})",
            "name its authority with ?ca=<file> in the URL",
        )
    _, _, host = told.rpartition(" for ")
    return (
        f"the host {host} does not match the server's certificate ({told})",
        "write the name that the certificate is for into the URL, or give the server a new one",
    )


def describe(error: Exception) -> str:
    """Return an error of the connection as words."""
    if isinstance(error, TimeoutError) and (
        error.errno or "timed out" in (str(error) or "timed out")
    ):
        return "no answer in time"
    return str(error) or type(error).__name__


def check_health(server: object, reply: object) -> list[str]:
    """Refuse a server that is too old; return warnings about one that may lose jobs.

    `reply` is INFO's. A user who may not ask will learn from the scripts what they need.
    """
    if isinstance(reply, hiredis.ReplyError) and word_of(reply) in (
        _ADVICE.keys() | {"MISCONF", "HTTP"}
    ) - {"NOPERM"}:
        raise refusal(reply)
    if not isinstance(reply, bytes):
        return []
    health = read_health(reply)
    if "sentinel" in (health.fields.get("redis_mode"), health.fields.get("server_mode")):
        raise UnsupportedServer(
            f"{server} is a Sentinel, which has no queues: use redis+sentinel://host:port/name, "
            "with the name by which it knows the primary"
        )
    if health.too_old:
        raise UnsupportedServer(f"{server} is {health.name}: {NEEDS}")
    return health.warnings(embedded=isinstance(server, Address) and server.embedded)
