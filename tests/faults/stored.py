"""What a queue has stored, so that two queues can be compared to the last field."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec
import redis

from holdfast import Queue
from holdfast.engine.keys import NAMES, queue_keys

Stored: TypeAlias = dict[str, Any]

_MADE_ID = re.compile(rb"[-0-9A-Z_a-z]{20}")
_STAGED_ID = re.compile(rb"\x14\0\0\0([-0-9A-Z_a-z]{20})")


def stored(client: redis.Redis, queue: Queue, other: Queue | None = None) -> Stored:
    """Return everything under the keys of a queue, by the name of the key.

    What is random is named alike in every queue: holders, callers, and ids that the client made.
    """
    raw = dict(zip(NAMES, _read(client, queue_keys(queue.name)), strict=True))
    aliases = {made: b"made %d" % n for n, made in enumerate(made_ids(client, queue))}
    for alias, holder in ((b"holder", queue), (b"other", other)):
        if holder is not None:
            aliases[holder.server.session.holder.encode()] = alias
    raw["calls"] = sorted((raw["calls"] or {}).values())
    return {name: _renamed(value, aliases) for name, value in raw.items() if value}


def made_ids(client: redis.Redis, queue: Queue) -> list[bytes]:
    """Return the ids of jobs that the client made, in the order in which it made them."""
    ids = {id for id in _hash(client, queue, "jobs") if _MADE_ID.fullmatch(id)}
    for chunk in _hash(client, queue, "staged").values():
        ids.update(_STAGED_ID.findall(chunk))
    return sorted(ids)


def claimed(client: redis.Redis, queue: Queue) -> int:
    """Return how many jobs readers have claimed."""
    chunks = _hash(client, queue, "claims").values()
    return sum(len(msgspec.msgpack.decode(ids)) for ids in chunks)


def payloads(client: redis.Redis, queue: Queue) -> dict[str, bytes]:
    """Return id -> payload of every job that the queue holds."""
    return {id.decode(): payload for id, payload in _hash(client, queue, "jobs").items()}


def _key(queue: Queue, name: str) -> bytes:
    return queue_keys(queue.name)[NAMES.index(name)]


def _hash(client: redis.Redis, queue: Queue, name: str) -> dict[bytes, bytes]:
    found: Any = client.hgetall(_key(queue, name))  # Typed for clients that may decode.
    return dict(found)


def _read(client: redis.Redis, keys: tuple[bytes, ...]) -> list[Any]:
    with client.pipeline() as types, client.pipeline() as values:
        for key in keys:
            types.type(key)
        for key, kind in zip(keys, types.execute(), strict=True):
            match kind:
                case b"zset":
                    values.zrange(key, 0, -1, withscores=True)
                case b"hash":
                    values.hgetall(key)
                case b"list":
                    values.lrange(key, 0, -1)
                case _:
                    values.exists(key)
        return values.execute()


def _renamed(value: Any, aliases: dict[bytes, bytes]) -> Any:
    if isinstance(value, bytes):
        for name, alias in aliases.items():
            value = value.replace(name, alias)
        return value
    if isinstance(value, dict):
        return {_renamed(k, aliases): _renamed(v, aliases) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(item, aliases) for item in value]
    return value
