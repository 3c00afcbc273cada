"""The worker: leases jobs of one or several queues and runs their handlers until it is stopped."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from holdfast import arguments
from holdfast.engine import library
from holdfast.errors import HoldfastError, InvalidArgument, WrongState
from holdfast.escaping import logger
from holdfast.failures import Handling
from holdfast.worker.concurrency import Auto, Tuner, bounds_of, processors
from holdfast.worker.executors.event_loop import EventLoop
from holdfast.worker.executors.processes import Limits, Processes
from holdfast.worker.executors.threads import Threads
from holdfast.worker.handlers import ExecutorKind, Handlers, Hooks
from holdfast.worker.loop import ControlLoop
from holdfast.worker.outcomes import lines_about
from holdfast.worker.queues import check_servers, described, origin_of, own, weighted
from holdfast.worker.slots import Pace, Shared, Slots
from holdfast.worker.wakeup import StopRequest, handle_signals

if TYPE_CHECKING:
    from typing import Self

    from holdfast.job import Duration
    from holdfast.worker.job import RunningJob
    from holdfast.worker.queues import AnyQueue

F = TypeVar("F", bound=Callable[..., Any])

log = logger(__name__)


class Worker:
    """Runs the jobs of queues. If it dies, its jobs go to other workers when its leases lapse.

    queues       a queue, several, or a mapping of queues to weights: the share of jobs that each
                 gets while all have work. Each shard of a sharded queue counts as a queue
    strict       ignore weights: always take jobs from the first queue that has work
    concurrency  how many handlers run at a time; by default 16 threads, 100 coroutines, or a
                 process per core. "auto", or `Auto(least, most)`, adapts to the load: one handler
                 per processor for CPU-bound work, more for handlers that wait for I/O
    executor     where plain functions run: "thread", or "process" for CPU-bound handlers and those
                 that may crash or must be killed. Coroutine functions run on an event loop; with
                 "async" plain functions are refused
    lease        seconds after which the jobs of a dead worker go to other workers. While a handler
                 runs, its lease is extended, however long it takes
    grace        seconds that handlers have to finish in a graceful shutdown
    ahead        seconds of work that may wait in the worker, so that short jobs are leased many at
                 a time; 0 to lease only jobs that can start at once
    hooks        callbacks for events: see `Hooks`

    With executor="process":

    recycle_after  jobs after which a process is replaced by a new one
    max_megabytes  a process that uses more memory of its own is killed with all its descendants; a
                   process that used more is replaced after its job
    """

    def __init__(
        self,
        queues: AnyQueue | Iterable[AnyQueue] | Mapping[AnyQueue, int],
        *,
        strict: bool = False,
        concurrency: int | Literal["auto"] | Auto | None = None,
        executor: ExecutorKind = "thread",
        lease: Duration = 15,
        grace: Duration = 30,
        ahead: Duration = 0.02,
        hooks: Iterable[Hooks] = (),
        recycle_after: int | None = None,
        max_megabytes: int | None = None,
    ) -> None:
        if not hasattr(os, "fork"):
            raise HoldfastError(
                "a worker needs Linux or macOS: here, add jobs and read results, or lease jobs "
                "with Queue.lease()"
            )
        if executor not in ("thread", "process", "async"):
            raise InvalidArgument(
                f"executor must be 'thread', 'process' or 'async', not {arguments.shown(executor)}"
            )
        self._bounds = bounds_of(concurrency, executor)
        self._weights = weighted(queues)
        self._strict = arguments.flag("strict", strict)
        self._lease = arguments.duration_ms("lease", lease, least=1) / 1000
        if self._lease < 1:
            raise InvalidArgument("lease must be at least 1 second: it must survive a slow moment")
        self._grace = arguments.duration_ms("grace", grace, forever=True) / 1000
        self._ahead = arguments.duration_ms("ahead", ahead) / 1000
        self._hooks = tuple(arguments.several("hooks", hooks))
        for hook in self._hooks:
            if not isinstance(hook, Hooks):
                raise InvalidArgument(f"hooks must be Hooks, not {arguments.shown(hook)}")
        self._executor = executor
        self._limits = _limits(executor, recycle_after, max_megabytes, self._hooks)
        self._handlers = Handlers(executor)
        self.notes: dict[str, str] = {}
        """Short texts by topic, shown in `queue.workers()`. Change them at any time; every five
        seconds they are published, the latest first, as many as fit."""
        self._controls: dict[str, ControlLoop] = {}
        self._shared: Shared | None = None
        self._tuner: Tuner | None = None
        self._clean = True
        self._process = os.getpid()
        """The process that the worker was started in."""
        self._stopping = StopRequest()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Worker({', '.join(self.queues)})"

    @property
    def queues(self) -> list[str]:
        """The names of the queues that it works on."""
        return list(dict.fromkeys(origin_of(queue).queue for queue in self._weights))

    def describe(self) -> str:
        """Return one line for the log: servers, queues, handlers, concurrency, executor, lease."""
        return described(self._weights, self._handlers, self._bounds, self._executor, self._lease)

    # ------------------------------------------------------------------- handlers

    @overload
    def handler(
        self,
        function: F,
        /,
        *,
        queue: str | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> F: ...
    @overload
    def handler(
        self,
        name: str | None = None,
        /,
        *,
        queue: str | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]: ...
    def handler(
        self,
        function_or_name: F | str | None = None,
        /,
        *,
        queue: str | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> F | Callable[[F], F]:
        """Register the function that runs jobs: `@worker.handler`.

        name     run jobs added with `handler=name`; without a name, jobs added without a handler
        queue    run jobs of this queue only
        batch    call the function with a list of up to this many jobs. It returns None when all are
                 done, or a list with a result or an exception for each
        timeout  seconds that one run may take, in a process or of a coroutine function. A longer
                 run is killed or cancelled, and counts as a lapse

        Return to complete the job; the value is its result, if the job keeps one. Raise to retry
        it, or raise `Retry`, `Fail` or `Release` to choose what happens.
        """
        self._check_registering(queue)
        if callable(function_or_name):
            self._handlers.add(function_or_name, queue, None, batch, timeout)
            return function_or_name
        name = function_or_name

        def register(function: F) -> F:
            self._handlers.add(function, queue, name, batch, timeout)
            return function

        return register

    @overload
    def failure_handler(
        self,
        function: F,
        /,
        *,
        queue: str | None = None,
        max_failures: int | None = 100,
        min_backoff: Duration = 10,
        max_backoff: Duration = 900,
        timeout: Duration | None = None,
    ) -> F: ...
    @overload
    def failure_handler(
        self,
        function: None = None,
        /,
        *,
        queue: str | None = None,
        max_failures: int | None = 100,
        min_backoff: Duration = 10,
        max_backoff: Duration = 900,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]: ...
    def failure_handler(
        self,
        function: F | None = None,
        /,
        *,
        queue: str | None = None,
        max_failures: int | None = 100,
        min_backoff: Duration = 10,
        max_backoff: Duration = 900,
        timeout: Duration | None = None,
    ) -> F | Callable[[F], F]:
        """Register the function that handles failed jobs: `@worker.failure_handler`.

        `job.error` says why the job failed; `job.failure` is what was raised, as values.

        queue         handle failed jobs of this queue only
        max_failures  how often it is called again for one job; None = no limit
        min_backoff   seconds before the first retry, doubled with each further retry
        max_backoff   the longest delay of a retry, in seconds
        timeout       seconds that one run may take, in a process or of a coroutine function

        Return when the failure is dealt with: the job is then removed. Raise to be called again
        later; raise `Retry` to choose when.
        """
        self._check_registering(queue)
        handling = Handling(
            arguments.limit("max_failures", max_failures),
            arguments.duration_ms("min_backoff", min_backoff),
            arguments.duration_ms("max_backoff", max_backoff),
        )

        def register(function: F) -> F:
            self._handlers.add_for_failures(function, queue, handling, timeout)
            return function

        return register if function is None else register(function)

    def _check_registering(self, queue: str | None) -> None:
        if queue is not None:
            self._check_queue(queue)
        if self._executor == "process" and self._shared is not None:
            raise WrongState(
                "register handlers before the worker starts: its processes know only those"
            )

    def _check_queue(self, queue: str) -> None:
        names = self.queues
        if queue not in names:
            raise InvalidArgument(
                f"queue must be one of this worker's, {', '.join(sorted(names))}, "
                f"not {arguments.shown(queue)}"
            )

    # ------------------------------------------------------------------------ run

    def run(self, *, until_empty: bool = False) -> bool:
        """Work until the worker is stopped. Return whether all started jobs were finished.

        In the main thread SIGTERM and Ctrl-C start a graceful shutdown: the worker leases no more,
        gives handlers `grace` seconds to finish, and releases the other jobs at no cost. A second
        signal releases all jobs at once. SIGQUIT writes the running jobs and the stack of every
        thread to stderr. With `until_empty` it also ends when none of its queues has a job that
        could run now, including jobs that handlers added.
        """
        with handle_signals(self.ask_to_stop, self._leave, self._show_running):
            self.start(until_empty=until_empty)
            # Short waits: a signal that arrives just before a wait is handled only after it.
            while not self._stopping.wait(0.02 if until_empty else 0.5):
                if until_empty and self._is_over():
                    break
            return self.stop()

    async def run_async(self, *, until_empty: bool = False) -> bool:
        """Work as `run` does, but run coroutine functions on the current event loop.

        To stop the worker, cancel the task that awaits it or call `ask_to_stop`. It installs no
        signal handlers: the program, such as a web server or `asyncio.run`, has its own.
        """
        await asyncio.to_thread(self._prepare)
        self._begin(until_empty, asyncio.current_task())
        try:
            # Not an asyncio.Event: threads and signal handlers also stop the worker.
            while not self._stopping.is_set() and not (until_empty and self._is_over()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        finally:
            clean = await asyncio.to_thread(self.stop)
        return clean

    def start(self, *, until_empty: bool = False) -> None:
        """Start working in background threads. End it with `stop`."""
        self._prepare()
        self._begin(until_empty)

    def _prepare(self, *, may_be_late: bool = False) -> None:
        """Check that the worker can start: it has handlers, and no server refuses it for good."""
        if self._process != os.getpid():
            self._forget()
        for queue in self._weights:
            declared = queue.handlers.values()
            self._handlers.adopt(origin_of(queue).queue, declared, may_be_late=may_be_late)
        if not self._handlers:
            raise InvalidArgument(
                "the worker has no handler: register one with @worker.handler or @queue.handler"
            )
        self._check_idle()
        self._stopping.clear()
        check_servers(list(self._weights))

    def _check_idle(self) -> None:
        if self._shared is not None:
            raise WrongState("the worker is running already")

    def _begin(self, until_empty: bool, awaited_by: asyncio.Task[Any] | None = None) -> None:
        with self._lock:
            self._check_idle()
            self._clean = True
            self._process = os.getpid()
            self._shared = shared = self._new_shared(until_empty, awaited_by)
            queues = zip(own(self._weights, self._lease), self._weights.values(), strict=True)
            self._controls = {
                queue.name: ControlLoop(queue, shared, weight) for queue, weight in queues
            }
            for control in self._controls.values():
                control.start()
            if self._bounds[0] < self._bounds[1]:
                self._tuner = Tuner(
                    self._bounds,
                    shared.concurrency,
                    one=self._executor != "process",
                    wants=shared.slots.are_wanted,
                    resize=shared.resize,
                )
                self._tuner.start()

    def _new_shared(self, until_empty: bool, awaited_by: asyncio.Task[Any] | None) -> Shared:
        least, most = self._bounds
        first = least if least == most else min(most, max(least, math.ceil(processors())))
        about: dict[str, object] = {
            "host": platform.node(),
            "pid": os.getpid(),
            "queues": self.queues,
            "concurrency": first,
            "started_at": time.time(),
            "library": library.library_name(),
            "notes": self.notes,
        }
        pace = Pace(first, self._ahead, self._handlers.at_once)
        shared = Shared(
            self._handlers,
            Slots(pace.slots, strict=self._strict),
            pace,
            self._lease,
            first,
            Threads,
            lambda count: EventLoop(count, awaited_by),
            self._hooks,
            about,
            until_empty,
        )
        if self._executor == "process":
            # Before any thread is started: a process with threads should not fork.
            shared.executors[False] = Processes(first, most, self._handlers, self._limits)
        return shared

    def stop(self, grace: Duration | None = None) -> bool:
        """Shut down gracefully. Return whether all started jobs were finished.

        The worker leases no more, gives handlers `grace` seconds to finish and releases the other
        jobs. A second call with less grace shortens the first.
        """
        grace = self._grace if grace is None else grace
        seconds = arguments.duration_ms("grace", grace, forever=True) / 1000
        self._stopping.set()
        if self._process != os.getpid():
            self._forget()
        for control in list(self._controls.values()):
            control.stop(seconds)
        with self._lock:
            if self._shared is None:
                return self._clean
            for control in self._controls.values():
                control.stop(seconds)
            ends = list(map(ControlLoop.wait_to_leave, self._controls.values()))
            if self._tuner:
                self._tuner.stop()
            for executor in self._shared.executors.values():
                executor.close()
            for control in self._controls.values():
                control.queue.close()
            self._controls, self._shared = {}, None
            self._clean = all(ends)
            return self._clean

    def _forget(self) -> None:
        """Reset the state in a forked child: threads and processes belong to the parent."""
        self._lock = threading.Lock()
        self._controls, self._shared, self._tuner = {}, None, None
        self._process = os.getpid()

    def ask_to_stop(self) -> None:
        """Make `run` end soon. Returns at once, so a handler may call it."""
        self._stopping.set()

    def _is_over(self) -> bool:
        return all(map(ControlLoop.wait, list(self._controls.values())))

    def _leave(self) -> None:
        for control in list(self._controls.values()):
            control.stop(0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --------------------------------------------------------------------- queues

    def drop(self, queue: str, *, grace: Duration | None = None) -> None:
        """Stop working on a queue: let its jobs finish, or release them after `grace` seconds."""
        self._check_queue(queue)
        grace = self._grace if grace is None else grace
        seconds = arguments.duration_ms("grace", grace, forever=True) / 1000
        with self._lock:
            dropped = [one.name for one in self._weights if origin_of(one).queue == queue]
            self._weights = {q: w for q, w in self._weights.items() if q.name not in dropped}
            found = [self._controls.pop(name, None) for name in dropped]
            self._tell_queues()
        controls = [control for control in found if control]
        for control in controls:
            control.stop(seconds)
        for control in controls:
            control.wait_to_leave()
            control.queue.close()

    def take_up(self, queue: AnyQueue, *, weight: int = 1) -> None:
        """Start working on another queue."""
        arguments.whole("weight", weight, 1, 1000)
        more = dict.fromkeys(weighted([queue]), weight)
        with self._lock:
            if {one.name for one in self._weights} & {one.name for one in more}:
                raise InvalidArgument(f"{queue.name}: the worker works on this queue already")
            if queue.handlers:
                self._check_registering(None)
                self._handlers.adopt(queue.name, queue.handlers.values())
            self._weights |= more
            self._tell_queues()
            if self._shared is None:
                return
            for mine in own(more, self._lease):
                control = self._controls[mine.name] = ControlLoop(mine, self._shared, weight)
                control.start()

    def running(self) -> list[RunningJob]:
        """Return the jobs whose handlers are running."""
        return [job for control in list(self._controls.values()) for job in control.running()]

    def _tell_queues(self) -> None:
        """Update the queues in the directory of workers."""
        if self._shared is not None:
            self._shared.about["queues"] = self.queues

    def _show_running(self) -> list[str]:
        """Return a line about each running job. Called in a signal handler: no locks."""
        executors = list(self._shared.executors.values()) if self._shared else []
        return [
            line
            for executor in executors
            for work, where in executor.begun()
            for line in lines_about(work, where)
        ]


def _limits(
    executor: ExecutorKind, jobs: int | None, megabytes: int | None, hooks: Iterable[Hooks]
) -> Limits:
    given = {"recycle_after": jobs, "max_megabytes": megabytes}
    for name, value in given.items():
        if value is not None:
            arguments.whole(name, value, 1, 2**31)
            if executor != "process":
                raise InvalidArgument(f'{name} is for executor="process", not {executor!r}')
    # Not ahead if memory is checked after each job, or a hook is called before each.
    hears_starts = any(type(hook).started is not Hooks.started for hook in hooks)
    ahead = megabytes is None and not hears_starts
    return Limits(jobs, megabytes, ahead)
