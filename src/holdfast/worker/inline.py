"""Runs jobs one after another in the calling thread, for tests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from holdfast import arguments
from holdfast.client.sync.queue import Queue
from holdfast.engine import calls
from holdfast.errors import HoldfastError, InvalidArgument, JobCancelled
from holdfast.job import Duration, Extended, Lease, NewJob
from holdfast.worker import outcomes
from holdfast.worker.handlers import NO_HANDLER, Handler
from holdfast.worker.job import AsyncRunningJob, Batch, Run, RunContext, RunningJob, run, run_async
from holdfast.worker.outcomes import Fail, Release, Retry, report
from holdfast.worker.queues import origin_of, own
from holdfast.worker.worker import Worker

if TYPE_CHECKING:
    from holdfast.client.aio.queue import AsyncQueue
    from holdfast.engine.call import Entry

LEASE_SECONDS: Final = 3600.0


def run_until_empty(
    target: Worker | Queue | AsyncQueue, *, raising: bool = True, most: int = 1000
) -> list[RunningJob]:
    """Run all jobs that can run now, one after another, in this thread. Return the jobs that ran.

    target   a worker, or a queue that has handlers
    raising  re-raise what a handler raised, once its job is settled; not `Retry`, `Fail`, `Release`
    most     the most runs before it gives up: a job that adds itself again would never end

    Before the first run it reclaims leases that have run out by the queue's clock, and adds
    periodic jobs that are due. Timeouts are not enforced. A job with an unknown handler is
    released, and raises `InvalidArgument`.
    """
    ran: list[RunningJob] = []
    for work in _works(target, ran, raising, most):
        if work.handler.is_async:
            _check_no_loop(work)
            asyncio.run(run_async(work))
        else:
            run(work)
    return ran


async def run_until_empty_async(
    target: Worker | Queue | AsyncQueue, *, raising: bool = True, most: int = 1000
) -> list[RunningJob]:
    """Run all jobs that can run now, as `run_until_empty` does, on the current event loop."""
    ran: list[RunningJob] = []
    for work in _works(target, ran, raising, most):
        if work.handler.is_async:
            await run_async(work)
        else:
            run(work)
    return ran


def _check_no_loop(work: Run) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    work.control.returned(work)
    raise InvalidArgument("within an event loop, await run_until_empty_async instead")


def _works(
    target: Worker | Queue | AsyncQueue, ran: list[RunningJob], raising: bool, most: int
) -> Iterator[Run]:
    """Yield one run after another, and settle each once it has run."""
    worker = target if isinstance(target, Worker) else Worker(target)
    worker._prepare(may_be_late=True)
    queues = own(worker._weights, LEASE_SECONDS)
    try:
        inlines = [_Inline(queue, worker) for queue in queues]
        for queue in queues:
            queue.tidy(force=True)
            queue.tick()
        while work := _next(inlines):
            if len(ran) >= most:
                work.control.returned(work)
                raise InvalidArgument(
                    f"{most} runs did not empty the queue: does a handler add its own job again?"
                )
            yield work
            ran += work.jobs
            work.control.finished(work)
            for job in work.jobs:
                _raise_again(job.raised, raising)
    finally:
        for queue in queues:
            queue.close()


def _next(inlines: Iterable[_Inline]) -> Run | None:
    """Return a run from the first queue that has one."""
    for inline in inlines:
        if work := inline.next():
            return work
    return None


def _raise_again(raised: BaseException | None, raising: bool) -> None:
    if raised is None or issubclass(type(raised), Retry | Fail | Release):
        return
    # Ctrl-C and pytest.fail always propagate: they are not failures of the job.
    if raising or not issubclass(type(raised), Exception):
        raise raised


class _Inline(RunContext):
    """Stands for the control loop of one queue."""

    def __init__(self, queue: Queue, worker: Worker) -> None:
        self.queue = queue
        self.origin = origin_of(queue)
        self.called = self.origin.queue
        self.hooks = worker._hooks
        self._handlers = worker._handlers

    def finished(self, work: Run) -> None:
        self._settle(work.jobs)

    def returned(self, work: Run) -> None:
        self.queue.release_many(job.lease for job in work.jobs)

    def extend_now(self, job: RunningJob, seconds: Duration | None) -> None:
        wanted = arguments.seconds_or_none("seconds", seconds) or LEASE_SECONDS
        if self.queue.extend(job.lease, wanted) is Extended.CANCELLED:
            raise JobCancelled(f"{job.id}: the job was cancelled: stop, it ends as cancelled")

    def entries(self, new: Iterable[NewJob]) -> list[Entry]:
        return list(self.queue._ask.entries(new, {}))

    def next(self) -> Run | None:
        """Lease the next job, or as many as its handler takes in one call."""
        lease = self.queue.lease(LEASE_SECONDS)
        if lease is None and self._handlers.for_failures(self.called):
            lease = self.queue.lease(LEASE_SECONDS, failed=True)
        if lease is None:
            return None
        handler = self._handlers.for_lease(self.called, lease)
        if handler is NO_HANDLER:
            self.queue.release(lease)
            named = lease.facts.handler
            raise InvalidArgument(
                f"{lease.id}: no handler for "
                f"{'jobs without a name' if named is None else repr(named)} here"
            )
        if not handler.batch:
            return self._job(lease, handler)
        return Batch([self._job(one, handler) for one in self._alike(lease, handler)])

    def _alike(self, first: Lease, handler: Handler) -> list[Lease]:
        leases = [first]
        if handler.batch > 1:
            more = self.queue.lease_many(handler.batch - 1, LEASE_SECONDS)
            same = [one for one in more if self._handlers.for_lease(self.called, one) is handler]
            self.queue.release_many(one for one in more if one not in same)
            leases += same
        return leases

    def _job(self, lease: Lease, handler: Handler) -> RunningJob:
        kind = AsyncRunningJob if handler.is_async else RunningJob
        return kind(lease, handler, self, math.inf)

    def _settle(self, jobs: Sequence[RunningJob]) -> None:
        left = dict.fromkeys(jobs)
        while done := outcomes.completed(left):
            call = calls.complete([outcomes.settle_of(job) for job in done])
            self._report(done, self.queue._run(call))
            for job in done:
                del left[job]
        to_the_back = self.queue._ask.to_the_back
        for settlement in outcomes.others(jobs, to_the_back=to_the_back):
            try:
                self._report(settlement.jobs, self.queue._run(settlement.call))
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    raise
                self._settle(settlement.jobs)

    def _report(self, jobs: Sequence[RunningJob], counted: list[bool]) -> None:
        for job, ok in zip(jobs, counted, strict=True):
            report(self.hooks, job, outcomes.answer_of(job), counted=ok)
