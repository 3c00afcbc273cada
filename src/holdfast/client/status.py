"""The status of requests, groups and parts, read from the engine's records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from holdfast.engine.replies import ENDINGS
from holdfast.engine.request_calls import Found
from holdfast.job import Facts, result_json

RequestState: TypeAlias = Literal["open", "sealed", "stopping", "completed", "failed", "cancelled"]
PartState: TypeAlias = Literal["waiting", "running", "done", "failed", "cancelled"]

_STATES: Final[Mapping[str, PartState]] = {
    "l": "running",
    "f": "failed",
    "d": "waiting",
    "p": "waiting",
    "r": "waiting",
}


class RequestStatus(Struct, frozen=True, repr_omit_defaults=True):
    """The progress of a request at one moment. Times are in seconds since the epoch."""

    id: str
    state: RequestState
    """open: parts may be added. sealed: no more parts will be added. stopping: cancelled or failed,
    and waiting for running parts. completed, failed, cancelled: it has ended."""
    total: int = 0
    """Parts added so far."""
    done: int = 0
    failed: int = 0
    """Parts that failed, whether or not a failure handler dealt with them."""
    cancelled: int = 0
    running: int = 0
    parked: int = 0
    """Parts that wait for the request's turn or its limit."""
    delayed: int = 0
    """Parts that wait for their time, after a failure or because they were added with a delay."""
    priority: int = 50
    limit: int | None = None
    """How many parts may run at a time; 0 while it is paused, None for no limit."""
    sealed: bool = False
    reason: str | None = None
    """Why the request failed."""
    endings: int = 0
    """How often it has ended: reviving a part opens it again."""
    opened_at: float = 0
    first_at: float | None = None
    """When the first part was leased."""
    last_at: float | None = None
    """When the last run of a part ended."""
    ended_at: float | None = None
    asked_at: float = 0

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def settled(self) -> int:
        """Parts that will not run again."""
        return self.done + self.failed + self.cancelled

    @property
    def rate(self) -> float | None:
        """Parts done per second since the first was leased; None before one is done."""
        if self.first_at is None or not self.done:
            return None
        until = self.ended_at or self.asked_at
        return self.done / (until - self.first_at) if until > self.first_at else None

    @property
    def ends_at(self) -> float | None:
        """When it ended, or will end at the current rate; None while that is unknown."""
        if self.ended:
            return self.ended_at
        rate = self.rate
        if rate is None or not self.sealed:
            return None
        return self.asked_at + (self.total - self.settled) / rate


class GroupStatus(Struct, frozen=True):
    """A group that has jobs."""

    name: str
    limit: int | None
    jobs: int
    running: int
    parked: int


class Part(Struct, frozen=True, repr_omit_defaults=True):
    """One part of a request, with its state and result."""

    number: int
    id: str
    state: PartState
    result: bytes | None = None
    error: str | None = None
    """Why its last run ended badly."""

    def json(self) -> Any:
        """Decode the result as JSON. Raises `CodecError` if no result is kept: see `Outcome`."""
        return result_json(self.id, self.state, self.result, self.error)


def status_of(found: Found) -> RequestStatus:
    """Return the status of a request."""
    record = found.record
    failed = record.failed + record.handled
    settled = record.done + failed + record.cancelled
    state = ENDINGS[record.outcome] or ("stopping" if record.stopping else "")
    return RequestStatus(
        id=found.name,
        state=cast("RequestState", state or ("sealed" if record.sealed else "open")),
        total=record.total,
        done=record.done,
        failed=failed,
        cancelled=record.cancelled,
        running=record.running,
        parked=record.parked,
        delayed=max(0, record.total - settled - record.running - record.parked),
        priority=record.priority,
        limit=None if record.limit < 0 else record.limit,
        sealed=bool(record.sealed),
        reason=record.reason or None,
        endings=record.endings,
        opened_at=record.opened_at / 1000,
        first_at=_seconds(record.first_at),
        last_at=_seconds(record.last_at),
        ended_at=_seconds(record.ended_at),
        asked_at=found.now / 1000,
    )


def group_of(found: Found) -> GroupStatus:
    """Return the status of a group."""
    record = found.record
    limit = None if record.limit < 0 else record.limit
    return GroupStatus(found.name, limit, record.total, record.running, record.parked)


def part_of(request: str, number: int, letter: str, facts: Facts, result: bytes | None) -> Part:
    """Return the state and result of a part."""
    state: PartState
    if letter:
        state = _STATES[letter]
    elif facts.outcome == "cancelled":
        state = "cancelled"
    else:
        state = "failed" if facts.outcome else "done"
    return Part(number, f"{request}/{number}", state, result, facts.error)


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms else None
