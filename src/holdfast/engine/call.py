"""A call: a function of the library, its arguments, and what reads the reply."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.engine.library import Function

T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], eq=False):
    """One call of one function of the library."""

    function: Function
    args: list[bytes]
    read: Callable[[Any], T]
    wait: float = 0
    """How many seconds to wait before the function runs."""
    listen: bool = True
    """Whether a wake ends the wait early."""
    undo: Callable[[T], Call[Any] | None] | None = None
    """Makes the call that takes this one back, for an answer whose caller is gone."""
    ids: Sequence[str] = ()
    """The ids that a refusal refers to by number."""


class Entry(msgspec.Struct, frozen=True):
    """A job to be sent to the server, checked and encoded."""

    id: str
    payload: bytes
    fresh: bool
    """Whether this process made the id, so that no other job can have it."""
    priority: int
    due: bytes
    options: bytes
    grouped: bool = False
    """Whether it belongs to a group."""
    request: str = ""
    """The request that a staged row becomes a part of."""


Settle: TypeAlias = tuple[str, str, bytes | None]
"""An id, the token of its lease, and the result if it has one."""


class Failed(NamedTuple):
    """A run that failed."""

    id: str
    token: str
    due: bytes = b""
    """When it may be tried again, as `Entry.due`."""
    reason: bytes = b""
    raised: bytes = b""
    """The exception (see `failures.packed`); b"" if there was none."""
    handlings: bytes = b""
    """How often a failure handler may try (see `handlings_word`)."""


Place: TypeAlias = tuple[int, int]
"""Where a walk continues: the number of a set, and a position in it."""


def groups_words(entries: Sequence[Entry]) -> list[bytes]:
    """Write jobs in groups of neighbours that share everything but id and payload."""
    args: list[bytes] = []
    size_at = run = 0
    last = None
    for entry in entries:
        shared = (entry.fresh, entry.priority, entry.due, entry.options)
        if shared != last:
            if last:
                args[size_at] = b"%d" % run
            last, run, size_at = shared, 0, len(args) + 4
            fresh = b"1" if entry.fresh else b"0"
            args += (fresh, b"%d" % entry.priority, entry.due, entry.options, b"")
        args += (entry.id.encode(), entry.payload)
        run += 1
    if last:
        args[size_at] = b"%d" % run
    return args


_size = struct.Struct("<I").pack


def frame(entries: Sequence[Entry]) -> bytes:
    """Write jobs as a chunk (see read_chunk in staging.lua), in groups that share the options."""
    groups: dict[tuple[str, bool, int, bytes, bytes], list[bytes]] = {}
    for entry in entries:
        shared = (entry.request, entry.fresh, entry.priority, entry.due, entry.options)
        rows = groups.get(shared)
        if rows is None:
            rows = groups[shared] = []
        rows += (entry.id.encode(), entry.payload)
    words: list[bytes] = []
    for (request, fresh, priority, due, options), rows in groups.items():
        words += (request.encode(), flag(fresh), b"%d" % priority, due, options)
        words += (b"%d" % (len(rows) // 2), *rows)
    return join_words(words)


def join_words(words: Sequence[bytes]) -> bytes:
    """Write the number of words, then each word after its length."""
    framed = [_size(len(words))]
    for word in words:
        framed += (_size(len(word)), word)
    return b"".join(framed)


def settles_words(settles: Sequence[Settle]) -> list[bytes]:
    """Write settles in groups of neighbours that present the same token."""
    if not settles:
        return [b"0"]
    groups: list[tuple[str, list[bytes]]] = []
    last = None
    for id, token, _ in settles:
        if token != last:
            groups.append((token, []))
            last = token
        groups[-1][1].append(id.encode())
    args = [b"%d" % len(groups)]
    for token, ids in groups:
        args += (token.encode(), b"%d" % len(ids), *ids)
    return args


def results_words(settles: Sequence[Settle]) -> list[bytes]:
    """Write results, each with the number of its settle."""
    if not settles:
        return [b"0"]
    words: list[bytes] = []
    for number, (_, _, result) in enumerate(settles, 1):
        if result is not None:
            words += b"%d" % number, result
    return [b"%d" % (len(words) // 2), *words] if words else [b"0"]


def failures_words(failures: Sequence[Failed]) -> list[bytes]:
    """Write settles that carry a reason."""
    args: list[bytes] = []
    for id, token, due, reason, raised, handlings in failures:
        args += (token.encode(), id.encode(), due, reason, raised, handlings)
    return args


def handlings_word(most: int) -> bytes:
    """Write how often a failure handler may try; -1 means any number of times."""
    return b"-" if most < 0 else b"%d" % most


def place_words(place: Place) -> tuple[bytes, bytes]:
    """Write where a walk continues."""
    set_number, position = place
    return b"%d" % set_number, b"%d" % position if position else b""


def flag(value: bool) -> bytes:
    """Write a bool."""
    return b"1" if value else b"0"
