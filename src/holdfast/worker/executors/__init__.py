"""Where handlers run: threads, an event loop, or processes.

Control loops submit runs and are notified when each is finished. An executor starts runs in order,
as soon as it can; `take_back` returns those that it has not started.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from holdfast.worker.job import Run, RunningJob


class Executor:
    """Runs that wait for a place to run, and the interface that control loops use."""

    ends_within = 0.0
    """Seconds within which a stopped run has ended; 0 where a run cannot be ended."""

    def __init__(self) -> None:
        self._works: deque[Run] = deque()
        """The runs that have not started."""
        self._moved_at = time.monotonic()
        """When runs were last submitted or taken."""

    def submit(self, works: Iterable[Run]) -> None:
        """Start these runs in order, as soon as possible."""
        self._moved_at = time.monotonic()
        self._works.extend(works)

    def waiting(self) -> int:
        """Return how many runs have not started."""
        return len(self._works)

    def stuck_for(self) -> float:
        """Return for how many seconds runs have been waiting while none started."""
        return time.monotonic() - self._moved_at if self.waiting() else 0.0

    def take_back(self) -> list[Run]:
        """Remove and return the runs that have not started."""
        return self._take(len(self._works))

    def _take(self, most: int) -> list[Run]:
        """Remove up to `most` of the waiting runs. Other threads may take some at the same time."""
        taken: list[Run] = []
        with suppress(IndexError):
            while len(taken) < most:
                taken.append(self._works.popleft())
        if taken:
            self._moved_at = time.monotonic()
        return taken

    def stop_job(self, job: RunningJob) -> None:
        """End the run of this job where possible. `job.stop_reason` says why."""

    def begun(self) -> list[tuple[Run, str]]:
        """Return the active runs with readable locations. Called in a signal handler: no locks."""
        return []

    def resize(self, count: int) -> None:
        """Change how many runs are active at a time."""

    def close(self) -> None:
        """Stop starting runs."""
