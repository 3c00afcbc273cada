"""Runs handlers in child processes, which can be killed: one run at a time in each.

A thread supervises each child (`child_process.py`). When a job exceeds its timeout, is cancelled or
loses its lease, its handler is asked to stop; a moment later its process is killed with all its
descendants. When a child dies, its job lapses and the child is replaced.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.worker.executors.child import Channel, live
from holdfast.worker.executors.child_process import KILL_SECONDS, Child, Limits
from holdfast.worker.executors.fork_server import ForkServer
from holdfast.worker.executors.messages import Board
from holdfast.worker.executors.threads import ThreadPool
from holdfast.worker.handlers import Handlers
from holdfast.worker.job import Run, RunningJob, is_wanted
from holdfast.worker.outcomes import Answer, lapsed

log = logging.getLogger("holdfast")

NO_CHILD_SECONDS: Final = 1.0
"""How long a job is released for when no process can be started."""


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
        return super().waiting() + sum(child.waiting() for child in tuple(self._children.values()))

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
        children = tuple(self._children.values())
        return [(work, f"Process {pid}") for pid, work in map(Child.runs, children) if work]

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
                job.answer = Answer("release", after_ms=round(NO_CHILD_SECONDS * 1000))
            work.control.finished(work)
            return None
        self._children[slot] = child
        try:
            child.give([work])  # An idle child accepts one run of any size.
            while child.is_busy():
                self._over(child.attend())
                self._put_back(child.unstarted())
                some = self._also(min(child.room(), self._each()))
                self._put_back(child.give([work for work in some if self._is_wanted(work)]))
        finally:
            del self._children[slot]
            if abandoned := child.abandon():  # After an unexpected error.
                child.leave()
                self._over(abandoned)
        return child if child.alive else None

    def _each(self) -> int:
        """Return each child's share of the waiting runs."""
        return math.ceil(super().waiting() / max(1, self._wanted))

    def _over(self, works: Sequence[Run]) -> None:
        for work in works:
            for job in work.jobs:
                job.answer = job.answer or lapsed("unexpected error: see the worker's log")
            work.control.finished(work)
