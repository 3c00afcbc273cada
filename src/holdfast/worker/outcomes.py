"""What a run came to: how a handler says it, and what the queue is told about it.

A handler that returns completes its job, one that raises has it tried again. The exceptions here
say something else than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from holdfast import arguments
from holdfast.backoff import retry_ms

if TYPE_CHECKING:
    from holdfast.job import Duration, Facts, Instant

Way = Literal["complete", "retry", "fail", "release", "lapse"]


class Retry(Exception):
    """Raise it to have the job tried again after so many seconds, or at an instant.

    Counts a failure, as any exception does; without a time it waits as after any. Without a reason
    the exception that it is raised from is the reason.
    """

    def __init__(
        self, reason: str = "", *, after: Duration | None = None, at: Instant | None = None
    ) -> None:
        self.due = arguments.due(after, at, "after")
        self.reason = reason
        super().__init__(reason or "the handler asked for another try")


class Fail(Exception):
    """Raise it to fail the job without another try."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the handler said so")


class Release(Exception):
    """Raise it to give the job back at no cost, at once or after so many seconds."""

    def __init__(self, *, after: Duration | None = None) -> None:
        self.after_ms = None if after is None else arguments.duration_ms("after", after)
        super().__init__("the handler gave it back")


class Answer(Struct, frozen=True):
    """How a run ended, as the queue is to be told."""

    way: Way
    result: bytes | None = None
    due: bytes = b""
    """Of a retry: when."""
    after_ms: int | None = None
    """Of a release: how much later."""
    reason: bytes = b""


COMPLETED: Final = Answer("complete")
GIVEN_BACK: Final = Answer("release")


def answer_to(error: BaseException, facts: Facts) -> Answer:
    """Return what becomes of a job whose handler raised."""
    why: str | BaseException = error
    if isinstance(error, Release):
        return Answer("release", after_ms=error.after_ms)
    if isinstance(error, Retry | Fail):
        why = error.reason or error.__cause__ or str(error)
    reason = arguments.reason("error", why)
    if isinstance(error, Fail):
        return Answer("fail", reason=reason)
    due = error.due if isinstance(error, Retry) else b""
    return Answer("retry", due=due or b"+%d" % retry_ms(facts), reason=reason)


def lapsed(reason: str) -> Answer:
    """Return what becomes of a job whose run was ended from outside, or did not answer."""
    return Answer("lapse", reason=arguments.reason("lapsed", reason))


def timed_out(seconds: float) -> str:
    """Return what to tell a handler that had so many seconds."""
    return f"timeout: it ran for {seconds:g} s"


def ended(told: str) -> Answer:
    """Return what becomes of a job whose run was ended because it was told to stop.

    Only its time counts against it.
    """
    return lapsed(told) if told.startswith("timeout") else GIVEN_BACK


def spends(answer: Answer, facts: Facts) -> bool:
    """Tell whether this answer is the last that the job may give, so that it is failed."""
    if facts.failed_at is not None:
        return False  # It has failed already, and this is what its failure handler said.
    if answer.way == "retry":
        return 0 <= facts.max_failures <= facts.failures
    return answer.way == "lapse" and 0 <= facts.max_lapses <= facts.lapses
