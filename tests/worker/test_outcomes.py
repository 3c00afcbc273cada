"""What a run comes to: the handler says it, the queue keeps it. In threads and as coroutines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest

from conftest import Clock
from holdfast import Facts, Fail, Failure, Job, Queue, Release, Retry, RunningJob
from holdfast.job import read_failure
from holdfast.worker.outcomes import COMPLETED, Answer, answer_to, lapsed, spends
from worker.support import Heard, Kind, as_handler, both_kinds, shown, work_off


class StrangeError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def raising(error: BaseException, cause: BaseException | None = None) -> Callable[[Any], NoReturn]:
    def handle(job: RunningJob) -> NoReturn:
        raise error from cause

    return handle


def run_one(queue: Queue, kind: Kind, body: Callable[[Any], object], **options: Any) -> Heard:
    """Add a job, named a, and run it once."""
    heard = Heard()
    queue.add(b"x", id="a", **options)
    assert work_off(queue, as_handler(kind, body), hooks=[heard])
    assert heard.of()[0] == "started"
    return heard


def after(queue: Queue, kind: Kind, body: Callable[[Any], object], **options: Any) -> Job:
    """Return the job as it stands after one run."""
    run_one(queue, kind, body, **options)
    return shown(queue)


# ---------------------------------------------------------------------- return


@both_kinds
def test_a_handler_that_returns_completes_its_job(queue: Queue, kind: Kind) -> None:
    assert run_one(queue, kind, lambda job: None).of() == ["started", "done"]
    assert queue.show("a") is None


@both_kinds
def test_a_result_is_kept_where_the_job_says_so(queue: Queue, kind: Kind) -> None:
    run_one(queue, kind, lambda job: {"was": job.data.decode()}, result_for=60)
    outcome = queue.result("a")
    assert outcome is not None
    assert (outcome.kind, outcome.json()) == ("completed", {"was": "x"})


@both_kinds
def test_a_job_that_keeps_a_result_may_have_none(queue: Queue, kind: Kind) -> None:
    run_one(queue, kind, lambda job: None, result_for=60)
    outcome = queue.result("a")
    assert outcome is not None
    assert (outcome.kind, outcome.result) == ("completed", None)


@both_kinds
def test_a_result_that_nobody_wants_is_ignored(queue: Queue, kind: Kind) -> None:
    run_one(queue, kind, lambda job: object())
    assert queue.show("a") is None


@both_kinds
def test_a_result_that_cannot_be_written_is_an_error_of_the_handler(
    queue: Queue, kind: Kind
) -> None:
    job = after(queue, kind, lambda job: object(), result_for=60)
    assert (job.state, job.failures) == ("delayed", 1)
    assert "result cannot be written as JSON" in str(job.error)


@both_kinds
def test_a_result_that_is_too_big_is_an_error_of_the_handler(queue: Queue, kind: Kind) -> None:
    job = after(queue, kind, lambda job: b"x" * (1024 * 1024 + 1), result_for=60)
    assert (job.state, job.failures) == ("delayed", 1)
    assert "more than 1048576" in str(job.error)


@both_kinds
def test_parts_of_a_request_have_results(queue: Queue, kind: Kind) -> None:
    with queue.request("r") as request:
        request.add_many([b"1", b"2", b"3"])
    assert work_off(queue, as_handler(kind, lambda job: int(job.data) ** 2))
    assert request.status().state == "completed"
    assert [part.json() for part in request.results()] == [1, 4, 9]


def test_many_big_results_are_stored_a_few_at_a_time(queue: Queue) -> None:
    queue.add_many([b"%d" % n for n in range(20)], result_for=60)
    ids = [job.id for job in queue.peek(20)]
    assert work_off(queue, lambda job: job.data.ljust(1000_000), ahead=1)
    results = [queue.result(id) for id in ids]
    assert [int((one and one.result) or b"-1") for one in results] == list(range(20))


# ----------------------------------------------------------------------- raise


@both_kinds
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such customer"), "ValueError: no such customer"),
        (ValueError(), "ValueError"),
        (StrangeError(), "StrangeError: <exception str() failed>"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(5), "StopIteration"),
        (ValueError("x" * 10_000), "ValueError: xxx"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_handler_that_raises_has_its_job_tried_again(
    queue: Queue, clock: Clock, kind: Kind, error: BaseException, text: str
) -> None:
    heard = run_one(queue, kind, raising(error), min_backoff=8)
    job = shown(queue)
    assert (job.state, job.failures, job.lapses) == ("delayed", 1, 0)
    assert text in str(job.error)
    assert job.at is not None
    assert clock.ms + 8_000 <= round(job.at * 1000) <= clock.ms + 10_000
    assert heard.of() == ["started", "retried"]
    assert heard.reasons == [job.error]


@both_kinds
def test_the_wait_grows_with_each_failure(queue: Queue, clock: Clock, kind: Kind) -> None:
    def wait_after_a_run() -> float:
        assert work_off(queue, as_handler(kind, raising(ValueError("no"))))
        at = shown(queue).at
        assert at is not None
        wait = at - clock.ms / 1000
        clock.advance(wait + 1)
        return wait

    queue.add(b"", id="a", min_backoff=2)
    first, second, third = (wait_after_a_run() for _ in range(3))
    assert 2 <= first <= 2.5
    assert 4 <= second <= 5
    assert 8 <= third <= 10


@both_kinds
def test_a_job_whose_failures_are_spent_is_failed(queue: Queue, kind: Kind) -> None:
    heard = run_one(queue, kind, raising(ValueError("no")), max_failures=0)
    job = shown(queue)
    assert (job.state, job.failures, job.error) == ("failed", 1, "ValueError: no")
    assert heard.of() == ["started", "failed"]


@both_kinds
def test_a_handler_sees_how_often_its_job_was_tried_and_why(
    queue: Queue, clock: Clock, kind: Kind
) -> None:
    seen: list[tuple[int, int, str | None]] = []

    def handle(job: RunningJob) -> None:
        seen.append((job.failures, job.lapses, job.error))
        raise ValueError(f"run {len(seen)}")

    queue.add(b"", id="a")
    assert work_off(queue, as_handler(kind, handle))
    clock.advance(3)
    lease = queue.lease(30)
    assert lease is not None
    queue.release(lease, lapsed="its worker is gone")
    assert work_off(queue, as_handler(kind, handle))
    assert seen == [(0, 0, None), (1, 1, "its worker is gone")]


# -------------------------------------------------------------- what it can say


@both_kinds
@pytest.mark.parametrize("seconds", [90, 0.25, timedelta(minutes=1)])
def test_a_retry_may_say_after_how_long(
    queue: Queue, clock: Clock, kind: Kind, seconds: float | timedelta
) -> None:
    job = after(queue, kind, raising(Retry("busy", after=seconds)))
    length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    assert (job.state, job.failures, job.error) == ("delayed", 1, "busy")
    assert job.at == pytest.approx(clock.ms / 1000 + length)


@both_kinds
def test_a_retry_may_say_at_what_time(queue: Queue, clock: Clock, kind: Kind) -> None:
    at = datetime.fromtimestamp(clock.ms // 1000 + 3600, UTC)
    job = after(queue, kind, raising(Retry("closed", at=at)))
    assert (job.state, job.failures, job.error) == ("delayed", 1, "closed")
    assert job.at == at.timestamp()


@both_kinds
def test_a_retry_without_a_time_waits_as_after_any_failure(
    queue: Queue, clock: Clock, kind: Kind
) -> None:
    job = after(queue, kind, raising(Retry()), min_backoff=8)
    assert (job.state, job.failures) == ("delayed", 1)
    assert job.error == "the handler asked for a retry"
    assert job.at is not None
    assert clock.ms + 8_000 <= round(job.at * 1000) <= clock.ms + 10_000


@both_kinds
def test_a_retry_as_late_as_can_be_is_taken(queue: Queue, kind: Kind) -> None:
    job = after(queue, kind, raising(Retry(after=2**53 // 1000 - 1)))
    assert (job.state, job.failures) == ("delayed", 1)


@both_kinds
def test_a_retry_counts_as_a_failure_too(queue: Queue, kind: Kind) -> None:
    heard = run_one(queue, kind, raising(Retry("busy", after=1)), max_failures=0)
    assert shown(queue).state == "failed"
    assert heard.of() == ["started", "failed"]


@both_kinds
@pytest.mark.parametrize("way", [Retry, Fail])
@pytest.mark.parametrize(
    ("said", "cause", "text"),
    [
        ("", OSError("unplugged"), "OSError: unplugged"),
        ("", OSError(), "OSError"),
        ("", StrangeError(), "StrangeError: <exception str() failed>"),
        ("the printer is off", OSError("unplugged"), "the printer is off"),
    ],
)
def test_what_it_says_is_kept_and_else_its_cause(
    queue: Queue, kind: Kind, way: type[Retry | Fail], said: str, cause: Exception, text: str
) -> None:
    job = after(queue, kind, raising(way(said), cause))
    assert job.failures == 1
    assert str(job.error).endswith(text)


@both_kinds
def test_a_job_may_be_failed_without_another_try(queue: Queue, kind: Kind) -> None:
    heard = run_one(queue, kind, raising(Fail("no such address")))
    job = shown(queue)
    assert (job.state, job.failures, job.lapses) == ("failed", 1, 0)
    assert job.error == "no such address"
    assert heard.of() == ["started", "failed"]
    assert heard.reasons == ["no such address"]


@both_kinds
def test_a_job_may_be_failed_without_a_word(queue: Queue, kind: Kind) -> None:
    assert after(queue, kind, raising(Fail())).error == "the handler failed the job"


@both_kinds
def test_a_job_may_be_given_back_for_a_while_at_no_cost(
    queue: Queue, clock: Clock, kind: Kind
) -> None:
    heard = run_one(queue, kind, raising(Release(after=60)))
    job = shown(queue)
    assert (job.state, job.failures, job.lapses, job.error) == ("delayed", 0, 0, None)
    assert job.at == clock.ms / 1000 + 60
    assert heard.of() == ["started", "released"]


@both_kinds
def test_a_job_that_is_given_back_at_once_is_the_next_again(queue: Queue, kind: Kind) -> None:
    order: list[str] = []

    def handle(job: RunningJob) -> None:
        order.append(job.id)
        if order == ["a"]:
            raise Release

    for id in "abc":
        queue.add(b"", id=id)
    assert work_off(queue, as_handler(kind, handle), concurrency=1, ahead=0)
    assert order == ["a", "a", "b", "c"]


@both_kinds
@pytest.mark.parametrize("error", [Release(), Retry(after=0)])
def test_a_job_that_may_run_at_once_is_run_again_before_the_queue_is_empty(
    queue: Queue, kind: Kind, error: Exception
) -> None:
    seen: list[str] = []

    def handle(job: RunningJob) -> None:
        seen.append(job.id)
        if len(seen) < 3:
            raise error

    queue.add(b"", id="a")
    assert work_off(queue, as_handler(kind, handle))
    assert seen == ["a"] * 3


class OwnRetry(Retry):
    """Does not do as its base wants."""

    def __init__(self) -> None:
        Exception.__init__(self)


@both_kinds
def test_a_handler_that_raises_half_an_exception_has_its_job_tried_again(
    queue: Queue, kind: Kind
) -> None:
    job = after(queue, kind, raising(OwnRetry()))
    assert (job.state, job.failures) == ("delayed", 1)
    assert job.error


def test_a_plain_function_that_returns_a_coroutine_is_told_what_to_do(queue: Queue) -> None:
    async def answer() -> int:
        return 1

    job = after(queue, "plain", lambda job: answer())
    assert (job.state, job.failures) == ("delayed", 1)
    assert "returned a coroutine: register an `async def`" in str(job.error)


@both_kinds
def test_whatever_handlers_raise_their_worker_goes_on(queue: Queue, kind: Kind) -> None:
    errors: list[BaseException] = [SystemExit(), KeyboardInterrupt(), OwnRetry(), GeneratorExit()]
    errors += [StrangeError(), StopIteration(), Fail(), Retry()]

    def handle(job: RunningJob) -> None:
        if job.data:
            raise errors[int(job.data)] from StrangeError()

    queue.add_many(b"%d" % n for n in range(len(errors)))
    queue.add_many([b""] * 5)
    assert work_off(queue, as_handler(kind, handle), concurrency=1)
    counts = queue.counts()
    assert (counts.delayed, counts.failed, counts.ready) == (len(errors) - 1, 1, 0)


# ------------------------------------------------------------------ in the log


def about_jobs(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if "appendonly" not in record.getMessage()]


def test_an_error_is_logged_with_its_traceback(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run_one(queue, "plain", raising(ValueError("no such customer")))
    [record] = about_jobs(caplog)
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "a: raised, and will be retried: ValueError: no such customer"
    assert record.exc_info


def test_what_a_handler_says_on_purpose_is_logged_without_a_traceback(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    run_one(queue, "plain", raising(Fail("no such address")))
    [record] = about_jobs(caplog)
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "a: failed: no such address"
    assert not record.exc_info


def test_of_what_goes_well_nothing_but_its_line_is_logged(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "holdfast.jobs"):
        run_one(queue, "plain", lambda job: None)
    assert [record.name for record in about_jobs(caplog)] == ["holdfast.jobs"]


class BusyError(Exception):
    """Somebody else's exception, which says when to come back."""

    def __init__(self, **attributes: object) -> None:
        super().__init__("busy")
        vars(self).update(attributes)


@both_kinds
def test_an_exception_that_says_when_is_tried_again_just_then(
    queue: Queue, clock: Clock, kind: Kind
) -> None:
    now = clock.ms / 1000
    for attributes, at in (
        ({"retry_at": now + 3600}, now + 3600),
        ({"retry_at": datetime.fromtimestamp(now + 7200, UTC)}, now + 7200),
        ({"retry_after": 0.5}, now + 0.5),
    ):
        job = after(queue, kind, raising(BusyError(**attributes)))
        assert (job.state, job.failures, job.at) == ("delayed", 1, at)
        queue.cancel("a")


@both_kinds
def test_an_exception_that_makes_no_sense_of_when_is_tried_again_as_any(
    queue: Queue, clock: Clock, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    job = after(queue, kind, raising(BusyError(retry_at="soon")), min_backoff=60)
    assert job.failures == 1
    assert job.at is not None
    assert 60 <= job.at - clock.ms / 1000 <= 75
    assert "retry_at of" in caplog.text


@both_kinds
def test_the_next_run_is_told_what_the_last_one_raised(queue: Queue, kind: Kind) -> None:
    seen: list[Failure | None] = []

    def handle(job: RunningJob) -> None:
        seen.append(job.failure)
        if len(seen) == 1:
            raise BusyError(retry_after=0, code=503)

    run_one(queue, kind, handle)
    assert seen == [None, Failure(f"{__name__}.BusyError", "busy", {"retry_after": 0, "code": 503})]


@both_kinds
@pytest.mark.parametrize("error", [Fail("gave up"), Fail()], ids=repr)
def test_what_is_raised_from_something_has_its_values(
    queue: Queue, kind: Kind, error: Fail
) -> None:
    job = after(queue, kind, raising(error, BusyError(code=503)))
    assert job.failure == Failure(f"{__name__}.BusyError", "busy", {"code": 503})


# ------------------------------------------------------------------------ pure


def test_an_error_is_answered_with_the_wait_of_its_job() -> None:
    answer = answer_to(ValueError("no"), Facts(min_backoff_ms=1000, failures=2))
    assert (answer.way, answer.reason) == ("retry", b"ValueError: no")
    assert 4000 <= int(answer.due) <= 5000


def test_an_error_that_is_no_text_is_kept_as_far_as_it_goes() -> None:
    assert answer_to(ValueError("\ud800"), Facts()).reason == b"ValueError: \\ud800"
    assert answer_to(Fail("\ud800"), Facts()).reason == b"\\ud800"


def test_what_is_said_is_answered_so() -> None:
    facts = Facts()
    assert answer_to(Release(after=2), facts) == Answer("release", after_ms=2000)
    assert answer_to(Release(), facts) == Answer("release")
    for error, way, due in (
        (Fail("no"), "fail", b""),
        (Retry("no", after=2), "retry", b"+2000"),
        (Retry("no", at=2), "retry", b"2000"),
        (Retry("no", after=0), "retry", b"+0"),
    ):
        answer = answer_to(error, facts)
        assert (answer.way, answer.due, answer.reason) == (way, due, b"no")
        assert read_failure(answer.raised.decode(), "no") == Failure(
            f"holdfast.{type(error).__name__}", "no"
        )
    assert lapsed("too late") == Answer("lapse", reason=b"too late")


@pytest.mark.parametrize(
    ("answer", "facts", "is_last"),
    [
        (Answer("retry"), Facts(), False),
        (Answer("retry"), Facts(failures=9), False),
        (Answer("retry"), Facts(failures=10), True),
        (Answer("retry"), Facts(failures=1000, max_failures=-1), False),
        (Answer("retry"), Facts(lapses=1000), False),
        (Answer("retry"), Facts(failures=10, failed_at=1), False),
        (Answer("lapse"), Facts(lapses=2), False),
        (Answer("lapse"), Facts(lapses=3), True),
        (Answer("lapse"), Facts(lapses=1000, max_lapses=-1), False),
        (Answer("lapse"), Facts(failures=1000), False),
        (Answer("lapse"), Facts(lapses=3, failed_at=1), False),
        (COMPLETED, Facts(failures=10, lapses=3), False),
        (Answer("release"), Facts(failures=10, lapses=3), False),
    ],
)
def test_an_answer_that_spends_the_last_try_is_known(
    answer: Answer, facts: Facts, is_last: bool
) -> None:
    assert spends(answer, facts) is is_last
