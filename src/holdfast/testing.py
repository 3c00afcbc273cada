"""For tests of programs that use Holdfast: a clock to move, and a worker that runs inline.

Everything is real, including the server, but tests do not wait. `pytest_holdfast` has fixtures.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast import arguments
from holdfast.client.aio.queue import AsyncQueue
from holdfast.client.aio.sharded import AsyncShardedQueue
from holdfast.client.sync.queue import Queue
from holdfast.client.sync.sharded import ShardedQueue
from holdfast.engine import calls
from holdfast.errors import HoldfastError, InvalidArgument, JobCancelled
from holdfast.job import Duration, Extended, Lease, NewJob
from holdfast.worker import Fail, Release, Retry, RunningJob, Worker, outcomes
from holdfast.worker.handlers import NO_HANDLER, Handler
from holdfast.worker.job import AsyncRunningJob, Batch, Run, RunContext, run, run_async
from holdfast.worker.queues import origin_of, own

if TYPE_CHECKING:
    from holdfast.engine.call import Entry

__all__ = ["Clock", "moved", "run_until_empty", "run_until_empty_async"]

Q = TypeVar("Q", Queue, AsyncQueue)

LEASE_SECONDS: Final = 3600.0


class Clock:
    """A clock that stands still until a test moves it: `Queue("emails", clock=clock)`.

    It begins at midnight UTC of this day, so that periodic jobs come when a test expects them, or
    at the given instant, in milliseconds.
    """

    def __init__(self, ms: int | None = None) -> None:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self.ms = round(today.timestamp() * 1000) if ms is None else ms

    def __call__(self) -> int:
        """Return the time in milliseconds, as a queue expects it."""
        return self.ms

    def __repr__(self) -> str:
        return f"Clock({self.now().isoformat()})"

    def advance(self, seconds: Duration) -> None:
        """Move the clock forward by some seconds; a negative number sets it back."""
        passed = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        self.ms += round(passed * 1000)

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.ms / 1000, UTC)


@contextmanager
def moved(queue: Q, url: str, clock: Callable[[], int] | None = None) -> Iterator[Q]:
    """Move a queue of the program to another server while the block lasts; it begins empty there.

    It stays the same object, with its handlers and schedules, so code that has it need not change.
    """
    before = dict(vars(queue))
    handlers, schedules = queue.handlers, queue.schedules
    said: Any = {"defaults": queue.defaults, "requeue": queue.requeue, "clock": clock}
    there = Queue(queue.name, url)
    if isinstance(queue, ShardedQueue | AsyncShardedQueue):
        said["shards"] = queue.sharding.count
        there = ShardedQueue(queue.name, url, shards=queue.sharding.count)
    there.delete()
    queue.__init__(queue.name, url, **said)  # type: ignore[misc]
    queue.handlers, queue.schedules = handlers, schedules
    try:
        yield queue
    finally:
        if isinstance(queue, Queue):
            queue.close()
        vars(queue).update(before)
        there.delete()
        there.close()


# --------------------------------------------------------------------- a worker that runs inline


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
        return list(self.queue._entries.many(new))

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
        to_the_back = self.queue._to_the_back
        for settlement in outcomes.others(jobs, to_the_back=to_the_back):
            try:
                self._report(settlement.jobs, self.queue._run(settlement.call))
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    raise
                self._settle(settlement.jobs)

    def _report(self, jobs: Sequence[RunningJob], counted: list[bool]) -> None:
        for job, ok in zip(jobs, counted, strict=True):
            outcomes.report(self.hooks, job, outcomes.answer_of(job), counted=ok)
