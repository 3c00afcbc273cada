"""Handlers in processes of their own, which can be killed: one job at a time in each.

A thread watches over each child. A job whose time is up, that was cancelled, or whose lease is lost
is told so, and a moment later its process is killed with all that it started. A child that dies
costs its job a lapse, and is replaced.
"""

from __future__ import annotations

import math
import mmap
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.job import JobOptions
from holdfast.worker import child, frames, trees
from holdfast.worker.handlers import Handlers
from holdfast.worker.nursery import Nursery
from holdfast.worker.outcomes import GIVEN_BACK, Answer, lapsed
from holdfast.worker.running import Run, RunningJob, begin, end
from holdfast.worker.waiter import Waiter

KILL_SECONDS: Final = 1.0
"""What a handler has once it is told to stop."""
LOOK_SECONDS: Final = 0.25
"""How often the memory of a child is looked at, where it is limited."""


@dataclass(frozen=True)
class Limits:
    """When a child is replaced, and when it is killed."""

    jobs: int | None = None
    """After so many jobs it is replaced."""
    megabytes: int | None = None
    """A child that had more is replaced; one that has more while a job runs is killed."""


class RaisedInChild(Exception):
    """What a handler raised in a process of its own, as text."""


class Processes:
    """So many children, and a thread for each."""

    def __init__(
        self, count: int, handlers: Handlers, defaults: dict[str, JobOptions | None], limits: Limits
    ) -> None:
        self._works: SimpleQueue[Run | None] = SimpleQueue()
        self._count = count
        self._limits = limits
        self._moved_at = time.monotonic()
        self._flags = mmap.mmap(-1, max(count, mmap.PAGESIZE))  # Shared with all children.
        flags = memoryview(self._flags)

        def live(connection: socket.socket, slot: int) -> None:
            child.live(connection, flags[slot : slot + 1], handlers, defaults)

        self._nursery = Nursery(live)
        self._watches: dict[RunningJob, Waiter] = {}
        self._threads = [
            threading.Thread(
                target=self._watch, args=(slot,), name=f"holdfast child {slot}", daemon=True
            )
            for slot in range(count)
        ]
        for thread in self._threads:
            thread.start()

    # -------------------------------------------------------- for control loops

    def submit(self, works: Iterable[Run]) -> None:
        self._moved_at = time.monotonic()
        for work in works:
            self._works.put(work)

    def stuck_for(self) -> float:
        return time.monotonic() - self._moved_at if self._works.qsize() else 0.0

    def take_back(self) -> list[Run]:
        taken: list[Run] = []
        with suppress(Empty):
            while (work := self._works.get_nowait()) is not None:
                taken.append(work)
        return taken

    def stop_job(self, job: RunningJob) -> None:
        if watch := self._watches.get(job):
            watch.rouse()

    def close(self) -> None:
        for _ in range(self._count):
            self._works.put(None)
        self._nursery.close()

    # ----------------------------------------------------------- for each child

    def _watch(self, slot: int) -> None:
        """Have jobs run in a child, one after the other, as long as there are any."""
        kept: Child | None = None
        while (work := self._works.get()) is not None:
            self._moved_at = time.monotonic()
            if begin(work):
                kept = kept or Child(self._nursery, self._flags, slot)
                self._flags[slot] = 0
                self._watches.update(dict.fromkeys(work.jobs, kept.waiter))
                if not kept.run(work, self._limits):
                    kept = None
                for job in work.jobs:
                    del self._watches[job]
            work.control.finished(work)
        if kept:
            kept.leave()


class Child:
    """A process that runs one job at a time, as the thread that watches over it sees it."""

    def __init__(self, nursery: Nursery, flags: mmap.mmap, slot: int) -> None:
        self._nursery = nursery
        self._flags = flags
        self._slot = slot
        self._pid, connection = nursery.bear(slot)
        self._line = frames.Line(connection, frames.FromChild)
        self._jobs = 0
        self._megabytes = 0.0
        self.waiter = Waiter()

    def run(self, work: Run, limits: Limits) -> bool:
        """Run it; whatever happens, each job has an answer. Returns whether the child lives on."""
        lives = False
        try:
            self._line.send(frames.Jobs(work.control.queue.name, [job.lease for job in work.jobs]))
            why = self._attend(work, limits)
            lives = not why
        except (EOFError, OSError, msgspec.DecodeError):
            why = ""
        if not lives:
            ended = self._nursery.end(self._pid)
            self._close()
            for job in work.jobs:
                job.answer = job.answer or _after_the_end(job, why or ended)
        end(work)
        return lives and self._is_fresh(limits)

    def _attend(self, work: Run, limits: Limits) -> str:
        """Wait for its answers; return why it must be ended, or nothing when it has answered."""
        over_at, kill_at = _over_at(work), math.inf
        while True:
            lapses_at = min(job.lapses_at for job in work.jobs)
            until = min(over_at, kill_at, lapses_at if kill_at == math.inf else math.inf)
            wait = max(0.0, until - time.monotonic())
            self.waiter.prepare()
            if self.waiter.wait(min(wait, LOOK_SECONDS) if limits.megabytes else wait, self._line):
                message = self._line.read()
                if isinstance(message, frames.Answers):
                    self._heed(work, message)
                    return ""
                self._serve(work, message)
            now = time.monotonic()
            if now >= kill_at:
                return work.jobs[0].told or "its lease is over"
            if limits.megabytes and trees.megabytes(self._pid) > limits.megabytes:
                return f"it had more than {limits.megabytes} MB"
            if now >= over_at:
                over_at = math.inf
                for job in work.jobs:
                    job.told = job.told or f"timeout: it ran for {now - _began(work):.1f} s"
            if kill_at == math.inf and all(job.cancelled for job in work.jobs):
                self._flags[self._slot] = 1
                kill_at = now + KILL_SECONDS

    def _heed(self, work: Run, message: frames.Answers) -> None:
        for job, answered in zip(work.jobs, message.jobs, strict=True):
            if job.answer is None:
                job.answer = answered.answer
            job.follow_ups = answered.follow_ups
            job.raised = RaisedInChild(answered.trace) if answered.trace else None
        self._jobs += len(work.jobs)
        self._megabytes = message.megabytes

    def _serve(self, work: Run, message: object) -> None:
        """Do what a handler asks for while it runs."""
        if isinstance(message, frames.Progress):
            work.jobs[message.number].progress(message.fraction, message.note)
        elif isinstance(message, frames.Extend):
            refused = ""
            try:
                work.control.extend_now(work.jobs[message.number], message.seconds)
            except HoldfastError as error:
                refused = str(error)
            self._line.send(frames.Extended(refused))

    def _is_fresh(self, limits: Limits) -> bool:
        worn = limits.jobs is not None and self._jobs >= limits.jobs
        big = limits.megabytes is not None and self._megabytes > limits.megabytes
        if worn or big:
            self.leave()
        return not (worn or big)

    def leave(self) -> None:
        """End a child that has nothing to do."""
        self._line.close()
        self._nursery.end(self._pid)
        self._close()

    def _close(self) -> None:
        self._line.close()
        self.waiter.close()


def _began(work: Run) -> float:
    assert work.started_at is not None
    return work.started_at


def _over_at(work: Run) -> float:
    """Return when its time is up."""
    allowed = [job.lease.facts.timeout_ms for job in work.jobs]
    seconds = [ms / 1000 for ms in allowed if ms]
    if work.handler.timeout:
        seconds.append(work.handler.timeout)
    return _began(work) + min(seconds, default=math.inf)


def _after_the_end(job: RunningJob, why: str) -> Answer:
    """Return what becomes of a job whose process was ended, or died."""
    stopped = job.told and not job.told.startswith("timeout")
    over = job.cancelled and not job.told
    return GIVEN_BACK if stopped or over else lapsed(why)
