"""The functions that run jobs: registered by queue and name, looked up for each job. And hooks.

Code never comes from the queue: a job names its handler, and only registered handlers run.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast import arguments
from holdfast.client.handlers import Declared
from holdfast.codec import utf8_name
from holdfast.engine.library import MAX_JOBS
from holdfast.errors import InvalidArgument
from holdfast.escaping import logger
from holdfast.failures import DEFAULT_HANDLING, Handling
from holdfast.job import Duration, Lease

if TYPE_CHECKING:
    from holdfast.worker.job import RunningJob

ExecutorKind = Literal["thread", "process", "async"]

_FAILURES: Final = object()


@dataclass(frozen=True, eq=False)
class Handler:
    """A function that runs jobs, with its settings."""

    function: Callable[..., Any]
    is_async: bool = False
    batch: int = 0
    """The most jobs per call; 0 for a handler that takes one job, not a list."""
    timeout: float | None = None
    """Seconds that one run may take."""
    in_thread: bool = False
    """Whether it runs in a thread, which cannot be stopped: it must check `job.cancelled`."""
    handling: Handling = DEFAULT_HANDLING
    """The retry policy of a failure handler."""

    @property
    def name(self) -> str:
        """The handler's name in log messages."""
        return str(getattr(self.function, "__qualname__", self.function))


NO_HANDLER: Final = Handler(print)
"""Stands for a handler that is not registered here."""


class Handlers:
    """All handlers of a worker."""

    def __init__(self, executor: ExecutorKind) -> None:
        self._executor = executor
        self._known: dict[tuple[str | None, object], Handler] = {}
        self.are_mixed = False
        """Whether there are both coroutine functions and plain functions."""
        self.at_once = 1
        """How many jobs one run takes: the smallest batch size of all handlers, or 1."""
        self.unknown = Unknown()

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(
        self,
        function: Callable[..., Any],
        queue: str | None,
        name: str | None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Register a function for jobs with this handler name, for one queue or all queues."""
        if name is not None:
            utf8_name("name", name)
        self._put(function, queue, name, batch, timeout)

    def adopt(
        self,
        queue: str,
        declared: Iterable[Declared[..., Any, ..., Any]],
        *,
        may_be_late: bool = False,
    ) -> None:
        """Register the handlers that a queue declares, unless they are registered already.

        A timeout on a plain function in a thread cannot be enforced, so it is refused unless
        `may_be_late` is true.
        """
        for one in declared:
            in_thread = self._executor == "thread" and not _is_async(one.run)
            if one.timeout is not None and in_thread and not may_be_late:
                raise InvalidArgument(
                    f"the handler {one.name!r} of queue {queue!r} has a timeout, but would run in "
                    'a thread, which cannot be stopped: give the worker executor="process", write '
                    "the handler as `async def`, or remove its timeout and check job.cancelled"
                )
            known = self._known.get((queue, one.name))
            if known is None or known.function is not one.run:
                self.add(one.run, queue, one.name)

    def add_for_failures(
        self,
        function: Callable[..., Any],
        queue: str | None,
        handling: Handling = DEFAULT_HANDLING,
        timeout: Duration | None = None,
    ) -> None:
        """Register the function that handles failed jobs, of one queue or all queues."""
        self._put(function, queue, _FAILURES, None, timeout, handling)

    def _put(
        self,
        function: Callable[..., Any],
        queue: str | None,
        name: object,
        batch: int | None,
        timeout: Duration | None,
        handling: Handling = DEFAULT_HANDLING,
    ) -> None:
        handler = self._checked(function, batch, timeout, handling)
        if (queue, name) in self._known:
            where = "" if queue is None else f" of {queue!r}"
            what = "failed jobs" if name is _FAILURES else "jobs"
            of = f" named {name!r}" if isinstance(name, str) else ""
            raise InvalidArgument(
                f"there is a handler for {what}{of}{where} already: {self._known[queue, name].name}"
            )
        self._known[queue, name] = handler
        self.are_mixed = len({one.is_async for one in self._known.values()}) > 1
        named = [one.batch for (_, name), one in self._known.items() if name is not _FAILURES]
        self.at_once = min(named, default=0) or 1

    def _checked(
        self,
        function: Callable[..., Any],
        batch: int | None,
        timeout: Duration | None,
        handling: Handling,
    ) -> Handler:
        """Return a handler that this kind of worker can run."""
        if not callable(function):
            raise InvalidArgument(f"a handler must be a function, not {arguments.shown(function)}")
        if isinstance(function, Declared):
            raise InvalidArgument(
                f"{function.name} is a handler of its queue, and every worker of that knows it"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument(
                f"{function.__qualname__} has a `yield`: calling it would run nothing of it"
            )
        is_async = _is_async(function)
        handler = Handler(
            function,
            is_async,
            0 if batch is None else arguments.whole("batch", batch, 1, MAX_JOBS),
            arguments.seconds_or_none("timeout", timeout),
            not is_async and self._executor == "thread",
            handling,
        )
        if not is_async and self._executor == "async":
            raise InvalidArgument(
                f"{handler.name} is not a coroutine function, so it would block other handlers: "
                'write `async def`, or use executor="thread"'
            )
        if handler.in_thread and timeout is not None:
            raise InvalidArgument(
                f"{handler.name} runs in a thread, which cannot be stopped: write `async def`, "
                'check job.cancelled, or use executor="process"'
            )
        return handler

    def for_lease(self, queue: str, lease: Lease) -> Handler:
        """Return the handler for a leased job, or NO_HANDLER."""
        name = _FAILURES if lease.failed else lease.facts.handler
        return self._known.get((queue, name)) or self._known.get((None, name)) or NO_HANDLER

    def for_failures(self, queue: str) -> Handler | None:
        """Return the failure handler of a queue, or None."""
        return self._known.get((queue, _FAILURES)) or self._known.get((None, _FAILURES))

    def names(self) -> set[str | None]:
        """Return the handler names that jobs may give; None if they need give none."""
        return {name for _, name in self._known if name is None or isinstance(name, str)}

    def about(self, queue: str) -> dict[str, object]:
        """Return the entry in the directory of workers about the handlers of a queue."""
        names, coroutines = [], []
        about: dict[str, object] = {"executor": self._executor, "unnamed": False}
        for (of, name), handler in tuple(self._known.items()):
            if of not in (None, queue) or name is _FAILURES:
                continue
            if name is None:
                about["unnamed"] = True
            else:
                names.append(str(name))
            if handler.is_async:
                coroutines.append(name)
        about["handlers"] = sorted(set(names))
        if self._executor == "thread" and coroutines:
            about["coroutines"] = list(dict.fromkeys(coroutines))
        return about


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004  # An object with an async `__call__`.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


# ------------------------------------------------------------ jobs whose handler is not here
# One log line per name and minute, however many jobs there are. Producers choose the names, so the
# number of names is bounded too.


log = logger(__name__)

LOG_EVERY_SECONDS: Final = 60.0
"""How often a name is logged."""
MOST_NAMES: Final = 100
"""The most names with a log line of their own; all others share one line."""


def unknown_after(times: int) -> float:
    """Return the delay, in seconds, of a job whose handler was missing `times` times before."""
    return min(30.0 * 2.0 ** min(times, 10), 900.0)


class Unknown:
    """Logs missing handlers. All control loops of a worker share one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str | None] | None, tuple[float, int]] = {}
        """When to log a name again, and how many jobs named it since the last line."""

    def tell(self, queue: str, name: str | None, id: str, seconds: float) -> None:
        """Log that a job was released for `seconds`, unless its handler was logged recently."""
        now = time.monotonic()
        key: tuple[str, str | None] | None = (queue, name)
        with self._lock:
            if key not in self._seen and len(self._seen) >= MOST_NAMES:
                self._seen = {k: seen for k, seen in self._seen.items() if now < seen[0]}
                if len(self._seen) >= MOST_NAMES:
                    key = None
            log_at, more = self._seen.get(key, (0.0, 0))
            if now < log_at:
                self._seen[key] = log_at, more + 1
                return
            self._seen[key] = now + LOG_EVERY_SECONDS, 0
        log.warning(
            "%s: no handler for %s%s here; released for %d s%s",
            id,
            "jobs without a name" if name is None else arguments.shown(name),
            " and many other names" if key is None else "",
            seconds,
            f", as were {more} more jobs since the last such line" if more else "",
        )


# ----------------------------------------------------------------------------- hooks


class Hooks:
    """Base class for callbacks: override methods and pass it to `Worker(hooks=[…])`.

    `started` is called where the handler runs. The others are called in the control loop of the
    queue, after the server has confirmed the event, so they should be quick. An exception in a hook
    is logged.
    """

    def started(self, job: RunningJob) -> None:
        """The handler is about to be called."""

    def done(self, job: RunningJob) -> None:
        """The job is completed."""

    def retried(self, job: RunningJob, error: str) -> None:
        """The handler raised, and the job will be retried."""

    def failed(self, job: RunningJob, error: str) -> None:
        """The job has failed: the handler raised `Fail`, or the job used up its retries."""

    def released(self, job: RunningJob) -> None:
        """The job was released, at no cost."""

    def lapsed(self, job: RunningJob, reason: str) -> None:
        """The run ended without an answer, and the job goes to another worker."""

    def cancelled(self, job: RunningJob) -> None:
        """The job was cancelled, and its handler is asked to stop."""

    def lost(self, job: RunningJob) -> None:
        """The lease is over: the result of this run counts only if the job was not leased again."""

    def unknown(self, job: RunningJob) -> None:
        """The worker has no such handler: the job is released for a worker that has it."""
