"""The calls about requests: which script, which arguments, how to read the reply. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.call import Call, Entry, flag, groups_words
from holdfast.engine.library import (
    ADD_PARTS,
    CHANGE_REQUEST,
    MAX_JOBS,
    OPEN_REQUEST,
    PARTS,
    RECOUNT,
    REQUESTS,
)
from holdfast.engine.replies import Record, read_facts, read_record
from holdfast.job import Facts


def recount(stamp: bytes, counted: Mapping[str, tuple[int, ...]]) -> Call[bool]:
    """Correct the counters of requests: the number of leased, failed, parked and delayed jobs.

    Then of handled and cancelled parts, and of results. Returns False if the queue has changed
    since they were counted.
    """
    args = [stamp]
    for owner, numbers in counted.items():
        args += (owner.encode(), *(b"%d" % number for number in numbers))
    return Call(RECOUNT, args, lambda reply: bool(reply[0] == b"1"))


def open_request(
    request: str,
    *,
    priority: int = 50,
    limit: int | None = None,
    fail_fast: bool = False,
    keep_for_ms: int = 86_400_000,
    open_for_ms: int | None = None,
    follow_up: Entry | None = None,
) -> Call[tuple[str, int]]:
    """Open a request, or continue an open one. Returns a letter, and the number of parts so far.

    The letter is "f" while an ended request of this name is being forgotten: then ask again.
    """
    args = [
        request.encode(),
        b"%d" % priority,
        b"" if limit is None else b"%d" % limit,
        flag(fail_fast),
        b"%d" % keep_for_ms,
        b"" if open_for_ms is None else b"%d" % open_for_ms,
        *(groups_words([follow_up]) if follow_up else [b""]),
    ]

    def read(reply: list[Any]) -> tuple[str, int]:
        return "f" if reply[2] else reply[0].decode(), reply[1]

    return Call(OPEN_REQUEST, args, read)


@dataclass(frozen=True, slots=True)
class PartsSent:
    """The answer to `add_parts`: '1', or the letter of a refusal."""

    letter: str
    before: int
    """The number of parts before the call."""
    total: int
    """The number of parts after it."""


def add_parts(
    request: str,
    first: int | None,
    payloads: Sequence[bytes],
    *,
    priority: int = 50,
    due: bytes = b"",
    options: bytes = b"",
) -> Call[PartsSent]:
    """Add parts from a number on, or after the last one; parts that exist already are skipped."""
    place = b"" if first is None else b"%d" % first
    args = [request.encode(), place, b"%d" % priority, due, options, *payloads]
    ids = (request,)
    return Call(
        ADD_PARTS, args, lambda reply: PartsSent(reply[0].decode(), reply[1], reply[2]), ids=ids
    )


def change_request(
    request: str,
    *,
    seal: bool = False,
    cancel: bool = False,
    limit: bytes = b"",
    priority: int | None = None,
    group: bool = False,
) -> Call[tuple[str, int]]:
    """Seal or stop a request, or change its limit (`-` for none) or priority.

    With `group`, change the limit of a group. Returns a letter, and how many parts still wait to
    be cancelled.
    """
    args = [
        request.encode(),
        b"1" if seal else b"",
        b"1" if cancel else b"",
        limit,
        b"" if priority is None else b"%d" % priority,
        b"1" if group else b"",
    ]
    return Call(CHANGE_REQUEST, args, lambda reply: (reply[0].decode(), reply[1]))


@dataclass(frozen=True, slots=True)
class Found:
    """A request or group, and its record."""

    name: str
    record: Record
    now: int
    tend_at: float
    """When `lease` or `tidy` must fail, empty or forget it."""

    @property
    def overdue(self) -> bool:
        """Whether it was open for too long, or has parts left for the next call to cancel."""
        return self.record.outcome == 0 and self.tend_at <= self.now


def requests(request: str) -> Call[list[Found]]:
    """Return one request or group; an empty list if there is none."""
    return Call(REQUESTS, [request.encode(), b"", b""], lambda reply: _found(reply)[0])


def some_requests(position: int = 0, count: int = 250) -> Call[tuple[list[Found], int]]:
    """Return some requests and groups, and the position at which to continue, 0 at the end."""
    return Call(REQUESTS, [b"", b"%d" % position if position else b"", b"%d" % count], _found)


def _found(reply: list[Any]) -> tuple[list[Found], int]:
    now, position = int(reply[0]), reply[1]
    return [
        Found(name.decode(errors="backslashreplace"), record, now, float(tend_at or "inf"))
        for name, packed, tend_at in zip(reply[2::3], reply[3::3], reply[4::3], strict=True)
        if (record := read_record(packed))
    ], position


@dataclass(frozen=True, slots=True)
class PartsFound:
    """Some parts of a request: state letter ('' if it has ended), facts, result."""

    total: int
    """The number of parts so far; -1 if the request does not exist."""
    parts: list[tuple[str, Facts, bytes | None]]


def parts(request: str, first: int, count: int = MAX_JOBS) -> Call[PartsFound]:
    """Return some parts of a request, as many as fit into one reply."""

    def read(reply: list[Any]) -> PartsFound:
        triples = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        return PartsFound(
            reply[0],
            [(letter.decode(), read_facts(facts), result) for letter, facts, result in triples],
        )

    return Call(PARTS, [request.encode(), b"%d" % first, b"%d" % count], read)
