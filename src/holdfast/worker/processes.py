"""Handlers in processes of their own, which can be killed: one run at a time in each.

A thread watches over each child. A job whose time is up, that was cancelled, or whose lease is lost
is told so, and a moment later its process is killed with all that it started. A child that dies
costs its job a lapse, and is replaced.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, ServerUnavailable
from holdfast.worker import frames, trees
from holdfast.worker.board import Board
from holdfast.worker.child import Place, live
from holdfast.worker.crew import Crew
from holdfast.worker.handlers import Handlers
from holdfast.worker.nursery import Nursery
from holdfast.worker.outcomes import Answer, ended, lapsed, timed_out
from holdfast.worker.queues import shard_of
from holdfast.worker.running import Run, RunningJob, begin, end, time_allowed
from holdfast.worker.waiter import Listening, Waiter

log = logging.getLogger("holdfast")

KILL_SECONDS: Final = 1.0
"""What a handler has once it is told to stop."""
LOOK_SECONDS: Final = 0.25
"""How often the memory of a child is looked at, where it is limited."""
NO_CHILD_SECONDS: Final = 1.0
"""When no process can be started, a job goes back for so long."""


@dataclass(frozen=True)
class Limits:
    """When a child is replaced, and when it is killed."""

    jobs: int | None = None
    """After so many jobs it is replaced."""
    megabytes: int | None = None
    """A child that had more is replaced; one that has more while a job runs is killed."""


class RaisedInChild(Exception):
    """What a handler raised in a process of its own, as text."""


class Processes(Crew):
    """So many children at a time, of `most`, and a thread for each."""

    ends_within = KILL_SECONDS + 1.0

    def __init__(self, count: int, most: int, handlers: Handlers, limits: Limits) -> None:
        self._limits = limits
        self._board = board = Board(most)

        def be_child(connection: socket.socket, slot: int) -> None:
            live(Place(connection, board, slot), handlers)

        self._nursery = Nursery(be_child)
        self._watched: dict[RunningJob, Waiter] = {}
        super().__init__("holdfast child", self._watch, count)

    def stop_job(self, job: RunningJob) -> None:
        """End a run: the job says why in `told`."""
        if waiter := self._watched.get(job):
            waiter.rouse()

    def close(self) -> None:
        """Begin nothing more, and end what runs."""
        super().close()
        self._nursery.close()

    def _watch(self, slot: int, works: Iterator[Run]) -> None:
        """Have runs done in a child, one after the other."""
        child: Child | None = None
        try:
            for work in works:
                try:
                    if begin(work):
                        child = self._run(child, slot, work)
                finally:
                    for job in work.jobs:
                        job.answer = job.answer or lapsed("something unexpected: see the log")
                    work.control.finished(work)
        finally:
            if child:
                child.leave()

    def _run(self, child: Child | None, slot: int, work: Run) -> Child | None:
        """Have it done; whatever happens, each job has an answer. Returns the child to go on in."""
        if child and not child.is_there():
            log.warning("a process ended while it had no job: %s", child.leave())
            child = None
        try:
            child = child or Child(self._nursery, self._board, slot, self._limits)
        except OSError as error:
            log.error("%s: %s; given back", work.jobs[0].id, error)  # noqa: TRY400  # It says all.
            for job in work.jobs:
                job.answer = Answer("release", after_ms=round(NO_CHILD_SECONDS * 1000))
            return None
        self._watched.update(dict.fromkeys(work.jobs, child.waiter))
        try:
            child.run(work)
        finally:
            for job in work.jobs:
                del self._watched[job]
            end(work)
        return child if child.alive else None


class Child:
    """A process that runs one job at a time, as the thread that watches over it sees it."""

    def __init__(self, nursery: Nursery, board: Board, slot: int, limits: Limits) -> None:
        self._nursery = nursery
        self._board = board
        self._slot = slot
        self._limits = limits
        self._pid, connection = nursery.bear(slot)
        self._line = frames.Line(connection, frames.read_from_child)
        self._death: trees.Death | None = None
        self._jobs = 0
        self._megabytes = 0.0
        self.waiter = Waiter()
        self.alive = True

    def is_there(self) -> bool:
        """Tell whether it waits for a job: while it had none it may have died."""
        try:
            self._line.drop_unread()
        except (OSError, EOFError, frames.Garbled):
            return False
        return True

    def run(self, work: Run) -> None:
        """Run it; whatever happens, each job has an answer."""
        self._board.clear(self._slot)
        try:
            queue = work.control.queue
            leases = [job.lease for job in work.jobs]
            self._line.send(frames.Jobs(queue.name, leases, shard_of(queue), queue.defaults))
            why = self._attend(work)
        except (OSError, frames.Garbled):
            why = "it broke the connection to the worker"
        if why is not None:
            how = self.leave()
            self._heed_last_words(work)
            for job in work.jobs:
                job.answer = job.answer or _after_the_end(job, why or how)
        elif self._is_worn():
            self.leave()

    def _attend(self, work: Run) -> str | None:
        """Wait for its answers.

        Returns why it must be ended, nothing to say when it has ended, None when it goes on.
        """
        allowed = time_allowed(work) or math.inf
        over_at, kill_at = (work.started_at or 0.0) + allowed, math.inf
        hears: Listening = self._line
        while True:
            self.waiter.prepare()
            if self.waiter.wait(self._look_at(work, over_at, kill_at) - time.monotonic(), hears):
                if hears is self._death:
                    return ""
                try:
                    if self._hear(work):
                        return None
                except EOFError:  # It is dead, or its handler closed the line.
                    try:
                        hears = self._death = trees.Death(self._pid)
                    except ProcessLookupError:
                        return ""
            now = time.monotonic()
            if now >= kill_at:
                return work.jobs[0].told or "its lease is over"
            most = self._limits.megabytes
            if most and trees.has_more_than(self._pid, most):
                return f"it had more than {most} MB"
            if now >= over_at:
                over_at = math.inf
                for job in work.jobs:
                    job.told = job.told or timed_out(allowed)
            unwanted = [number for number, job in enumerate(work.jobs) if job.cancelled]
            for number in unwanted:
                self._board.tell_to_stop(self._slot, number)
            if kill_at == math.inf and len(unwanted) == len(work.jobs):
                kill_at = now + KILL_SECONDS

    def _look_at(self, work: Run, over_at: float, kill_at: float) -> float:
        """Return when to look what time it is."""
        lapses_at = max(job.lapses_at for job in work.jobs)
        look_at = min(over_at, kill_at, lapses_at if kill_at == math.inf else math.inf)
        if self._limits.megabytes:
            return min(look_at, time.monotonic() + LOOK_SECONDS)
        return look_at

    def _hear(self, work: Run) -> bool:
        """Do what the handler asks for while it runs; return whether it has answered."""
        for message in self._line.ready():
            if isinstance(message, frames.Answers):
                self._heed(work, message)
                return True
            if isinstance(message, frames.Progress):
                _job(work, message.number).progress(message.fraction, message.note)
            elif isinstance(message, frames.Extend):
                # Not here: the server may be lost, and somebody must watch the time.
                job = _job(work, message.number)
                threading.Thread(target=self._extend, args=(job, message), daemon=True).start()
        return False

    def _extend(self, job: RunningJob, message: frames.Extend) -> None:
        """Extend a lease for its handler."""
        answer = frames.Extended()
        try:
            job.control.extend_now(job, message.seconds)
        except HoldfastError as error:
            why = str(error) or type(error).__name__
            answer = frames.Extended(why, isinstance(error, ServerUnavailable))
        with suppress(OSError):  # It may have ended meanwhile.
            self._line.send(answer)

    def _heed(self, work: Run, message: frames.Answers) -> None:
        if len(message.jobs) != len(work.jobs):
            raise frames.Garbled
        for job, answered in zip(work.jobs, message.jobs, strict=True):
            if job.answer is None:
                job.answer = answered.answer
            job.follow_ups = answered.follow_ups
            job.raised = RaisedInChild(answered.trace) if answered.trace else None
        self._jobs += len(work.jobs)
        self._megabytes = message.megabytes

    def _heed_last_words(self, work: Run) -> None:
        if words := self._board.last_words(self._slot):
            try:
                self._heed(work, frames.read_last_words(words))
            except (msgspec.DecodeError, frames.Garbled):
                log.warning("%s: its last words make no sense", work.jobs[0].id)

    def _is_worn(self) -> bool:
        limits = self._limits
        worn = limits.jobs is not None and self._jobs >= limits.jobs
        return worn or (limits.megabytes is not None and self._megabytes > limits.megabytes)

    def leave(self) -> str:
        """End it, and all that it started; return how it ended."""
        self.alive = False
        how = self._nursery.end(self._pid)
        self._line.close()  # Not before: a handler that asks something would raise, and answer so.
        self.waiter.close()
        if self._death:
            self._death.close()
        return how


def _job(work: Run, number: int) -> RunningJob:
    if not 0 <= number < len(work.jobs):
        raise frames.Garbled
    return work.jobs[number]


def _after_the_end(job: RunningJob, why: str) -> Answer:
    """Return what becomes of a job whose process was ended, or died by itself."""
    return ended(job.told) if job.cancelled else lapsed(why)
