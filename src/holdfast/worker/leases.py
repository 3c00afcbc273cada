"""The jobs that a control loop holds, leased and not settled: extends them, tells who must stop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.engine import calls
from holdfast.engine.scripts import MAX_JOBS
from holdfast.job import Extended
from holdfast.worker.job import RunningJob, time_allowed
from holdfast.worker.outcomes import Answer, timed_out
from holdfast.worker.pace import extend_every
from holdfast.worker.reporting import tell

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.worker.shared import Shared

log = logging.getLogger("holdfast")


class Held:
    """What one control loop holds. It is its only user, but for who looks at what runs."""

    def __init__(self, queue: Queue, shared: Shared) -> None:
        self._queue = queue
        self._shared = shared
        self._jobs: dict[RunningJob, None] = {}
        self.unsettled: dict[RunningJob, None] = {}
        """Those whose run is over, and of whom no call tells the server yet."""
        self.extend_at = math.inf

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: RunningJob) -> bool:
        return job in self._jobs

    def add(self, jobs: Sequence[RunningJob], asked_at: float) -> None:
        """Hold more, which were asked for at this time."""
        if not self._jobs:
            self.extend_at = asked_at + extend_every(self._shared.lease_seconds, len(jobs))
        self._jobs.update(dict.fromkeys(jobs))

    def answer(self, job: RunningJob, answer: Answer | None = None) -> None:
        """Note that the run of a job is over: it said how, or this is said for it."""
        job.answer = answer or job.answer
        self.unsettled[job] = None

    @contextmanager
    def telling(self, jobs: Sequence[RunningJob]) -> Iterator[None]:
        """Have the server told how these ended; when that fails they are to be told again."""
        self.tell_of(jobs)
        try:
            yield
        except BaseException:
            self.tell_again(jobs)
            raise

    def tell_of(self, jobs: Sequence[RunningJob]) -> None:
        """Note that a call tells the server how these ended."""
        for job in jobs:
            del self.unsettled[job]

    def tell_again(self, jobs: Sequence[RunningJob]) -> None:
        """Have it told how these ended, before the others: it may not know."""
        self.unsettled = dict.fromkeys(jobs) | self.unsettled

    def settle(self, job: RunningJob) -> None:
        """Hold a job no longer: the server knows how it ended."""
        del self._jobs[job]
        if not self._jobs:
            self.extend_at = math.inf

    def clear(self) -> None:
        """Hold nothing any more: what was held lapses."""
        self._jobs.clear()
        self.unsettled.clear()

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers run."""
        jobs = tuple(self._jobs)
        return [job for job in jobs if job.started_at is not None and not job.answer]

    def unanswered(self) -> list[RunningJob]:
        """Return the jobs whose run is not over, begun or not."""
        return [job for job in tuple(self._jobs) if not job.answer]

    def tell_all(self, why: str) -> None:
        """Tell all whose run is not over; what has not begun does not begin then."""
        for job in self.unanswered():
            if not job.told:
                self.tell_to_stop(job, why)

    def extend(self) -> None:
        """Extend all, and hear what became of each."""
        lease_seconds = self._shared.lease_seconds
        self.extend_at = time.monotonic() + extend_every(lease_seconds, len(self._jobs))
        alike: dict[float, list[RunningJob]] = {}
        for job in self._jobs:
            if job.told != "lost":
                left = job.lapses_at - time.monotonic()
                # Some are held for longer, as their handlers said.
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
            self._heed(job, extended, asked_at)

    def _heed(self, job: RunningJob, extended: Extended, asked_at: float) -> None:
        if extended is not Extended.LOST:
            job.lapses_at = max(job.lapses_at, asked_at + self._shared.lease_seconds)
        if job.answer or job.told:
            return
        if extended is Extended.LOST:
            log.warning("%s: the lease was lost while the handler runs", job.id)
            self.tell_to_stop(job, "lost")
            tell(self._shared.hooks, "lost", job)
        elif extended is Extended.CANCELLED:
            log.info("%s: somebody cancelled the job", job.id)
            self.tell_to_stop(job, "cancelled")
            tell(self._shared.hooks, "cancelled", job)
        elif job.is_overdue():
            self.tell_to_stop(job, timed_out(time_allowed(job) or 0))

    def tell_to_stop(self, job: RunningJob, why: str) -> None:
        """Tell a handler that nobody wants the rest; end it, where that can be done."""
        job.told = why
        self._shared.executor_for(job.handler).stop_job(job)


def pieces(jobs: Sequence[RunningJob], most: int) -> Iterator[Sequence[RunningJob]]:
    """Cut jobs into lists of at most so many."""
    for first in range(0, len(jobs), most):
        yield jobs[first : first + most]
