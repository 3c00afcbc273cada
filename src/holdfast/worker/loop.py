"""The control loop of a worker for one queue: it makes all calls to its server.

    settle   finished jobs: complete / retry / fail / release; completions ride on the next lease
             call
    lease    as many jobs as there are free slots; while the server works on the call, start the
             jobs of the call before
    extend   held leases; stop handlers whose job was cancelled or whose lease was lost
    wait     until a run is finished, a wake arrives, or something is due

The calls are made in `leases.py`; here is decided when. While a handler runs, another thread can
carry out the loop, so a handler that blocks keeps its lease. Each queue has its own loop, so a lost
server stops only the queues on it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from holdfast import arguments
from holdfast.connection.retries import is_away, note_away, note_back
from holdfast.errors import HoldfastError, JobCancelled
from holdfast.escaping import logger
from holdfast.job import Extended, NewJob
from holdfast.worker import outcomes
from holdfast.worker.job import RunningJob
from holdfast.worker.leases import WAIT_SECONDS, HeldJobs
from holdfast.worker.outcomes import GIVEN_BACK, MOST_BYTES, answer_of
from holdfast.worker.queues import Ticker, fitting, origin_of
from holdfast.worker.slots import LEND_SECONDS
from holdfast.worker.wakeup import LATE_SECONDS, Lead, Waiter, WakeListener

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.engine.call import Entry
    from holdfast.job import Duration
    from holdfast.worker.job import Run
    from holdfast.worker.leases import LeaseCall
    from holdfast.worker.slots import Executor, Shared

log = logger(__name__)

MOST_SETTLED: Final = 500
"""The most finished jobs that one round collects."""
REGISTER_SECONDS: Final = 5.0
"""How often a worker registers in the directory of workers."""
MOST_SHOWN: Final = 20
"""The most running jobs in a worker's entry."""
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
        self.origin = origin_of(queue)
        self.called = self.origin.queue
        self.hooks = shared.hooks
        self._shared = shared
        self._waiter = Waiter()
        self._listener = WakeListener(queue.server, queue._packer)
        self._share = shared.slots.join(weight, self._waiter.rouse)
        self._finished: deque[Run] = deque()
        self._returned: deque[Run] = deque()
        self._held = HeldJobs(self, queue, self._share, shared)
        self._ticker = Ticker(queue)
        self._register_at = time.monotonic()
        """When to register again in the directory of workers."""
        self._enough = 1
        """How many finished runs wake the loop."""
        self._settle_at = -math.inf
        """Until when a thread that leads may run handlers before it settles what is finished."""
        self._lead = Lead(self._waiter)
        self._led_by: Executor | None = None
        """The executor whose only thread leads; None if the loop's own thread does."""
        shared.quiet[self] = -1
        shared.slots.rouse()  # The loop of what was the only queue may wait in another way.
        self._stopped_at = math.inf
        """When `stop` was first called."""
        self.leave_at: float | None = None
        """When the grace for running handlers ends."""
        self._trouble = 0
        self._tried_at = time.monotonic()
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
        self.leave_at = leave_at if self.leave_at is None else min(self.leave_at, leave_at)
        self._waiter.rouse()

    def wait(self, seconds: float = 0) -> bool:
        """Wait until the loop has ended. Return whether it has."""
        return self._over.wait(seconds)

    def wait_to_leave(self) -> bool:
        """Wait for the end after `stop`. Return whether all runs that had started were settled.

        The wait is limited: while the server is lost, nothing can be released.
        """
        while not self._over.wait(0.1):
            if time.monotonic() > self._wait_until():
                self._abandoned = True
                self._held.stop_all()
                return not self._held.jobs
        return self.clean

    def _wait_until(self) -> float:
        """Return when `wait_to_leave` gives up: soon if the loop holds no job."""
        if self.leave_at is None:
            return -math.inf
        until = self.leave_at + LEAVE_WITHIN_SECONDS
        return until if self._held.jobs else min(until, self._stopped_at + LEAVE_IDLE_SECONDS)

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

    def _register(self, alive_for: float) -> None:
        """Put this worker into the queue's directory of workers for `alive_for` seconds."""
        self._register_at = time.monotonic() + REGISTER_SECONDS
        running = list(map(RunningJob.describe, self._held.running()[:MOST_SHOWN]))
        handlers = self._shared.handlers.about(self.called)
        about = {**self._shared.about, **handlers, **self._ticker.about(), "running": running}
        notes = about.pop("notes", None)
        if isinstance(notes, dict) and notes:
            about["notes"] = [list(note) for note in reversed(list(notes.items()))]
        self.queue.register(alive_for=alive_for, **fitting(about))

    # ------------------------------------------------------------------- the lead
    # Where one thread runs all handlers of one queue, that thread also leads: it carries out the
    # loop between two runs, so that no job and no outcome is handed over. While a handler keeps it
    # for long, the loop's own thread leads instead.

    def lead(self, executor: Executor) -> None:
        """Carry out the loop in the only thread of this executor, until it has a run to start."""
        if len(self._shared.quiet) > 1:
            return
        waiting = executor.waiting()
        if waiting and (len(self._finished) < self._enough or time.monotonic() < self._settle_at):
            return
        if not self._lead.take(ask=not waiting):
            return
        self._led_by = executor
        try:
            while self._may_be_led_by(executor) and not self._round():
                pass
        finally:
            self._led_by = None
            self._lead.leave()

    def _may_be_led_by(self, executor: Executor) -> bool:
        alone = len(self._shared.quiet) == 1
        return alone and executor.is_one_thread and not self._over.is_set() and not self._is_over()

    # -------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            while not self._is_over():
                if self._lead.is_asked:
                    self._lead.stand_by()
                    self._enough = 1
                else:
                    self._round()
        finally:
            self._share.leave()
            self._shared.quiet.pop(self)
            self._listener.close()
            self._waiter.close()
            if not self._trouble:
                with suppress(HoldfastError):
                    self._register(alive_for=0.001)  # Remove the entry: it expires at once.
            if self._abandoned:
                self.queue.close()
            self._over.set()
            self._lead.end()
            self._free_late()

    def _round(self) -> bool:
        """Do once what is to be done, then wait. It never raises.

        Return whether there are runs that the thread that leads is to start first.
        """
        try:
            self._tried_at = time.monotonic()
            try:
                self._step()
                has_runs = self._wait()
                if self._trouble:
                    self._recover()
                return has_runs
            except HoldfastError as error:
                self._on_error(error)
        except Exception:  # A worker must never stop silently.
            with suppress(Exception):  # A user's log filter may raise.
                log.exception("%s: unexpected error; the worker continues", self.queue.name)
            self._trouble += 1
            self._pause()
        return bool(self._led_by and self._led_by.waiting())

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

    def _free_late(self) -> None:
        """Free the slots of runs that ended after their jobs were released or dropped."""
        for runs in (self._finished, self._returned):
            with suppress(IndexError):
                while True:
                    self._share.free(runs.popleft().slots)

    def _step(self) -> None:
        held = self._held
        self._collect()
        if held.waiting and self._waits_in_vain(held.waiting):
            held.read_waiting(hurry=True)
        if not self._answers:
            held.read_pending()
            self.queue.counts()
            self._answers = True
            self._share.want_more()
        if held.refused.jobs:
            held.settle_refused()
        completed = outcomes.completed(held.unsettled)
        others = len(completed) < len(held.unsettled)
        if held.pending and (others or self.leave_at is not None or not self._is_worth_another()):
            held.read_pending()
        refused = held.settle_others() if len(completed) < len(held.unsettled) else None
        if self.leave_at is None and time.monotonic() >= self._ticker.next_at():
            self._ticker.tick()
            self._share.want_more()
        held.lease(completed)
        now = time.monotonic()
        if now >= held.extend_at:
            held.read_pending()
            held.extend()
        if now >= self._register_at:
            self._register(alive_for=3 * REGISTER_SECONDS)
        if self.leave_at is not None:
            self._leave(self.leave_at)
        else:
            self._release_stuck()
        if refused:
            raise refused  # Last, after leases were extended.

    def _waits_in_vain(self, waiting: LeaseCall) -> bool:
        """Return whether the worker stops, has another queue, or the server's answer is overdue."""
        overdue_at = waiting.asked_at + WAIT_SECONDS + LATE_SECONDS
        others = len(self._shared.quiet) > 1
        return self.leave_at is not None or others or time.monotonic() > overdue_at

    def _is_worth_another(self) -> bool:
        """Return whether to send a second call before the first is answered: no side waits."""
        return 0 < self._shared.pace.worth_another <= self._share.given

    def _is_over(self) -> bool:
        held = self._held
        if held.jobs or self._finished or self._returned or held.pending or held.waiting:
            return False
        if self.leave_at is not None:
            return True
        if self._share.wants_more or not self._answers or not self._shared.until_empty:
            return False
        if time.monotonic() >= self._asks_at():
            return False
        still, over = self._shared.found_nothing(self, self._held.asked_after)
        if still and self._held.asked_after < self._shared.runs:
            self._share.want_more()  # A handler of another queue may have added jobs here.
        return over

    def _asks_at(self) -> float:
        """Return when to try the next lease call if no wake arrives."""
        return min(self._held.ask_at, self._held.ask_failed_at)

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
        if self.leave_at is not None and time.monotonic() >= self.leave_at:
            if left := len(self._held.jobs):
                log.error("%s: the leases of %d jobs are left to lapse", self.queue.name, left)
            self._held.stop_all()
            if left or self._held.pending or self._held.waiting:
                self.clean = False
            self._held.clear()
            self._free_late()
        elif time.monotonic() < self._tried_at + SLOWEST_SECONDS:  # A slow failure needs no pause.
            self._pause()

    def _pause(self) -> None:
        longest = min(SLOWEST_SECONDS, self._shared.lease_seconds / 3)
        self._waiter.prepare()
        self._waiter.wait(min(0.1 * 2 ** min(self._trouble, 10), longest))

    def _wait(self) -> bool:
        """Wait until there is something to do.

        Return True, and do not wait, if the thread that leads has runs to start first.
        """
        held, pace = self._held, self._shared.pace
        if self._led_by and (waiting := self._led_by.waiting()):
            if self._listener.listening:
                self.listen()
            if held.pending:
                self._enough, self._settle_at = self._worth_a_call(), -math.inf
            else:
                self._enough, self._settle_at = 1, held.asked_at + pace.worth(waiting)
            return not self._is_worth_another()
        if held.pending:
            self._await_answer(held.pending)
        elif self._finished or held.unsettled or self._share.given:
            # Sleep briefly if enough jobs wait here, so that the next call settles more.
            waiting = 0
            for executor in list(self._shared.executors.values()):
                waiting += executor.waiting()
            left = held.asked_at + pace.worth(waiting) - time.monotonic()
            if left > 0 and self.leave_at is None:
                time.sleep(left)
        elif not self._is_over():
            self._await_event()
        return False

    def _await_event(self) -> None:
        """Wait for a finished run, a wake, or the time when something is due."""
        held = self._held
        self._waiter.prepare()  # Before the checks below, so that no rouse is lost.
        self.listen()
        if self._finished or self._returned or held.unsettled or self._share.given:
            return
        if self._lead.is_asked:
            return
        listener = self._listener if self._listener.listening else None
        heard = held.waiting.sent if held.waiting else listener
        if self._waiter.wait(self._next_at() - time.monotonic(), heard):
            if held.waiting:
                held.read_waiting()
            elif self._listener.heard():
                self._share.want_more()
        elif self._share.wants_more:
            if not self._finished:
                self._shared.slots.lend()
        elif time.monotonic() >= self._asks_at():
            self._share.want_more()

    def _worth_a_call(self) -> int:
        """Return how many more finished runs justify a call while another is under way."""
        missing = self._shared.pace.worth_another - self._share.given
        return max(1, missing // self._shared.pace.most_at_once)

    def _await_answer(self, pending: LeaseCall) -> None:
        """Wait for the answer, or until enough runs are finished to justify the next call."""
        self._enough = self._worth_a_call()
        next_at = self._next_at()
        self._waiter.prepare()
        while not (self._returned or self._lead.is_asked or self.leave_at is not None):
            if len(self._finished) >= self._enough:
                break
            if self._waiter.wait(next_at - time.monotonic(), pending.sent):
                self._held.read_pending()
                break
            if time.monotonic() >= next_at:
                break
            self._waiter.prepare()
        self._enough = 1

    def listen_soon(self) -> None:
        """Listen while handlers start. A thread that leads starts them first."""
        if self._led_by is None:
            self.listen()

    def listen(self) -> None:
        """Listen for wakes while there are free slots."""
        free = self._shared.slots.free > 0
        if self.leave_at is None and not self._share.wants_more and free:
            if self._listener.listening or not self._held.wait_for_work():
                self._listener.listen()
        elif not free and self._listener.listening:
            self._listener.stop()  # Leave the wake to a worker with free slots.
            self._share.want_more()  # The wake may have come just then.

    def _next_at(self) -> float:
        """Return when the loop has to act even if no event comes."""
        now = time.monotonic()
        times = [self._register_at, self._held.extend_at, self._held.refused.ask_at]
        if self.leave_at is not None:
            times.append(max(self.leave_at, now + 0.05))
        else:
            times.append(self._ticker.next_at())
            times.append(now + LEND_SECONDS if self._share.wants_more else self._asks_at())
        waits = [executor.stuck_for() for executor in list(self._shared.executors.values())]
        times += [now + STUCK_SECONDS - seconds for seconds in waits if seconds]
        return min(times)

    # ---------------------------------------------------------------------- settle

    def _collect(self) -> None:
        """Collect finished and returned runs, as many as one round settles."""
        freed = 0
        while self._returned:
            work = self._returned.popleft()
            freed += work.slots
            for job in work.jobs:
                self._held.answer(job, GIVEN_BACK)
        unsettled, pace = self._held.unsettled, self._shared.pace
        most = min(MOST_SETTLED, pace.per_call)  # As many as one call leases.
        size = 0
        for job in unsettled:
            size += len(answer_of(job).result or b"")
        while self._finished and len(unsettled) < most and size < MOST_BYTES:
            work = self._finished.popleft()
            jobs = work.jobs
            pace.saw(work.took / len(jobs))
            freed += work.slots
            for job in jobs:
                if job in self._held.jobs:
                    unsettled[job] = None
                    size += len(answer_of(job).result or b"")
        if freed:
            self._shared.ran(freed)
            self._share.free(freed)

    # ------------------------------------------------------------- give back, leave

    def _release_stuck(self) -> None:
        """Release waiting jobs when a run before them takes longer than estimated."""
        for executor in list(self._shared.executors.values()):
            if executor.stuck_for() >= STUCK_SECONDS:
                self._shared.pace.saw(STUCK_SECONDS)
                for work in executor.take_back():
                    work.control.returned(work)

    def _leave(self, leave_at: float) -> None:
        """Release jobs that have not started; after the grace, also running jobs."""
        self._share.leave()
        executors = list(self._shared.executors.values())
        for executor in executors:
            for work in executor.take_back():
                if work.control is self:
                    self.returned(work)
                else:
                    executor.submit([work])
        late = time.monotonic() - leave_at
        if late < 0:
            return
        self._held.stop_all()
        if late >= max((executor.ends_within for executor in executors), default=0.0):
            for job in self._held.unanswered():
                self._held.answer(job, job.answer or GIVEN_BACK)
                self.clean = False
            for job in self._held.refused.clear():
                job.follow_ups = None
                self._held.answer(job, GIVEN_BACK)
                self.clean = False
