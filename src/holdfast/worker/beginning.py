"""Starts leased jobs: passes each to its handler's executor, batched where the handler wants it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.worker.handlers import NO_HANDLER
from holdfast.worker.job import AsyncRunningJob, Batch, RunningJob
from holdfast.worker.leases import HeldJobs, pieces
from holdfast.worker.outcomes import GIVEN_BACK, Answer
from holdfast.worker.pace import unknown_after
from holdfast.worker.reporting import tell

if TYPE_CHECKING:
    from holdfast.job import Lease
    from holdfast.worker.handlers import Handler
    from holdfast.worker.loop import ControlLoop
    from holdfast.worker.shared import Shared

log = logging.getLogger("holdfast")

MOST_KNOWN: Final = 10_000
"""Job ids for which a worker counts how often the handler was missing."""

NO_ROOM_SECONDS: Final = 1.0
"""How long a job is released for when no thread can be started to run it."""


class Beginning:
    """Starts the jobs that a control loop has leased."""

    def __init__(self, control: ControlLoop, held: HeldJobs, shared: Shared) -> None:
        self._control = control
        self._held = held
        self._shared = shared
        self._unknown: Counter[str] = Counter()

    def begin(self, leases: Sequence[Lease], asked_at: float) -> int:
        """Hold leases and submit their jobs. Return how many more (or fewer) slots they take."""
        lapses_at = asked_at + self._shared.lease_seconds
        handlers, called = self._shared.handlers, self._control.called
        works: dict[Handler, list[RunningJob]] = {}
        for lease in leases:
            handler = handlers.for_lease(called, lease)
            kind = AsyncRunningJob if handler.is_async else RunningJob
            job = kind(lease, handler, self._control, lapses_at)
            works.setdefault(handler, []).append(job)
        more = 0
        for handler, jobs in works.items():
            self._held.add(jobs, asked_at)
            if self._control.is_leaving():  # The executors may be closed already.
                more -= len(jobs)
                for job in jobs:
                    self._held.answer(job, GIVEN_BACK)
                continue
            if handler is NO_HANDLER:
                more -= len(jobs)
                self._give_up(jobs)
                continue
            try:
                executor = self._shared.executor_for(handler)
            except (RuntimeError, OSError) as error:  # No more threads, descriptors or memory.
                more -= len(jobs)
                self._give_back(jobs, error)
                continue
            if handler.batch:
                least = self._shared.pace.most_at_once
                batches = [Batch(some, least) for some in pieces(jobs, handler.batch)]
                more += sum(batch.slots for batch in batches) - len(jobs)
                executor.submit(batches)
            else:
                executor.submit(jobs)
        return more

    def _give_back(self, jobs: Sequence[RunningJob], error: Exception) -> None:
        """Release jobs for which no executor could be started."""
        for job in jobs:
            self._held.answer(job, Answer("release", after_ms=round(NO_ROOM_SECONDS * 1000)))
        log.error("%s: %s; released, with %d others", jobs[0].id, error, len(jobs) - 1)

    def _give_up(self, jobs: Sequence[RunningJob]) -> None:
        """Release jobs whose handler is not registered here: another worker may have it."""
        for job in jobs:
            name = job.lease.facts.handler
            seconds = unknown_after(self._unknown[job.id])
            if len(self._unknown) > MOST_KNOWN:
                self._unknown.clear()
            self._unknown[job.id] += 1
            self._held.answer(job, Answer("release", after_ms=round(seconds * 1000)))
            self._shared.unknown.tell(self._control.called, name, job.id, seconds)
            tell(self._shared.hooks, "unknown", job)
