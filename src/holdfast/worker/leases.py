"""The jobs that a control loop holds, from the call that leases them to the call that settles them.

    lease    as many jobs as there are free slots, and complete finished jobs in the same call. A
             call is sent first and its answer read later, so that work goes on in between
    start    leased jobs: pass each to its handler's executor, batched where the handler wants it
    extend   leases; stop handlers whose job was cancelled or whose lease was lost
    settle   jobs that cannot ride on a lease call
    refused  jobs whose results a full server refuses stay leased, and wait until it has room

For the control loop only, except what other threads may read: whether it holds jobs, and which run.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.engine import calls
from holdfast.engine.library import MAX_JOBS
from holdfast.errors import HoldfastError, QueueFull, ServerUnavailable
from holdfast.escaping import logger
from holdfast.job import Extended
from holdfast.worker import outcomes
from holdfast.worker.handlers import NO_HANDLER, unknown_after
from holdfast.worker.job import AsyncRunningJob, Batch, RunningJob
from holdfast.worker.outcomes import (
    GIVEN_BACK,
    Answer,
    Stop,
    answer_of,
    job_log,
    released,
    report,
    settle_of,
    spends,
    tell,
)
from holdfast.worker.slots import extend_every

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.connection.server import Sent
    from holdfast.engine.call import Call
    from holdfast.engine.calls import Granted
    from holdfast.job import Lease
    from holdfast.worker.handlers import Handler
    from holdfast.worker.loop import ControlLoop
    from holdfast.worker.slots import Asking, Executor, Share, Shared

log = logger(__name__)

MOST_KNOWN: Final = 10_000
"""Job ids for which a worker counts how often the handler was missing."""
WAIT_SECONDS: Final = 0.85
"""How long a lease call waits for work. Then it asks, so less than the second after which each
queue asks. The server may be 0.1 s late."""
MOST_VAIN: Final = 3
"""After so many that did not wait, the queue only listens once: the server may not let it wait."""
LEAST_LEASE_SECONDS: Final = 5.0
"""For shorter leases no call waits: a lease counts from when the call was sent."""
NO_ROOM_SECONDS: Final = 1.0
"""How long a job is released for when no thread can be started to run it."""


@dataclass(slots=True)
class LeaseCall:
    """A lease call whose answer has not been read."""

    answer: Callable[[], Granted]
    """Waits for the answer."""
    sent: Sent[Granted] | None
    """What was sent; None if it is sent when the answer is wanted."""
    asking: Asking
    """The slots that it asks to fill."""
    most: int
    """The most jobs that it may return."""
    failed: bool
    """Whether it asks for failed jobs."""
    completed: Sequence[RunningJob]
    """The jobs that it completes."""
    asked_at: float
    asked_after: int
    """How many runs of this worker were over when it was sent."""


class HeldJobs:
    """The leased, unsettled jobs of one control loop."""

    def __init__(self, control: ControlLoop, queue: Queue, share: Share, shared: Shared) -> None:
        self._control = control
        self._queue = queue
        self._share = share
        self._shared = shared
        self.jobs: dict[RunningJob, None] = {}
        self.unsettled: dict[RunningJob, None] = {}
        """Jobs whose run is over and for which no call to the server has been sent."""
        self.refused = outcomes.Refused(queue.name)
        self.pending: LeaseCall | None = None
        """The last lease call, until its answer is read."""
        self.waiting: LeaseCall | None = None
        """A lease call that waits for work, in some of the free slots."""
        self._vain = 0
        """How many calls in a row were to wait for work, and came back at once without any."""
        self.extend_at = math.inf
        self.ask_at = self.ask_failed_at = time.monotonic()
        """When to try the next lease call if no wake arrives."""
        self.asked_at = -math.inf
        self.asked_after = -1
        """How many runs of this worker were over at the last lease call that was answered."""
        self._missing: Counter[str] = Counter()
        """How often the handler of a job was missing."""

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers run. Thread-safe."""
        jobs = tuple(self.jobs)
        return [job for job in jobs if job.started_at is not None and not job.answer]

    def unanswered(self) -> list[RunningJob]:
        """Return the jobs whose run is not over, started or not. Thread-safe."""
        return [job for job in tuple(self.jobs) if not job.answer]

    def answer(self, job: RunningJob, answer: Answer | None = None) -> None:
        """Record that the run of a job is over, with its own answer or with this one."""
        job.answer = answer or job.answer
        self.unsettled[job] = None

    def clear(self) -> None:
        """Drop all jobs, and a call that is not answered: the leases will lapse."""
        for call in filter(None, (self.pending, self.waiting)):
            if call.sent:
                call.sent.forget()
            self._share.answered(call.asking)
        self.pending = self.waiting = None
        self.refused.clear()
        self.jobs.clear()
        self.unsettled.clear()

    # ----------------------------------------------------------------------- lease

    def lease(self, completed: Sequence[RunningJob]) -> None:
        """Lease jobs for the free slots, and complete finished jobs in the same call."""
        if completed:
            self._share.want_more()  # A call is made in any case.
        leaves = self._control.leave_at is not None
        asks_failed = not leaves and time.monotonic() >= self.ask_failed_at
        if asks_failed:
            self.read_pending()  # Before it takes slots, which an error here would lose.
        asking = None if leaves else self._share.ask(self._shared.pace.per_call)
        if asking and asks_failed:
            asking = self._lease_failed(asking)
        try:
            if asking:
                self._lease(asking, completed)
            elif completed:
                self._settle(calls.complete(list(map(settle_of, completed))), completed)
        except QueueFull as error:
            self._set_aside(completed, error)

    def _lease(self, asking: Asking, completed: Sequence[RunningJob]) -> None:
        """Lease jobs now, or send the call while what is held runs: no side then waits."""
        worth_another = self._shared.pace.worth_another
        later = bool(self.pending or (len(self.jobs) > len(completed) and worth_another))
        pending = self._send(asking, completed, later=later)
        self.asked_at = pending.asked_at
        if not later:
            self._read(pending)
            return
        before, self.pending = self.pending, pending
        if before:  # Its jobs start while the server works on this call.
            self._read(before)
        if not (len(self.jobs) > len(completed) and worth_another):
            self.read_pending()  # Until then no second call could be worth it.

    def _lease_failed(self, asking: Asking) -> Asking | None:
        """Lease failed jobs for the failure handler. Return the slots that are left."""
        if not self._shared.handlers.for_failures(self._control.called):
            self.ask_failed_at = math.inf
            return asking
        self._read(self._send(asking, (), failed=True, later=False))
        if asking.count:
            return asking
        self._share.answered(asking)
        return None

    def wait_for_work(self) -> bool:
        """Send a lease call that waits for work, if there is none now. Return whether it waits.

        Only for a worker with one queue, since other queues cannot use the slots meanwhile.
        """
        if self.waiting:
            return True
        shared, queue = self._shared, self._queue
        may_wait = len(shared.quiet) == 1 and not (shared.until_empty or queue.clock)
        if not may_wait or shared.lease_seconds < LEAST_LEASE_SECONDS or not queue.server._listens:
            return False
        if self._vain == MOST_VAIN:
            self._vain = 0
            return False
        # What is due sooner is asked for in time, in a slot that is left free.
        soon = min(self.ask_at, self.ask_failed_at) < time.monotonic() + WAIT_SECONDS
        # As many as can run at once: if this worker is frozen, they wait until their leases lapse.
        asking = self._share.reserve(shared.pace.least, spare=int(soon))
        if asking:
            self.waiting = self._send(asking, (), wait=WAIT_SECONDS)
        return asking is not None

    def read_waiting(self, *, hurry: bool = False) -> None:
        """Read the answer of the call that waits for work; with `hurry`, end the wait first."""
        waiting, self.waiting = self.waiting, None
        if waiting:
            if hurry and waiting.sent:
                waiting.sent.hurry()
            count, waited = self._read(waiting), time.monotonic() - waiting.asked_at
            self._vain = 0 if count or waited > WAIT_SECONDS / 2 else self._vain + 1
            if count == waiting.most:
                self._share.want_more()

    def _send(
        self,
        asking: Asking,
        completed: Sequence[RunningJob],
        *,
        failed: bool = False,
        later: bool = True,
        wait: float = 0,
    ) -> LeaseCall:
        """Ask for as many jobs as there are slots, and complete these in the same call.

        With `later`, the call is sent now. Else it is made when its answer is wanted. When it
        fails, its slots are freed, and these jobs are settled again.
        """
        queue, most = self._queue, min(asking.count, MAX_JOBS)
        call = calls.lease(
            queue.server.session.next_token(),
            round(self._shared.lease_seconds * 1000),
            most,
            to_the_back=queue._to_the_back,
            failed=failed,
            complete=list(map(settle_of, completed)),
            wait=wait,
        )
        asked_at, asked_after = time.monotonic(), self._shared.runs
        for job in completed:
            del self.unsettled[job]
        sent: Sent[Granted] | None = None
        answer: Callable[[], Granted] = partial(queue._run, call)
        if later:
            try:
                sent = queue.server.send(queue._packer, call, queue._now())
            except BaseException:
                self._not_settled(completed)
                self._share.answered(asking)
                raise
            answer = sent.result
        return LeaseCall(answer, sent, asking, most, failed, completed, asked_at, asked_after)

    def read_pending(self) -> None:
        """Read the answer of the last lease call, if there is an unread one."""
        pending, self.pending = self.pending, None
        if pending:
            self._read(pending)

    def _read(self, call: LeaseCall) -> int:
        """Settle the jobs that a call completed, and start those that it leased. Return how many.

        They keep the slots of the call; the rest is freed.
        """
        try:
            granted = call.answer()
        except BaseException as error:
            self._not_settled(call.completed)
            self._share.answered(call.asking)
            if not isinstance(error, QueueFull) or call.failed:
                raise
            self._set_aside(call.completed, error)
            self._share.want_more()
            return 0
        leases, now = granted.leases, time.monotonic()
        enough = len(leases) < call.most
        if call.failed:  # If some were granted there may be more.
            self.ask_failed_at = now + (0 if leases else granted.ask_again or 0.02)
            call.asking.count -= len(leases)  # The next call takes the rest.
        else:
            if enough:
                self._share.wants_more = False
                # An answer with jobs does not say when to ask again. In an answer without jobs, 0
                # means that the call could not process everything that is due.
                self.ask_at = now + (0.02 if leases else granted.ask_again)
            self._share.answered(call.asking, len(leases))
        self.asked_after = call.asked_after
        if leases:
            self._shared.quiet[self._control] = -1
        try:
            self._settled(call.completed, leases.completed)
        finally:
            if leases and (more := self._start(leases, call.asked_at)):
                self._share.free(-more)
        if leases and enough and not call.failed:
            self._control.listen_soon()
        return len(leases)

    # ----------------------------------------------------------------------- start

    def _start(self, leases: Sequence[Lease], asked_at: float) -> int:
        """Hold leases and submit their jobs. Return how many more (or fewer) slots they take."""
        if not self.jobs:
            self.extend_at = asked_at + extend_every(self._shared.lease_seconds, len(leases))
        lapses_at = asked_at + self._shared.lease_seconds
        handlers, control = self._shared.handlers, self._control
        works: dict[Handler, list[RunningJob]] = {}
        for lease in leases:
            handler = handlers.for_lease(control.called, lease)
            kind = AsyncRunningJob if handler.is_async else RunningJob
            job = kind(lease, handler, control, lapses_at)
            works.setdefault(handler, []).append(job)
            self.jobs[job] = None
        more = 0
        for handler, jobs in works.items():
            executor = self._executor_for(handler, jobs)
            if executor is None:
                more -= len(jobs)
            elif handler.batch:
                least = self._shared.pace.most_at_once
                batches = [Batch(some, least) for some in pieces(jobs, handler.batch)]
                more += sum(batch.slots for batch in batches) - len(jobs)
                executor.submit(batches)
            else:
                executor.submit(jobs)
        return more

    def _executor_for(self, handler: Handler, jobs: Sequence[RunningJob]) -> Executor | None:
        """Return the executor that runs these jobs; None if they were released instead."""
        if self._control.leave_at is not None:  # The executors may be closed already.
            for job in jobs:
                self.answer(job, GIVEN_BACK)
            return None
        if handler is NO_HANDLER:
            self._give_up(jobs)
            return None
        try:
            return self._shared.executor_for(handler)
        except (RuntimeError, OSError) as error:  # No more threads, descriptors or memory.
            for job in jobs:
                self.answer(job, released(NO_ROOM_SECONDS))
            log.error("%s: %s; released, with %d others", jobs[0].id, error, len(jobs) - 1)  # noqa: TRY400  # No trace needed.
            return None

    def _give_up(self, jobs: Sequence[RunningJob]) -> None:
        """Release jobs whose handler is not registered here: another worker may have it."""
        for job in jobs:
            seconds = unknown_after(self._missing[job.id])
            if len(self._missing) > MOST_KNOWN:
                self._missing.clear()
            self._missing[job.id] += 1
            self.answer(job, released(seconds))
            name = job.lease.facts.handler
            self._shared.handlers.unknown.tell(self._control.called, name, job.id, seconds)
            tell(self._shared.hooks, "unknown", job)

    # ---------------------------------------------------------------------- extend

    def extend(self) -> None:
        """Extend all leases, and react to lost leases and cancelled jobs."""
        lease_seconds = self._shared.lease_seconds
        self.extend_at = time.monotonic() + extend_every(lease_seconds, len(self.jobs))
        alike: dict[float, list[RunningJob]] = {}
        for job in self.jobs:
            if job.stop_reason is not Stop.LOST:
                left = job.lapses_at - time.monotonic()
                # A handler may have extended its lease for longer.
                seconds = math.ceil(left) if left > lease_seconds else lease_seconds
                alike.setdefault(seconds, []).append(job)
        for seconds, jobs in alike.items():
            for some in pieces(jobs, MAX_JOBS):
                asked_at = time.monotonic()
                leases = [(job.id, job.token, None) for job in some]
                answers = self._queue._run(calls.extend(leases, round(seconds * 1000)))
                for job, extended in zip(some, answers, strict=True):
                    self._handle_extended(job, extended, asked_at)

    def _handle_extended(self, job: RunningJob, extended: Extended, asked_at: float) -> None:
        if extended is not Extended.LOST:
            job.lapses_at = max(job.lapses_at, asked_at + self._shared.lease_seconds)
        if job.answer or job.stop_reason:
            return
        if extended is Extended.LOST:
            log.warning("%s: the lease was lost while the handler was running", job.id)
            self._stop(job, Stop.LOST)
            tell(self._shared.hooks, "lost", job)
        elif extended is Extended.CANCELLED:
            log.info("%s: the job was cancelled", job.id)
            self._stop(job, Stop.CANCELLED)
            tell(self._shared.hooks, "cancelled", job)
        elif job.is_overdue():
            self._stop(job, Stop.TIMEOUT)

    def stop_all(self) -> None:
        """Ask all unfinished runs to stop. Those that have not started will not start."""
        for job in self.unanswered():
            if not job.stop_reason:
                self._stop(job, Stop.LEAVING)

    def _stop(self, job: RunningJob, why: Stop) -> None:
        """Ask a handler to stop, and end it where possible."""
        job.stop_reason = why
        self._shared.executor_for(job.handler).stop_job(job)

    # ---------------------------------------------------------------------- settle

    def settle_others(self) -> HoldfastError | None:
        """Settle jobs that cannot ride on a lease call. A refused call does not hold up the others.

        Return the error of a refused call that may succeed later.
        """
        refused: HoldfastError | None = None
        to_the_back = self._queue._to_the_back
        for settlement in outcomes.others(tuple(self.unsettled), to_the_back=to_the_back):
            try:
                self._settle(settlement.call, settlement.jobs)
                self._share.want_more()  # A released job may be due at once.
            except ServerUnavailable:
                raise
            except QueueFull as error:
                self._set_aside(settlement.jobs, error)
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    refused = error
        return refused

    def _settle(self, call: Call[list[bool]], jobs: Sequence[RunningJob]) -> None:
        """Make a call that settles these jobs. If it fails they are settled again."""
        for job in jobs:
            del self.unsettled[job]
        try:
            counted = self._queue._run(call)
        except BaseException:
            self._not_settled(jobs)
            raise
        self._settled(jobs, counted)

    def _not_settled(self, jobs: Sequence[RunningJob]) -> None:
        """Settle these first: the server may not have recorded them."""
        self.unsettled = dict.fromkeys(jobs) | self.unsettled

    def _settled(self, jobs: Sequence[RunningJob], counted: list[bool]) -> None:
        """Drop jobs that the server has settled, and report them."""
        for job in jobs:
            del self.jobs[job]
        if not self.jobs:
            self.extend_at = math.inf
        hooks = self._shared.hooks
        each = bool(hooks) or job_log.isEnabledFor(logging.INFO)
        for job, ok in zip(jobs, counted, strict=True):
            answer = answer_of(job)
            completed = answer.way == "complete"
            if each or not ok or not completed:
                report(hooks, job, answer, counted=ok)
            if not completed and (
                job.failed or answer.way == "fail" or spends(answer, job.lease.facts)
            ):
                self.ask_failed_at = time.monotonic()  # It may be due at once.

    def _set_aside(self, jobs: Iterable[RunningJob], error: QueueFull | None = None) -> None:
        """Set aside jobs that a full server refuses to complete. Others are settled as usual."""
        waiting = [job for job in jobs if outcomes.needs_room(job)]
        for job in waiting:
            del self.unsettled[job]
        too_many = self.refused.add(waiting)
        if error:
            self.refused.again(error)
        for job in too_many:
            job.follow_ups = None
            self.answer(job, released(outcomes.GIVEN_BACK_SECONDS))

    def settle_refused(self) -> None:
        """Complete jobs that a full server refused before, as many as it accepts now."""
        self._set_aside(tuple(self.unsettled))
        while self.refused.jobs and time.monotonic() >= self.refused.ask_at:
            settlement = outcomes.completing(self.refused.next())
            try:
                counted = self._queue._run(settlement.call)
            except QueueFull as error:
                self.refused.again(error)
            except ServerUnavailable:
                raise
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    raise
                self.refused.drop(settlement.jobs)
                for job in settlement.jobs:
                    self.answer(job)
            else:
                self.refused.drop(settlement.jobs)
                self._settled(settlement.jobs, counted)
                self._share.want_more()  # A follow-up may be due at once.


def pieces(jobs: Sequence[RunningJob], most: int) -> Iterator[Sequence[RunningJob]]:
    """Split jobs into lists of at most `most`."""
    for first in range(0, len(jobs), most):
        yield jobs[first : first + most]
