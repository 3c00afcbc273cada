"""Encodes commands and interprets error replies. No I/O.

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
from holdfast.engine import library
from holdfast.engine.call import Call
from holdfast.engine.claim_calls import lost, settled
from holdfast.engine.keys import META_PATTERN, NAMES, queue_keys, queue_of, slot_of
from holdfast.engine.library import Function
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
    {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MAXCLIENTS", "NOT_LOADED"}
)
"""Errors of a server that is temporarily unable to serve: nothing was done, so retry."""

PASSING: Final = RETRIABLE | {"READONLY", "NOREPLICAS", "MISCONF"}
"""Errors that may pass without a change of URL or permissions: a worker waits for that."""

ELSEWHERE: Final = frozenset({"READONLY", "MAXCLIENTS", "DENIED", "NOAUTH", "WRONGPASS", "HTTP"})
"""Errors after which the connection is useless. A new connection may reach a primary, or be
accepted."""

LOGIN: Final = frozenset({"NOAUTH", "WRONGPASS"})
"""Errors of the login: the password may have changed meanwhile."""

_TURNED_AWAY: Final = frozenset({"MAXCLIENTS", "DENIED", "HTTP"})
"""Errors that a server sends to a new connection, before any command; then it closes it."""

NOT_HERE: Final = frozenset({"MOVED", "ASK", "UNBLOCKED", "READONLY"})
"""Errors of a blocking pop on a queue that another node serves now."""

FORGOTTEN_SECONDS: Final = 300.0
"""An older call is not sent again: the server remembers callers for ten minutes."""

TELL_AFTER_SECONDS: Final = 1.0
"""How long a server must be away before it is logged."""
TELL_EVERY_SECONDS: Final = 10.0
"""The least time between two such log lines, however many calls wait."""

SPARE_SECONDS: Final = 2.0
"""How long a call may exceed its patience: connecting and a reply may take a second each."""

COPIES_SECONDS: Final = 0.5
"""How long to wait for replicas before a call is retried. It is less than `LEAST_SECONDS`, the
timeout of the last retry, which would otherwise end before the server reports the replicas."""

_SCRIPT_WORDS: Final = frozenset(
    {"EXISTS", "INVALID", "STALE", "LAYOUT", "BROKEN", "PART", "WRONG", "GAP", "TAKEN"}
    | {"GONE", "CLOSED", "FENCED", "LAPSED", "SETTLED"}
)
"""Errors of our functions. They have checked whether they answered the call before."""

_OTHER_HOST: Final = frozenset({62, 64})
"""OpenSSL's error codes for a certificate of another host name or IP address."""

_WEB_PAGE: Final = (b"http/", b"<!doctype html", b"<html")
"""How a web server's answer starts."""

_SAID_AS_ERR: Final = {
    "ERR ACL failure": "NOPERM",
    "ERR The user executing the script can't run": "NOPERM",
    "ERR max number of clients": "MAXCLIENTS",
    "ERR AUTH <password> called without": "NOPASSWORD",
    "ERR Function not found": "NO_FUNCTION",
    "ERR unknown command 'FCALL": "NO_FCALL",
    "ERR unknown command 'EVALSHA'": "TOO_OLD",
    "ERR Error compiling script": "TOO_OLD",  # The first line of ours is for Redis 7.0 and later.
}
"""Error words for messages that begin with the generic ERR."""

_ADVICE: Final = {
    "BROKEN": "another program wrote into this queue's `meta` key: repair it, or delete the queue",
    "READONLY": "this server is a read-only replica: connect to its primary",
    "NOT_LOADED": "the library of this release is not on the server, and this user may neither "
    "load it nor run scripts: run `holdfast load` as a user who may",
    "LOADING": "the server is still loading its data: try again in a moment",
    "BUSY": "the server is busy with a long script: try again, or look at its slow log",
    "NOAUTH": "the server needs a password: put user and password into the URL, or name a password "
    "file with HOLDFAST_PASSWORD_FILE",
    "WRONGPASS": "the server does not know this user and password: check the URL, or the file or "
    "function that the password comes from",
    "NOPASSWORD": "the server expects no password for its default user: remove the password from "
    "the URL and the environment, or name a user",
    "NOPERM": "this user may not run what a queue needs: see SECURITY.md for the ACL rule",
    "MASTERDOWN": "the server lost its primary: try again when the replica has one",
    "NOREPLICAS": "too few replicas for a write: see min-replicas-to-write",
    "MAXCLIENTS": "the server accepts no more clients: close some, or raise its maxclients",
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
"""How many keys the server scans per command, in less than a millisecond."""


def pack_scan(position: bytes) -> bytes:
    """Return the command that scans some keys for queues."""
    return pack(b"SCAN", position, b"MATCH", META_PATTERN, b"COUNT", b"%d" % SCAN_KEYS)


def read_scan(reply: Any) -> tuple[bytes, set[str]]:
    """Return the next position (b"0" at the end) and the queues that were found."""
    if isinstance(reply, hiredis.ReplyError):
        raise refusal(reply)
    position, keys = reply
    return position, {name for key in keys if (name := queue_of(key)) is not None}


class Greeting(NamedTuple):
    """The first commands on a new connection, as one packet."""

    packed: bytes
    must: int
    """How many of its first commands must succeed."""
    names: tuple[bytes, ...]
    """The subjects of the other commands. They may fail, and their replies are read later."""


class Introduction:
    """The login of connections, and their names in `CLIENT LIST`.

    A server may refuse the names: an old server does not know all of these commands, and a user may
    lack the permission. Then they are left out of later connections, which keeps its ACL LOG short.
    The replies are read together with the next reply, so they cost no round trip.
    """

    def __init__(self, called: str | None = None) -> None:
        self._called = called
        # Imported here and not when connecting: a fork during the import would leave the child
        # waiting for the import lock.
        self._version = _version()
        self._names: tuple[bytes, ...] = (b"SETNAME", b"LIB-NAME", b"LIB-VER")

    def pack(self, login: tuple[str, str], db: int) -> Greeting:
        """Return the first commands of a connection."""
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
        """Handle the reply to a name. Return False if the reply rejects the connection."""
        if isinstance(reply, hiredis.ReplyError):
            if word_of(reply) in _TURNED_AWAY:
                return False
            self._names = tuple(one for one in self._names if one != name)
        return True


MOST_OF_A_NAME: Final = 40
"""The most characters of each piece of a client's name."""


def client_name(called: str | None = None) -> bytes:
    """Return the name of this process: `holdfast:<role or program>:<host>:<pid>`."""
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


INFO: Final = pack(b"INFO")  # All sections: old servers do not accept a list of sections.
PING: Final = pack(b"PING")


NO_COPIES: Final = pack(b"WAIT", b"0", b"0")


def pack_copies(replicas: int, reply_seconds: float | None) -> bytes:
    """Return the WAIT command to append to a change; b"" if no replicas are required."""
    if not replicas:
        return b""
    seconds = min(COPIES_SECONDS, (reply_seconds or math.inf) / 2)
    return pack(b"WAIT", b"%d" % replicas, b"%d" % math.ceil(seconds * 1000))


class Packer:
    """Encodes calls to one queue. The parts that all calls share are encoded once."""

    def __init__(self, queue: str) -> None:
        self._keys = queue_keys(queue)
        self.slot = slot_of(queue)
        self._wake = self._keys[NAMES.index("wake")]
        self.events = self._keys[NAMES.index("events")]
        self._heads: dict[Function, tuple[int, bytes]] = {}

    def pack(self, call: Call[Any], now: bytes, caller: bytes, number: int) -> bytes:
        """Return a call as RESP."""
        head = self._heads.get(call.function)
        if head is None:
            head = self._heads[call.function] = self._head(
                b"FCALL" if call.function.changes else b"FCALL_RO",
                call.function.called.encode(),
            )
        words, prefix = head
        args = _arguments(call, now, caller, number)
        return b"*%d\r\n%b%b" % (words + len(args), prefix, _words(args))

    def pack_as_script(self, call: Call[Any], now: bytes, caller: bytes, number: int) -> bytes:
        """Return a call as RESP, for a server or user without functions."""
        words, prefix = self._head(b"EVALSHA", library.sha(call.function.flags))
        args = [*_arguments(call, now, caller, number), call.function.runs.encode()]
        return b"*%d\r\n%b%b" % (words + len(args), prefix, _words(args))

    def pack_wait(self, seconds: float) -> bytes:
        """Return the blocking pop of the wake that precedes a call that waits.

        The server runs the call as soon as the pop returns, so waiting for a job costs one round
        trip, not two.
        """
        return pack(b"BLPOP", self._wake, b"%.3f" % seconds)

    def _head(self, command: bytes, name: bytes) -> tuple[int, bytes]:
        words = [command, name, b"%d" % len(self._keys), *self._keys]
        return len(words), _words(words)


def _arguments(call: Call[Any], now: bytes, caller: bytes, number: int) -> list[bytes]:
    if call.function.changes:
        return [now, caller, b"%d" % number, *call.args]
    return [now, *call.args]


def _words(words: list[bytes]) -> bytes:
    if len(words) < 16:
        return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    packed = pack(*words)
    return packed[packed.index(b"\n") + 1 :]


def word_of(reply: object) -> str:
    """Return the first word of an error reply, which names its kind; "" for other replies."""
    if not isinstance(reply, hiredis.ReplyError):
        return ""
    text = str(reply)
    for beginning, word in _SAID_AS_ERR.items():
        if text.startswith(beginning):
            return word
    return text.partition(" ")[0]


def lacks_library(reply: object) -> bool:
    """Whether a server lacks the library or the script, or a user may not call functions."""
    word = word_of(reply)
    return word in ("NO_FUNCTION", "NO_FCALL", "NOSCRIPT") or (
        word == "NOPERM" and "'fcall" in str(reply)
    )


def _printable(text: str) -> str:
    """Return a server's text, shortened, on one line."""
    return "".join(c if c.isprintable() else " " for c in text[:200]).strip()


def misread(address: Address, chunk: bytes, error: hiredis.ProtocolError) -> hiredis.ReplyError:
    """Interpret bytes that are not RESP: return an error reply, or raise ConnectionResetError."""
    if chunk[:20].lower().startswith(_WEB_PAGE):
        return hiredis.ReplyError(f"HTTP {address}")
    raise ConnectionResetError(f"the server sent something that is not a reply: {error}") from error


def refusal(reply: hiredis.ReplyError, ids: Sequence[str] = ()) -> HoldfastError:
    """Return the exception for an error reply to a call about these ids."""
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
                f"{ids[0]}/{fact}: a job that is not a part has this id; no part was added"
            )
        case "GONE":
            return WrongState(
                f"{ids[int(fact)]}: the staged rows are gone: aborted, forgotten after keep_for, "
                "or committed before. Nothing was committed: stage them again, as another attempt"
            )
        case "CLOSED":
            return WrongState(
                f"{ids[int(fact)]}: rows belong to this request as parts, but it is not open. "
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
            return WrongState(f"the call does not match the state of the queue: {fact}")
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
                "the server cannot write to its disk, which may be full, and accepts no changes: "
                f"free space there, or repair its persistence. It said: {_printable(fact)}",
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
    """The retries of one call: how long to pause before the next, and when to give up.

    `node` is the server that was tried, if there are several; else None.
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
        self._tell_at = now + TELL_AFTER_SECONDS
        # If the process was stopped, or sending took long, it was not waiting for the server.
        if since is None or now - since > seconds + SPARE_SECONDS:
            since = now
        self._until = since + seconds
        self._renewals = int(renewable)
        self._call = call
        self._for_ever = for_ever
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

    def after_loss(self, error: OSError, *, sent: bool, node: Node | None = None) -> float:  # noqa: ARG002
        """Return the pause, in seconds, after a connection was lost or could not be opened."""
        self.forget_library()  # The server may have restarted.
        self._unknown = self._unknown or sent
        if isinstance(error, ssl.SSLCertVerificationError):
            what, advice = untrusted(error)
            raise ServerRefused(f"{self._server}: {what}: {advice}", "TLS") from error
        # A server that rejects a client sends the reason and closes the connection. Often only the
        # close is seen on the next try, so keep the reason.
        closed = isinstance(error, BrokenPipeError | ConnectionResetError)
        self._hung_up = closed if sent else self._hung_up
        return self._pause_or_raise(self._said if closed and self._said else error)

    def forget_library(self) -> None:
        """Send no commands before the call, and assume that the next server lacks the library."""
        self._send_ahead()
        self._loaded = False

    def after_refusal(
        self,
        before: object,
        reply: hiredis.ReplyError,
        node: Node | None = None,
    ) -> float:
        """Return the pause, in seconds, after an error reply. `before` is the reply to `first`."""
        assert self._call is not None
        if lacks_library(reply) and self._provide(reply):
            return 0
        if self.first and isinstance(before, hiredis.ReplyError):
            reply = before  # The reason why the script could not be loaded.
        self._send_ahead()
        if self._missing and word_of(reply) in ("NOPERM", "NO_FUNCTION"):
            self.as_script, self._denied = False, True
            reply = hiredis.ReplyError("NOT_LOADED")
        if word_of(reply) == "HTTP":  # From a proxy: the server was not a web server before.
            return self.after_loss(ConnectionResetError("an answer in HTTP"), sent=True, node=node)
        return self._after_no(word_of(reply), refusal(reply, self._call.ids))

    def _provide(self, reply: hiredis.ReplyError) -> bool:
        """Prepare a try that first loads what the server lacks; return False if that was tried."""
        assert self._call is not None
        word = word_of(reply)
        if self._denied or (word == "NOSCRIPT" and self._loaded):
            return False
        if word == "NO_FUNCTION" and not self._loaded:
            self._loaded = True
            self._send_ahead(pack(b"FUNCTION", b"LOAD", library.library()))
        elif word == "NOSCRIPT":
            self._loaded = True
            self._send_ahead(pack(b"SCRIPT", b"LOAD", library.script(self._call.function.flags)))
        else:  # It cannot be loaded, or functions cannot be called.
            self._missing = word == "NO_FUNCTION"
            self.as_script, self._loaded = True, False
            self._send_ahead()
        return True

    def _send_ahead(self, *commands: bytes) -> None:
        self.first, self.ahead = b"".join(commands), len(commands)

    def after_few_copies(self, replicas: object, wanted: int, node: Node | None = None) -> float:  # noqa: ARG002
        """Return the pause, in seconds, after a change that too few replicas have.

        The call is retried: the server repeats its answer and writes that once more, so the next
        WAIT covers the change.
        """
        self.forget_library()
        self._unknown = True
        told = replicas if isinstance(replicas, int) else 0
        return self._pause_or_raise(
            ConnectionError(f"only {told} replicas have the change, not {wanted}")
        )

    def after_no_entry(self, error: ServerRefused, node: Node | None = None) -> float:  # noqa: ARG002
        """Return the pause, in seconds, after a server refused a connection; nothing was sent."""
        return self._after_no(error.word, error)

    def _after_no(self, word: str, error: HoldfastError) -> float:
        if word in LOGIN and self._renewals:
            self._renewals -= 1  # The next connection reads the password anew.
            return 0
        # An error from before the script ran says nothing about the outcome of an earlier try.
        if word in self.retriable or (self._unknown and word not in _SCRIPT_WORDS):
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
        if now >= max(self._tell_at, _told_at.get(server, -math.inf) + TELL_EVERY_SECONDS):
            _told_at[server] = now
            note_away(server, self._since)
            how_long = "until the server answers" if self._for_ever else f"for {left:.0f} s more"
            log.warning("%s: %s; trying again %s", server, describe(trouble), how_long)


def are_enough(replicas: object, wanted: int) -> bool:
    """Return whether WAIT reported enough replicas."""
    return isinstance(replicas, int) and replicas >= wanted


def check_copies(reply: object) -> None:
    """Refuse a user without permission for WAIT, before anything is changed."""
    if isinstance(reply, hiredis.ReplyError) and word_of(reply) == "NOPERM":
        raise ServerRefused(
            "this user may not wait for replicas: allow +wait, or remove `replicas` from the URL",
            "NOPERM",
        )


def untrusted(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """Return what is wrong with a server's certificate, and how to correct it."""
    told = error.verify_message.rstrip(".")
    if error.verify_code not in _OTHER_HOST:
        return (
            f"its certificate is not trusted ({told})",
            "name its authority with ?ca=<file> in the URL",
        )
    _, _, host = told.rpartition(" for ")
    return (
        f"the host {host} does not match the server's certificate ({told})",
        "write the name that the certificate is for into the URL, or give the server a new one",
    )


def describe(error: Exception) -> str:
    """Return the text of a connection error."""
    if isinstance(error, TimeoutError) and (
        error.errno or "timed out" in (str(error) or "timed out")
    ):
        return "no answer in time"
    return str(error) or type(error).__name__


def check_health(server: object, reply: object) -> list[str]:
    """Refuse a server that is too old. Return warnings about settings that may lose jobs.

    `reply` is that of INFO. If the user may not call INFO, the scripts will report what they need.
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
