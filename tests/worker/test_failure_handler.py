"""The failure handler: who is given what has failed."""

from __future__ import annotations

import pytest

from conftest import Clock
from holdfast import Fail, Queue, Release, RunningJob, Worker
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
