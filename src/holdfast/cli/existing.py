"""Whether a queue exists, and which one may be meant where it does not.

A queue needs no creation: the first job that is added makes it, or a worker. So a misspelt name
would be an empty queue. Commands that look at a queue, or steer it, refuse it instead.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click
import msgspec

from holdfast.client.sync.queue import Queue
from holdfast.connection import protocol
from holdfast.engine.keys import NAMES, queue_keys, slot_of
from holdfast.errors import HoldfastError
from holdfast.escaping import visible

if TYPE_CHECKING:
    from holdfast.connection.server import Server

SCAN_SECONDS: Final = 2.0
"""For which names are looked for: a suggestion is not worth more."""

_SHARD: Final = re.compile(r"(?P<name>.*)/(?P<count>[0-9]{1,3})/(?P<number>[0-9]{1,3})", re.DOTALL)


def check_exists(queue: Queue, *, hint: str = "") -> None:
    """Refuse a queue that does not exist, and suggest what may be meant."""
    missing = what_is_missing(queue)
    if missing:
        raise click.ClickException(f"{missing}{hint}")


def what_is_missing(queue: Queue) -> str | None:
    """Return an error about a queue that does not exist, None of one that does."""
    if _exists(queue):
        return None
    names = _names(queue.server)
    shard = _SHARD.fullmatch(queue.name)
    if shard and any(_is_shard_of(name, shard["name"], shard["count"]) for name in names):
        return None  # Of the shards of one queue some may not have had a job yet.
    where = visible(str(queue.server.address))
    meant = _suggestion(queue.name, names)
    return f"there is no queue {visible(queue.name)} on {where}{meant}"


def _exists(queue: Queue) -> bool:
    """Tell whether anything is kept of a queue: jobs, counters, workers."""
    counts = queue.counts()
    if any(msgspec.structs.astuple(counts)) or any(msgspec.structs.astuple(queue.totals())):
        return True
    return bool(queue.workers()) or _has_meta(queue)


def _has_meta(queue: Queue) -> bool:
    """Tell whether the queue was ever changed: paused and resumed, for example."""
    with suppress(OSError, HoldfastError):
        link = queue.server.connect(slot_of(queue.name))
        try:
            key = queue_keys(queue.name)[NAMES.index("meta")]
            fields = link.ask(protocol.pack(b"HLEN", key))
            return isinstance(fields, int) and fields > 0
        finally:
            link.close()
    return False


def _names(server: Server) -> list[str]:
    """Return the queues that can be found in a moment; none where this user may not look."""
    found: set[str] = set()
    deadline = time.monotonic() + SCAN_SECONDS
    with suppress(OSError, HoldfastError):
        for node in server.primaries():
            link = server.connect_to(node)
            try:
                position = b""
                while position != b"0" and time.monotonic() < deadline:
                    asked = protocol.pack_scan(position or b"0")
                    position, some = protocol.read_scan(link.ask(asked))
                    found |= some
            finally:
                link.close()
    return sorted(found)


def _is_shard_of(name: str, of: str, count: str | None = None) -> bool:
    shard = _SHARD.fullmatch(name)
    return shard is not None and shard["name"] == of and count in (None, shard["count"])


def _suggestion(name: str, names: list[str]) -> str:
    for one in names:
        if _is_shard_of(one, name):
            return f": it is sharded, so name one of its shards, such as {visible(one)}."
    close = get_close_matches(name, names, 3) or [
        one for one in names if one.casefold() == name.casefold()
    ]
    if not close:
        return ". `holdfast ls` lists the queues." if names else "."
    return f": did you mean {' or '.join(map(visible, close))}?"
