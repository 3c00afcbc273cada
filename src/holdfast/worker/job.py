"""A running job: the object that its handler gets, and the code that runs the handler."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import UNSET, Struct

from holdfast import codec
from holdfast.client.inputs import check_follow_ups, json_payload
from holdfast.errors import InvalidArgument
from holdfast.job import NO_FACTS, JobOptions, Lease, NewJob
from holdfast.worker.outcomes import COMPLETED, GIVEN_BACK, Answer, Stop, answer_to, tell

if TYPE_CHECKING:
    from holdfast.engine.call import Entry
    from holdfast.job import Duration, Failure
    from holdfast.worker.handlers import Handler, Hooks
    from holdfast.worker.slots import Executor


class Origin(Struct, frozen=True):
    """The queue of a job: what a child process has to know of it to encode follow-ups."""

    queue: str
    """The name that users know: all shards of a queue share it."""
    shard: tuple[int, int] | None = None
    """The number of shards, and the number of this shard."""
    defaults: JobOptions | None = None


class RunContext(Protocol):
    """What a run needs of the control loop that leased it.

    In a child process, and for jobs that a test runs inline, another object stands for the loop.
    """

    called: str
    """The name of the queue."""
    origin: Origin
    hooks: Sequence[Hooks]

    def finished(self, work: Run) -> None:
        """Accept a finished run from an executor."""
        raise NotImplementedError

    def returned(self, work: Run) -> None:
        """Accept a run that will not start, to release it."""
        raise NotImplementedError

    def lead(self, executor: Executor) -> None:  # noqa: ARG002  # Only a loop can be led.
        """Carry out the loop in the only thread of this executor, until it has a run to start."""
        return

    def extend_now(self, job: RunningJob, seconds: Duration | None) -> None:
        """Extend one lease, for its handler."""

    def entries(self, new: Iterable[NewJob]) -> list[Entry]:
        """Check and encode the follow-ups of a job."""
        raise NotImplementedError


class RunningJob:
    """A job that is running: the argument of its handler.

    The lease is extended while the handler runs. `token` names this run: use it as a fencing token
    for effects outside the queue.
    """

    __slots__ = (
        "_progress",
        "answer",
        "control",
        "follow_ups",
        "handler",
        "lapses_at",
        "lease",
        "raised",
        "started_at",
        "stop_reason",
        "took",
    )

    def __init__(
        self, lease: Lease, handler: Handler, control: RunContext, lapses_at: float
    ) -> None:
        self.lease = lease
        self.handler = handler
        self.control = control
        self.lapses_at = lapses_at
        """When the lease runs out unless it is extended, on this machine's monotonic clock."""
        self.started_at: float | None = None
        self.took = 0.0
        """How long the handler took, in seconds."""
        self.answer: Answer | None = None
        self.raised: BaseException | None = None
        self.stop_reason: Stop | None = None
        """Why the handler should stop; None while it should not."""
        self.follow_ups: list[Entry] | None = None
        self._progress: tuple[float, str] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    # ---------------------------------------------------------- facts

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.lease.id

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.lease.data

    def json(self) -> Any:
        """Decode the payload as JSON."""
        return codec.decode_json(self.lease.data, self.lease.id)

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.control.called

    @property
    def token(self) -> str:
        """The name of this lease: the fencing token for effects outside the queue."""
        return self.lease.token

    @property
    def failures(self) -> int:
        """How many earlier runs of this job raised."""
        return self.lease.facts.failures

    @property
    def lapses(self) -> int:
        """How many earlier runs of this job lapsed."""
        return self.lease.facts.lapses

    @property
    def error(self) -> str | None:
        """Why the last run ended badly; in a failure handler, why the job failed."""
        return self.lease.facts.error

    @property
    def failure(self) -> Failure | None:
        """What the last run raised, as values; None if it did not raise.

        In a failure handler: what the run that failed the job raised.
        """
        return self.lease.failure

    @property
    def request(self) -> str | None:
        """The request that this job is a part of."""
        return self.lease.facts.request

    @property
    def failed(self) -> bool:
        """Whether the job has failed and this is its failure handler."""
        return self.lease.failed

    # ---------------------------------------------------------- for the handler

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop.

        True when the job was cancelled, its lease is lost or has run out, its timeout is over, or
        the worker is stopping.
        """
        if self.stop_reason or time.monotonic() >= self.lapses_at:
            return True
        # For a coroutine or a process, the executor enforces the timeout.
        may_be = self.handler.in_thread and self.lease.facts.timeout_ms
        return bool(may_be) and self.is_overdue()

    def extend(self, seconds: Duration | None = None) -> None:
        """Extend the lease, and check that the handler still holds it: else raises `LeaseLost`.

        Raises `JobCancelled`, a subclass of `LeaseLost`, if the job was cancelled.

        The worker extends leases by itself. Call this for a last check before an effect that cannot
        be undone, or to hold the job for longer.
        """
        self.control.extend_now(self, seconds)

    def progress(self, fraction: float, note: str = "") -> None:
        """Publish the progress, from 0 to 1. `queue.workers()` shows it within seconds."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise InvalidArgument(f"fraction must be a number, not {type(fraction).__name__}")
        within = min(max(fraction, 0), 1)
        if math.isnan(within):
            raise InvalidArgument("fraction must be a number, not nan")
        # A note may be a file name that is not valid UTF-8.
        said = str(note)[:200].encode(errors="backslashreplace").decode()
        self._progress = float(within), said

    def add(self, data: object = UNSET, *, json: object = UNSET, **options: Any) -> None:
        """Add a follow-up: a job that is added in the call that completes this one.

        Takes the arguments of `Queue.add` except `on_conflict`, or a `NewJob` such as
        `send.new(to="a@b.c")`.
        """
        if data is UNSET or json is not UNSET:
            data = json_payload(data, json)
        if isinstance(data, NewJob) and options:
            raise InvalidArgument("a NewJob has its own options: give them there")
        new = data if isinstance(data, NewJob) else NewJob(data, **options)
        follow_ups = (self.follow_ups or []) + self.control.entries([new])
        check_follow_ups(follow_ups)
        self.follow_ups = follow_ups

    # ---------------------------------------------------------- for the worker

    slots: Final = 1
    """How many slots of the worker it takes."""

    @property
    def jobs(self) -> Sequence[RunningJob]:
        """The jobs of this run: only this one."""
        return (self,)

    def is_overdue(self) -> bool:
        """Return whether it has run for longer than its timeout."""
        allowed_ms = self.lease.facts.timeout_ms
        if not allowed_ms or self.started_at is None:
            return False
        return time.monotonic() - self.started_at > allowed_ms / 1000

    def describe(self) -> dict[str, object]:
        """Return its entry in the directory of workers."""
        about: dict[str, object] = {"id": self.id}
        if self.started_at is not None:
            about["seconds"] = round(time.monotonic() - self.started_at, 1)
        if self._progress:
            about["progress"] = self._progress
        return about


class AsyncRunningJob(RunningJob):
    """A running job whose handler is a coroutine function."""

    __slots__ = ()

    async def extend(self, seconds: Duration | None = None) -> None:  # type: ignore[override]
        """Extend the lease, and check that the handler still holds it: else raises `LeaseLost`."""
        await asyncio.to_thread(self.control.extend_now, self, seconds)


class Batch:
    """Several jobs that one call of a batch handler runs."""

    __slots__ = ("control", "handler", "jobs", "slots", "started_at", "took")

    def __init__(self, jobs: Sequence[RunningJob], slots: int = 0) -> None:
        self.jobs = jobs
        self.slots = max(slots, len(jobs))
        """The slots of a full batch, even if it has fewer jobs: no other job can use the rest."""
        self.control = jobs[0].control
        self.handler = jobs[0].handler
        self.started_at: float | None = None
        self.took = 0.0


Run: TypeAlias = RunningJob | Batch


def run(work: Run) -> None:
    """Call a plain handler. Whatever it does, each job has an answer afterwards."""
    if not is_wanted(work):
        return
    start(work)
    try:
        value = work.handler.function(work.jobs if isinstance(work, Batch) else work)
        if value is not None and inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"{work.handler.name} returned a coroutine: register an `async def`")
        _answer(work, value)
    except BaseException as error:  # noqa: BLE001  # Any exception is an answer.
        _raised(work, error)
    end(work)


async def run_async(work: Run) -> None:
    """Await a handler. Whatever it does, each job has an answer afterwards."""
    if not is_wanted(work):
        return
    start(work)
    try:
        _answer(work, await work.handler.function(work.jobs if isinstance(work, Batch) else work))
    except BaseException as error:  # noqa: BLE001  # Any exception is an answer.
        _raised(work, error)
    end(work)


def time_allowed(work: Run) -> float | None:
    """Return the shortest timeout of its handler and its jobs, in seconds, or None."""
    allowed = [job.lease.facts.timeout_ms for job in work.jobs]
    seconds = [ms / 1000 for ms in allowed if ms]
    return min([*seconds, work.handler.timeout] if work.handler.timeout else seconds, default=None)


def is_wanted(work: Run) -> bool:
    """Return False if a job was cancelled or lost its lease while it waited; then release all."""
    for job in work.jobs:
        if job.cancelled:
            for each in work.jobs:
                each.answer = GIVEN_BACK
            return False
    return True


def start(work: Run, at: float | None = None) -> None:
    """Record the start of a run, now or at the given time."""
    work.started_at = time.monotonic() if at is None else at
    for job in work.jobs:
        job.started_at = work.started_at
        if work.control.hooks:
            tell(work.control.hooks, "started", job)


def end(work: Run, took: float | None = None) -> None:
    """Record how long a run took: `took` seconds, or from its start until now."""
    assert work.started_at is not None
    work.took = time.monotonic() - work.started_at if took is None else took
    if isinstance(work, Batch):
        for job in work.jobs:
            job.took = work.took / len(work.jobs)


def _answer(work: Run, value: object) -> None:
    if isinstance(work, RunningJob):
        _complete(work, value)
    elif value is None:
        for job in work.jobs:
            _complete(job, None)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if len(value) != len(work.jobs):
            raise TypeError(
                f"{work.handler.name} returned {len(value)} answers for {len(work.jobs)} jobs: "
                "return one for each, or None"
            )
        for job, one in zip(work.jobs, value, strict=True):
            try:
                if isinstance(one, BaseException):
                    raise one
                _complete(job, one)
            except BaseException as error:  # noqa: BLE001  # Any exception is an answer.
                _raised(job, error)
    else:
        raise TypeError(
            f"{work.handler.name} returned {type(value).__name__}: a batch handler returns None, "
            "or a list with a result or an exception for each job"
        )


def _complete(job: RunningJob, value: object) -> None:
    answer = COMPLETED
    if isinstance(value, NewJob):
        raise InvalidArgument(
            f"{job.handler.name} returned a NewJob, which adds nothing: pass it to job.add"
        )
    facts = job.lease.facts
    if value is not None and facts is not NO_FACTS and (facts.result_for_ms or facts.request):
        answer = Answer("complete", codec.encode_result(value))
    job.answer = job.answer or answer  # If it has one, the worker has stopped and releases it.


def _raised(work: Run, error: BaseException) -> None:
    for job in work.jobs:
        if job.answer is None:
            job.raised = error
            try:
                job.answer = answer_to(error, job.lease.facts, job.handler.handling)
            except BaseException as trouble:  # noqa: BLE001  # The exception broke the answer.
                job.answer = answer_to(trouble, job.lease.facts, job.handler.handling)
