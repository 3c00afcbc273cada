"""What the model is told and what it keeps: values, and nothing that happens to them.

Times are milliseconds, options are as the user gives them: seconds, None for no limit,
math.inf for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.job import Update

NEVER = 2**53 - 1

Settle: TypeAlias = tuple[str, str, bytes | None]
"""An id, the token presented for it, and the result if it has one."""

Failure: TypeAlias = tuple[str, str, int, str, bytes]
"""An id, the token presented for it, how long to wait, the error, and how often a failure handler
may try: nothing for as often as was said before."""


def raised_with(error: str) -> str | None:
    """Return what a run raised that ended with this error: histories have some that raised."""
    return "{}" if error.startswith("ü") else None


Limit: TypeAlias = int | str | None
"""How many parts may run at a time, None for any number; or "as it is"."""


class Refusal(Exception):
    """The engine says no, and nothing has changed."""


@dataclass(frozen=True)
class Given:
    """A job as somebody gives it to `add`."""

    id: str
    payload: bytes = field(repr=False)
    priority: int = 50
    delay: int | None = None
    at: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    """The client made the id, so nobody else can have it."""

    def enters(self, now: int) -> int | None:
        """Return the time by which it is added, also one that is past; None for now."""
        return self.at if self.at is not None else self.due(now) or None

    def due(self, now: int) -> int:
        """Return when it may run; what is due already always was."""
        due = min(now + self.delay, NEVER) if self.delay is not None else self.at or 0
        return due if due > now else 0


@dataclass(frozen=True)
class Change:
    """An update, as it was meant when it was given."""

    given: Given
    how: Update
    due: int

    @property
    def begins_anew(self) -> bool:
        return self.how.data if self.how.counts is None else self.how.counts

    @property
    def names_a_group(self) -> bool:
        """Whether it says of which group the job is."""
        limits = self.how.limits
        return limits if isinstance(limits, bool) else "group" in limits

    def said_after(
        self, priority: int, options: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, Any]]:
        """Return what a job says that said this."""
        limits, given = self.how.limits, self.given
        if isinstance(limits, bool):
            return (given.priority, given.options) if limits else (priority, options)
        names = {*limits, "group_limit"} if "group" in limits else {*limits}
        kept = {name: value for name, value in options.items() if name not in names}
        said = {name: value for name, value in given.options.items() if name in names}
        return given.priority if "priority" in names else priority, kept | said

    def due_after(self, due: int) -> int:
        """Return when a job may run that was due at this time."""
        if self.how.due == "later":
            return max(due, self.due)
        if self.how.due == "earlier":
            return min(due, self.due)
        return self.due if self.how.due else due


@dataclass
class Job:
    """A job that has not ended."""

    id: str
    payload: bytes
    priority: int
    options: Mapping[str, Any]
    state: str = "ready"
    place: int = 0
    moved: bool = False
    """Of a part: it has another place than the one that it was added at."""
    """Where it stands among its equals: those of its priority when it is ready, those due at the
    same time when it is delayed. A leased job keeps it, a failed one has none."""
    when: int = 0
    """Delayed: due. Leased: lapses. Failed: when its failure handler may have it."""
    token: str | None = None
    """The last one given out, as long as it counts."""
    leased_at: int = 0
    failures: int = 0
    lapses: int = 0
    error: str | None = None
    raised: str | None = None
    failed_at: int | None = None
    """Kept while its failure handler has it."""
    handlings: int = 0
    """How often its failure handler tried in vain,"""
    most_handlings: int | None = None
    """and may, where somebody said so; -1 is any number of times."""
    cancelled: bool = False
    """Somebody cancelled it while it was leased."""
    successor: list[Change] = field(default_factory=list)
    """The updates that wait for the lease to end, in order."""
    result: bytes | None = None
    """Stored before it ended."""
    request: str | None = None
    """The one that it is a part of,"""
    number: int = 0
    """and which part."""
    group: str | None = None
    """The one that it is of, unless a request had taken that name."""

    @property
    def owner(self) -> str | None:
        """The request or group whose limit it keeps."""
        return self.request or self.group


@dataclass
class Ending:
    """What remains of a job whose result or id is to be kept."""

    outcome: str
    ended_at: int
    forget_at: int
    taken_until: int
    result: bytes | None
    payload: bytes | None
    error: str | None
    raised: str | None


@dataclass(frozen=True)
class Opening:
    """A request as somebody opens it."""

    priority: int = 50
    limit: int | None = None
    fail_fast: bool = False
    keep_for: int = 0
    open_for: int | None = None
    follow_up: Given | None = None


@dataclass
class EndedPart:
    """What remains of a part that has ended, as long as its request is known."""

    outcome: str
    """done, handled (by a failure handler) or cancelled"""
    ended_at: int
    result: bytes | None = None
    error: str | None = None
    raised: str | None = None
    kept: bool = True
    """Not any more when its request is just being forgotten."""

    @property
    def is_told(self) -> bool:
        """Whether it is kept how it ended: not where it ended well."""
        return self.outcome != "done"


@dataclass
class Request:
    """A request; or a group, which is a request that never ends."""

    name: str
    opened_at: int
    opening: Opening
    priority: int = 50
    limit: int | None = None
    is_group: bool = False
    total: int = 0
    """Parts so far."""
    ended: dict[int, EndedPart] = field(default_factory=dict)
    """Those of them that have."""
    turn: int | None = None
    """Its place among its equals, as long as it has a free place and a part that waits."""
    term: int = NEVER
    """When it is open for too long, to be emptied, or to be forgotten."""
    sealed: bool = False
    stopping: str | None = None
    """How it is to end, when it does not take its course."""
    outcome: str | None = None
    reason: str | None = None
    endings: int = 0
    walked: int = 0
    """How many of its parts were gone through, when there are too many for one call."""
    first_at: int | None = None
    last_at: int | None = None
    ended_at: int | None = None

    def ended_as(self, outcome: str) -> int:
        return sum(part.outcome == outcome for part in self.ended.values())


@dataclass(frozen=True)
class Granted:
    """The part of a lease's answer that is remembered: no payloads."""

    token: str
    ids: tuple[str, ...]
    completed: list[bool]
    ask_again: int


def part_of(id: str) -> tuple[str, int] | None:
    """Return the request that a part with this id would be of, and its number."""
    request, slash, number = id.rpartition("/")
    if slash and number.isascii() and number.isdigit() and str(int(number)) == number:
        return request, int(number)
    return None


def filed_id(id: str, number: int) -> str:
    """Return another name for a job, short enough to be one, and not cut inside a character."""
    return id.encode()[:496].decode(errors="ignore") + f"~{number}"


def payload_of(changes: Sequence[Change]) -> bytes:
    """Return the payload of the job that updates make where there is none."""
    first, *others = changes
    return [first, *(change for change in others if change.how.data)][-1].given.payload


def ms(options: Mapping[str, Any], name: str) -> int:
    seconds = options.get(name, 0)
    return NEVER if seconds == math.inf else round(seconds * 1000)


def after(now: int, ms: int) -> int:
    """Return the time so many ms from now; the latest there is for any later one."""
    return min(now + ms, NEVER)
