"""The libraries of functions on a server: which are there, load ours, remove those of others.

Clients load the library of their release at their first call, if their user may. Where
applications may not, somebody who may does it here, once for each release.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final

import hiredis

from holdfast import arguments
from holdfast.client.sharding import Sharding
from holdfast.client.sync.queue import Queue
from holdfast.connection.address import Address, Node
from holdfast.connection.protocol import INFO, pack, refusal
from holdfast.connection.server import Link, Server
from holdfast.engine import library
from holdfast.engine.keys import queue_keys
from holdfast.errors import InvalidArgument, WrongState
from holdfast.server.health import read_health

_LIST: Final = pack(b"FUNCTION", b"LIST", b"LIBRARYNAME", b"holdfast_*")
_SHARDS: Final = pack(b"CLUSTER", b"SHARDS")


@dataclass(frozen=True)
class Loaded:
    """What `load` did to one server."""

    server: str
    new: bool
    """Whether the library was not there before."""
    others: list[str]
    """Libraries of other releases that are still there."""
    removed: list[str] = field(default_factory=list)


def load(url: str | None = None, *, prune: bool = False) -> list[Loaded]:
    """Load the library of this release into every primary.

    With `prune`, remove those of other releases. Raises `WrongState`, and removes none, while a
    worker that is alive uses one of them.
    """
    with closing(Server(url)) as server:
        nodes = _primaries(server)
        done = [_load(server, node) for node in nodes]
        if prune and any(one.others for one in done):
            names = {name for one in done for name in one.others}
            for database in _databases(server, nodes):
                _refuse_used(replace(server.address, db=database), names)
            done = [_prune(server, *pair) for pair in zip(nodes, done, strict=True)]
        return done


def _primaries(server: Server) -> list[Node | None]:
    """Return all primaries, also those of a cluster that have no slots yet."""
    found = list(server.primaries())
    if server.address.kind != "cluster" or found[0] is None:
        return found
    with closing(server.connect_to(found[0])) as link:
        shards = link.ask(_SHARDS)
    if isinstance(shards, hiredis.ReplyError):  # This user may not ask.
        return found
    for shard in shards:
        for node in map(_fields, _fields(shard)[b"nodes"]):
            if node[b"role"] == b"master" and node[b"health"] == b"online":
                port = node.get(b"tls-port") if server.address.tls else None
                named = (node[b"endpoint"] or b"?").decode()
                # A node that does not know its name is reached as the one that was asked.
                host = server.address.reach or (found[0][0] if named in ("", "?") else named)
                found.append((host, port or node[b"port"]))
    return list(dict.fromkeys(found))


def _databases(server: Server, nodes: list[Node | None]) -> list[int]:
    """Return the numbers of the databases that have keys: they share the libraries."""
    found = {server.address.db}
    for node in nodes:
        with closing(server.connect_to(node)) as link:
            info = link.ask(INFO)
        if isinstance(info, hiredis.ReplyError):
            raise refusal(info)
        names = read_health(info).fields
        found |= {int(name[2:]) for name in names if name[:2] == "db" and name[2:].isdigit()}
    return sorted(found)


def names_at(link: Link) -> list[str] | None:
    """Return the names of our libraries on a server; None if this user may not ask."""
    reply = link.ask(_LIST)
    if isinstance(reply, hiredis.ReplyError):
        return None
    return sorted(_name(one) for one in reply)


def _name(entry: list[Any]) -> str:
    return str(_fields(entry)[b"library_name"].decode())


def _fields(reply: list[Any]) -> dict[bytes, Any]:
    """Return a reply of names and values as a dict."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _load(server: Server, node: Node | None) -> Loaded:
    ours = library.library_name()
    with closing(server.connect_to(node)) as link:
        before = names_at(link) or []
        if ours not in before:
            reply = link.ask(pack(b"FUNCTION", b"LOAD", library.library()))
            if isinstance(reply, hiredis.ReplyError) and "already exists" not in str(reply):
                raise refusal(reply)
        others = [name for name in before if name != ours]
        return Loaded(str(link.address), ours not in before, others)


def _prune(server: Server, node: Node | None, done: Loaded) -> Loaded:
    with closing(server.connect_to(node)) as link:
        for name in done.others:
            reply = link.ask(pack(b"FUNCTION", b"DELETE", name.encode()))
            if isinstance(reply, hiredis.ReplyError) and "not found" not in str(reply):
                raise refusal(reply)
    return Loaded(done.server, done.new, [], done.others)


def _refuse_used(address: Address, names: set[str]) -> None:
    """Refuse to remove a library that a worker in this database uses."""
    with closing(Server(address)) as server:
        for queue in server.queues():
            for worker in Queue(queue, server).workers():
                used = worker.about.get("library")
                if worker.alive and used in names:
                    place = f" in database {address.db}" if address.db else ""
                    raise WrongState(
                        f"{used} is in use: worker {worker.holder} of queue {queue}{place} runs "
                        "it. Nothing was removed: stop the workers of other releases first"
                    )


# ------------------------------------------------------------------------------------- ACL

SENT: Final = (
    *("fcall", "fcall_ro", "blpop", "subscribe", "info", "ping"),
    *("client|setname", "client|setinfo"),
)
"""The commands that a client of a queue sends."""
RUN: Final = (
    *("publish", "hdel", "hexists", "hget", "hgetall", "hincrby", "hlen", "hmget", "hrandfield"),
    *("hscan", "hset", "hstrlen", "llen", "lpush", "time", "unlink", "zadd", "zcard", "zcount"),
    *("zlexcount", "zmscore", "zpopmin", "zrange", "zrank", "zrem", "zscore"),
)
"""The commands that the functions run, as the user who calls them."""


def acl_rule(
    queue: str, user: str | None = None, *, load: bool = False, shards: int | None = None
) -> str:
    """Return the command that makes a user who may do all that a queue needs, and nothing else.

    With `load`, the user may load the library. `shards` says how many a sharded queue has. The
    password is for you to replace. A server takes no spaces in a rule: there any character is
    allowed.
    """
    queues = [queue] if shards is None else Sharding(queue, shards).names
    for name in queues:
        queue_keys(name)  # Refuses what is no name.
    user = user or queue
    if not user or any(map(_is_space, user)):
        raise InvalidArgument(
            f"the name of a user has no spaces: {arguments.shown(user)}. Give one with --user NAME"
        )
    patterns = [_pattern(name) for name in queues]
    commands = [*SENT[:2], *(("function|load",) if load else ()), *SENT[2:], *RUN]
    keys = [f"{kind}hf:{{{pattern}}}:*" for kind in "~&" for pattern in patterns]
    words = [user, "on", ">secret", *keys, *(f"+{name}" for name in commands)]
    return " ".join(["ACL SETUSER", *map(_quoted, words)])


def _pattern(queue: str) -> str:
    """Return the pattern of a rule that matches just this name."""
    return "".join(
        "?" if _is_space(letter) else f"\\{letter}" if letter in "*?[]\\" else letter
        for letter in queue
    )


def _is_space(letter: str) -> bool:
    return letter in "\0\t\n\v\f\r "


def _quoted(word: str) -> str:
    """Return a word as redis-cli and valkey-cli read it."""
    if word.isascii() and word.isprintable() and not set(word) & set("\"'\\"):
        return word
    return '"' + "".join(map(_escaped, word.encode())) + '"'


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return f"\\{chr(byte)}"
    return chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
