"""run_until_empty: a worker here and now. And the clock that it goes by."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import (
    AsyncQueue,
    AsyncRunningJob,
    Fail,
    InvalidArgument,
    JobCancelled,
    Queue,
    Release,
    Retry,
    RunningJob,
    Server,
    Worker,
)
from holdfast.testing import Clock, moved, run_until_empty, run_until_empty_async
from support import TestServer
from worker.support import Heard, shown


def ids(ran: list[RunningJob]) -> list[str]:
    return [job.id for job in ran]


def test_jobs_run_in_this_thread_in_their_order(queue: Queue) -> None:
    called: list[object] = []
    worker = Worker(queue, concurrency=8)

    @worker.handler
    def handle(job: RunningJob) -> None:
        called.append((job.id, threading.current_thread()))

    for n, priority in enumerate([10, 90, 50]):
        queue.add(b"", id=str(n), priority=priority)
    assert ids(run_until_empty(worker)) == ["1", "2", "0"]
    assert called == [(id, threading.current_thread()) for id in ("1", "2", "0")]
    assert run_until_empty(worker) == []


def test_a_queue_that_has_handlers_is_enough(queue: Queue) -> None:
    @queue.handler(result_for=60)
    def double(n: int) -> int:
        return 2 * n

    @queue.handler(result_for=60)
    async def half(job: AsyncRunningJob, n: int) -> float:
        await job.extend()
        return n / 2

    double.options(id="a").add(21)
    half.options(id="b").add(21)
    run_until_empty(queue)
    assert (double.result("a"), half.result("b")) == (42, 10.5)
    with pytest.raises(InvalidArgument, match="the worker has no handler"):
        run_until_empty(Queue("nothing", queue.server))


def test_what_jobs_add_runs_too(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        n = int(job.data)
        if n:
            job.add(f"{n - 1}", id=f"{n - 1}")

    queue.add("3", id="3")
    assert ids(run_until_empty(worker)) == ["3", "2", "1", "0"]
    queue.add("9", id="9")
    with pytest.raises(InvalidArgument, match="5 runs did not empty the queue"):
        run_until_empty(worker, most=5)
    assert queue.counts().ready == 1


def test_what_a_handler_raises_is_raised_after_it_was_settled(queue: Queue) -> None:
    @queue.handler
    def send(what: str) -> None:
        if what == "wrong":
            raise ValueError(what)

    send.options(id="a", priority=90).add("wrong")
    send.options(id="b").add("right")
    with pytest.raises(ValueError, match="wrong"):
        run_until_empty(queue)
    assert (shown(queue).state, shown(queue).error) == ("delayed", "ValueError: wrong")
    assert ids(run_until_empty(queue)) == ["b"]


def test_a_test_that_wants_to_see_retries_says_so(
    queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    worker = Worker(queue, hooks=[heard])
    caplog.set_level(logging.WARNING, "holdfast")

    @worker.handler
    def handle(job: RunningJob) -> None:
        raise ValueError("busy")

    queue.add(b"", id="a", max_failures=2, min_backoff=2)
    for backoff in (0, 4, 8):
        clock.advance(backoff)
        assert ids(run_until_empty(worker, raising=False)) == ["a"]
    assert shown(queue).state == "failed"
    assert heard.of() == ["started", "retried", "started", "retried", "started", "failed"]
    assert "a: failed: ValueError: busy" in caplog.text


def test_what_a_handler_says_on_purpose_is_not_raised(queue: Queue) -> None:
    says = {"a": Retry("later", after=60), "b": Fail("never"), "c": Release(after=60)}
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        raise says[job.id]

    for id in says:
        queue.add(b"", id=id)
    run_until_empty(worker)
    assert [shown(queue, id).state for id in says] == ["delayed", "failed", "delayed"]


def test_what_a_test_or_a_person_says_goes_through(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        raise KeyboardInterrupt

    queue.add(b"", id="a")
    with pytest.raises(KeyboardInterrupt):
        run_until_empty(worker, raising=False)


def test_failed_jobs_go_to_the_failure_handler(queue: Queue) -> None:
    told: list[str] = []
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        raise Fail("no")

    @worker.failure_handler
    def deal(job: RunningJob) -> None:
        told.append(f"{job.id}: {job.error}")

    queue.add(b"", id="a")
    run_until_empty(worker)
    assert told == ["a: no"]
    assert queue.failed() == []


def test_a_batch_is_given_as_many_as_it_takes(queue: Queue) -> None:
    given: list[list[str]] = []
    worker = Worker(queue)

    @worker.handler(batch=3)
    def handle(jobs: list[RunningJob]) -> None:
        given.append(ids(jobs))

    @worker.handler("other")
    def other(job: RunningJob) -> None:
        given.append([job.id])

    for n in range(5):
        queue.add(b"", id=str(n), handler="other" if n == 1 else None)
    assert len(run_until_empty(worker)) == 5
    assert given == [["0", "2"], ["1"], ["3", "4"]]


def test_results_of_a_batch_may_be_too_much_for_one_call(queue: Queue) -> None:
    worker = Worker(queue)
    worker.handler(lambda jobs: [bytes(1_000_000) for _ in jobs], batch=12)
    for n in range(12):
        queue.add(b"", id=str(n), result_for=60)
    assert len(run_until_empty(worker)) == 12
    assert all(queue.result(str(n)) for n in range(12))


def test_a_job_whose_handler_is_not_there_is_an_error_and_stays(queue: Queue) -> None:
    worker = Worker(queue)
    worker.handler("some")(lambda job: None)
    queue.add(b"", id="a", handler="other")
    with pytest.raises(InvalidArgument, match="a: no handler for 'other' here"):
        run_until_empty(worker)
    assert shown(queue).state == "ready"


def test_follow_ups_that_are_refused_are_a_failure_of_the_job(queue: Queue) -> None:
    queue.request("g").open()
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        job.add(b"", group="g")

    queue.add(b"", id="a")
    run_until_empty(worker, raising=False)
    assert (shown(queue).state, shown(queue).failures) == ("delayed", 1)


def test_leases_that_ran_out_are_taken_back_at_once(queue: Queue, clock: Clock) -> None:
    """Though everybody was silent meanwhile."""
    worker = Worker(queue)
    worker.handler(lambda job: None)
    queue.add(b"", id="a")
    queue.lease(30)
    assert run_until_empty(worker) == []
    clock.advance(3600)
    [job] = run_until_empty(worker)
    assert job.lapses == 1


def test_a_handler_learns_that_its_job_was_cancelled(queue: Queue) -> None:
    worker = Worker(queue)

    @worker.handler
    def handle(job: RunningJob) -> None:
        queue.cancel(job.id)
        with pytest.raises(JobCancelled, match="was cancelled"):
            job.extend()

    queue.add(b"", id="a")
    run_until_empty(worker)
    assert queue.show("a") is None


def test_several_queues_are_emptied(queue: Queue, other_server: Server, clock: Clock) -> None:
    second = Queue(queue.name + "2", other_server, clock=clock)
    worker = Worker([queue, second])
    worker.handler(lambda job: second.add(b"", id="c") if job.id == "a" else None)
    queue.add(b"", id="a")
    second.add(b"", id="b")
    assert ids(run_until_empty(worker)) == ["a", "b", "c"]
    second.delete()


def test_within_an_event_loop_it_is_awaited(
    queue: Queue, test_server: TestServer, clock: Clock
) -> None:
    aqueue = AsyncQueue(queue.name, test_server.queue_url, clock=clock)
    loops: list[object] = []

    @aqueue.handler
    async def send(to: str) -> None:
        loops.append(asyncio.get_running_loop())

    async def use() -> None:
        async with aqueue:
            await send.add("ann")
            with pytest.raises(InvalidArgument, match="await run_until_empty_async"):
                run_until_empty(aqueue)
            assert len(await run_until_empty_async(aqueue)) == 1
            assert loops == [asyncio.get_running_loop()]

    asyncio.run(use())
    assert len(queue) == 0


def test_a_worker_that_runs_cannot_be_run_here(queue: Queue) -> None:
    worker = Worker(queue)
    worker.handler(lambda job: None)
    with worker, pytest.raises(Exception, match="is running already"):
        run_until_empty(worker)


# ------------------------------------------------------------------------------ the clock


def test_a_clock_begins_at_midnight_and_stands_still() -> None:
    clock = Clock()
    assert clock.ms % 86_400_000 == 0
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(days=1, minutes=1)
    assert clock() == clock.ms
    clock.advance(timedelta(hours=1))
    clock.advance(0.5)
    clock.advance(-0.25)
    assert clock.ms % 86_400_000 == 3_600_250
    assert repr(Clock(0)) == "Clock(1970-01-01T00:00:00+00:00)"


def test_a_worker_in_the_background_goes_by_the_clock_too(queue: Queue, clock: Clock) -> None:
    worker = Worker(queue)
    worker.handler(lambda job: "done")
    queue.add(b"", id="a", delay=3600, result_for=60)
    with worker:
        clock.advance(3600)
        outcome = queue.result("a", wait=30)
    assert outcome
    assert outcome.result == b"done"


def test_a_queue_that_is_moved_comes_back_also_after_an_error(
    test_server: TestServer, queue: Queue
) -> None:
    mine = Queue("q mine", "redis://localhost:1", defaults={"priority": 90})
    before = dict(vars(mine))
    with suppress(KeyError), moved(mine, test_server.url, Clock()):
        mine.add(b"", id="a")
        assert shown(mine).priority == 90
        raise KeyError
    assert vars(mine) == before
    with Queue("q mine", test_server.url) as there:
        assert len(there) == 0
