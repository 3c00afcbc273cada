"""The engine beside the model: run a call as raw ARGV, and read every key of the queue.

Over a socket of our own and not over Holdfast's connection, so that a call can be sent under
any caller and number, as often as one likes. Each call and the look at everything after it
go out together: one round trip per step.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import hiredis
import msgspec

from holdfast.connection.protocol import pack
from holdfast.engine import calls, library, walks
from holdfast.engine.call import Call
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.replies import read_record
from model.values import NEVER

SETS = ("ready", "delayed", "leased", "failed", "ended", "parked", "turns", "terms", "staging")
HASHES = (
    "jobs",
    "holds",
    "facts",
    "next",
    "results",
    "meta",
    "requests",
    "ledger",
    "staged",
    "claims",
)
TALLIES = (
    "leased", "completed", "released", "retried", "promoted", "reclaimed", "failed", "revived",
    "updated", "cancelling", "cancelled", "pruned", "result", "opened", "sealed", "changed",
    "ended", "forgotten", "committed", "published", "claimed", "settled",
)  # fmt: skip

RANKS = 2**46
"""Of one priority."""

_numbers = itertools.count()


class Wire:
    """A connection to a server that has the library."""

    def __init__(self, path: Path, *, as_script: bool = False) -> None:
        self._as_script = as_script
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()
        self.ask([pack(b"FUNCTION", b"LOAD", library.library())])
        if as_script:
            for flags in get_args(library.Flags):
                self.ask([pack(b"SCRIPT", b"LOAD", library.script(flags))])

    def ask(self, commands: list[bytes]) -> list[Any]:
        """Send commands at once and return the reply to each; an error is returned as it is."""
        self._socket.sendall(b"".join(commands))
        return [self._read() for _ in commands]

    def pack(self, call: Call[Any], keys: Sequence[bytes], *args: bytes) -> bytes:
        """Return a call of the library, or of the same text as a script."""
        function, count = call.function, b"%d" % len(keys)
        if self._as_script:
            name = library.sha(function.flags)
            return pack(b"EVALSHA", name, count, *keys, *args, function.runs.encode())
        return pack(b"FCALL", function.called.encode(), count, *keys, *args)

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply

    def close(self) -> None:
        self._socket.close()


class Engine:
    """One queue on a real server."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._keys = queue_keys(f"model {next(_numbers)}")
        key = dict(zip(NAMES, self._keys, strict=True))
        self._hush = pack(b"LPOP", key["wake"])
        self._looks = [
            *(pack(b"ZRANGE", key[name], b"0", b"-1", b"WITHSCORES") for name in SETS),
            *(pack(b"HGETALL", key[name]) for name in HASHES),
            pack(b"HKEYS", key["calls"]),
            pack(b"LLEN", key["wake"]),
        ]
        self._seen: list[Any] | None = None

    def close(self) -> None:
        self._wire.ask([pack(b"DEL", *self._keys)])

    def ask(
        self, now: int, caller: str, number: int, call: Call[Any], reads: Sequence[Call[Any]] = ()
    ) -> list[Any]:
        """Run a changing call and some that only read; a refusal is a `hiredis.ReplyError`."""
        command = self._pack(call, now, caller.encode(), b"%d" % number)
        commands = [command, *(self._pack(read, now) for read in reads), *self._look(now)]
        replies = self._wire.ask(commands)
        self._seen = replies[1 + len(reads) :]
        return replies[: 1 + len(reads)]

    def stamp(self, now: int) -> bytes:
        """Return what changes with the queue."""
        audit = calls.audit()
        [reply] = self._wire.ask([self._pack(audit, now)])
        return audit.read(reply).stamp

    def take_wake(self) -> None:
        """Be the sleeper who hears the wake."""
        self._wire.ask([self._hush])

    def _look(self, now: int) -> list[bytes]:
        looks: list[Call[Any]] = [calls.counts(), calls.audit(), calls.workers()]
        return [*(self._pack(look, now) for look in looks), *self._looks]

    def view(self, now: int) -> dict[str, Any]:
        """Return all that the model must show as well."""
        counted, audited, registered, *found = self._seen or self._wire.ask(self._look(now))
        self._seen = None
        sets, hashes, (callers, wake) = found[: len(SETS)], found[len(SETS) : -2], found[-2:]
        ready, delayed, leased, failed, ended, parked, turns, terms, staging = (
            [(id.decode(), int(score)) for id, score in _pairs(zset)] for zset in sets
        )
        jobs, holds, facts, successors, results, meta, requests, ledger, staged, claims = (
            {field.decode(): value for field, value in _pairs(fields)} for fields in hashes
        )
        return {
            "ready": [(id, 99 - rank // RANKS) for id, rank in ready],
            "delayed": dict(delayed),
            "leased": dict(leased),
            "failed": dict(failed),
            "ended": dict(ended),
            "parked": [_parked(member) for member, _ in parked],
            "turns": [(owner, 99 - rank // RANKS, rank % RANKS) for owner, rank in turns],
            "terms": dict(terms),
            "requests": _records(requests),
            "follow-ups": _follow_ups(requests),
            "payloads": jobs,
            "tokens": {id: hold.decode().split(" ")[0] for id, hold in holds.items()},
            "facts": {id: _facts(packed) for id, packed in facts.items()},
            "results": results,
            "next": {id: _successor(packed) for id, packed in successors.items()},
            "staging": dict(staging),
            "ledger": {name: msgspec.msgpack.decode(kept) for name, kept in ledger.items()},
            "staged": staged,
            "claims": {field: msgspec.msgpack.decode(ids) for field, ids in claims.items()},
            "workers": _workers(registered),
            "sequence": int(meta.get("sequence", 0)),
            "tally": _tally({name: int(count) for name, count in meta.items()}),
            "ticks": {
                name.removeprefix("tick "): int(last)
                for name, last in meta.items()
                if name.startswith("tick ")
            },
            "seen": int(meta["seen"]) if "seen" in meta else None,
            "patience": int(meta.get("grace", 0)),
            "callers": {caller.decode() for caller in callers},
            "found in time": _earliest(delayed, leased, ended, terms)
            >= int(meta.get("tend_at", 0)),
            "wake": wake,
            "problems": self._problems(audited, now),
            "counts": msgspec.structs.asdict(calls.counts().read(counted)),
        }

    def _problems(self, reply: Any, now: int) -> Any:
        audit = walks.audit()
        call = next(audit)
        try:
            while True:
                call = audit.send(call.read(reply))
                [reply] = self._wire.ask([self._pack(call, now)])
        except StopIteration as done:
            return done.value

    def _pack(self, call: Call[Any], now: int, *who: bytes) -> bytes:
        return self._wire.pack(call, self._keys, b"%d" % now, *who, *call.args)


def _workers(reply: Any) -> dict[str, tuple[float, bool]]:
    workers = calls.workers().read(reply)
    return {worker.holder: (worker.alive_until, worker.alive) for worker in workers}


def _facts(packed: bytes) -> dict[str, Any]:
    """Return what is kept about a job; where it stands among its fellows its set tells."""
    facts: dict[str, Any] = msgspec.msgpack.decode(packed)
    if "request" in facts or "group" in facts:
        facts.pop("number", None)
        facts.pop("place", None)
    return facts


def _parked(member: str) -> tuple[str, str, int]:
    """Return what a member tells: the owner, the id, its priority."""
    raw = member.encode()
    owner, rest = raw[3 : 3 + int(raw[:3])].decode(), raw[3 + int(raw[:3]) :]
    return owner, rest[26:].decode(), 99 - int(rest[:2])


def _records(requests: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    records = {}
    for name, packed in requests.items():
        if not name.endswith("/end"):
            record = read_record(packed)
            assert record is not None
            records[name] = msgspec.structs.asdict(record)
    return records


def _follow_ups(requests: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    return {
        name.removesuffix("/end"): _successor(packed)
        for name, packed in requests.items()
        if name.endswith("/end")
    }


class _Successor(msgspec.Struct):
    payload: msgspec.Raw
    data: bool
    due: int
    priority: int
    options: msgspec.Raw
    limits: bool
    counts: bool
    most: int = NEVER
    least: int = 0
    only: str = ""


_decode_successor = msgspec.msgpack.Decoder(_Successor).decode


def _successor(packed: bytes) -> dict[str, Any]:
    """Read an update that waits; its two bounds as what they make of the extremes."""
    found = _decode_successor(packed)
    options = _text(found.options)
    return {
        "payload": _text(found.payload),
        "data": found.data,
        "due": found.due,
        "soonest": found.least,
        "latest": max(found.most, found.least),
        "priority": found.priority,
        "options": msgspec.msgpack.decode(options) if options else {},
        "limits": found.limits,
        "only": set(found.only.split()),
        "counts": found.counts,
    }


def _text(raw: msgspec.Raw) -> bytes:
    """Return the bytes that Lua packed as text, which they need not be; none for false."""
    packed = bytes(raw)
    return packed[{0xD9: 2, 0xDA: 3, 0xDB: 5}.get(packed[0], 1) :]


def _earliest(*sets: list[tuple[str, int]]) -> float:
    return min((at for found in sets for _, at in found), default=math.inf)


def _pairs(flat: list[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _tally(meta: dict[str, int]) -> dict[str, int]:
    """Count what happened. What was added is what else took a number of the sequence."""
    tally = {name: meta.get(name, 0) for name in TALLIES}
    tally["added"] = meta.get("sequence", 0) - meta.get("promoted", 0) - meta.get("requeued", 0)
    return {name: count for name, count in tally.items() if count}
