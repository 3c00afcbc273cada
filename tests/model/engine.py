"""The engine beside the model: run a call as raw ARGV, and read every key of the queue.

Over redis-py and not over Holdfast's own connection, so that a call can be sent under any
caller and number, as often as one likes.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import redis

from holdfast import flows
from holdfast.engine import calls
from holdfast.engine.calls import Call
from holdfast.keys import NAMES, queue_keys

TALLIES = ("leased", "completed", "released", "promoted", "reclaimed", "failed", "pruned")

_numbers = itertools.count()


class Engine:
    """One queue on a real server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._keys = queue_keys(f"model {next(_numbers)}")
        self._key = dict(zip(NAMES, self._keys, strict=True))

    def close(self) -> None:
        self._client.delete(*self._keys)

    def ask(self, now: int, caller: str, number: int, call: Call[Any]) -> Any:
        """Run a changing call; a refusal is the `redis.ResponseError`."""
        return self._client.evalsha(*self._words(call, now, caller.encode(), b"%d" % number))

    def delete(self, now: int) -> None:
        call = calls.delete()
        call.read(self._client.evalsha(*self._words(call, now)))

    def view(self, now: int, *, take_wake: bool) -> dict[str, Any]:
        """Return all that the model must show as well; then be the sleeper who hears the wake."""
        audit, counts = flows.audit(), calls.counts()
        first = next(audit)
        zsets = ("ready", "delayed", "leased", "failed", "ended")
        hashes = ("jobs", "holds", "facts", "results", "meta")
        with self._client.pipeline(transaction=False) as pipe:
            pipe.evalsha(*self._words(first, now))
            pipe.evalsha(*self._words(counts, now))
            for name in zsets:
                pipe.zrange(self._key[name], 0, -1, withscores=True)
            for name in hashes:
                pipe.hgetall(self._key[name])
            pipe.hkeys(self._key["calls"])
            pipe.llen(self._key["wake"])
            if take_wake:
                pipe.lpop(self._key["wake"])
            audited, counted, *found = pipe.execute()
        ready, delayed, leased, failed, ended = (
            [(id.decode(), int(score)) for id, score in zset] for zset in found[:5]
        )
        jobs, holds, facts, results, meta = (
            {field.decode(): value for field, value in fields.items()} for fields in found[5:10]
        )
        return {
            "ready": [(id, 99 - rank // 2**46) for id, rank in ready],
            "delayed": dict(delayed),
            "leased": dict(leased),
            "failed": dict(failed),
            "ended": dict(ended),
            "payloads": jobs,
            "tokens": {id: hold.decode().split(" ")[0] for id, hold in holds.items()},
            "facts": {id: msgspec.msgpack.decode(packed) for id, packed in facts.items()},
            "results": results,
            "tally": _tally({name: int(count) for name, count in meta.items()}),
            "seen": int(meta["seen"]) if "seen" in meta else None,
            "patience": int(meta.get("grace", 0)),
            "callers": {caller.decode() for caller in found[10]},
            "wake": found[11],
            "problems": self._problems(audit, first.read(audited), now),
            "counts": msgspec.structs.asdict(counts.read(counted)),
        }

    def _problems(self, audit: flows.Flow[Any], answer: Any, now: int) -> Any:
        try:
            while True:
                call = audit.send(answer)
                answer = call.read(self._client.evalsha(*self._words(call, now)))
        except StopIteration as done:
            return done.value

    def _words(self, call: Call[Any], now: int, *who: bytes) -> tuple[Any, ...]:
        argv = (b"%d" % now, *who, *call.args)
        return call.script.sha.decode(), len(self._keys), *self._keys, *argv


def _tally(meta: dict[str, int]) -> dict[str, int]:
    """Count what happened. What was added is what else took a number of the sequence."""
    tally = {name: meta.get(name, 0) for name in TALLIES}
    tally["added"] = meta.get("sequence", 0) - meta.get("promoted", 0) - meta.get("requeued", 0)
    return {name: count for name, count in tally.items() if count}
