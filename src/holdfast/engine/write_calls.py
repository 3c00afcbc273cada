"""The calls of staged writes: which script, which arguments. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.engine.call import Call
from holdfast.engine.library import ABORT, ADOPT, COMMIT, LEDGER, PUBLISH, STAGE
from holdfast.engine.replies import read_flags

Winner: TypeAlias = tuple[str, int]
"""An attempt, and how many chunks it staged."""

_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def stage(attempt: str, number: int, keep_for_ms: int, chunk: bytes) -> Call[int]:
    """Stage one chunk of rows; return how many chunks the attempt has."""
    args = [attempt.encode(), b"%d" % number, b"%d" % keep_for_ms, chunk]
    return Call(STAGE, args, lambda reply: int(reply[0]), ids=(attempt,))


def adopt(
    write: str,
    writer: str,
    batch: int,
    number: int | None,
    winners: Sequence[Winner],
    *,
    keep_for_ms: int,
    requests: Sequence[str] = (),
) -> Call[bool]:
    """Keep attempts until the write is committed; return False if it is committed already.

    Without a number, only look.
    """
    args = [write.encode(), writer.encode(), b"%d" % batch]
    args += [b"" if number is None else b"%d" % number, b"%d" % keep_for_ms]
    args += [b"%d" % len(requests), *(request.encode() for request in requests)]
    for attempt, chunks in winners:
        args += (attempt.encode(), b"%d" % chunks)
    ids = (*requests, *(attempt for attempt, _ in winners))
    return Call(ADOPT, args, lambda reply: bool(reply[0] == b"1"), ids=ids)


def commit(
    write: str, writer: str, batch: int, lists: int, *, keep_for_ms: int, how: bytes = b""
) -> Call[bool]:
    """Commit what a write has adopted; return False if it was committed before."""
    args = [write.encode(), writer.encode(), b"%d" % batch, b"%d" % lists]
    args += [b"%d" % keep_for_ms, how]
    return Call(COMMIT, args, lambda reply: bool(reply[0] == b"1"), ids=(write,))


def publish(write: str = "") -> Call[tuple[int, bool]]:
    """Turn the next chunks of a write into jobs; return how many, and whether more are left."""
    return Call(PUBLISH, [write.encode()], lambda reply: (reply[0], bool(reply[1])))


def abort(attempts: Sequence[str]) -> Call[list[bool]]:
    """Forget the chunks that attempts have staged; False for each attempt with chunks left."""
    return Call(ABORT, [attempt.encode() for attempt in attempts], read_flags)


def ledger(*entries: str) -> Call[list[dict[str, Any] | None]]:
    """Return records of the ledger; None for each that is missing."""
    return Call(LEDGER, [entry.encode() for entry in entries], lambda reply: [*map(_read, reply)])


def _read(packed: bytes) -> dict[str, Any] | None:
    try:
        return _decode(packed) if packed else None
    except msgspec.MsgspecError:
        return None  # Another program wrote it.
