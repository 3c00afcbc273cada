"""Finished jobs whose results or follow-ups a full server refused.

They stay leased and wait here until the server has room. Their number is bounded: further jobs are
released, so that the worker can continue with jobs that need no room.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.worker.job import RunningJob
from holdfast.worker.outcomes import completed, size_of

log = logging.getLogger("holdfast")

MOST_JOBS: Final = 1000
"""The most jobs that wait for room."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of results and follow-ups that wait for room."""

GIVEN_BACK_SECONDS: Final = 30.0
"""When too many jobs wait, a further job is released and runs again after this time."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
TELL_EVERY_SECONDS: Final = 60.0


class Refused:
    """The jobs that one control loop completes when the server has room."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._jobs: dict[RunningJob, None] = {}
        self._bytes = 0
        self._pause = FIRST_PAUSE
        self._tell_at = self._tell_too_many_at = -math.inf
        self._has_room = False
        """Whether the server accepted the last attempt."""
        self.ask_at = math.inf
        """When to attempt again."""

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Iterable[RunningJob]) -> list[RunningJob]:
        """Keep these waiting. Return those beyond the limits."""
        too_many = []
        if not self._jobs:
            self._pause, self._has_room = FIRST_PAUSE, False
            self.ask_at = time.monotonic() + FIRST_PAUSE
        for job in jobs:
            size = size_of(job)
            if self._jobs and (len(self) >= MOST_JOBS or self._bytes + size > MOST_BYTES):
                too_many.append(job)
            else:
                self._jobs[job] = None
                self._bytes += size
        if too_many and time.monotonic() >= self._tell_too_many_at:
            self._tell_too_many_at = time.monotonic() + TELL_EVERY_SECONDS
            log.warning(
                "%s: the server is full, and %d finished jobs wait here for room already: jobs "
                "that finish now are released and run again in %d s, starting with %s",
                self._queue,
                len(self),
                GIVEN_BACK_SECONDS,
                too_many[0].id,
            )
        return too_many

    def next(self) -> Sequence[RunningJob]:
        """Return the jobs to complete in the next call.

        The first call after a refusal completes one job: there may be no room for more.
        """
        first = next(iter(self._jobs))
        return completed(self._jobs) if self._has_room and not first.follow_ups else [first]

    def refused(self, error: Exception) -> None:
        """Record that there is still no room, and log it once a minute."""
        self._pause = FIRST_PAUSE if self._has_room else min(self._pause * 2, LONGEST_PAUSE)
        self._has_room = False
        now = time.monotonic()
        self.ask_at = now + self._pause
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_SECONDS
            log.warning(
                "%s: the server is full: %d finished jobs, with %d bytes of results and "
                "follow-ups, wait here for room: %s",
                self._queue,
                len(self),
                self._bytes,
                error,
            )

    def drop(self, jobs: Iterable[RunningJob]) -> None:
        """Remove jobs that were completed or will be settled in another way."""
        self._has_room = True
        for job in jobs:
            del self._jobs[job]
        self._bytes = sum(map(size_of, self._jobs))
        if not self._jobs:
            self.ask_at = math.inf

    def clear(self) -> list[RunningJob]:
        """Remove and return all jobs."""
        jobs = list(self._jobs)
        self.drop(jobs)
        return jobs
