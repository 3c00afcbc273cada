"""A look at what must be there."""

from __future__ import annotations

from holdfast import Job, Outcome, Queue


def shown(queue: Queue, id: str) -> Job:
    """Return a job that must be there, as it stands."""
    job = queue.show(id)
    assert job is not None
    return job


def outcome_of(queue: Queue, id: str) -> Outcome:
    """Return how a job ended that must have ended."""
    outcome = queue.result(id)
    assert outcome is not None
    return outcome
