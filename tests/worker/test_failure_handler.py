"""The failure handler: who is given what has failed."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

import pytest

from conftest import Clock
from holdfast import Fail, Failure, InvalidArgument, Queue, Release, Retry, RunningJob, Worker
from holdfast.testing import run_until_empty
from worker.support import Heard, Kind, as_handler, both_kinds, shown


def fail(job: RunningJob) -> None:
    raise Fail("no such address")


def run(worker: Worker) -> None:
    assert worker.run(until_empty=True)


def worker_with(queue: Queue, kind: Kind, on_failure: object, **options: object) -> Worker:
    worker = Worker(queue, **options)  # type: ignore[arg-type]
    worker.handler(as_handler(kind, fail))
    worker.failure_handler(as_handler(kind, on_failure))  # type: ignore[arg-type]
    return worker


@both_kinds
def test_it_is_given_what_failed_and_why_and_then_the_job_is_gone(queue: Queue, kind: Kind) -> None:
    seen: list[tuple[str, bytes, bool, str | None]] = []
    heard = Heard()
    queue.add(b"x", id="a")
    run(
        worker_with(
            queue,
            kind,
            lambda job: seen.append((job.id, job.data, job.failed, job.error)),
            hooks=[heard],
        )
    )
    assert seen == [("a", b"x", True, "no such address")]
    assert queue.show("a") is None
    assert heard.of() == ["started", "failed", "started", "done"]


@both_kinds
def test_what_failed_before_the_worker_began_is_given_too(queue: Queue, kind: Kind) -> None:
    queue.add(b"", id="a")
    lease = queue.lease(30)
    assert lease is not None
    queue.fail(lease, error="long ago")
    seen: list[str | None] = []
    run(worker_with(queue, kind, lambda job: seen.append(job.error)))
    assert seen == ["long ago"]


@both_kinds
def test_what_failed_because_its_tries_are_spent_is_given_too(queue: Queue, kind: Kind) -> None:
    seen: list[str | None] = []
    worker = Worker(queue)

    def handle(job: RunningJob) -> None:
        raise ValueError("no")

    worker.handler(as_handler(kind, handle))
    worker.failure_handler(as_handler(kind, lambda job: seen.append(job.error)))
    queue.add(b"", max_failures=0)
    run(worker)
    assert seen == ["ValueError: no"]


@both_kinds
def test_one_that_raises_is_asked_again_later(queue: Queue, clock: Clock, kind: Kind) -> None:
    heard = Heard()
    seen: list[str | None] = []

    def on_failure(job: RunningJob) -> None:
        seen.append(job.error)
        if len(seen) < 3:
            raise OSError("nobody to tell")

    def waits() -> float:
        job = shown(queue)
        assert (job.state, job.failures, job.error) == ("failed", 1, "no such address")
        assert job.at is not None
        return job.at - clock.ms / 1000

    queue.add(b"", id="a")
    worker = worker_with(queue, kind, on_failure, hooks=[heard])
    run(worker)
    assert 10 <= waits() <= 12.5
    run(worker)
    assert len(seen) == 1
    clock.advance(13)
    run(worker)
    assert 20 <= waits() <= 25
    clock.advance(26)
    run(worker)
    assert queue.show("a") is None
    assert seen == ["no such address"] * 3
    assert heard.of()[2:] == ["started", "retried", "started", "retried", "started", "done"]


@both_kinds
def test_the_handler_of_a_job_whose_failures_are_spent_is_asked_again_too(
    queue: Queue, kind: Kind
) -> None:
    heard = Heard()

    def on_failure(job: RunningJob) -> None:
        raise OSError("nobody to tell")

    queue.add(b"", id="a", max_failures=0)
    run(worker_with(queue, kind, on_failure, hooks=[heard]))
    assert shown(queue).state == "failed"
    assert heard.of() == ["started", "failed", "started", "retried"]


def test_one_that_gives_a_job_back_leaves_it_failed(queue: Queue, clock: Clock) -> None:
    def on_failure(job: RunningJob) -> None:
        raise Release(after=60)

    queue.add(b"", id="a")
    run(worker_with(queue, "plain", on_failure))
    job = shown(queue)
    assert (job.state, job.at) == ("failed", clock.ms / 1000 + 60)


@both_kinds
@pytest.mark.parametrize(
    "back",
    [Release(), Release(after=0), Retry(after=0)],
    ids=["release", "release after 0 s", "retry after 0 s"],
)
def test_one_that_gives_a_job_back_at_once_is_asked_again_before_the_worker_ends(
    queue: Queue, kind: Kind, back: Exception
) -> None:
    seen: list[str] = []

    def on_failure(job: RunningJob) -> None:
        seen.append(job.id)
        if len(seen) < 5:
            raise back

    queue.add(b"", id="a")
    run(worker_with(queue, kind, on_failure))
    assert seen == ["a"] * 5
    assert queue.show("a") is None


@both_kinds
def test_all_that_failed_is_dealt_with_before_the_worker_ends_however_few_places_it_has(
    queue: Queue, kind: Kind
) -> None:
    queue.add_many([b""] * 30)
    for lease in queue.lease_many(30, 60):
        queue.fail(lease, error="no")
    seen: list[str] = []
    run(worker_with(queue, kind, lambda job: seen.append(job.id), concurrency=1))
    assert len(seen) == 30
    assert queue.counts().failed == 0


def test_one_that_fails_a_job_leaves_it_to_somebody_else(queue: Queue, clock: Clock) -> None:
    seen: list[str] = []

    def on_failure(job: RunningJob) -> None:
        seen.append(job.id)
        raise Fail

    queue.add(b"", id="a")
    worker = worker_with(queue, "plain", on_failure)
    run(worker)
    clock.advance(1_000_000)
    run(worker)
    assert seen == ["a"]
    assert shown(queue).state == "failed"


def test_without_one_what_failed_waits_for_somebody(queue: Queue) -> None:
    queue.add(b"", id="a")
    worker = Worker(queue)
    worker.handler(fail)
    run(worker)
    assert shown(queue).state == "failed"


def test_it_may_be_all_that_a_worker_has(queue: Queue) -> None:
    seen: list[str] = []
    queue.add(b"", id="a")
    lease = queue.lease(30)
    assert lease is not None
    queue.fail(lease, error="no")
    worker = Worker(queue)
    worker.failure_handler(lambda job: seen.append(job.id))
    run(worker)
    assert seen == ["a"]


def test_a_queue_may_have_one_of_its_own(queue: Queue, clock: Clock) -> None:
    other = Queue(queue.name + "2", queue.server, clock=clock)
    seen: list[tuple[str, str]] = []
    worker = Worker([queue, other])
    worker.handler(fail)

    @worker.failure_handler
    def anywhere(job: RunningJob) -> None:
        seen.append(("anywhere", job.queue))

    @worker.failure_handler(queue=other.name)
    def there(job: RunningJob) -> None:
        seen.append(("there", job.queue))

    queue.add(b"")
    other.add(b"")
    run(worker)
    assert sorted(seen) == [("anywhere", queue.name), ("there", other.name)]
    other.delete()


def test_a_queue_may_be_the_only_one_that_has_one(queue: Queue, clock: Clock) -> None:
    other = Queue(queue.name + "2", queue.server, clock=clock)
    worker = Worker([queue, other])
    worker.handler(fail)
    seen: list[str] = []
    worker.failure_handler(lambda job: seen.append(job.queue), queue=other.name)
    queue.add(b"")
    other.add(b"")
    run(worker)
    assert seen == [other.name]
    assert queue.counts().failed == 1
    other.delete()


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_failed_part_is_given_to_it_and_its_request_ends(queue: Queue, kind: Kind) -> None:
    with queue.request("r") as request:
        request.add(b"")
    seen: list[str | None] = []
    run(worker_with(queue, kind, lambda job: seen.append(job.request)))
    assert seen == ["r"]


# ------------------------------------------------------------------------ its options


def failing_worker(queue: Queue, **options: Any) -> Worker:
    """Return a worker whose failure handler never manages."""
    worker = Worker(queue)
    worker.handler(fail)

    @worker.failure_handler(**options)
    def on_failure(job: RunningJob) -> None:
        raise OSError("nobody to tell")

    return worker


def asked(queue: Queue, clock: Clock, worker: Worker, times: int) -> list[float]:
    """Let it be asked so often; return how long it waits after each time."""
    waits = []
    for _ in range(times):
        run_until_empty(worker, raising=False)
        at = shown(queue).at
        assert at is not None
        waits.append(at - clock.ms / 1000)
        if at < math.inf:
            clock.advance(at - clock.ms / 1000)
    return waits


def test_it_may_go_on_for_days(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    worker = failing_worker(queue, max_failures=None, min_backoff=60, max_backoff=3600)
    waits = asked(queue, clock, worker, 120)
    assert 60 <= waits[0] <= 75
    assert 120 <= waits[1] <= 150
    assert all(2880 <= wait <= 3600 for wait in waits[7:])
    assert sum(waits) > 3 * 86_400
    assert shown(queue).error == "no such address"


def test_it_gives_up_after_as_many_failures_as_it_says(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    worker = failing_worker(queue, max_failures=2, min_backoff=1)
    waits = asked(queue, clock, worker, 4)
    assert [wait < math.inf for wait in waits] == [True, True, False, False]
    assert shown(queue).facts.handlings == 3
    assert queue.revive("a")
    assert shown(queue).facts.max_handlings == 100


def test_what_it_said_holds_also_when_its_worker_dies(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    asked(queue, clock, failing_worker(queue, max_failures=None), 101)
    for _ in range(3):
        assert queue.lease(1, failed=True)
        clock.advance(2)
        queue.tidy(force=True)
        at = shown(queue).at
        assert at is not None
        assert at < math.inf
        clock.advance(1000)


def test_it_may_say_just_when_it_is_asked_again(queue: Queue, clock: Clock) -> None:
    def on_failure(job: RunningJob) -> None:
        raise Retry("not now", after=86_400)

    queue.add(b"", id="a")
    worker = Worker(queue)
    worker.handler(fail)
    worker.failure_handler(on_failure, max_backoff=1)
    run(worker)
    assert shown(queue).at == clock.ms / 1000 + 86_400


def test_one_that_takes_too_long_is_cancelled_and_asked_again(queue: Queue, clock: Clock) -> None:
    worker = Worker(queue, executor="async")
    worker.handler(as_handler("coroutine", fail))

    @worker.failure_handler(timeout=0.05, min_backoff=100, max_failures=0)
    async def on_failure(job: RunningJob) -> None:
        await asyncio.Event().wait()

    queue.add(b"", id="a")
    run(worker)
    job = shown(queue)
    assert (job.state, job.at, job.facts.handlings) == ("failed", math.inf, 1)
    queue.revive("a")
    worker = Worker(queue, executor="async")
    worker.handler(as_handler("coroutine", fail))
    worker.failure_handler(on_failure, timeout=0.05, min_backoff=100)
    run(worker)
    at = shown(queue).at
    assert at is not None
    assert 100 <= at - clock.ms / 1000 <= 125


def test_one_that_kills_its_process_is_asked_again_as_it_says(queue: Queue, clock: Clock) -> None:
    worker = Worker(queue, executor="process", concurrency=1)
    worker.handler(fail)

    @worker.failure_handler(min_backoff=100, timeout=60)
    def on_failure(job: RunningJob) -> None:
        os.abort()

    queue.add(b"", id="a")
    run(worker)
    job = shown(queue)
    assert (job.state, job.facts.handlings, job.lapses) == ("failed", 1, 0)
    assert job.at is not None
    assert 100 <= job.at - clock.ms / 1000 <= 125


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_failures": -1}, "max_failures"),
        ({"max_failures": 1.5}, "max_failures"),
        ({"min_backoff": -1}, "min_backoff"),
        ({"max_backoff": "1h"}, "max_backoff"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 5}, "runs in a thread"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    queue: Queue, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Worker(queue).failure_handler(fail, **options)


class PaymentError(Exception):
    def __init__(self) -> None:
        super().__init__("declined")
        self.code = 402


def raise_it(job: RunningJob) -> None:
    raise PaymentError


DECLINED = Failure(f"{__name__}.PaymentError", "declined", {"code": 402})


@both_kinds
def test_it_is_given_what_was_raised_as_values(queue: Queue, kind: Kind) -> None:
    seen: list[Failure | None] = []
    worker = Worker(queue)
    worker.handler(as_handler(kind, raise_it))
    worker.failure_handler(as_handler(kind, lambda job: seen.append(job.failure)))
    queue.add(b"", max_failures=0)
    run(worker)
    assert seen == [DECLINED]


def test_what_was_raised_in_a_process_comes_as_values_too(queue: Queue) -> None:
    worker = Worker(queue, executor="process", concurrency=1)
    worker.handler(raise_it)

    @worker.failure_handler
    def on_failure(job: RunningJob) -> None:
        if job.failure != DECLINED:
            raise AssertionError(job.failure)

    queue.add(b"", id="a", max_failures=0, result_for=60)
    run(worker)
    job = shown(queue)
    assert (job.state, job.failure) == ("ended", DECLINED)
