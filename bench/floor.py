"""The floors: the least that moves a job from one process to another.

With no reliability at all it is a list of ids and a string per payload; a job that is popped is
lost if its taker dies. It is written twice: with redis-py as a user would call it, and with the
client path that Holdfast itself uses, so that nobody profits from a slow yardstick.

The floor of the design keeps its promises, but has no features: `lean.lua`, called by a client that
does nothing but pack and read. A queue with leases that makes a call per job cannot be much faster.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from holdfast.codec import new_id
from holdfast.connection.address import parse
from holdfast.connection.conversation import CONNECT_SECONDS, REPLY_SECONDS
from holdfast.connection.protocol import Introduction, pack
from holdfast.connection.server import Link

LIST = b"floor:list"
LEAN = Path(__file__).parent / "lean.lua"
LEAN_KEYS = tuple(
    b"{floor}:" + name
    for name in (b"ready", b"leased", b"holds", b"jobs", b"calls", b"meta", b"wake")
)
LEASE_MS = b"30000"


def link_to(url: str) -> Link:
    return Link(parse(url), "", ("", ""), Introduction(), REPLY_SECONDS, CONNECT_SECONDS)


class Floor:
    """The loop over Holdfast's own link."""

    def __init__(self, url: str) -> None:
        self._link = link_to(url)

    def add(self, payload: bytes) -> None:
        id = new_id().encode()
        self._both(pack(b"SET", id, payload), pack(b"LPUSH", LIST, id))

    def add_many(self, payloads: Sequence[bytes]) -> None:
        ids = [new_id().encode() for _ in payloads]
        pairs = [word for pair in zip(ids, payloads, strict=True) for word in pair]
        self._both(pack(b"MSET", *pairs), pack(b"LPUSH", LIST, *ids))

    def drain(self, count: int) -> int:
        """Take up to `count` jobs as they come: pop, then get and delete. Returns how many."""
        if count == 1:
            id = self._link.ask(pack(b"RPOP", LIST))
            ids = [id] if id else []
        else:
            found = self._link.ask(pack(b"LMPOP", b"1", LIST, b"RIGHT", b"COUNT", b"%d" % count))
            ids = found[1] if found else []
        if ids:
            self._both(pack(b"MGET", *ids), pack(b"DEL", *ids))
        return len(ids)

    def take(self, count: int, seconds: float) -> list[bytes]:
        """Wait for up to `count` jobs, and return what they carry."""
        wait = b"%.3f" % seconds
        found = self._link.ask(pack(b"BLMPOP", wait, b"1", LIST, b"RIGHT", b"COUNT", b"%d" % count))
        if not found:
            return []
        payloads: list[bytes] = self._both(pack(b"MGET", *found[1]), pack(b"DEL", *found[1]))
        return payloads

    def push(self, payload: bytes) -> None:
        self._link.ask(pack(b"LPUSH", LIST, payload))

    def blocking_pop(self, seconds: float) -> bytes | None:
        found = self._link.ask(pack(b"BRPOP", LIST, b"%.3f" % seconds))
        payload: bytes | None = found[1] if found else None
        return payload

    def _both(self, first: bytes, second: bytes) -> Any:
        """Send both in one round trip; return the answer to the first."""
        answer = self._link.ask(first + second)
        self._link.read()
        return answer


class PlainFloor:
    """The same loop with redis-py's ordinary calls."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def add(self, payload: bytes) -> None:
        id = new_id()
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(id, payload)
        pipeline.lpush(LIST, id)
        pipeline.execute()

    def add_many(self, payloads: Sequence[bytes]) -> None:
        ids = [new_id() for _ in payloads]
        pipeline = self._client.pipeline(transaction=False)
        pipeline.mset(dict(zip(ids, payloads, strict=True)))
        pipeline.lpush(LIST, *ids)
        pipeline.execute()

    def take(self, count: int, seconds: float) -> list[bytes]:
        """Wait for up to `count` jobs, and return what they carry."""
        found: Any = self._client.blmpop(seconds, 1, LIST.decode(), direction="RIGHT", count=count)
        if not found:
            return []
        pipeline = self._client.pipeline(transaction=False)
        pipeline.mget(found[1])
        pipeline.delete(*found[1])
        payloads: list[bytes] = pipeline.execute()[0]
        return payloads

    def drain(self, count: int) -> int:
        """Take up to `count` jobs: pop, then get and delete. Returns how many."""
        found: Any = self._client.lmpop(1, LIST.decode(), direction="RIGHT", count=count)
        if not found:
            return 0
        pipeline = self._client.pipeline(transaction=False)
        pipeline.mget(found[1])
        pipeline.delete(*found[1])
        pipeline.execute()
        return len(found[1])


class LeanFloor:
    """The floor of the design: one call per job, which completes the last and leases the next."""

    def __init__(self, url: str) -> None:
        self._link = link_to(url)
        self._ask(b"FUNCTION", b"LOAD", b"REPLACE", LEAN.read_bytes())
        self._caller = b"%d-%s" % (os.getpid(), new_id().encode())
        self._numbers = itertools.count(1)
        self._done: tuple[bytes, bytes] = (b"", b"")
        """The id and the token of the job that the next call completes."""

    def add(self, payload: bytes) -> None:
        self._ask(*self._call(b"floor_add"), new_id().encode(), payload)

    def add_many(self, payloads: Sequence[bytes]) -> None:
        words = [word for payload in payloads for word in (new_id().encode(), payload)]
        self._ask(*self._call(b"floor_add"), *words)

    def drain(self, _count: int = 1) -> int:
        """Take a job and complete the one before. Returns how many were taken."""
        return len(self.take(1, 0))

    def take(self, _count: int, seconds: float) -> list[bytes]:
        """Complete the job before and lease the next; wait for one if none is ready."""
        payloads = self._leased(self._ask(*self._turn()))
        if payloads or not seconds:
            return payloads
        # Both in one write: the server makes the call as soon as the pop returns.
        wake = pack(b"BLPOP", LEAN_KEYS[-1], b"%.3f" % seconds)
        self._link.ask(wake + pack(*self._turn()))
        return self._leased(self._link.read())

    def close(self) -> None:
        self._link.close()

    def _call(self, function: bytes) -> tuple[bytes, ...]:
        number = b"%d" % next(self._numbers)
        return (b"FCALL", function, b"%d" % len(LEAN_KEYS), *LEAN_KEYS, self._caller, number)

    def _turn(self) -> tuple[bytes, ...]:
        call = self._call(b"floor_turn")
        self._token = b"%s.%s" % call[-2:]
        return (*call, LEASE_MS, *self._done)

    def _leased(self, reply: Any) -> list[bytes]:
        id, payload = reply
        self._done = (id, self._token) if id else (b"", b"")
        return [payload] if id else []

    def _ask(self, *words: bytes) -> Any:
        reply = self._link.ask(pack(*words))
        if isinstance(reply, Exception):
            raise reply
        return reply
