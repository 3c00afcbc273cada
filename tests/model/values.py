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

Failure: TypeAlias = tuple[str, str, int, str]
"""An id, the token presented for it, how long to wait, and the error."""


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
    failed_at: int | None = None
    """Kept while its failure handler has it."""
    handlings: int = 0
    """How often its failure handler tried in vain."""
    cancelled: bool = False
    """Somebody cancelled it while it was leased."""
    successor: list[Change] = field(default_factory=list)
    """The updates that wait for the lease to end, in order."""
    result: bytes | None = None
    """Stored before it ended."""


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


@dataclass(frozen=True)
class Granted:
    """The part of a lease's answer that is remembered: no payloads."""

    token: str
    ids: tuple[str, ...]
    completed: list[bool]
    ask_again: int


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
