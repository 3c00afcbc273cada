"""Runs plain functions in a pool of threads, whose size may change at any time.

Sleeping threads are woken one at a time: a thread that takes a run and leaves others waiting wakes
the next thread. So short runs are done by a few awake threads, without a thread switch for each.
When runs take long, all threads are awake within a millisecond.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import SimpleQueue
from types import FrameType
from typing import NoReturn

from holdfast.escaping import logger
from holdfast.worker.job import Run, run
from holdfast.worker.slots import Executor

log = logger(__name__)


class ThreadPool(Executor):
    """A pool of threads. Each has its own number, from 0, below the largest size of the pool."""

    def __init__(self, name: str, target: Callable[[int, Iterator[Run]], None], count: int) -> None:
        super().__init__()
        self._name = name
        self._target = target
        self._calls: SimpleQueue[None] = SimpleQueue()
        """One item for each thread that should wake up."""
        self._lock = threading.Lock()
        self._asleep = 0
        """Sleeping threads that have not been called."""
        self._rousing = False
        """Whether a thread was called and is not awake yet."""
        self._wanted = 0
        self._there: set[int] = set()
        self._leaving = 0
        self._too_many = False
        """Whether more threads should exit than are already exiting."""
        try:
            self.resize(count)
        except RuntimeError:  # Not enough threads could be started: keep none.
            self.resize(0)
            raise

    def resize(self, count: int) -> None:
        """Change the number of threads. Surplus threads exit when their run is over."""
        with self._lock:
            self._wanted = count
            self._too_many = len(self._there) - self._leaving > count
            free = sorted(set(range(count)) - self._there)
            for number in free[: max(0, count - len(self._there))]:
                threading.Thread(
                    target=self._work, args=(number,), name=f"{self._name} {number}", daemon=True
                ).start()
                self._there.add(number)
            for _ in range(min(self._asleep, len(self._there) - self._leaving - count)):
                self._asleep -= 1  # Only sleeping threads: a busy one checks after its run.
                self._calls.put(None)

    def _work(self, number: int) -> None:
        leaves = False
        while not leaves:
            try:
                self._target(number, self._next())
                leaves = self._leave(number)
            except BaseException:  # A worker must never stop silently.
                log.exception("%s %d: unexpected error; the thread continues", self._name, number)

    def _leave(self, number: int) -> bool:
        """Return True to exit; False if the pool has grown again meanwhile."""
        with self._lock:
            self._leaving -= 1
            too_many = len(self._there) - self._leaving > self._wanted
            if too_many:
                self._there.remove(number)
            return too_many

    # ------------------------------------------------------------------ the queue

    def _next(self) -> Iterator[Run]:
        """Yield waiting runs until this thread is surplus."""
        works = self._works
        while not (self._too_many and self._may_leave()):
            try:
                work = works.popleft()
            except IndexError:
                self._sleep()
                continue
            self._moved_at = time.monotonic()
            if works and self._asleep and not self._rousing:
                self._rouse()
            yield work

    def _may_leave(self) -> bool:
        with self._lock:
            may = len(self._there) - self._leaving > self._wanted
            self._leaving += may
            self._too_many = len(self._there) - self._leaving > self._wanted
            return may

    def _sleep(self) -> None:
        """Sleep until a run may be waiting or a thread should exit."""
        with self._lock:
            if self._works or self._too_many:  # A run arrived, or the size changed, just now.
                return
            self._asleep += 1
        try:
            self._calls.get()
        finally:  # Other code may throw an exception into this thread.
            self._rousing = False

    def _rouse(self) -> None:
        """Wake a sleeping thread, unless one is already waking up."""
        with self._lock:
            if self._works and self._asleep and not self._rousing:
                self._rousing = True
                self._asleep -= 1
                self._calls.put(None)

    def _put_back(self, works: Sequence[Run]) -> None:
        """Put runs back at the front."""
        if works:
            self._works.extendleft(reversed(works))
            self._rouse()

    # -------------------------------------------------------- for control loops

    def submit(self, works: Iterable[Run]) -> None:
        """Start these runs in order, as soon as possible."""
        super().submit(works)
        self._rouse()

    def close(self) -> None:
        """Stop starting runs."""
        self.resize(0)


def _end_fork(work: Run) -> NoReturn:
    """End a process that a handler has forked and that came back from it: the run is the parent's.

    It exits as a program would: with the code of `sys.exit`, with 1 if the handler raised, else 0.
    """
    raised = work.jobs[0].raised
    code = raised.code if isinstance(raised, SystemExit) else int(raised is not None)
    os._exit(code if isinstance(code, int) else int(code is not None))


class Threads(ThreadPool):
    """A pool of threads. A thread cannot be stopped: its handler checks `job.cancelled`."""

    def __init__(self, count: int) -> None:
        super().__init__("holdfast handler", self._run_all, count)

    def _run_all(self, _number: int, works: Iterator[Run]) -> None:
        process = os.getpid()
        for work in works:
            run(work)
            if os.getpid() != process:
                _end_fork(work)
            work.control.finished(work)
            if self.is_one_thread:
                work.control.lead(self)

    @property
    def is_one_thread(self) -> bool:
        return self._wanted == 1 == len(self._there)

    def begun(self) -> list[tuple[Run, str]]:
        # Found on the stacks: recording each run would cost more than a short run takes.
        found = ((here, self._run_of(top)) for here, top in sys._current_frames().items())  # noqa: SLF001
        # The format of faulthandler.
        return [(work, f"Thread 0x{here:016x}") for here, work in found if work]

    def _run_of(self, frame: FrameType | None) -> Run | None:
        """Return the run that a thread of this pool is executing, found on its stack."""
        while frame and frame.f_code is not run.__code__:
            frame = frame.f_back
        if frame is None or frame.f_back is None or frame.f_back.f_locals.get("self") is not self:
            return None
        work: Run = frame.f_locals["work"]
        return work
