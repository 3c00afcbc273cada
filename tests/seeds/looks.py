"""A look at what must be there."""

from __future__ import annotations

import redis

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


def held_for(queue: Queue, id: str) -> float:
    """Return for how many seconds in all the lease of a job lasts by now."""
    job = queue.show(id)
    return job.at - job.leased_at if job and job.at and job.leased_at else 0.0


def sleepers(client: redis.Redis) -> int:
    """Return how many wait for a wake."""
    blocked: int = client.info("clients")["blocked_clients"]
    return blocked
