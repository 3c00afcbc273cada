"""The handlers of a queue, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, overload

from holdfast.client.handlers import Called, CallReceipt, Declared, Own, P, R, handler_of, register
from holdfast.client.inputs import id_of
from holdfast.client.schedules import Missed, Schedule
from holdfast.job import Duration, Instant, JobOptions, OnConflict, Receipt

if TYPE_CHECKING:
    from datetime import tzinfo
    from typing import Self, Unpack

    from holdfast.client.aio.queue import AsyncQueue
    from holdfast.worker.job import AsyncRunningJob, RunningJob


class AsyncTypedReceipt(CallReceipt, Generic[R], frozen=True, repr_omit_defaults=True):
    """The receipt of a handler's job, which can return the job's result."""

    async def result(self, *, wait: Duration | None = None) -> R:
        """Return what the function returned for this job: see `AsyncQueueHandler.result`."""
        handler: AsyncQueueHandler[..., R, ..., Any] = handler_of(self)
        return await handler.result(self, wait=wait)


class AsyncQueueHandler(Declared[P, R, Own, Called]):
    """A function that runs the jobs with its name. Made by `@queue.handler`.

    Calling it calls the function. `add` adds a job, so that a worker calls it.
    """

    def __init__(
        self, queue: AsyncQueue, function: Callable[Own, Called], name: str | None, said: JobOptions
    ) -> None:
        super().__init__(function, name, said)
        self.queue = queue

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> AsyncTypedReceipt[R]:
        """Add a job that calls the function with these arguments.

        The receipt returns what the function returned: `await receipt.result(wait=5)`.

        Arguments that do not fit the function, and values that JSON would change, are refused
        before anything is stored.
        """
        receipt = await self.queue.add(self.payload(args, kwargs), **self.options_of())
        return self.typed(AsyncTypedReceipt, receipt)

    async def add_many(self, calls: Iterable[Mapping[str, Any]]) -> list[AsyncTypedReceipt[R]]:
        """Add a job for each dict of arguments. All are checked before the first is added."""
        how = self.options_of().get("on_conflict", "ignore")
        receipts = await self.queue.add_many(self.news(calls), on_conflict=how)
        return [self.typed(AsyncTypedReceipt, receipt) for receipt in receipts]

    def options(
        self,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        on_conflict: OnConflict | None = None,
        **options: Unpack[JobOptions],
    ) -> Self:
        """Return a copy of the handler that adds jobs with these options of `queue.add`."""
        own = {"id": id, "delay": delay, "at": at, "on_conflict": on_conflict}
        return self.saying({name: one for name, one in own.items() if one is not None} | options)

    # Keyword parameters cannot be combined with a ParamSpec: with an option, the arguments are
    # checked when the schedule is declared, not by a type checker.

    @overload
    def every(self, interval: str | Duration, /, *args: P.args, **kwargs: P.kwargs) -> Schedule: ...
    @overload
    def every(
        self,
        interval: str | Duration,
        /,
        *args: Any,
        name: str,
        missed: Missed = "skip",
        **kwargs: Any,
    ) -> Schedule: ...
    @overload
    def every(
        self, interval: str | Duration, /, *args: Any, missed: Missed, **kwargs: Any
    ) -> Schedule: ...
    def every(self, interval: str | Duration, /, *args: Any, **kwargs: Any) -> Schedule:
        """Declare a schedule that calls the function at an interval: see `queue.every`.

        Takes the arguments of the function, and `name` (by default that of the handler) and
        `missed` of the schedule. If the function has a parameter of such a name, the argument goes
        to the function: then pass `new(…)` to `queue.every`.
        """
        said = self.of_schedule(kwargs, "name", "missed")
        return self.queue.every(interval, self.new(*args, **kwargs), **said)

    @overload
    def cron(self, expression: str, /, *args: P.args, **kwargs: P.kwargs) -> Schedule: ...
    @overload
    def cron(
        self,
        expression: str,
        /,
        *args: Any,
        tz: str | tzinfo,
        name: str | None = None,
        missed: Missed = "skip",
        **kwargs: Any,
    ) -> Schedule: ...
    @overload
    def cron(
        self, expression: str, /, *args: Any, name: str, missed: Missed = "skip", **kwargs: Any
    ) -> Schedule: ...
    @overload
    def cron(self, expression: str, /, *args: Any, missed: Missed, **kwargs: Any) -> Schedule: ...
    def cron(self, expression: str, /, *args: Any, **kwargs: Any) -> Schedule:
        """Declare a schedule that calls the function by a cron expression: see `queue.cron`.

        Takes the arguments of the function, and `tz` (by default UTC), `name` and `missed` of the
        schedule. If the function has a parameter of such a name, the argument goes to the function:
        then pass `new(…)` to `queue.cron`.
        """
        said = self.of_schedule(kwargs, "tz", "name", "missed")
        return self.queue.cron(expression, self.new(*args, **kwargs), **said)

    async def result(self, id: str | Receipt, *, wait: Duration | None = None) -> R:
        """Return what the function returned for a job, if the job has `result_for`.

        Takes the id of the job or the receipt of `add`.

        Raises `WrongState` if the job has not ended after `wait` seconds, has failed or was
        cancelled.
        """
        return self.returned(id_of(id), await self.queue.result(id, wait=wait))


class AsyncDeclare:
    """Makes functions handlers of a queue: `@queue.handler`, or with options in parentheses."""

    def __init__(self, queue: AsyncQueue, name: str | None, said: JobOptions) -> None:
        self._queue = queue
        self._name = name
        self._said = said

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncRunningJob, P], Coroutine[Any, Any, R]], /
    ) -> AsyncQueueHandler[P, R, Concatenate[AsyncRunningJob, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncQueueHandler[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[RunningJob, P], R], /
    ) -> AsyncQueueHandler[P, R, Concatenate[RunningJob, P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncQueueHandler[P, R, P, R]: ...
    @overload
    def __call__(self, name: str, /, **options: Unpack[JobOptions]) -> AsyncDeclare: ...
    @overload
    def __call__(
        self, /, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> AsyncDeclare: ...
    def __call__(
        self, function: Any = None, /, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> Any:
        """Register a function, or return a decorator with a name and options."""
        if function is None or isinstance(function, str):
            return AsyncDeclare(self._queue, function or name, options)
        declared: AsyncQueueHandler[..., Any, ..., Any]
        declared = AsyncQueueHandler(
            self._queue, function, name or self._name, {**self._said, **options}
        )
        return register(self._queue.handlers, declared)
