"""The control loop of a worker for one queue: the thread that makes all calls to its server.

    settle   finished jobs: complete / retry / fail / release; completions ride on the next lease
             call
    lease    as many jobs as there are free slots; while the server works on the call, start the
             jobs of the call before
    extend   held leases; stop handlers whose job was cancelled or whose lease was lost
    wait     until a run is finished, a wake arrives, or something is due

Handlers run elsewhere, so a handler that blocks keeps its lease. Each queue has its own loop, so a
lost server stops only the queues on it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast import arguments
from holdfast.connection.retries import is_away, note_away, note_back
from holdfast.engine import calls
from holdfast.errors import HoldfastError, JobCancelled, QueueFull, ServerUnavailable
from holdfast.job import Extended, NewJob
from holdfast.worker import outcomes
from holdfast.worker.beginning import Beginning
from holdfast.worker.job import Run, RunningJob, slots_of
from holdfast.worker.lease_calls import LeaseCall, LeaseCalls
from holdfast.worker.leases import HeldJobs
from holdfast.worker.outcomes import GIVEN_BACK, MOST_BYTES, Answer, answer_of, settle_of, spends
from holdfast.worker.queues import Presence, called
from holdfast.worker.refused import GIVEN_BACK_SECONDS, Refused
from holdfast.worker.reporting import job_log, report
from holdfast.worker.schedules import Ticker
from holdfast.worker.slots import LEND_SECONDS
from holdfast.worker.wakeup import Waiter, WakeListener

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.engine.call import Entry
    from holdfast.engine.calls import Granted
    from holdfast.job import Duration
    from holdfast.worker.shared import Shared

log = logging.getLogger("holdfast")

MOST_SETTLED: Final = 500
"""The most finished jobs that one round collects."""
STUCK_SECONDS: Final = 0.25
"""When no run has started for this long, waiting jobs are released, so that other workers can run
them."""
SLOWEST_SECONDS: Final = 5.0
"""The longest pause between two attempts while the server fails."""
LEAVE_WITHIN_SECONDS: Final = 5.0
"""How long `stop` waits for a control loop after its grace is over."""
LEAVE_IDLE_SECONDS: Final = 2.0
"""How long `stop` waits for a control loop that holds no job: its server may be lost."""


class ControlLoop:
    """Leases jobs of one queue, submits them to executors, and settles them."""

    def __init__(self, queue: Queue, shared: Shared, weight: int = 1) -> None:
        self.queue = queue
        self.called = called(queue)
        self.hooks = shared.hooks
        self._shared = shared
        self._waiter = Waiter()
        self._listener = WakeListener(queue.server, queue._packer)
        self._share = shared.slots.join(weight, self._waiter.rouse)
        self._finished: deque[Run] = deque()
        self._returned: deque[Run] = deque()
        self._held = HeldJobs(queue, shared)
        self._refused = Refused(queue.name)
        self._beginning = Beginning(self, self._held, shared)
        self._lease_calls = LeaseCalls(queue, self._share, self._held, shared)
        self._ticker = Ticker(queue)
        self._presence = Presence(queue, self._held, shared)
        self._pending: LeaseCall | None = None
        """The last lease call, until its answer is read."""
        self._enough = 1
        """How many finished runs wake the loop."""
        now = time.monotonic()
        self._ask_at = self._ask_failed_at = now
        self._asked_at = -math.inf
        self._asked_after = -1
        """How many runs of this worker were over at the last lease call that was answered."""
        shared.quiet[self] = -1
        self._stopped_at = math.inf
        """When `stop` was first called."""
        self._leave_at: float | None = None
        """When the grace for running handlers ends."""
        self._trouble = 0
        self._tried_at = now
        self._refused_since: float | None = None
        """When the server was lost or began to refuse calls."""
        self._is_away = False
        """Whether the last error was that the server did not answer."""
        self._answers = False
        """Whether the server answers. Until it does, no lease call is made, as that takes slots."""
        self.clean = True
        """Whether all runs that had started were finished and settled."""
        self._abandoned = False
        """Whether `stop` no longer waits for this loop, which then closes its queue itself."""
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"holdfast control of {queue.name}", daemon=True
        )

    def __repr__(self) -> str:
        return f"<control of {self.queue.name!r}>"

    # ------------------------------------------------------ called by other threads

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, grace: float) -> None:
        """Stop leasing. The loop ends when its runs are settled; after `grace` it releases them."""
        now = time.monotonic()
        leave_at, self._stopped_at = now + grace, min(self._stopped_at, now)
        self._leave_at = leave_at if self._leave_at is None else min(self._leave_at, leave_at)
        self._waiter.rouse()

    def is_leaving(self) -> bool:
        """Return whether `stop` was called."""
        return self._leave_at is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the loop has ended. Return whether it has."""
        return self._over.wait(seconds)

    def wait_to_leave(self) -> bool:
        """Wait for the end after `stop`. Return whether all runs that had started were settled.

        The wait is limited: while the server is lost, nothing can be released.
        """
        while not self._over.wait(0.1):
            if time.monotonic() > self._wait_until():
                self._abandoned = True
                self._held.stop_all("leaving")
                return not self._held
        return self.clean

    def _wait_until(self) -> float:
        """Return when `wait_to_leave` gives up: soon if the loop holds no job."""
        if self._leave_at is None:
            return -math.inf
        until = self._leave_at + LEAVE_WITHIN_SECONDS
        return until if self._held else min(until, self._stopped_at + LEAVE_IDLE_SECONDS)

    def finished(self, work: Run) -> None:
        """Accept a finished run from an executor."""
        self._finished.append(work)
        if len(self._finished) >= self._enough:
            self._waiter.rouse()
        if self._over.is_set():
            self._free_late()

    def returned(self, work: Run) -> None:
        """Accept a run that will not start, to release it."""
        self._returned.append(work)
        self._waiter.rouse()

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers run."""
        return self._held.running()

    def extend_now(self, job: RunningJob, seconds: Duration | None) -> None:
        """Extend one lease, for its handler."""
        wanted = arguments.seconds_or_none("seconds", seconds) or 0
        lease_seconds = max(wanted, self._shared.lease_seconds)
        asked_at = time.monotonic()
        if self.queue.extend(job.lease, lease_seconds) is Extended.CANCELLED:
            raise JobCancelled(f"{job.id}: the job was cancelled: stop, it ends as cancelled")
        job.lapses_at = max(job.lapses_at, asked_at + lease_seconds)

    def entries(self, new: Iterable[NewJob]) -> list[Entry]:
        """Check and encode the follow-ups of a job."""
        return list(self.queue._entries.many(new))

    # -------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            while not self._is_over():
                try:
                    self._try_step()
                except Exception:  # noqa: BLE001  # A worker must never stop silently.
                    self._complain()
                    self._trouble += 1
                    self._pause()
        finally:
            self._share.leave()
            self._shared.quiet.pop(self)
            self._listener.close()
            self._waiter.close()
            if not self._trouble:
                with suppress(HoldfastError):
                    self._presence.leave()
            if self._abandoned:
                self.queue.close()
            self._over.set()
            self._free_late()

    def _try_step(self) -> None:
        self._tried_at = time.monotonic()
        try:
            self._step()
            if self._trouble:
                self._recover()
        except HoldfastError as error:
            self._on_error(error)

    def _recover(self) -> None:
        """Log the recovery. For a server that was away it is logged once, not for each queue."""
        since, self._refused_since = self._refused_since, None
        self._trouble = 0
        if since is None:
            return  # An unexpected error, not the server's.
        if self._is_away:
            note_back(self.queue.server.address)
        else:
            seconds = time.monotonic() - since
            log.warning("%s: the server accepts all calls again after %.1f s", self.called, seconds)

    def _complain(self) -> None:
        with suppress(Exception):  # A user's log filter may raise.
            log.exception("%s: unexpected error; the worker continues", self.queue.name)  # noqa: LOG004

    def _free_late(self) -> None:
        """Free the slots of runs that ended after their jobs were released or dropped."""
        for runs in (self._finished, self._returned):
            with suppress(IndexError):
                while True:
                    self._share.free(slots_of(runs.popleft()))

    def _step(self) -> None:
        self._collect()
        if not self._answers:
            self._read_pending()
            self.queue.counts()
            self._answers = True
            self._share.want_more()
        self._ask_for_room()
        completed = outcomes.completed(self._held.unsettled)
        others = len(completed) < len(self._held.unsettled)
        if others or self._leave_at is not None or not self._is_worth_another():
            self._read_pending()
        refused = self._settle_others()
        if self._leave_at is None and time.monotonic() >= self._ticker.next_at():
            self._ticker.tick()
            self._share.want_more()
        self._lease(completed)
        now = time.monotonic()
        if now >= self._held.extend_at:
            self._read_pending()
            self._held.extend()
        if now >= self._presence.tell_at:
            self._presence.tell()
        if self._leave_at is not None:
            self._leave()
        else:
            self._release_stuck()
        if refused:
            raise refused  # Last, after leases were extended.
        self._wait()

    def _is_over(self) -> bool:
        if self._held or self._finished or self._returned or self._pending:
            return False
        if self._leave_at is not None:
            return True
        if self._share.wants_more or not self._answers or not self._shared.until_empty:
            return False
        if time.monotonic() >= self._asks_at():
            return False
        still, over = self._shared.found_nothing(self, self._asked_after)
        if still and self._asked_after < self._shared.runs:
            self._share.want_more()  # A handler of another queue may have added jobs here.
        return over

    def _asks_at(self) -> float:
        """Return when to try the next lease call if no wake arrives."""
        return min(self._ask_at, self._ask_failed_at)

    def _on_error(self, error: HoldfastError) -> None:
        """Handle an error of the server: keep trying for ever, since it may return at any time."""
        self._trouble += 1
        self._answers = False
        self._share.rest()
        self._is_away = is_away(error)
        if self._refused_since is None:
            self._refused_since = self._tried_at
        if self._is_away:
            note_away(self.queue.server.address, self._refused_since)
        if self._trouble == 1 or self._trouble % 20 == 0:
            log.warning("%s: %s; the worker keeps trying", self.queue.name, error)
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            if left := len(self._held):
                log.error("%s: the leases of %d jobs are left to lapse", self.queue.name, left)
            self._held.stop_all("leaving")
            if left or self._pending:
                self.clean = False
            if self._pending:
                self._lease_calls.forget(self._pending)
            self._pending = None
            self._refused.clear()
            self._held.clear()
            self._free_late()
        elif time.monotonic() < self._tried_at + SLOWEST_SECONDS:  # A slow failure needs no pause.
            self._pause()

    def _pause(self) -> None:
        longest = min(SLOWEST_SECONDS, self._shared.lease_seconds / 3)
        self._waiter.prepare()
        self._waiter.wait(min(0.1 * 2 ** min(self._trouble, 10), longest))

    def _wait(self) -> None:
        """Wait until there is something to do."""
        if self._pending:
            self._await_answer(self._pending)
            return
        if self._finished or self._held.unsettled or self._share.given:
            self._wait_for_more()
            return
        if self._is_over():
            return
        self._waiter.prepare()  # Before the checks below, so that no rouse is lost.
        self._listen()
        if self._finished or self._returned or self._held.unsettled or self._share.given:
            return
        listener = self._listener if self._listener.listening else None
        if self._waiter.wait(self._next_at() - time.monotonic(), listener):
            if self._listener.heard():
                self._share.want_more()
        elif self._share.wants_more:
            if not self._finished:
                self._shared.slots.lend()
        elif time.monotonic() >= self._asks_at():
            self._share.want_more()

    def _await_answer(self, pending: LeaseCall) -> None:
        """Wait for the answer, or until enough runs are finished to justify the next call."""
        missing = self._shared.pace.worth_another() - self._share.given
        self._enough = max(1, missing // self._shared.pace.most_at_once)
        next_at = self._next_at()
        self._waiter.prepare()
        while len(self._finished) < self._enough and not self._returned and self._leave_at is None:
            if self._waiter.wait(next_at - time.monotonic(), pending.sent):
                self._read_pending()
                break
            if time.monotonic() >= next_at:
                break
            self._waiter.prepare()
        self._enough = 1

    def _is_worth_another(self) -> bool:
        """Return whether to send a second call before the first is answered: so no side waits."""
        worth = self._shared.pace.worth_another()
        return 0 < worth <= self._share.given

    def _listen(self) -> None:
        """Listen for wakes while there are free slots."""
        free = self._shared.slots.free > 0
        if self._leave_at is None and not self._share.wants_more and free:
            self._listener.listen()
        elif not free and self._listener.listening:
            self._listener.stop()  # Leave the wake to a worker with free slots.
            self._share.want_more()  # The wake may have come just then.

    def _wait_for_more(self) -> None:
        """Sleep briefly if enough jobs wait here, so that the next call settles more."""
        waiting = sum(executor.waiting() for executor in self._shared.executors())
        seconds = self._shared.pace.worth(waiting)
        if (left := self._asked_at + seconds - time.monotonic()) > 0 and self._leave_at is None:
            time.sleep(left)

    def _next_at(self) -> float:
        """Return when the loop has to act even if no event comes."""
        times = [self._presence.tell_at, self._held.extend_at, self._refused.ask_at]
        if self._leave_at is None:
            times.append(self._ticker.next_at())
        if self._leave_at is not None:
            times.append(max(self._leave_at, time.monotonic() + 0.05))
        elif self._share.wants_more:
            times.append(time.monotonic() + LEND_SECONDS)
        else:
            times.append(self._asks_at())
        waits = [executor.stuck_for() for executor in self._shared.executors()]
        stuck_for = max(waits, default=0.0)  # There may be no executors yet.
        if stuck_for:
            times.append(time.monotonic() + STUCK_SECONDS - stuck_for)
        return min(times)

    # ---------------------------------------------------------------------- settle

    def _collect(self) -> None:
        """Collect finished and returned runs, as many as one round settles."""
        freed = 0
        while self._returned:
            work = self._returned.popleft()
            freed += slots_of(work)
            for job in work.jobs:
                self._held.answer(job, GIVEN_BACK)
        unsettled = self._held.unsettled
        most = min(MOST_SETTLED, self._shared.pace.per_call())  # As many as one call leases.
        size = sum(len(answer_of(job).result or b"") for job in unsettled)
        while self._finished and len(unsettled) < most and size < MOST_BYTES:
            work = self._finished.popleft()
            self._shared.pace.saw(work.took / len(work.jobs))
            freed += slots_of(work)
            for job in work.jobs:
                if job in self._held:
                    self._held.answer(job)
                    size += len(answer_of(job).result or b"")
        if freed:
            self._shared.ran(freed)
            self._share.free(freed)
            self._shared.slots.resize(self._shared.slots_wanted())

    def _settle_others(self) -> HoldfastError | None:
        """Settle jobs that cannot ride on a lease call. A refused call does not hold up the others.

        Return the error of a refused call that may succeed later.
        """
        refused: HoldfastError | None = None
        to_the_back = self.queue._to_the_back
        for settlement in outcomes.others(tuple(self._held.unsettled), to_the_back=to_the_back):
            try:
                with self._held.settling(settlement.jobs):
                    counted = self.queue._run(settlement.call)
                self._settled(settlement.jobs, counted)
                self._share.want_more()  # A released job may be due at once.
            except ServerUnavailable:
                raise
            except QueueFull as error:
                self._set_aside(settlement.jobs, error)
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    refused = error
        return refused

    def _set_aside(self, jobs: Iterable[RunningJob], error: QueueFull | None = None) -> None:
        """Set aside jobs that a full server refuses to complete. Others are settled as usual."""
        waiting = [job for job in jobs if outcomes.needs_room(job)]
        for job in waiting:
            del self._held.unsettled[job]
        too_many = self._refused.add(waiting)
        if error:
            self._refused.refused(error)
        for job in too_many:
            job.follow_ups = None
            self._held.answer(job, Answer("release", after_ms=round(GIVEN_BACK_SECONDS * 1000)))

    def _ask_for_room(self) -> None:
        """Complete jobs that a full server refused before, as many as it accepts now."""
        if not self._refused:
            return
        self._set_aside(tuple(self._held.unsettled))
        while self._refused and time.monotonic() >= self._refused.ask_at:
            settlement = outcomes.completing(self._refused.next())
            try:
                counted = self.queue._run(settlement.call)
            except QueueFull as error:
                self._refused.refused(error)
            except ServerUnavailable:
                raise
            except HoldfastError as error:
                if not outcomes.turn_down(settlement, error):
                    raise
                self._refused.drop(settlement.jobs)
                for job in settlement.jobs:
                    self._held.answer(job)
            else:
                self._refused.drop(settlement.jobs)
                self._settled(settlement.jobs, counted)
                self._share.want_more()  # A follow-up may be due at once.

    def _settled(self, jobs: Sequence[RunningJob], counted: list[bool]) -> None:
        for job in jobs:
            self._held.settle(job)
        each = bool(self.hooks) or job_log.isEnabledFor(logging.INFO)
        for job, ok in zip(jobs, counted, strict=True):
            answer = answer_of(job)
            if each or not ok or answer.way != "complete":
                report(self.hooks, job, answer, counted=ok)
            fails = answer.way == "fail" or spends(answer, job.lease.facts)
            if fails or (job.failed and answer.way != "complete"):  # It may be due at once.
                self._ask_failed_at = time.monotonic()

    # ----------------------------------------------------------------------- lease

    def _lease(self, completed: Sequence[RunningJob]) -> None:
        """Lease jobs for the free slots, and complete finished jobs in the same call."""
        if completed:
            self._share.want_more()  # A call is made in any case.
        asks_failed = self._leave_at is None and time.monotonic() >= self._ask_failed_at
        if asks_failed:
            self._read_pending()  # Before it takes slots, which an error here would lose.
        count = self._share.take(self._shared.pace.per_call()) if self._leave_at is None else 0
        if count and asks_failed:
            count -= self._lease_failed(count)
        if count > 0:
            self._ask(count, completed)
        elif completed:
            try:
                with self._held.settling(completed):
                    call = calls.complete([settle_of(job) for job in completed])
                    counted = self.queue._run(call)
            except QueueFull as error:
                self._set_aside(completed, error)
            else:
                self._settled(completed, counted)

    def _lease_failed(self, count: int) -> int:
        """Lease failed jobs for the failure handler. Return how many."""
        if self._shared.handlers.for_failures(self.called) is None:
            self._ask_failed_at = float("inf")
            return 0
        pending = self._lease_calls.send(count, (), failed=True)
        granted = self._lease_calls.read(pending)
        # If some were granted there may be more.
        pause = 0 if granted.leases else granted.ask_again or 0.02
        self._ask_failed_at = time.monotonic() + pause
        self._take(pending, granted)
        return len(granted.leases)

    def _ask(self, count: int, completed: Sequence[RunningJob]) -> None:
        """Send a lease call. Jobs of the previous call start while the server works on this one."""
        try:
            pending = self._lease_calls.send(count, completed)
        except QueueFull as error:
            self._set_aside(completed, error)
            return
        self._asked_at = pending.asked_at
        before, self._pending = self._pending, pending
        if before:
            self._handle_answer(before)
        if not (len(self._held) > len(completed) and self._shared.pace.worth_another()):
            self._read_pending()  # Until then no second call could be worth it.

    def _read_pending(self) -> None:
        """Read the answer of the last lease call, if there is an unread one."""
        pending, self._pending = self._pending, None
        if pending:
            self._handle_answer(pending)

    def _handle_answer(self, pending: LeaseCall) -> None:
        try:
            granted = self._lease_calls.read(pending)
        except QueueFull as error:
            self._set_aside(pending.completed, error)
            self._share.want_more()
            return
        enough = len(granted.leases) < pending.most
        if enough:
            self._share.want_no_more()
            # An answer with jobs does not say when to ask again. In an answer without jobs, 0 means
            # that the call could not process everything that is due.
            pause = 0.02 if granted.leases else granted.ask_again
            self._ask_at = time.monotonic() + pause
        self._share.free(pending.asking.count - len(granted.leases))
        self._take(pending, granted)
        if enough and granted.leases:
            self._listen()  # Handlers can start while this is sent.

    def _take(self, pending: LeaseCall, granted: Granted) -> None:
        """Settle the jobs that a call completed, and start the jobs that it leased."""
        self._asked_after = pending.asked_after
        if granted.leases:
            self._shared.quiet[self] = -1
        try:
            self._settled(pending.completed, granted.leases.completed)
        finally:
            self._share.need(self._beginning.begin(granted.leases, pending.asked_at))

    # ------------------------------------------------------------- give back, leave

    def _release_stuck(self) -> None:
        """Release waiting jobs when a run before them takes longer than estimated."""
        for executor in self._shared.executors():
            if executor.stuck_for() >= STUCK_SECONDS:
                self._shared.pace.saw(STUCK_SECONDS)
                for work in executor.take_back():
                    work.control.returned(work)

    def _leave(self) -> None:
        """Release jobs that have not started; after the grace, also running jobs."""
        assert self._leave_at is not None
        self._share.leave()
        for executor in self._shared.executors():
            for work in executor.take_back():
                if work.control is self:
                    self.returned(work)
                else:
                    executor.submit([work])
        late = time.monotonic() - self._leave_at
        if late < 0:
            return
        self._held.stop_all("leaving")
        ends_within = (executor.ends_within for executor in self._shared.executors())
        if late >= max(ends_within, default=0.0):
            for job in self._held.unanswered():
                self._held.answer(job, job.answer or GIVEN_BACK)
                self.clean = False
            for job in self._refused.clear():
                job.follow_ups = None
                self._held.answer(job, GIVEN_BACK)
                self.clean = False
