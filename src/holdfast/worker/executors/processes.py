"""Runs handlers in child processes, which can be killed: one run at a time in each.

A thread supervises each child. When a job exceeds its timeout, is cancelled or loses its lease, its
handler is asked to stop; a moment later its process is killed with all its descendants. When a
child dies, its job lapses and the child is replaced.

A child is sent short runs ahead, so that neither side waits for the other. Runs that wait behind a
longer run are taken back.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, JobCancelled, ServerUnavailable
from holdfast.escaping import logger
from holdfast.worker.executors import messages, trees
from holdfast.worker.executors.child import Channel, live
from holdfast.worker.executors.fork_server import ForkServer
from holdfast.worker.executors.messages import NUMBERS, Board
from holdfast.worker.executors.threads import ThreadPool
from holdfast.worker.handlers import Handlers
from holdfast.worker.job import Run, RunningJob, end, is_wanted, start, time_allowed
from holdfast.worker.outcomes import RaisedElsewhere, Stop, ended, lapsed, released
from holdfast.worker.slots import Pace
from holdfast.worker.wakeup import Waiter

log = logger(__name__)

NO_CHILD_SECONDS: Final = 1.0
"""How long a job is released for when no process can be started."""
KILL_SECONDS: Final = 1.0
"""How long a handler may continue once it is asked to stop; then its process is killed."""
LOOK_SECONDS: Final = 0.25
"""How often the memory of a child is checked, if it is limited."""
STILL_SECONDS: Final = 5.0
"""How long a run lasts before the thread checks whether the process is stopped (SIGSTOP)."""
AHEAD_SECONDS: Final = 0.005
"""How many seconds of work may wait in a child."""
SLOW_SECONDS: Final = 0.01
"""When a run lasts this long, the runs that wait behind it are taken back."""
MOST_RUNS: Final = 100
"""The most runs that a child has at a time."""
MOST_BYTES: Final = 64 * 1024
"""The most bytes sent to a child that it may not have read."""


@dataclass(frozen=True)
class Limits:
    """When a child is replaced and when it is killed."""

    jobs: int | None = None
    """A child is replaced after this many jobs."""
    megabytes: int | None = None
    """A child that uses more during a run is killed; if its peak was higher it is replaced."""
    ahead: bool = True
    """Whether short runs may wait in a child."""


class Processes(ThreadPool):
    """A pool of up to `most` child processes, with a thread for each."""

    ends_within = KILL_SECONDS + 1.0

    def __init__(self, count: int, most: int, handlers: Handlers, limits: Limits) -> None:
        self._limits = limits
        self._board = board = Board(most)

        def be_child(connection: socket.socket, take: socket.socket, slot: int) -> None:
            live(Channel(connection, take, board, slot), handlers)

        self._fork_server = ForkServer(be_child)
        self._children: dict[int, Child] = {}
        super().__init__("holdfast child", self._watch, count)

    def waiting(self) -> int:
        """Return how many runs have not started."""
        children = tuple(self._children.values())
        return super().waiting() + sum(max(0, len(child.given) - 1) for child in children)

    def take_back(self) -> list[Run]:
        """Remove and return the runs that have not started."""
        waiting = super().take_back()  # First, or a child would get them.
        ahead = [child.take_back() for child in tuple(self._children.values())]
        return [work for some in ahead for work in some] + waiting

    def stop_job(self, job: RunningJob) -> None:  # noqa: ARG002
        """End the run of this job. `job.stop_reason` says why."""
        for child in tuple(self._children.values()):
            child.waiter.rouse()

    def begun(self) -> list[tuple[Run, str]]:
        """Return the active runs, each with its process."""
        found = [(child.first(), child.pid) for child in tuple(self._children.values())]
        return [(first.work, f"Process {pid}") for first, pid in found if first]

    def close(self) -> None:
        """Stop starting runs, and end the active ones."""
        super().close()
        self._fork_server.close()

    def _watch(self, slot: int, works: Iterator[Run]) -> None:
        """Execute runs in a child."""
        child: Child | None = None
        try:
            for work in works:
                if self._is_wanted(work):
                    child = self._run(child, slot, work)
        finally:
            if child:
                child.leave()

    def _is_wanted(self, work: Run) -> bool:
        wanted = is_wanted(work)
        if not wanted:
            work.control.finished(work)
        return wanted

    def _run(self, child: Child | None, slot: int, work: Run) -> Child | None:
        """Execute this run and others that wait. Return the child if it can be used again."""
        if child and not child.is_there():
            log.warning("a process ended while it had no job: %s", child.leave())
            child = None
        try:
            child = child or Child(self._fork_server, self._board, slot, self._limits)
        except Exception as error:  # noqa: BLE001  # Without a child, release the job.
            log.error("%s: %s; released", work.jobs[0].id, error)  # noqa: TRY400  # No trace needed.
            for job in work.jobs:
                job.answer = released(NO_CHILD_SECONDS)
            work.control.finished(work)
            return None
        self._children[slot] = child
        try:
            child.give([work])  # An idle child accepts one run of any size.
            while child.given:
                self._over(child.attend())
                unstarted, child.unstarted = child.unstarted, []
                self._put_back(unstarted)  # For other children.
                share = math.ceil(super().waiting() / max(1, self._wanted))
                some = self._take(min(child.room(), share))
                self._put_back(child.give([work for work in some if self._is_wanted(work)]))
        finally:
            del self._children[slot]
            if child.given:  # After an unexpected error.
                self._over(child.abandon())
        return child if child.alive else None

    def _over(self, works: Sequence[Run]) -> None:
        for work in works:
            for job in work.jobs:
                job.answer = job.answer or lapsed("unexpected error: see the worker's log")
            work.control.finished(work)


# --------------------------------------------------------------------- a single child


class _Given(NamedTuple):
    """A run that was sent to a child."""

    number: int
    work: Run
    sent: int
    """The total bytes sent to the child, including this run."""


class Child:
    """A process that executes one run at a time. For one thread only, except `take_back`."""

    def __init__(self, fork_server: ForkServer, board: Board, slot: int, limits: Limits) -> None:
        board.clear(slot)
        self._fork_server = fork_server
        self._board = board
        self._slot = slot
        self._limits = limits
        self._spawned = spawned = fork_server.spawn(slot)
        self.pid = spawned.pid
        self._tickets = spawned.tickets
        self._line = messages.Line(spawned.connection, messages.read_from_child)
        self._death: trees.Death | None = None
        self._lock = threading.Lock()
        """Held while runs are sent to the child or taken back."""
        self.given: deque[_Given] = deque()
        """The runs of the child: the first is active, the others wait."""
        self.unstarted: list[Run] = []
        """Runs that were taken back, for other children."""
        self._number = self._sent = self._read = 0
        self._moved_at = self._over_at = self._kill_at = math.inf
        self._asked_to_stop = self._warned = False
        self._pace = Pace(1, AHEAD_SECONDS)
        self._jobs = 0
        self._megabytes = 0.0
        self.waiter = Waiter()
        self.alive = True

    # ------------------------------------------------------------- give and take

    def is_there(self) -> bool:
        """Return whether the process is still there: it may have died while it was idle."""
        with suppress(OSError, EOFError, messages.Garbled):
            self._line.drop_unread()
            return True
        return False

    def room(self) -> int:
        """Return how many runs to send now."""
        has, most = len(self.given), min(self._pace.slots, MOST_RUNS)
        if not self._limits.ahead:
            most = 1
        if self._limits.jobs is not None:
            most = min(most, self._limits.jobs - self._jobs)
        is_slow = has and time.monotonic() >= self._moved_at + SLOW_SECONDS
        # Send many at once and rarely, and none behind a slow run.
        return max(0, most - has) if self.alive and has <= most // 2 and not is_slow else 0

    def give(self, works: Sequence[Run]) -> list[Run]:
        """Send runs behind the current ones. Return the runs that do not fit.

        This never waits: a child does not read while a run is active or it is stopped.
        """
        given: list[_Given] = []
        packed: list[bytes] = []
        for work in works:
            number = (self._number + 1) % NUMBERS
            leases = [job.lease for job in work.jobs]
            lapses_at = min(job.lapses_at for job in work.jobs)
            message = messages.pack(messages.Jobs(number, work.control.origin, leases, lapses_at))
            sent = self._sent + len(message)
            if not self.given and not given:
                self._begin(work)
                self._read = sent  # Idle: it reads all of this before it starts.
            elif sent - self._read > MOST_BYTES:
                break
            self._number, self._sent = number, sent
            given.append(_Given(number, work, sent))
            packed.append(message)
        if given:
            with self._lock, suppress(OSError):  # `attend` notices a dead child.
                self.given.extend(given)
                # Tickets first: with a ticket, the child reads until it has the run of that number.
                self._tickets.give([one.number for one in given])
                self._line.post(b"".join(packed))
        return list(works[len(given) :])

    def take_back(self) -> list[Run]:
        """Remove and return the runs that have not started. Thread-safe; never waits."""
        if not self._lock.acquire(blocking=False):
            return []
        try:
            return self._take_unstarted()
        finally:
            self._lock.release()
            self.waiter.rouse()

    def _take_unstarted(self) -> list[Run]:
        count = self._tickets.take_back(len(self.given)) if self.given else 0
        return [self.given.pop().work for _ in range(count)][::-1]

    # ----------------------------------------------------------------- supervise

    def attend(self) -> list[Run]:
        """Wait until something happens. Return the runs that are over."""
        if (seconds := self._pace.worth(max(0, len(self.given) - 1))) > 0:
            time.sleep(seconds)  # Then several runs are over at once.
        self.waiter.prepare()
        if (first := self.first()) is None:
            return []
        over: list[Run] = []
        try:
            why = self._listen(first.work, over)
        except (OSError, messages.Garbled):
            why = "it broke the connection to the worker"
        if over:
            self._note(over)
        if why is None and (first := self.first()):
            why = self._look(first.number, first.work)
        if why is not None:
            over += self._end(why)
        elif not self.given and (
            self._jobs >= (self._limits.jobs or math.inf)
            or self._megabytes > (self._limits.megabytes or math.inf)
        ):
            self.leave()
        return over

    def first(self) -> _Given | None:
        """Return the first run. Another thread may take it back if it has not started."""
        with suppress(IndexError):
            return self.given[0]
        return None

    def _listen(self, work: Run, over: list[Run]) -> str | None:
        """Wait, and read messages. Return "" if the process has ended, else None."""
        hears = self._death or self._line
        room = self._death is None and self._line.has_unsent()
        heard = self.waiter.wait(self._look_at(work) - time.monotonic(), hears, room=room)
        if room:
            with suppress(OSError):  # The child is gone, which is noticed next.
                self._line.flush()
        if heard:
            if self._death:
                return ""
            try:
                self._hear(over)
            except EOFError:  # It is dead, or its handler closed the connection.
                try:
                    self._death = trees.Death(self.pid)
                except ProcessLookupError:
                    return ""
        return None

    def _look_at(self, work: Run) -> float:
        """Return when to check the active run."""
        look_at = min(self._over_at, self._kill_at)
        if self._kill_at == math.inf:
            look_at = min(look_at, max(job.lapses_at for job in work.jobs))
        if len(self.given) > 1:
            look_at = min(look_at, self._moved_at + SLOW_SECONDS)
        now = time.monotonic()
        if now < self._moved_at + STILL_SECONDS:
            look_at = min(look_at, self._moved_at + STILL_SECONDS)
        if self._limits.megabytes:
            look_at = min(look_at, now + LOOK_SECONDS)
        return look_at

    def _look(self, number: int, work: Run) -> str | None:
        """Check the limits of the active run. Return why the child must be killed, or None."""
        now = time.monotonic()
        if len(self.given) > 1 and now >= self._moved_at + SLOW_SECONDS:
            self._pace.saw(now - self._moved_at)
            self._pace.update()
            with self._lock:
                self.unstarted += self._take_unstarted()
        if now >= self._kill_at:
            return "its lease is over"
        most = self._limits.megabytes
        if most and trees.has_more_than(self.pid, most):
            return f"it used more than {most} MB"
        is_still = now >= self._moved_at + STILL_SECONDS
        if is_still and not self._warned and trees.is_stopped(self.pid):
            self._warned = True  # Once per run: without a timeout nothing else would tell.
            log.warning(
                "%s: its process %d is stopped while its lease is extended: kill -CONT %d, or "
                "cancel the job",
                work.jobs[0].id,
                self.pid,
                self.pid,
            )
        if now >= self._over_at:
            self._over_at = math.inf
            for job in work.jobs:
                job.stop_reason = job.stop_reason or Stop.TIMEOUT
        unwanted = [place for place, job in enumerate(work.jobs) if job.cancelled]
        for place in unwanted:
            self._board.tell_to_stop(self._slot, number, place)
            self._asked_to_stop = True
        if self._kill_at == math.inf and len(unwanted) == len(work.jobs):
            self._kill_at = now + KILL_SECONDS
        return None

    def _begin(self, work: Run, at: float | None = None) -> None:
        """Record that a run starts: it was sent to an idle child, or follows a finished run."""
        start(work, at)
        assert work.started_at is not None
        self._moved_at = work.started_at
        self._over_at = work.started_at + (time_allowed(work) or math.inf)
        self._kill_at = math.inf
        self._warned = False
        if self._asked_to_stop:
            self._board.forget(self._slot)
            self._asked_to_stop = False

    def _note(self, over: Sequence[Run]) -> None:
        """Record how long these runs took together, and that the next run starts."""
        now = time.monotonic()
        each = (now - self._moved_at) / len(over)
        for place, work in enumerate(over):
            if work.started_at is None:
                start(work, self._moved_at + place * each)
            end(work, each)
            self._pace.saw(each)
        self._pace.update()
        self._moved_at = now
        if first := self.first():
            self._begin(first.work, now)

    # ------------------------------------------------------------------ messages

    def _hear(self, over: list[Run]) -> None:
        """Handle messages of the child: answers, progress and extensions."""
        for message in self._line.ready():
            if (first := self.first()) is None:
                raise messages.Garbled
            work = first.work
            if isinstance(message, messages.Answers):
                self._take_answers(work, message)
                with self._lock:
                    self.given.popleft()
                self._read = max(self._read, first.sent)
                over.append(work)
            elif isinstance(message, messages.Progress):
                _job(work, message.number).progress(message.fraction, message.note)
            elif isinstance(message, messages.Extend):
                # In a new thread: the server may be lost, and this thread must watch the timeout.
                job = _job(work, message.number)
                threading.Thread(target=self._extend, args=(job, message), daemon=True).start()

    def _extend(self, job: RunningJob, message: messages.Extend) -> None:
        """Extend a lease for its handler."""
        answer = messages.Extended()
        try:
            job.control.extend_now(job, message.seconds)
        except HoldfastError as error:
            why = str(error) or type(error).__name__
            answer = messages.Extended(
                why, isinstance(error, ServerUnavailable), isinstance(error, JobCancelled)
            )
        with suppress(OSError):  # It may have ended meanwhile.
            self._line.post(messages.pack(answer))
            self.waiter.rouse()  # The rest may have to be flushed.

    def _take_answers(self, work: Run, message: messages.Answers) -> None:
        if len(message.jobs) != len(work.jobs):
            raise messages.Garbled
        for job, answered in zip(work.jobs, message.jobs, strict=True):
            if job.answer is None:
                job.answer = answered.answer
            job.follow_ups = answered.follow_ups
            job.raised = RaisedElsewhere(answered.trace) if answered.trace else None
        self._jobs += len(work.jobs)
        self._megabytes = message.megabytes

    # ------------------------------------------------------------------------- end

    def _end(self, why: str) -> list[Run]:
        """End the process. Return the runs that it had started; the others go to other children."""
        self.alive = False
        how = self._fork_server.end(self._spawned)
        with self._lock:
            self.unstarted += self._take_unstarted()
            ran = [one.work for one in self.given]
            self.given.clear()
        if not ran and not self._jobs and self.unstarted:
            # It died before its first run, as the next child may too: end one run.
            ran = [self.unstarted.pop(0)]
        if ran and (words := self._board.last_words(self._slot)):
            try:
                self._take_answers(ran[0], messages.read_last_words(words))
            except (msgspec.DecodeError, messages.Garbled):
                log.warning("%s: its process left an unreadable answer", ran[0].jobs[0].id)
        for work in ran:
            for job in work.jobs:
                over = ended(job, time_allowed(work)) if job.cancelled else lapsed(why or how)
                job.answer = job.answer or over
            if work.started_at is None:
                start(work)
            end(work)
        self._close()
        return ran

    def abandon(self) -> list[Run]:
        """End the process after an unexpected error. Return its runs."""
        with self._lock:
            runs = [one.work for one in self.given]
            self.given.clear()
        self.leave()
        return runs

    def leave(self) -> str:
        """End the process and all its descendants. Return how it ended."""
        if not self.alive:
            return "it had ended"
        self.alive = False
        how = self._fork_server.end(self._spawned)
        self._close()
        return how

    def _close(self) -> None:
        # Only after the process has ended: closing earlier would make a handler's `extend` raise,
        # and the child would send that as its answer.
        self._line.close()
        self._tickets.close()
        self.waiter.close()
        if self._death:
            self._death.close()


def _job(work: Run, number: int) -> RunningJob:
    if not 0 <= number < len(work.jobs):
        raise messages.Garbled
    return work.jobs[number]
