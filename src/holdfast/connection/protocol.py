"""Encodes commands and interprets error replies. No I/O.

Replies are parsed by hiredis.
"""

from __future__ import annotations

import math
import os
import platform
import re
import ssl
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

import hiredis

from holdfast import distribution
from holdfast.connection.address import Address
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
    UnsupportedServer,
    WrongState,
)
from holdfast.server.health import NEEDS, read_health

RETRIABLE: Final = frozenset(
    {"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MAXCLIENTS", "NOT_LOADED"}
)
"""Errors of a server that is temporarily unable to serve: nothing was done, so retry."""

ELSEWHERE: Final = frozenset({"READONLY", "MAXCLIENTS", "DENIED", "NOAUTH", "WRONGPASS", "HTTP"})
"""Errors after which the connection is useless. A new connection may reach a primary, or be
accepted."""

_TURNED_AWAY: Final = frozenset({"MAXCLIENTS", "DENIED", "HTTP"})
"""Errors that a server sends to a new connection, before any command; then it closes it."""

NOT_HERE: Final = frozenset({"MOVED", "ASK", "UNBLOCKED", "READONLY"})
"""Errors of a blocking pop on a queue that another node serves now."""

COPIES_SECONDS: Final = 0.5
"""How long to wait for replicas before a call is retried. It is less than `LEAST_SECONDS`, the
timeout of the last retry, which would otherwise end before the server reports the replicas."""

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


MOST_OF_A_NAME: Final = 40
"""The most characters of each piece of a client's name."""


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
        self._refused: frozenset[bytes] = frozenset()

    def pack(self, login: tuple[str, str], db: int) -> tuple[bytes, int, list[bytes]]:
        """Return the first commands of a connection, as one packet.

        Also returns how many of the first of them must succeed, and the names of the others, which
        may fail.
        """
        packed, must = b"", 0
        user, password = login
        if user or password:
            words = [user, password] if user else [password]
            packed += pack(b"AUTH", *(word.encode(errors="surrogateescape") for word in words))
            must += 1
        if db:
            packed += pack(b"SELECT", b"%d" % db)
            must += 1
        names = {
            b"SETNAME": (b"CLIENT", b"SETNAME", self._name()),
            b"LIB-NAME": (b"CLIENT", b"SETINFO", b"LIB-NAME", b"holdfast"),
            b"LIB-VER": (b"CLIENT", b"SETINFO", b"LIB-VER", self._version),
        }
        for name in self._refused:
            del names[name]
        for command in names.values():
            packed += pack(*command)
        return packed, must, [*names]

    def _name(self) -> bytes:
        """Return the name of this process: `holdfast:<role or program>:<host>:<pid>`."""
        program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"  # noqa: PTH119
        name = b"holdfast"
        for piece in (self._called or program, platform.node(), str(os.getpid())):
            clean = re.sub(r"[^A-Za-z0-9._-]+", "-", piece)[:MOST_OF_A_NAME]
            name += b":" + clean.encode()
        return name

    def hear(self, name: bytes, reply: object) -> bool:
        """Handle the reply to a name. Return False if the reply rejects the connection."""
        if isinstance(reply, hiredis.ReplyError):
            if word_of(reply) in _TURNED_AWAY:
                return False
            self._refused |= {name}
        return True


@cache
def _version() -> bytes:
    return distribution.version().encode()


INFO: Final = pack(b"INFO")  # All sections: old servers do not accept a list of sections.
PING: Final = pack(b"PING")


NO_COPIES: Final = pack(b"WAIT", b"0", b"0")


def pack_copies(replicas: int, reply_seconds: float) -> bytes:
    """Return the WAIT command to append to a change that replicas must have."""
    seconds = min(COPIES_SECONDS, reply_seconds / 2)
    return pack(b"WAIT", b"%d" % replicas, b"%d" % math.ceil(seconds * 1000))


_SIZE_LINES: Final = [b"\r\n$%d\r\n" % size for size in range(1024)]
"""What stands before a short word, by its size: the end of the last line, and the size."""


class Packer:
    """Encodes calls to one queue. The parts that all calls share are encoded once."""

    def __init__(self, queue: str) -> None:
        self._keys = queue_keys(queue)
        self.slot = slot_of(queue)
        self.events = self._keys[NAMES.index("events")]
        self._heads: dict[Function, tuple[int, bytes]] = {}
        """For each function, the number and the text of the words with which its calls begin."""

    def pack(self, call: Call[Any], now: bytes, caller: bytes, number: int) -> bytes:
        """Return a call as RESP."""
        function = call.function
        if function not in self._heads:
            command = b"FCALL" if function.changes else b"FCALL_RO"
            words = [command, function.called.encode(), b"%d" % len(self._keys), *self._keys]
            packed = pack(*words).partition(b"\n")[2]
            self._heads[function] = len(words), packed.removesuffix(b"\r\n")
        count, head = self._heads[function]
        who = (caller, b"%d" % number) if function.changes else ()
        words = [now, *who, *call.args]
        # How many, the head, then each word after its size, and the end of the last.
        pieces = [b"\r\n"] * (2 * len(words) + 3)
        pieces[0] = b"*%d\r\n" % (count + len(words))
        pieces[1] = head
        try:
            pieces[2:-1:2] = [_SIZE_LINES[len(word)] for word in words]
        except IndexError:
            pieces[2:-1:2] = [b"\r\n$%d\r\n" % len(word) for word in words]
        pieces[3::2] = words
        return b"".join(pieces)

    def pack_as_script(self, call: Call[Any], now: bytes, caller: bytes, number: int) -> bytes:
        """Return a call as RESP, for a server or user without functions."""
        function = call.function
        who = (caller, b"%d" % number) if function.changes else ()
        head = (b"EVALSHA", library.sha(function.flags), b"%d" % len(self._keys), *self._keys)
        return pack(*head, now, *who, *call.args, function.runs.encode())

    def pack_wait(self, seconds: float) -> bytes:
        """Return the blocking pop of the wake that precedes a call that waits.

        The server runs the call as soon as the pop returns, so waiting for a job costs one round
        trip, not two.
        """
        return pack(b"BLPOP", self._keys[NAMES.index("wake")], b"%.3f" % seconds)


packer_of = lru_cache(maxsize=256)(Packer)
"""Return the packer of a queue. All objects of that queue in a process share it."""


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


_REFUSALS: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "EXISTS": (JobExists, "{id}: there is a job with this id; nothing was added"),
    "PART": (WrongState, "{id}: the job is a part of a request, and parts are not changed"),
    "GAP": (WrongState, "{first}: the request has {fact} parts, so the next number is {fact}"),
    "TAKEN": (
        JobExists,
        "{first}/{fact}: a job that is not a part has this id; no part was added",
    ),
    "GONE": (
        WrongState,
        (
            "{id}: the staged rows are gone: aborted, forgotten after keep_for, or committed "
            "before. Nothing was committed: stage them again, as another attempt"
        ),
    ),
    "CLOSED": (
        WrongState,
        "{id}: rows belong to this request as parts, but it is not open. Nothing was committed",
    ),
    "FENCED": (
        Fenced,
        "{first}: a newer reader of this name was opened, or the queue was deleted: stop this one",
    ),
    "WRONG": (WrongState, "the call does not match the state of the queue: {fact}"),
    "INVALID": (InvalidArgument, "the server refused an argument: {fact}"),
    "STALE": (
        Refused,
        "this call came after a later one of the same caller and was not applied",
    ),
    "OOM": (QueueFull, "the server is out of memory: finish jobs or raise its maxmemory"),
    "TOO_OLD": (UnsupportedServer, f"this server cannot run the scripts of a queue: {NEEDS}"),
}
"""The exceptions for errors about a call. `{id}` is the id whose number the error has."""


def refusal(reply: hiredis.ReplyError, ids: Sequence[str] = ()) -> HoldfastError:
    """Return the exception for an error reply to a call about these ids."""
    word = word_of(reply)
    fact = str(reply).partition(" ")[2].partition(" script: ")[0]
    if word in _REFUSALS:
        kind, text = _REFUSALS[word]
        number = int(fact) if fact.isdigit() else 0
        about = ids[number] if number < len(ids) else ""
        return kind(text.format(fact=fact, id=about, first=ids[0] if ids else ""))
    match word:
        case "LAPSED":
            return lost(ids[0], ids[1], fact)
        case "SETTLED":
            return settled(ids[0], ids[1])
        case "LAYOUT" if fact.isdigit():
            return UnsupportedServer(
                f"this queue was written by a newer Holdfast (layout {fact}): update this one"
            )
        case "LAYOUT":
            return UnsupportedServer(
                "the layout of this queue is unknown: another program wrote to its keys, or they "
                "are damaged. Nothing was changed. If you know that Holdfast wrote the queue, set "
                "the field 'layout' of its key 'meta' to 1; else use another name"
            )
        case "MISCONF":
            said = (
                "the server cannot write to its disk, which may be full, and accepts no changes: "
                f"free space there, or repair its persistence. It said: {_printable(fact)}"
            )
        case "NOPERM":
            denied = str(reply).rpartition(" script: ")[2].removeprefix("NOPERM ")
            said = (
                f"this user may not do this. The server said: {_printable(denied)}. Is the name "
                "of the queue right? `holdfast acl QUEUE` prints the ACL rule for one queue; "
                "commands about all queues, such as `ls`, need more: see SECURITY.md"
            )
        case "HTTP":
            said = (
                f"{fact} is a web server, which answers in HTTP: correct the host and port of the "
                "URL"
            )
        case _:
            said = _ADVICE.get(word) or f"the server refused the call: {_printable(str(reply))}"
    return ServerRefused(said, word)


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
