"""Check that a queue exists, and suggest similar names if it does not.

The first job or worker creates a queue, so a misspelt name would look like an empty queue. Commands
that read or manage a queue refuse such a name instead.
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
"""Time limit of the search for similar names."""

_SHARD: Final = re.compile(r"(?P<name>.*)/(?P<count>[0-9]{1,3})/(?P<number>[0-9]{1,3})", re.DOTALL)


def check_exists(queue: Queue, *, hint: str = "") -> None:
    """Refuse a queue that does not exist, and suggest similar names."""
    missing = missing_error(queue)
    if missing:
        raise click.ClickException(f"{missing}{hint}")


def missing_error(queue: Queue) -> str | None:
    """Return an error message if a queue does not exist, else None."""
    if _exists(queue):
        return None
    names = _names(queue.server)
    shard = _SHARD.fullmatch(queue.name)
    if shard and any(_is_shard_of(name, shard["name"], shard["count"]) for name in names):
        return None  # A shard may exist without having had a job.
    where = visible(str(queue.server.address))
    return f"queue {visible(queue.name)} does not exist on {where}{_suggestion(queue.name, names)}"


def _exists(queue: Queue) -> bool:
    """Tell whether the server has anything of a queue: jobs, counters, workers."""
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
    """Return the queues found within SCAN_SECONDS; none if this user may not SCAN."""
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
