"""Handlers in processes of their own, which can be killed: one run at a time in each.

A thread watches over each child (`child_process.py`). A job whose time is up, that was cancelled,
or whose lease is lost is told so, and a moment later its process is killed with all that it
started. A child that dies costs its job a lapse, and is replaced.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.worker.executors.processes.child import Place, live
from holdfast.worker.executors.processes.child_process import KILL_SECONDS, Child, Limits
from holdfast.worker.executors.processes.fork_server import Nursery
from holdfast.worker.executors.processes.shared_memory import Board
from holdfast.worker.executors.thread_pool import Crew
from holdfast.worker.handlers import Handlers
from holdfast.worker.job import Run, RunningJob, is_wanted
from holdfast.worker.outcomes import Answer, lapsed

log = logging.getLogger("holdfast")

NO_CHILD_SECONDS: Final = 1.0
"""When no process can be started, a job goes back for so long."""


class Processes(Crew):
    """So many children at a time, of `most`, and a thread for each."""

    ends_within = KILL_SECONDS + 1.0

    def __init__(self, count: int, most: int, handlers: Handlers, limits: Limits) -> None:
        self._limits = limits
        self._board = board = Board(most)

        def be_child(connection: socket.socket, take: socket.socket, slot: int) -> None:
            live(Place(connection, take, board, slot), handlers)

        self._nursery = Nursery(be_child)
        self._children: dict[int, Child] = {}
        super().__init__("holdfast child", self._watch, count)

    def waiting(self) -> int:
        """Return how many have not begun."""
        return super().waiting() + sum(child.waiting() for child in tuple(self._children.values()))

    def take_back(self) -> list[Run]:
        """Return those that have not begun; they will not."""
        waiting = super().take_back()  # First: else a child is given them.
        ahead = [child.take_back() for child in tuple(self._children.values())]
        return [work for some in ahead for work in some] + waiting

    def stop_job(self, job: RunningJob) -> None:  # noqa: ARG002
        """End a run: the job says why in `told`."""
        for child in tuple(self._children.values()):
            child.waiter.rouse()

    def begun(self) -> list[tuple[Run, str]]:
        """Return what runs here, and where."""
        children = tuple(self._children.values())
        return [(work, f"Process {pid}") for pid, work in map(Child.runs, children) if work]

    def close(self) -> None:
        """Begin nothing more, and end what runs."""
        super().close()
        self._nursery.close()

    def _watch(self, slot: int, works: Iterator[Run]) -> None:
        """Have runs done in a child."""
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
        """Have it done, and what else waits meanwhile. Returns the child to go on in."""
        if child and not child.is_there():
            log.warning("a process ended while it had no job: %s", child.leave())
            child = None
        try:
            child = child or Child(self._nursery, self._board, slot, self._limits)
        except Exception as error:  # noqa: BLE001  # Whatever it is, there is no child.
            log.error("%s: %s; given back", work.jobs[0].id, error)  # noqa: TRY400  # It says all.
            for job in work.jobs:
                job.answer = Answer("release", after_ms=round(NO_CHILD_SECONDS * 1000))
            work.control.finished(work)
            return None
        self._children[slot] = child
        try:
            child.give([work])  # It takes one, however big.
            while child.is_busy():
                self._over(child.attend())
                self._put_back(child.unbegun())
                some = self._also(min(child.room(), self._each()))
                self._put_back(child.give([work for work in some if self._is_wanted(work)]))
        finally:
            del self._children[slot]
            if forsaken := child.forsake():  # Something unexpected.
                child.leave()
                self._over(forsaken)
        return child if child.alive else None

    def _each(self) -> int:
        """Return how many of those that wait are for each child."""
        return math.ceil(super().waiting() / max(1, self._wanted))

    def _over(self, works: Sequence[Run]) -> None:
        for work in works:
            for job in work.jobs:
                job.answer = job.answer or lapsed("something unexpected: see the log")
            work.control.finished(work)
