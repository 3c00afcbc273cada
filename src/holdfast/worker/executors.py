"""Where handlers run: threads, or an event loop. Control loops hand over, and hear what is done.

An executor begins what it is given as soon as it can, in order; `take_back` returns what it has not
begun. Processes will be a third one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from holdfast.worker.outcomes import GIVEN_BACK, lapsed
from holdfast.worker.running import Run, RunningJob, run, run_async

log = logging.getLogger("holdfast")


class Executor(Protocol):
    """What a control loop needs of it."""

    def submit(self, works: Iterable[Run]) -> None:
        """Begin these as soon as possible, in order."""

    def stuck_for(self) -> float:
        """Return for how many seconds something waits here and nothing begins."""

    def take_back(self) -> list[Run]:
        """Return those that have not begun; they will not."""

    def stop_job(self, job: RunningJob) -> None:
        """End a run, if that can be done: the job says why in `told`."""

    def close(self) -> None:
        """Begin nothing more."""


class Threads:
    """So many threads. They cannot be stopped: a handler looks at `job.cancelled`."""

    def __init__(self, count: int) -> None:
        # A plain queue: an executor object with a future per job costs fifty times as much.
        self._works: SimpleQueue[Run | None] = SimpleQueue()
        self._count = count
        self._moved_at = time.monotonic()
        for number in range(count):
            threading.Thread(
                target=self._work, name=f"holdfast handler {number}", daemon=True
            ).start()

    def _work(self) -> None:
        while (work := self._works.get()) is not None:
            self._moved_at = time.monotonic()
            run(work)
            work.control.finished(work)

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
        pass

    def close(self) -> None:
        for _ in range(self._count):
            self._works.put(None)


class Loop:
    """An event loop in a thread of its own, or the one that is given."""

    def __init__(self, concurrency: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._most = concurrency
        self._works: deque[Run] = deque()
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._own = loop is None
        self._closed = False
        self._loop = loop or asyncio.new_event_loop()
        self._moved_at = time.monotonic()
        if self._own:
            threading.Thread(target=self._run_loop, name="holdfast loop", daemon=True).start()
        self._call(self._watch)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # What does not want to end holds up nobody but this thread.
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _call(self, function: object, *args: object) -> None:
        with suppress(RuntimeError):  # It is closed, and so is whatever ran there.
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]

    def submit(self, works: Iterable[Run]) -> None:
        self._moved_at = time.monotonic()
        self._works.extend(works)
        self._call(self._begin)

    def _begin(self) -> None:
        while self._works and len(self._tasks) < self._most:
            try:
                work = self._works.popleft()
            except IndexError:  # Taken back meanwhile.
                return
            self._moved_at = time.monotonic()
            task = self._tasks[work] = self._loop.create_task(self._run(work))
            # Not at the end of the task, which one that is cancelled at once never sees.
            task.add_done_callback(partial(self._over, work))

    async def _run(self, work: Run) -> None:
        timer = None
        if (seconds := _timeout(work)) is not None:
            timer = self._loop.call_later(seconds, self._time_is_up, work, seconds)
        await run_async(work)
        if timer:
            timer.cancel()
        for job in work.jobs:
            if isinstance(job.raised, asyncio.CancelledError) and job.told:
                timed_out = job.told.startswith("timeout")
                job.answer = lapsed(job.told) if timed_out else GIVEN_BACK

    def _over(self, work: Run, _task: asyncio.Task[None]) -> None:
        for job in work.jobs:
            job.answer = job.answer or GIVEN_BACK
        del self._tasks[work]
        work.control.finished(work)
        self._begin()

    def _time_is_up(self, work: Run, seconds: float) -> None:
        for job in work.jobs:
            job.told = job.told or f"timeout: it ran for {seconds:g} s"
        self._cancel(work)

    def _watch(self) -> None:
        """End what runs beyond its lease: the control loop may be waiting for a lost server."""
        self._end_overdue()
        if not self._closed:
            self._loop.call_later(1.0, self._watch)

    def _end_overdue(self) -> None:
        for work in list(self._tasks):
            if all(job.cancelled for job in work.jobs):
                for job in work.jobs:
                    job.told = job.told or "lapsed"
                self._cancel(work)

    def _cancel(self, work: Run) -> None:
        if task := self._tasks.get(work):
            task.cancel()

    def stuck_for(self) -> float:
        return time.monotonic() - self._moved_at if self._works else 0.0

    def take_back(self) -> list[Run]:
        taken: list[Run] = []
        with suppress(IndexError):
            while True:
                taken.append(self._works.popleft())
        return taken

    def stop_job(self, job: RunningJob) -> None:
        self._call(self._stop_job, job)

    def _stop_job(self, job: RunningJob) -> None:
        if job in self._tasks:
            self._cancel(job)
        else:
            self._end_overdue()  # It may be one of a batch, which ends when all are told to.

    def close(self) -> None:
        self._closed = True
        self._call(self._stop)

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._own:
            self._loop.stop()


def _timeout(work: Run) -> float | None:
    """Return the shortest time that a handler or one of its jobs allows."""
    allowed = [job.lease.facts.timeout_ms for job in work.jobs]
    seconds = [ms / 1000 for ms in allowed if ms]
    return min([*seconds, work.handler.timeout] if work.handler.timeout else seconds, default=None)
