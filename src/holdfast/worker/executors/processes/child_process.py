"""A child, as the thread sees it that watches over it.

It runs what it is given, one run after the other. Of short runs it is given some ahead, so that
neither of the two waits for the other; what waits behind one that takes longer is taken back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, JobCancelled, ServerUnavailable
from holdfast.worker.executors.processes import frames, trees
from holdfast.worker.executors.processes.fork_server import Nursery
from holdfast.worker.executors.processes.shared_memory import NUMBERS, Board
from holdfast.worker.job import Run, RunningJob, end, start, time_allowed
from holdfast.worker.outcomes import Answer, RaisedElsewhere, ended, lapsed, timed_out
from holdfast.worker.pace import Pace
from holdfast.worker.queues import shard_of
from holdfast.worker.wakeup import Waiter

log = logging.getLogger("holdfast")

KILL_SECONDS: Final = 1.0
"""What a handler has once it is told to stop."""
LOOK_SECONDS: Final = 0.25
"""How often the memory of a child is looked at, where it is limited."""
STILL_SECONDS: Final = 5.0
"""After so long it is looked at whether a child is stopped, and does nothing."""
AHEAD_SECONDS: Final = 0.005
"""So much work may wait in a child."""
SLOW_SECONDS: Final = 0.01
"""When no run is over for so long, what waits behind it is taken back."""
MOST_RUNS: Final = 100
"""That a child has at a time,"""
MOST_BYTES: Final = 64 * 1024
"""and what it need not have read of them."""


@dataclass(frozen=True)
class Limits:
    """When a child is replaced, and when it is killed."""

    jobs: int | None = None
    """After so many jobs it is replaced."""
    megabytes: int | None = None
    """A child that had more is replaced; one that has more while a job runs is killed."""
    ahead: bool = True
    """Whether short runs may wait in a child."""


class _Given(NamedTuple):
    """A run that a child was given."""

    number: int
    work: Run
    sent: int
    """How much was sent to the child, up to here."""


class Child:
    """A process that runs one job at a time. But for `take_back` it is for one thread."""

    def __init__(self, nursery: Nursery, board: Board, slot: int, limits: Limits) -> None:
        board.clear(slot)
        self._nursery = nursery
        self._board = board
        self._slot = slot
        self._limits = limits
        self._born = born = nursery.bear(slot)
        self._pid = born.pid
        self._tickets = born.tickets
        self._line = frames.Line(born.connection, frames.read_from_child)
        self._death: trees.Death | None = None
        self._lock = threading.Lock()
        """Held while it is given runs, and while they are taken from it."""
        self._given: deque[_Given] = deque()
        """The first one runs, the others wait behind it."""
        self._unbegun: list[Run] = []
        self._number = self._sent = self._read = 0
        self._moved_at = self._over_at = self._kill_at = math.inf
        self._told = self._warned = False
        self._pace = Pace(1, AHEAD_SECONDS)
        self._jobs = 0
        self._megabytes = 0.0
        self.waiter = Waiter()
        self.alive = True

    # ------------------------------------------------------------- give and take

    def is_busy(self) -> bool:
        """Tell whether it has something to do."""
        return bool(self._given)

    def is_there(self) -> bool:
        """Tell whether it waits for a job: while it had none it may have died."""
        try:
            self._line.drop_unread()
        except (OSError, EOFError, frames.Garbled):
            return False
        return True

    def room(self) -> int:
        """Return how many runs it should be given now."""
        has, most = len(self._given), min(self._pace.places(), MOST_RUNS)
        if not self._limits.ahead:
            most = 1
        if self._limits.jobs is not None:
            most = min(most, self._limits.jobs - self._jobs)
        # Seldom, and many; none behind one that takes its time.
        if not self.alive or has > most // 2 or (has and self._is_slow()):
            return 0
        return max(0, most - has)

    def waiting(self) -> int:
        """Return how many have not begun."""
        return max(0, len(self._given) - 1)

    def runs(self) -> tuple[int, Run | None]:
        """Return the process, and what it runs."""
        first = self._first()
        return self._pid, first.work if first else None

    def give(self, works: Sequence[Run]) -> list[Run]:
        """Have these run, after what it has; return those that are too much for it.

        It never waits: a child reads nothing while it runs something, or when it is stopped.
        """
        given: list[_Given] = []
        packed: list[bytes] = []
        for work in works:
            number = (self._number + 1) % NUMBERS
            message = frames.pack(_message(number, work))
            sent = self._sent + len(message)
            if not self._given and not given:
                self._begin(work)
                self._read = sent  # It will have, before it runs this.
            elif sent - self._read > MOST_BYTES:
                break
            self._number, self._sent = number, sent
            given.append(_Given(number, work, sent))
            packed.append(message)
        if given:
            with self._lock, suppress(OSError):  # Who is gone is noticed when it is attended to.
                self._given.extend(given)
                # First the tickets: with one in hand it reads until it has what that is for.
                self._tickets.give([one.number for one in given])
                self._line.post(b"".join(packed))
        return list(works[len(given) :])

    def take_back(self) -> list[Run]:
        """Return what it has not begun, and will not. For other threads too: it never waits."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            return self._take_unbegun()
        finally:
            self._lock.release()
            self.waiter.rouse()

    def unbegun(self) -> list[Run]:
        """Return what somebody else should run, since this child does not come to it."""
        unbegun, self._unbegun = self._unbegun, []
        return unbegun

    def _take_unbegun(self) -> list[Run]:
        count = self._tickets.take_back(len(self._given)) if self._given else 0
        return [self._given.pop().work for _ in range(count)][::-1]

    # -------------------------------------------------------------------- attend

    def attend(self) -> list[Run]:
        """Wait until something happens; return the runs that are over."""
        if (seconds := self._pace.worth(self.waiting())) > 0:
            time.sleep(seconds)  # Then several are over at once.
        self.waiter.prepare()
        if (first := self._first()) is None:
            return []
        over: list[Run] = []
        try:
            why = self._listen(first.work, over)
        except (OSError, frames.Garbled):
            why = "it broke the connection to the worker"
        if over:
            self._note(over)
        if why is None and (first := self._first()):
            why = self._look(first.number, first.work)
        if why is not None:
            over += self._bury(why)
        elif not self._given and self._is_worn():
            self.leave()
        return over

    def _first(self) -> _Given | None:
        """Return the run that runs. Others may take it back, if it has not begun."""
        try:
            return self._given[0]
        except IndexError:
            return None

    def _listen(self, work: Run, over: list[Run]) -> str | None:
        """Wait, and hear what it says. Returns nothing to say when it has ended, else None."""
        hears = self._death or self._line
        room = self._death is None and self._line.has_unsent()
        heard = self.waiter.wait(self._look_at(work) - time.monotonic(), hears, room=room)
        if room:
            with suppress(OSError):  # It is gone, which is heard next.
                self._line.flush()
        if heard:
            if self._death:
                return ""
            try:
                self._hear(over)
            except EOFError:  # It is dead, or its handler closed the line.
                try:
                    self._death = trees.Death(self._pid)
                except ProcessLookupError:
                    return ""
        return None

    def _look_at(self, work: Run) -> float:
        """Return when to look what time it is."""
        look_at = min(self._over_at, self._kill_at)
        if self._kill_at == math.inf:
            look_at = min(look_at, max(job.lapses_at for job in work.jobs))
        if len(self._given) > 1:
            look_at = min(look_at, self._moved_at + SLOW_SECONDS)
        now = time.monotonic()
        if now < self._moved_at + STILL_SECONDS:
            look_at = min(look_at, self._moved_at + STILL_SECONDS)
        if self._limits.megabytes:
            look_at = min(look_at, now + LOOK_SECONDS)
        return look_at

    def _is_slow(self) -> bool:
        return time.monotonic() >= self._moved_at + SLOW_SECONDS

    def _look(self, number: int, work: Run) -> str | None:
        """See to the time of the run that runs; return why the child must be ended, if it must."""
        now = time.monotonic()
        if len(self._given) > 1 and self._is_slow():
            self._pace.saw(now - self._moved_at)
            with self._lock:
                self._unbegun += self._take_unbegun()
        if now >= self._kill_at:
            return work.jobs[0].told or "its lease is over"
        most = self._limits.megabytes
        if most and trees.has_more_than(self._pid, most):
            return f"it had more than {most} MB"
        if now >= self._moved_at + STILL_SECONDS:
            self._warn_if_stopped(work)
        if now >= self._over_at:
            self._over_at = math.inf
            for job in work.jobs:
                job.told = job.told or timed_out(time_allowed(work) or 0)
        unwanted = [place for place, job in enumerate(work.jobs) if job.cancelled]
        for place in unwanted:
            self._board.tell_to_stop(self._slot, number, place)
            self._told = True
        if self._kill_at == math.inf and len(unwanted) == len(work.jobs):
            self._kill_at = now + KILL_SECONDS
        return None

    def _warn_if_stopped(self, work: Run) -> None:
        """Say so, once for each run: nothing else would, where the job has no timeout."""
        if not self._warned and trees.is_stopped(self._pid):
            self._warned = True
            log.warning(
                "%s: its process %d is stopped, and the lease is extended: kill -CONT %d, or "
                "cancel the job",
                work.jobs[0].id,
                self._pid,
                self._pid,
            )

    def _begin(self, work: Run, at: float | None = None) -> None:
        """Note that a run begins, which was given or comes after one that is over."""
        start(work, at)
        assert work.started_at is not None
        self._moved_at = work.started_at
        self._over_at = work.started_at + (time_allowed(work) or math.inf)
        self._kill_at = math.inf
        self._warned = False
        if self._told:
            self._board.forget(self._slot)
            self._told = False

    def _note(self, over: Sequence[Run]) -> None:
        """Note how long these took, all together, and that the next one runs."""
        now = time.monotonic()
        each = (now - self._moved_at) / len(over)
        for place, work in enumerate(over):
            if work.started_at is None:
                start(work, self._moved_at + place * each)
            end(work, each)
            self._pace.saw(each)
        self._moved_at = now
        if first := self._first():
            self._begin(first.work, now)

    # ---------------------------------------------------------------- what it says

    def _hear(self, over: list[Run]) -> None:
        """Do what handlers ask for while they run, and take their answers."""
        for message in self._line.ready():
            if (first := self._first()) is None:
                raise frames.Garbled
            work = first.work
            if isinstance(message, frames.Answers):
                self._heed(work, message)
                with self._lock:
                    self._given.popleft()
                self._read = max(self._read, first.sent)
                over.append(work)
            elif isinstance(message, frames.Progress):
                _job(work, message.number).progress(message.fraction, message.note)
            elif isinstance(message, frames.Extend):
                # Not here: the server may be lost, and somebody must watch the time.
                job = _job(work, message.number)
                threading.Thread(target=self._extend, args=(job, message), daemon=True).start()

    def _extend(self, job: RunningJob, message: frames.Extend) -> None:
        """Extend a lease for its handler."""
        answer = frames.Extended()
        try:
            job.control.extend_now(job, message.seconds)
        except HoldfastError as error:
            why = str(error) or type(error).__name__
            answer = frames.Extended(
                why, isinstance(error, ServerUnavailable), isinstance(error, JobCancelled)
            )
        with suppress(OSError):  # It may have ended meanwhile.
            self._line.post(frames.pack(answer))
            self.waiter.rouse()  # It may not fit.

    def _heed(self, work: Run, message: frames.Answers) -> None:
        if len(message.jobs) != len(work.jobs):
            raise frames.Garbled
        for job, answered in zip(work.jobs, message.jobs, strict=True):
            if job.answer is None:
                job.answer = answered.answer
            job.follow_ups = answered.follow_ups
            job.raised = RaisedElsewhere(answered.trace) if answered.trace else None
        self._jobs += len(work.jobs)
        self._megabytes = message.megabytes

    def _heed_last_words(self, work: Run) -> None:
        if words := self._board.last_words(self._slot):
            try:
                self._heed(work, frames.read_last_words(words))
            except (msgspec.DecodeError, frames.Garbled):
                log.warning("%s: its last words make no sense", work.jobs[0].id)

    # ------------------------------------------------------------------------- end

    def _is_worn(self) -> bool:
        limits = self._limits
        worn = limits.jobs is not None and self._jobs >= limits.jobs
        return worn or (limits.megabytes is not None and self._megabytes > limits.megabytes)

    def _bury(self, why: str) -> list[Run]:
        """End it; return what ran there. What it had not begun is for others."""
        self.alive = False
        how = self._nursery.end(self._born)
        with self._lock:
            self._unbegun += self._take_unbegun()
            ran = [one.work for one in self._given]
            self._given.clear()
        if not ran and not self._jobs and self._unbegun:
            ran = [self._unbegun.pop(0)]  # It never lived: others might not either.
        if ran:
            self._heed_last_words(ran[0])
        for work in ran:
            for job in work.jobs:
                job.answer = job.answer or _after_the_end(job, why or how)
            if work.started_at is None:
                start(work)
            end(work)
        self._close()
        return ran

    def forsake(self) -> list[Run]:
        """Return the runs that it still has, after something unexpected."""
        with self._lock:
            runs = [one.work for one in self._given]
            self._given.clear()
        return runs

    def leave(self) -> str:
        """End it, and all that it started; return how it ended."""
        if not self.alive:
            return "it had ended"
        self.alive = False
        how = self._nursery.end(self._born)
        self._close()
        return how

    def _close(self) -> None:
        # Not before it has ended: a handler that asks something would raise, and answer so.
        self._line.close()
        self._tickets.close()
        self.waiter.close()
        if self._death:
            self._death.close()


def _message(number: int, work: Run) -> frames.Jobs:
    queue = work.control.queue
    leases = [job.lease for job in work.jobs]
    lapses_at = min(job.lapses_at for job in work.jobs)
    return frames.Jobs(number, queue.name, leases, lapses_at, shard_of(queue), queue.defaults)


def _job(work: Run, number: int) -> RunningJob:
    if not 0 <= number < len(work.jobs):
        raise frames.Garbled
    return work.jobs[number]


def _after_the_end(job: RunningJob, why: str) -> Answer:
    """Return what becomes of a job whose process was ended, or died by itself."""
    return ended(job.told) if job.cancelled else lapsed(why)
