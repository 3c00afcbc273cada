"""Outcomes of runs: how a handler states one, the calls that settle jobs, the log and the hooks.

A handler that returns completes its job; a handler that raises has it retried. The exceptions here
let a handler choose something else.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeGuard, TypeVar

from msgspec import Struct

from holdfast import arguments, failures
from holdfast.engine import calls
from holdfast.engine.call import Call, Failed, Settle, handlings_word
from holdfast.engine.library import MAX_JOBS
from holdfast.engine.walks import payload_size
from holdfast.errors import HoldfastError, InvalidArgument, WrongState
from holdfast.escaping import logger, visible
from holdfast.failures import DEFAULT_HANDLING, Handling, retry_ms

if TYPE_CHECKING:
    from holdfast.job import Duration, Facts, Instant
    from holdfast.worker.handlers import Hooks
    from holdfast.worker.job import Run, RunningJob

E = TypeVar("E", bound=BaseException)

log = logger(__name__)
job_log = logger("holdfast.jobs")
"""Logs one line at INFO for each completed job. Raise its level to switch that off."""

Way = Literal["complete", "retry", "fail", "release", "lapse"]


class Retry(Exception):
    """Raise this to retry the job `after` a number of seconds, or `at` an instant.

    Any other exception can do the same with an attribute `retry_at` or `retry_after`.

    It counts as a failure, as any exception does. Without a time, the usual backoff applies.
    Without a reason, the exception that it was raised from (`raise … from`) is the reason.
    """

    def __init__(
        self, reason: str = "", *, after: Duration | None = None, at: Instant | None = None
    ) -> None:
        self.due = arguments.due(after, at, "after")
        self.reason = reason
        super().__init__(reason or "the handler asked for a retry")


class Fail(Exception):
    """Raise this to fail the job without a retry."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the handler failed the job")


class Release(Exception):
    """Raise this to release the job at no cost, at once or `after` a number of seconds."""

    def __init__(self, *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else arguments.duration_ms("after", after)
        super().__init__("the handler released the job")


class Answer(Struct, frozen=True):
    """How a run ended, in the form that settles the job."""

    way: Way
    result: bytes | None = None
    due: bytes = b""
    """For a retry: when."""
    after_ms: int | None = None
    """For a release: the delay."""
    reason: bytes = b""
    raised: bytes = b""
    """What the handler raised (see `failures.py`)."""


class RaisedElsewhere(Exception):
    """The text of an exception that was raised in another process or had to be escaped."""


LONGEST_TRACE: Final = 8000
COMPLETED: Final = Answer("complete")
GIVEN_BACK: Final = Answer("release")

_OURS: Final = ("due", "reason")
"""Attributes of our exceptions that are stored elsewhere."""


def answer_to(error: BaseException, facts: Facts, handling: Handling = DEFAULT_HANDLING) -> Answer:
    """Return the answer for an exception. `handling` is the retry policy of a failure handler."""
    if is_a(error, Release):
        return Answer("release", after_ms=error.after_ms)
    if is_a(error, Retry) or is_a(error, Fail):
        cause = error.__cause__
        reason = arguments.reason("error", error.reason or (str(error) if cause is None else cause))
        raised = failures.packed(error if cause is None else cause, reason, _OURS)
    else:
        reason = arguments.reason("error", error)
        raised = failures.packed(error, reason)
    if is_a(error, Fail):
        return Answer("fail", reason=reason, raised=raised)
    due = (error.due if is_a(error, Retry) else b"") or failures.due(error)
    return Answer(
        "retry",
        due=due or b"+%d" % retry_ms(facts, handling=handling),
        reason=reason,
        raised=raised,
    )


def is_a(error: object, kind: type[E]) -> TypeGuard[E]:
    """Return whether an exception is of a kind, by its type: its `__class__` may lie or raise."""
    return issubclass(type(error), kind)


def trace_of(raised: BaseException) -> str:
    """Return the end of an exception's traceback, as text that UTF-8 can encode."""
    try:
        trace = "".join(traceback.format_exception(raised))
    except BaseException:  # noqa: BLE001  # Formatting an exception may raise.
        trace = arguments.type_name(raised)
    return escaped(trace[-LONGEST_TRACE:])


def escaped(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def released(seconds: float) -> Answer:
    """Return the answer for a run that is to start again after a delay."""
    return Answer("release", after_ms=round(seconds * 1000))


def lapsed(reason: str) -> Answer:
    """Return the answer for a run that was killed or did not answer."""
    return Answer("lapse", reason=arguments.reason("lapsed", reason))


class Stop(Enum):
    """Why a handler should stop."""

    CANCELLED = "the job was cancelled"
    LOST = "the lease was lost"
    LAPSED = "the lease has run out"
    LEAVING = "the worker is stopping"
    TIMEOUT = "its timeout is over"


def ended(job: RunningJob, seconds: float | None) -> Answer:
    """Return the answer for a run that was ended after it was asked to stop.

    Only a timeout, after `seconds`, counts against the job.
    """
    if job.stop_reason is not Stop.TIMEOUT:
        return GIVEN_BACK
    return lapsed(f"timeout: it ran for {seconds or 0:g} s")


def spends(answer: Answer, facts: Facts) -> bool:
    """Return whether this answer uses up the retries or lapses of the job, so that it fails."""
    if facts.failed_at is not None:
        return False  # It has failed already: this is the answer of its failure handler.
    if answer.way == "retry":
        return 0 <= facts.max_failures <= facts.failures
    return answer.way == "lapse" and 0 <= facts.max_lapses <= facts.lapses


# ---------------------------------------------------------------------------------- settling


MOST_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of results in one call that completes several jobs."""


@dataclass(frozen=True)
class Settlement:
    """A call and the jobs that it settles, in the order of its answers."""

    call: Call[list[bool]]
    jobs: Sequence[RunningJob]


def completed(jobs: Iterable[RunningJob]) -> list[RunningJob]:
    """Return jobs to complete without follow-ups, as many as fit into one call."""
    done: list[RunningJob] = []
    size = 0
    for job in jobs:
        answer = answer_of(job)
        if answer.way == "complete" and not job.follow_ups:
            size += len(answer.result or b"")
            if len(done) == MAX_JOBS or (done and size > MOST_BYTES):
                break
            done.append(job)
    return done


def needs_room(job: RunningJob) -> bool:
    """Return whether a full server refuses to complete a job: it has a result or follow-ups."""
    answer = answer_of(job)
    return answer.way == "complete" and bool(answer.result is not None or job.follow_ups)


def size_of(job: RunningJob) -> int:
    """Return how many bytes completing a job adds to the server."""
    return len(answer_of(job).result or b"") + sum(map(payload_size, job.follow_ups or ()))


def completing(jobs: Sequence[RunningJob]) -> Settlement:
    """Return the call that completes these jobs. A job with follow-ups must be the only one."""
    call = calls.complete([settle_of(job) for job in jobs], add=jobs[0].follow_ups or ())
    return Settlement(call, jobs)


def others(jobs: Iterable[RunningJob], *, to_the_back: bool) -> Iterator[Settlement]:
    """Return the calls, as few as possible, that settle all jobs that `completed` leaves out."""
    alike: dict[tuple[Way, int | None, bytes, bytes], list[RunningJob]] = {}
    for job in jobs:
        answer = answer_of(job)
        match answer.way:
            case "complete" if job.follow_ups:
                yield completing([job])
            case "complete":
                pass
            case "release" | "lapse":
                after_ms, handlings = answer.after_ms, b""
                if answer.way == "lapse" and job.lease.failed:
                    after_ms = retry_ms(job.lease.facts, handling=job.handler.handling)
                    handlings = _handlings(job)
                key = answer.way, after_ms, answer.reason, handlings
                alike.setdefault(key, []).append(job)
            case way:
                alike.setdefault((way, None, b"", b""), []).append(job)
    for (way, after_ms, reason, handlings), group in alike.items():
        for first in range(0, len(group), MAX_JOBS):
            some = group[first : first + MAX_JOBS]
            if way in ("retry", "fail"):
                settle = calls.retry if way == "retry" else calls.fail
                call = settle([_failed(job) for job in some])
            else:
                call = calls.release(
                    [settle_of(job) for job in some],
                    after_ms=after_ms,
                    to_the_back=to_the_back,
                    lapsed=reason,
                    handlings=handlings,
                )
            yield Settlement(call, some)


def turn_down(settlement: Settlement, error: HoldfastError) -> bool:
    """Count refused follow-ups as a failure of the job; False if they may be accepted later."""
    for_good = isinstance(error, InvalidArgument | WrongState)
    jobs = [job for job in settlement.jobs if for_good and job.follow_ups]
    for job in jobs:
        job.follow_ups = None
        job.raised = error
        job.answer = answer_to(error, job.lease.facts, job.handler.handling)
    return bool(jobs)


def _failed(job: RunningJob) -> Failed:
    answer = answer_of(job)
    handlings = _handlings(job) if job.lease.failed else b""
    return Failed(job.id, job.token, answer.due, answer.reason, answer.raised, handlings)


def _handlings(job: RunningJob) -> bytes:
    return handlings_word(job.handler.handling.max_failures)


def settle_of(job: RunningJob) -> Settle:
    """Return the arguments that complete a job."""
    return job.lease.id, job.lease.token, job.answer.result if job.answer else None


def answer_of(job: RunningJob) -> Answer:
    """Return the answer of a job whose run is over."""
    assert job.answer is not None
    return job.answer


# ------------------------------------------------------------------ a full server


MOST_REFUSED: Final = 1000
"""The most jobs that wait for room."""
MOST_REFUSED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of results and follow-ups that wait for room."""

GIVEN_BACK_SECONDS: Final = 30.0
"""When too many jobs wait, a further job is released and runs again after this time."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
TELL_EVERY_SECONDS: Final = 60.0


class Refused:
    """Finished jobs whose results or follow-ups a full server refused.

    Their number is bounded: further jobs are released, so that the worker can continue with jobs
    that need no room.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self.jobs: dict[RunningJob, None] = {}
        self._bytes = 0
        self._pause = FIRST_PAUSE
        self._tell_at = self._tell_too_many_at = -math.inf
        self._has_room = False
        """Whether the server accepted the last attempt."""
        self.ask_at = math.inf
        """When to attempt again."""

    def add(self, jobs: Iterable[RunningJob]) -> list[RunningJob]:
        """Keep these waiting. Return those beyond the limits."""
        too_many = []
        if not self.jobs:
            self._pause, self._has_room = FIRST_PAUSE, False
            self.ask_at = time.monotonic() + FIRST_PAUSE
        for job in jobs:
            size = size_of(job)
            if self.jobs and (
                len(self.jobs) >= MOST_REFUSED or self._bytes + size > MOST_REFUSED_BYTES
            ):
                too_many.append(job)
            else:
                self.jobs[job] = None
                self._bytes += size
        if too_many and time.monotonic() >= self._tell_too_many_at:
            self._tell_too_many_at = time.monotonic() + TELL_EVERY_SECONDS
            log.warning(
                "%s: the server is full, and %d finished jobs wait here for room already: jobs "
                "that finish now are released and run again in %d s, starting with %s",
                self._queue,
                len(self.jobs),
                GIVEN_BACK_SECONDS,
                too_many[0].id,
            )
        return too_many

    def next(self) -> Sequence[RunningJob]:
        """Return the jobs to complete in the next call.

        The first call after a refusal completes one job: there may be no room for more.
        """
        first = next(iter(self.jobs))
        return completed(self.jobs) if self._has_room and not first.follow_ups else [first]

    def again(self, error: Exception) -> None:
        """Record that there is still no room, and log it once a minute."""
        self._pause = FIRST_PAUSE if self._has_room else min(self._pause * 2, LONGEST_PAUSE)
        self._has_room = False
        now = time.monotonic()
        self.ask_at = now + self._pause
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_SECONDS
            log.warning(
                "%s: the server is full: %d finished jobs, with %d bytes of results and "
                "follow-ups, wait here for room: %s",
                self._queue,
                len(self.jobs),
                self._bytes,
                error,
            )

    def drop(self, jobs: Iterable[RunningJob]) -> None:
        """Remove jobs that were completed or will be settled in another way."""
        self._has_room = True
        for job in jobs:
            del self.jobs[job]
        self._bytes = sum(map(size_of, self.jobs))
        if not self.jobs:
            self.ask_at = math.inf

    def clear(self) -> list[RunningJob]:
        """Remove and return all jobs."""
        jobs = list(self.jobs)
        self.drop(jobs)
        return jobs


# ------------------------------------------------------------------------- the log


MOST_LINES: Final = 20
"""The most jobs of one batch to show."""

MOST_LOGGED: Final = 100_000
"""The most bytes of a traceback; of a longer traceback only the end is logged."""


def tell(hooks: Sequence[Hooks], what: str, *about: object) -> None:
    """Call one method of all hooks."""
    for hook in hooks:
        try:
            getattr(hook, what)(*about)
        except BaseException:  # It runs in a thread that must not end.
            log.exception("the hook %r of %r raised", what, hook)


def report(hooks: Sequence[Hooks], job: RunningJob, answer: Answer, *, counted: bool) -> None:
    """Report how a run ended. `counted` says whether the server accepted the answer."""
    if job.stop_reason in (Stop.LOST, Stop.CANCELLED):
        return  # Reported when it was noticed.
    if not counted:
        log.warning("%s: cancelled or taken back; the outcome of this run does not count", job.id)
        tell(hooks, "lost", job)
        return
    if answer.way == "complete":
        job_log.info("%s: %s completed in %.3f s", job.id, job.handler.name, job.took)
        if hooks:
            tell(hooks, "done", job)
        return
    reason = answer.reason.decode()
    # A deliberate `Retry` or `Fail` needs no traceback.
    raised = None if issubclass(type(job.raised), Retry | Fail) else _loggable(job.raised)
    if answer.way == "fail" or spends(answer, job.lease.facts):
        log.error("%s: failed: %s", job.id, reason, exc_info=raised)
        tell(hooks, "failed", job, reason)
    elif answer.way == "retry":
        log.warning("%s: raised, and will be retried: %s", job.id, reason, exc_info=raised)
        tell(hooks, "retried", job, reason)
    elif answer.way == "lapse":
        log.warning("%s: ended without an answer, and goes to another worker: %s", job.id, reason)
        tell(hooks, "lapsed", job, reason)
    else:
        log.debug("%s: released", job.id)
        tell(hooks, "released", job)


def lines_about(work: Run, where: str) -> Iterator[str]:
    """Yield a line about each job of a run, to find out what hangs."""
    place, *stack = where.split("\n")
    for number, job in enumerate(work.jobs):
        if number == MOST_LINES:
            yield f"{place}: and {len(work.jobs) - number} more jobs of this batch"
            break
        since = work.started_at
        for_long = "about to begin" if since is None else f"for {time.monotonic() - since:.1f} s"
        yield (
            f"{place}: job {job.id!r} of queue {job.queue!r}, "
            f"handler {visible(work.handler.name)}, {for_long}"
        )
    yield from stack


def _loggable(raised: BaseException | None) -> BaseException | None:
    """Return an exception for the log: as text if it is huge or UTF-8 cannot encode it."""
    if raised is None or issubclass(type(raised), RaisedElsewhere):
        return raised
    try:
        fits = len("".join(traceback.format_exception(raised)).encode()) <= MOST_LOGGED
    except BaseException:  # noqa: BLE001  # Formatting an exception may raise.
        fits = False
    return raised if fits else RaisedElsewhere(trace_of(raised))
