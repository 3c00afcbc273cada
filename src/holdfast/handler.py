"""A handler of a queue, for threads. The one in `ahandler.py` is the same, with `await`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, overload

from holdfast.calling import Called, Declared, Own, P, R, register
from holdfast.job import Duration, Instant, JobOptions, OnConflict, Receipt
from holdfast.ticking import Schedule

if TYPE_CHECKING:
    from typing import Self, Unpack

    from holdfast.queue import Queue
    from holdfast.worker.running import AsyncRunningJob, RunningJob


class QueueHandler(Declared[P, R, Own, Called]):
    """A function that runs the jobs of a queue that bear its name: made by `@queue.handler`.

    Called as it is, it is the function. `add` has a worker call it.
    """

    def __init__(
        self, queue: Queue, function: Callable[Own, Called], name: str | None, said: JobOptions
    ) -> None:
        super().__init__(function, name, said)
        self.queue = queue

    def add(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Add a job that calls the function with these arguments.

        What it would not take is refused before anything is stored, and so is what JSON does not
        have: it would arrive as something else.
        """
        return self.queue.add(self.payload(args, kwargs), **self.options_of())

    def add_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Add a job for each dict of arguments; all are checked before the first is added."""
        how = self.options_of().get("on_conflict", "ignore")
        return self.queue.add_many(self.news(calls), on_conflict=how)

    def options(
        self,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        on_conflict: OnConflict | None = None,
        **options: Unpack[JobOptions],
    ) -> Self:
        """Return the same handler, whose jobs are added with these options of `queue.add`."""
        own = {"id": id, "delay": delay, "at": at, "on_conflict": on_conflict}
        return self.saying({name: one for name, one in own.items() if one is not None} | options)

    def every(self, interval: str | Duration, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Declare that the function is to be called every so often: see `queue.every`.

        The schedule has the name of the handler. For another, or for what to do about missed ticks,
        give `new(…)` to `queue.every`.
        """
        return self.queue.every(interval, self.new(*args, **kwargs))

    def cron(self, expression: str, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Declare that the function is to be called when a cron expression says so, in UTC.

        For another time zone give `new(…)` to `queue.cron`.
        """
        return self.queue.cron(expression, self.new(*args, **kwargs))

    def result(self, id: str, *, wait: Duration | None = None) -> R:
        """Return what the function returned for a job, where that says `result_for`.

        Raises `WrongState` when the job has not ended after `wait` seconds, has failed or was
        cancelled.
        """
        return self.returned(id, self.queue.result(id, wait=wait))


class Declare:
    """Makes functions handlers of a queue: `@queue.handler`, or with options in parentheses."""

    def __init__(self, queue: Queue, name: str | None, said: JobOptions) -> None:
        self._queue = queue
        self._name = name
        self._said = said

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncRunningJob, P], Coroutine[Any, Any, R]], /
    ) -> QueueHandler[P, R, Concatenate[AsyncRunningJob, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> QueueHandler[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[RunningJob, P], R], /
    ) -> QueueHandler[P, R, Concatenate[RunningJob, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> QueueHandler[P, R, P, R]: ...
    @overload
    def __call__(self, name: str, /, **options: Unpack[JobOptions]) -> Declare: ...
    @overload
    def __call__(self, /, *, name: str | None = None, **options: Unpack[JobOptions]) -> Declare: ...
    def __call__(
        self, function: Any = None, /, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> Any:
        """Register a function, or return what registers one under a name, with options."""
        if function is None or isinstance(function, str):
            return Declare(self._queue, function or name, options)
        declared: QueueHandler[..., Any, ..., Any]
        declared = QueueHandler(
            self._queue, function, name or self._name, {**self._said, **options}
        )
        return register(self._queue.handlers, declared)
