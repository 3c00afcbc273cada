"""The jobs that a control loop holds: extends their leases, and stops handlers that must stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine import calls
from holdfast.engine.library import MAX_JOBS
from holdfast.job import Extended
from holdfast.worker.job import RunningJob, time_allowed
from holdfast.worker.outcomes import Answer, timed_out
from holdfast.worker.pace import extend_every
from holdfast.worker.reporting import tell

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.worker.shared import Shared

log = logging.getLogger("holdfast")


class HeldJobs:
    """The leased, unsettled jobs of one control loop. Other threads may only read what runs."""

    def __init__(self, queue: Queue, shared: Shared) -> None:
        self._queue = queue
        self._shared = shared
        self._jobs: dict[RunningJob, None] = {}
        self.unsettled: dict[RunningJob, None] = {}
        """Jobs whose run is over and for which no call to the server has been sent."""
        self.extend_at = math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: RunningJob) -> bool:
        return job in self._jobs

    def add(self, jobs: Sequence[RunningJob], asked_at: float) -> None:
        """Add jobs whose lease call was sent at `asked_at`."""
        if not self._jobs:
            self.extend_at = asked_at + extend_every(self._shared.lease_seconds, len(jobs))
        self._jobs.update(dict.fromkeys(jobs))

    def answer(self, job: RunningJob, answer: Answer | None = None) -> None:
        """Record that the run of a job is over, with its own answer or with this one."""
        job.answer = answer or job.answer
        self.unsettled[job] = None

    @contextmanager
    def settling(self, jobs: Sequence[RunningJob]) -> Iterator[None]:
        """Mark jobs as being settled by a call; when the call fails they are settled again."""
        self.mark_sent(jobs)
        try:
            yield
        except BaseException:
            self.mark_unsent(jobs)
            raise

    def mark_sent(self, jobs: Sequence[RunningJob]) -> None:
        """Record that a call to the server settles these."""
        for job in jobs:
            del self.unsettled[job]

    def mark_unsent(self, jobs: Sequence[RunningJob]) -> None:
        """Settle these first: the server may not have recorded them."""
        self.unsettled = dict.fromkeys(jobs) | self.unsettled

    def settle(self, job: RunningJob) -> None:
        """Drop a job that the server has settled."""
        del self._jobs[job]
        if not self._jobs:
            self.extend_at = math.inf

    def clear(self) -> None:
        """Drop all jobs: their leases will lapse."""
        self._jobs.clear()
        self.unsettled.clear()

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers run."""
        jobs = tuple(self._jobs)
        return [job for job in jobs if job.started_at is not None and not job.answer]

    def unanswered(self) -> list[RunningJob]:
        """Return the jobs whose run is not over, started or not."""
        return [job for job in tuple(self._jobs) if not job.answer]

    def stop_all(self, why: str) -> None:
        """Ask all unfinished runs to stop. Those that have not started will not start."""
        for job in self.unanswered():
            if not job.stop_reason:
                self.stop(job, why)

    def extend(self) -> None:
        """Extend all leases, and react to lost leases and cancelled jobs."""
        lease_seconds = self._shared.lease_seconds
        self.extend_at = time.monotonic() + extend_every(lease_seconds, len(self._jobs))
        alike: dict[float, list[RunningJob]] = {}
        for job in self._jobs:
            if job.stop_reason != "lost":
                left = job.lapses_at - time.monotonic()
                # A handler may have extended its lease for longer.
                seconds = math.ceil(left) if left > lease_seconds else lease_seconds
                alike.setdefault(seconds, []).append(job)
        for seconds, jobs in alike.items():
            for some in pieces(jobs, MAX_JOBS):
                self._extend_some(some, round(seconds * 1000))

    def _extend_some(self, jobs: Sequence[RunningJob], lease_ms: int) -> None:
        asked_at = time.monotonic()
        call = calls.extend([(job.id, job.token, None) for job in jobs], lease_ms)
        answers = self._queue._run(call)
        for job, extended in zip(jobs, answers, strict=True):
            self._handle_extended(job, extended, asked_at)

    def _handle_extended(self, job: RunningJob, extended: Extended, asked_at: float) -> None:
        if extended is not Extended.LOST:
            job.lapses_at = max(job.lapses_at, asked_at + self._shared.lease_seconds)
        if job.answer or job.stop_reason:
            return
        if extended is Extended.LOST:
            log.warning("%s: the lease was lost while the handler was running", job.id)
            self.stop(job, "lost")
            tell(self._shared.hooks, "lost", job)
        elif extended is Extended.CANCELLED:
            log.info("%s: the job was cancelled", job.id)
            self.stop(job, "cancelled")
            tell(self._shared.hooks, "cancelled", job)
        elif job.is_overdue():
            self.stop(job, timed_out(time_allowed(job) or 0))

    def stop(self, job: RunningJob, why: str) -> None:
        """Ask a handler to stop, and end it where possible."""
        job.stop_reason = why
        self._shared.executor_for(job.handler).stop_job(job)


def pieces(jobs: Sequence[RunningJob], most: int) -> Iterator[Sequence[RunningJob]]:
    """Split jobs into lists of at most `most`."""
    for first in range(0, len(jobs), most):
        yield jobs[first : first + most]
