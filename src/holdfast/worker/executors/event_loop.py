"""Runs coroutine functions: on an event loop in a thread, or on the loop of the program."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from holdfast.arguments import type_name
from holdfast.escaping import logger
from holdfast.worker.job import Run, RunningJob, run_async, time_allowed
from holdfast.worker.outcomes import GIVEN_BACK, Stop, ended, is_a
from holdfast.worker.slots import Executor

log = logger(__name__)


class EventLoop(Executor):
    """An event loop in its own thread, or the event loop of the task that awaits the worker."""

    ends_within = 1.0

    def __init__(self, concurrency: int, awaited_by: asyncio.Task[Any] | None = None) -> None:
        super().__init__()
        self._most = concurrency
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._awaited_by = awaited_by
        self._closed = self._stopped = False
        self._loop = awaited_by.get_loop() if awaited_by else asyncio.new_event_loop()
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
        # A task that refuses to end blocks only this thread.
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._survive(self._loop.run_until_complete, asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _survive(self, run: Callable[..., object], *args: object) -> None:
        """Run the loop until it is stopped; a handler cannot end it for the other jobs.

        asyncio re-raises a task's SystemExit or KeyboardInterrupt out of the loop. Code that awaits
        the task gets it too, so it becomes a failure of the job once the loop continues.
        """
        try:
            run(*args)
            if self._stopped:
                return
            what = "a handler, or a callback of one, called loop.stop()"
        except BaseException as error:  # noqa: BLE001  # The other jobs must continue.
            what = f"a task or callback of a handler raised {type_name(error)}"
        log.error("%s: the event loop of the worker continues", what)

    def _call(self, function: object, *args: object) -> None:
        with suppress(RuntimeError):  # The loop is closed, so its tasks have ended.
            self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]

    def submit(self, works: Iterable[Run]) -> None:
        super().submit(works)
        self._call(self._begin)

    def _begin(self) -> None:
        for work in self._take(self._most - len(self._tasks)):
            task = self._tasks[work] = self._loop.create_task(self._run(work))
            # Not at the end of `_run`: a task that is cancelled before it starts never runs it.
            task.add_done_callback(partial(self._over, work))

    async def _run(self, work: Run) -> None:
        timer = None
        if (seconds := time_allowed(work)) is not None:
            timer = self._loop.call_later(seconds, self._cancel, work, Stop.TIMEOUT)
        await run_async(work)
        if timer:
            timer.cancel()
        for job in work.jobs:
            if is_a(job.raised, asyncio.CancelledError) and (job.stop_reason or self._is_ending()):
                job.answer = ended(job, seconds)

    def _is_ending(self) -> bool:
        """Return whether all tasks are being cancelled, as `asyncio.run` does at the program's end.

        A handler that cancels itself has failed: if its job were released, it would run again and
        again.
        """
        awaiting = self._awaited_by
        return self._closed or (awaiting is not None and awaiting.cancelling() > 0)

    def _over(self, work: Run, _task: asyncio.Task[None]) -> None:
        for job in work.jobs:
            job.answer = job.answer or GIVEN_BACK
        del self._tasks[work]
        work.control.finished(work)
        self._begin()

    def _watch(self) -> None:
        """End runs whose lease has run out: the control loop may be waiting for a lost server."""
        self._end_overdue()
        if not self._closed:
            self._loop.call_later(1.0, self._watch)

    def _end_overdue(self) -> None:
        for work in list(self._tasks):
            if all(job.cancelled for job in work.jobs):
                self._cancel(work, Stop.LAPSED)

    def _cancel(self, work: Run, why: Stop) -> None:
        for job in work.jobs:
            job.stop_reason = job.stop_reason or why
        if task := self._tasks.get(work):
            task.cancel()

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
        if task := self._tasks.get(job):
            task.cancel()
        else:
            self._end_overdue()  # A batch ends when all its jobs must stop.

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
    """Return the handler's frames, most recent first, in the format of faulthandler."""
    coroutine: Any = task.get_coro()
    # A coroutine that is suspended or resumed between the two calls is missed by both; hence the
    # second try below.
    found = _suspended_frames(coroutine) or _running_frames(coroutine)
    ours = (__file__, run_async.__code__.co_filename)
    return [
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
        for frame in found or _suspended_frames(coroutine)
        if frame.f_code.co_filename not in ours
    ]


def _suspended_frames(coroutine: Any) -> list[FrameType]:
    """Return the frames of a suspended coroutine; an empty list if it is running."""
    frames: list[FrameType] = []
    if coroutine.cr_suspended:
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.insert(0, frame)
            coroutine = coroutine.cr_await
    return frames


def _running_frames(coroutine: Any) -> list[FrameType]:
    """Return the frames of a running coroutine, from the stack of its thread."""
    outermost = coroutine.cr_frame
    for frame in sys._current_frames().values():  # noqa: SLF001
        frames = [frame]
        while frames[-1].f_back and frames[-1] is not outermost:
            frames.append(frames[-1].f_back)
        if frames[-1] is outermost:
            return frames
    return []
