"""Outcomes of runs: how a handler states one, and the calls that settle jobs accordingly.

A handler that returns completes its job; a handler that raises has it retried. The exceptions here
let a handler choose something else.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeGuard, TypeVar

from msgspec import Struct

from holdfast import arguments, failures
from holdfast.engine import calls
from holdfast.engine.call import Call, Failed, Settle, handlings_word
from holdfast.engine.library import MAX_JOBS
from holdfast.engine.walks import payload_size
from holdfast.errors import HoldfastError, InvalidArgument, WrongState
from holdfast.failures import DEFAULT_HANDLING, Handling, retry_ms

if TYPE_CHECKING:
    from holdfast.job import Duration, Facts, Instant
    from holdfast.worker.job import RunningJob

E = TypeVar("E", bound=BaseException)

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


def lapsed(reason: str) -> Answer:
    """Return the answer for a run that was killed or did not answer."""
    return Answer("lapse", reason=arguments.reason("lapsed", reason))


def timed_out(seconds: float) -> str:
    """Return the stop reason of a handler that exceeded its timeout."""
    return f"timeout: it ran for {seconds:g} s"


def ended(stop_reason: str) -> Answer:
    """Return the answer for a run that was ended after it was asked to stop.

    Only a timeout counts against the job.
    """
    return lapsed(stop_reason) if stop_reason.startswith("timeout") else GIVEN_BACK


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
                failures = [_failed(job) for job in some]
                call = calls.retry(failures) if way == "retry" else calls.fail(failures)
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
