"""Where handlers run: threads, an event loop, or processes.

Control loops submit runs and are notified when each is finished. An executor starts runs in order,
as soon as it can; `take_back` returns those that it has not started.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.worker.job import Run, RunningJob


class Executor(Protocol):
    """The interface that control loops use."""

    ends_within: float
    """Seconds within which a stopped run has ended; 0 where a run cannot be ended."""

    def submit(self, works: Iterable[Run]) -> None:
        """Start these runs in order, as soon as possible."""

    def waiting(self) -> int:
        """Return how many runs have not started."""

    def stuck_for(self) -> float:
        """Return for how many seconds runs have been waiting while none started."""

    def take_back(self) -> list[Run]:
        """Remove and return the runs that have not started."""

    def stop_job(self, job: RunningJob) -> None:
        """End the run of this job where possible. `job.stop_reason` says why."""

    def begun(self) -> list[tuple[Run, str]]:
        """Return the active runs with readable locations. Called in a signal handler: no locks."""

    def resize(self, count: int) -> None:
        """Change how many runs are active at a time."""

    def close(self) -> None:
        """Stop starting runs."""
