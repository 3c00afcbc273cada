"""Where handlers run: threads, an event loop, or processes (`processes/`).

Control loops hand over, and hear what is done. An executor begins what it is given as soon as it
can, in order; `take_back` returns what it has not begun.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol

from holdfast.arguments import type_name
from holdfast.worker.executors.thread_pool import Crew
from holdfast.worker.job import Run, RunningJob, run, run_async, time_allowed
from holdfast.worker.outcomes import GIVEN_BACK, ended, is_a, timed_out

log = logging.getLogger("holdfast")


class Executor(Protocol):
    """What a control loop needs of it."""

    ends_within: float
    """Seconds within which a run is over that was told to stop; 0 where nobody can end it."""

    def submit(self, works: Iterable[Run]) -> None:
        """Begin these as soon as possible, in order."""

    def waiting(self) -> int:
        """Return how many have not begun."""

    def stuck_for(self) -> float:
        """Return for how many seconds something waits here and nothing begins."""

    def take_back(self) -> list[Run]:
        """Return those that have not begun; they will not."""

    def stop_job(self, job: RunningJob) -> None:
        """End a run, if that can be done: the job says why in `told`."""

    def begun(self) -> list[tuple[Run, str]]:
        """Return what runs here, and where: lines for people. A signal handler asks: no locks."""

    def resize(self, count: int) -> None:
        """Have so many run at a time from now on."""

    def close(self) -> None:
        """Begin nothing more."""


class Threads(Crew):
    """So many threads. They cannot be stopped: a handler looks at `job.cancelled`."""

    ends_within = 0.0

    def __init__(self, count: int) -> None:
        super().__init__("holdfast handler", self._run_all, count)

    def _run_all(self, _number: int, works: Iterator[Run]) -> None:
        for work in works:
            run(work)
            work.control.finished(work)

    def stop_job(self, job: RunningJob) -> None:
        pass

    def begun(self) -> list[tuple[Run, str]]:
        # From their stacks: a note of each run would cost more than a short one.
        found = ((here, self._run_of(top)) for here, top in sys._current_frames().items())  # noqa: SLF001
        # As faulthandler writes them.
        return [(work, f"Thread 0x{here:016x}") for here, work in found if work]

    def _run_of(self, frame: FrameType | None) -> Run | None:
        """Return what a thread runs for us, by its stack."""
        while frame and frame.f_code is not run.__code__:
            frame = frame.f_back
        if frame is None or frame.f_back is None or frame.f_back.f_locals.get("self") is not self:
            return None
        work: Run = frame.f_locals["work"]
        return work


class Loop:
    """An event loop in a thread of its own, or the one of the task that awaits the worker."""

    ends_within = 1.0

    def __init__(self, concurrency: int, awaited_by: asyncio.Task[Any] | None = None) -> None:
        self._most = concurrency
        self._works: deque[Run] = deque()
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._awaited_by = awaited_by
        self._closed = self._stopped = False
        self._loop = awaited_by.get_loop() if awaited_by else asyncio.new_event_loop()
        self._moved_at = time.monotonic()
        if awaited_by is None:
            try:
                threading.Thread(target=self._run_loop, name="holdfast loop", daemon=True).start()
            except RuntimeError:
                self._loop.close()
                raise
        self._call(self._watch)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopped:
            self._survive(self._loop.run_forever)
        # What does not want to end holds up nobody but this thread.
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._survive(self._loop.run_until_complete, asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _survive(self, run: Callable[..., object], *args: object) -> None:
        """Run the loop until it is stopped. A handler must not be able to end it for the others.

        asyncio raises SystemExit and KeyboardInterrupt of a task out of the loop. Whatever awaits
        the task gets them too, so they are a failure of its job when the loop goes on.
        """
        try:
            run(*args)
            if self._stopped:
                return
            what = "a handler, or a callback of one, called loop.stop()"
        except BaseException as error:  # noqa: BLE001  # Whatever it is, the other jobs go on.
            what = f"a task or callback of a handler raised {type_name(error)}"
        log.error("%s: the event loop of the worker goes on", what)

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
        if (seconds := time_allowed(work)) is not None:
            timer = self._loop.call_later(seconds, self._time_is_up, work, seconds)
        await run_async(work)
        if timer:
            timer.cancel()
        for job in work.jobs:
            if is_a(job.raised, asyncio.CancelledError) and (job.told or self._is_ending()):
                job.answer = ended(job.told)

    def _is_ending(self) -> bool:
        """Tell whether all tasks are cancelled: `asyncio.run` does that when its program ends.

        A handler may also cancel itself. That is a failure, or it would run for ever.
        """
        awaiting = self._awaited_by
        return self._closed or (awaiting is not None and awaiting.cancelling() > 0)

    def _over(self, work: Run, _task: asyncio.Task[None]) -> None:
        for job in work.jobs:
            job.answer = job.answer or GIVEN_BACK
        del self._tasks[work]
        work.control.finished(work)
        self._begin()

    def _time_is_up(self, work: Run, seconds: float) -> None:
        for job in work.jobs:
            job.told = job.told or timed_out(seconds)
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

    def waiting(self) -> int:
        return len(self._works)

    def stuck_for(self) -> float:
        return time.monotonic() - self._moved_at if self._works else 0.0

    def take_back(self) -> list[Run]:
        taken: list[Run] = []
        with suppress(IndexError):
            while True:
                taken.append(self._works.popleft())
        return taken

    def begun(self) -> list[tuple[Run, str]]:
        return [
            (work, "\n".join(["Coroutine", *_stack_of(task)]))
            for work, task in list(self._tasks.items())
        ]

    def resize(self, count: int) -> None:
        self._most = count
        self._call(self._begin)

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
        if self._awaited_by is None:
            self._stopped = True
            self._loop.stop()


def _stack_of(task: asyncio.Task[None]) -> list[str]:
    """Return the handler's own frames, most recent first, as faulthandler writes a thread's."""
    coroutine: Any = task.get_coro()
    # It may be suspended or resumed between two looks; then neither sees it.
    found = _suspended_frames(coroutine) or _running_frames(coroutine)
    ours = (__file__, run_async.__code__.co_filename)
    return [
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
        for frame in found or _suspended_frames(coroutine)
        if frame.f_code.co_filename not in ours
    ]


def _suspended_frames(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine that waits; none of one that runs."""
    frames: list[FrameType] = []
    if coroutine.cr_suspended:
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.insert(0, frame)
            coroutine = coroutine.cr_await
    return frames


def _running_frames(coroutine: Any) -> list[FrameType]:
    """Return the frames that a coroutine has on the stack of the thread that runs it."""
    outermost = coroutine.cr_frame
    for frame in sys._current_frames().values():  # noqa: SLF001
        frames = [frame]
        while frames[-1].f_back and frames[-1] is not outermost:
            frames.append(frames[-1].f_back)
        if frames[-1] is outermost:
            return frames
    return []
