"""The keys of a queue, in the one order in which every function receives them.

`receive` in prelude.lua has the same order; elsewhere a Lua file writes `key.<name>`. New keys are
appended; no key is ever reordered or reused, because another release may use the same server.
"""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

from holdfast.codec import utf8_name
from holdfast.errors import InvalidArgument

NAMES: Final = (
    "ready",  # zset   id -> rank
    "delayed",  # zset   id -> due_ms
    "leased",  # zset   id -> lapses_ms
    "holds",  # hash   id -> token, leased_at, rank
    "parked",  # zset   request, priority, place, number and id of every part that waits
    "turns",  # zset   request -> rank
    "failed",  # zset   id -> when its failure handler may run
    "ended",  # zset   id -> forget_at_ms
    "jobs",  # hash   id -> payload
    "facts",  # hash   id -> what differs from the defaults
    "next",  # hash   id -> successor
    "results",  # hash   id -> result
    "requests",  # hash   request -> state and counters, <request>/end -> follow-up
    "workers",  # hash   holder -> host, pid, queues, alive until
    "calls",  # hash   caller -> last number and answer
    "meta",  # hash   layout, sequence, seen, grace, before, paused, largest, counters, last ticks
    "wake",  # list   at most one token
    "staged",  # hash   attempt and number -> chunk of rows
    "staging",  # zset   record of the ledger -> when it must be processed
    "claims",  # hash   reader, number, chunk -> ids
    "ledger",  # hash   attempts, winners, commits, writers, readers, claims
    "events",  # the name of a channel; nothing is ever stored under it
    "terms",  # zset   request -> when it must be failed, emptied or forgotten
)

SLOTS: Final = 16384
"""The number of slots of a cluster."""

META_PATTERN: Final = b"hf:{*}:meta"
"""Matches a key that every queue has from its first change until it is deleted."""


def queue_keys(queue: str) -> tuple[bytes, ...]:
    """Return the keys of a queue, all in one cluster slot.

    The braces in a key make a queue one slot. A name that begins with `}` would close them at once
    and spread the queue over the cluster, so it is refused.
    """
    raw = utf8_name("queue name", queue)
    if raw.startswith(b"}"):
        raise InvalidArgument(f"queue name must not begin with '}}': {queue!r}")
    prefix = b"hf:{" + raw + b"}:"
    return tuple(prefix + name.encode() for name in NAMES)


def slot_of(queue: str) -> int:
    """Return the cluster slot of a queue: the servers' hash of the text between the braces."""
    between, _, _ = utf8_name("queue name", queue).partition(b"}")
    return crc_hqx(between, 0) % SLOTS


def queue_of(meta: bytes) -> str | None:
    """Return the queue that has this `meta` key; None if no queue can have it."""
    raw = meta.removeprefix(b"hf:{").removesuffix(b"}:meta")
    try:
        name = raw.decode()
        return name if queue_keys(name)[NAMES.index("meta")] == meta else None
    except (UnicodeDecodeError, InvalidArgument):
        return None
