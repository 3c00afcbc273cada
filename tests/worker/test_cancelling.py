"""Handlers that should stop: cancelled, lost, late, leaving. Threads are told, coroutines ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine_support import own_server
from holdfast import AsyncRunningJob, Queue, RunningJob, Worker
from support import DEADLINE, wait_until
from worker.support import NEVER, Heard, at_work, is_done, shown, worker_of, working


def until_cancelled(job: RunningJob) -> None:
    wait_until(lambda: job.cancelled, "the handler to be told")


async def sleep_for_ever(job: AsyncRunningJob) -> None:
    await asyncio.sleep(NEVER)


@pytest.fixture
def heard() -> Heard:
    return Heard()


# -------------------------------------------------------------------- in threads


@pytest.mark.parametrize("handler", [until_cancelled, sleep_for_ever])
def test_a_handler_of_either_kind_ends_when_its_job_is_cancelled(
    live_queue: Queue, heard: Heard, handler: Callable[[Any], object]
) -> None:
    live_queue.add(b"", id="a", result_for=60)
    with working(live_queue, handler, hooks=[heard]):
        heard.wait_for("started")
        assert live_queue.cancel("a")
        wait_until(lambda: is_done(live_queue), "it to end")
    outcome = live_queue.result("a")
    assert outcome is not None
    assert outcome.kind == "cancelled"
    assert heard.of() == ["started", "cancelled"]


@pytest.mark.parametrize("ending", ["return", "raise"])
def test_however_a_cancelled_run_ends_nothing_else_is_told(
    live_queue: Queue, heard: Heard, ending: str
) -> None:
    ended = threading.Event()

    def handle(job: RunningJob) -> None:
        until_cancelled(job)
        ended.set()
        if ending == "raise":
            raise ValueError

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]) as worker:
        heard.wait_for("started")
        live_queue.cancel("a")
        assert ended.wait(DEADLINE)
        assert worker.stop()
    assert heard.of() == ["started", "cancelled"]
    assert live_queue.show("a") is None


def test_a_plain_handler_is_told_that_its_lease_is_lost(live_queue: Queue, heard: Heard) -> None:
    first = threading.Event()

    def handle(job: RunningJob) -> None:
        if not first.is_set():
            first.set()
            until_cancelled(job)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, lease=NEVER, concurrency=2, hooks=[heard]):
        heard.wait_for("started")
        wait_until(live_queue.workers, "it to be listed")
        [worker] = live_queue.workers()
        assert live_queue.fail_worker(worker) == 1
        wait_until(lambda: is_done(live_queue), "somebody to do it")
        heard.wait_for("lost")
        heard.wait_for("done")
    assert sorted(heard.of()) == ["done", "lost", "started", "started"]


def test_a_plain_handler_is_told_when_the_time_of_its_job_is_up(
    live_queue: Queue, heard: Heard
) -> None:
    live_queue.add(b"", id="a", timeout=0.01)
    with working(live_queue, until_cancelled, hooks=[heard]):
        heard.wait_for("done")


def test_a_plain_handler_is_told_of_its_time_also_while_the_server_is_away(heard: Heard) -> None:
    """Nobody has to be asked for that."""
    begun, told = threading.Event(), threading.Event()

    def handle(job: RunningJob) -> None:
        begun.set()
        until_cancelled(job)
        told.set()

    with own_server() as server, Queue("q", server.url) as queue:
        queue.add(b"", id="a", timeout=0.5)
        with working(queue, handle, lease=3600, hooks=[heard]):
            assert begun.wait(DEADLINE)
            server.freeze()
            assert told.wait(DEADLINE)
            server.thaw()
            heard.wait_for("done")


def test_a_job_whose_time_is_up_is_not_taken_for_one_that_was_given_back(
    live_queue: Queue,
) -> None:
    """In a thread a timeout only tells: what the handler says counts."""
    live_queue.add(b"", id="a", timeout=0.01, result_for=60)

    def handle(job: RunningJob) -> str:
        until_cancelled(job)
        return "late"

    with working(live_queue, handle, lease=3600):
        outcome = live_queue.result("a", wait=DEADLINE)
    assert outcome is not None
    assert outcome.result == b"late"


def test_a_plain_handler_is_told_that_its_worker_leaves(live_queue: Queue, heard: Heard) -> None:
    told = threading.Event()

    def handle(job: RunningJob) -> None:
        until_cancelled(job)
        told.set()

    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, handle, hooks=[heard])
    worker.start()
    heard.wait_for("started")
    assert not worker.stop(0)
    assert told.wait(DEADLINE)
    assert shown(live_queue).state == "ready"


def test_a_handler_knows_by_its_own_clock_that_its_lease_is_over(heard: Heard) -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        queue.add(b"", id="a")
        over = threading.Event()

        def handle(job: RunningJob) -> None:
            if not over.is_set():
                until_cancelled(job)
                assert job.stop_reason is None
                over.set()

        worker = worker_of(queue, handle, lease=2, hooks=[heard])
        with at_work(worker):
            heard.wait_for("started")
            server.freeze()
            assert over.wait(DEADLINE)
            server.thaw()
            wait_until(lambda: is_done(queue), "it to be done all the same")
        assert queue.audit() == []


# -------------------------------------------------------------------- coroutines


def test_a_coroutine_is_ended_when_its_lease_is_lost(live_queue: Queue, heard: Heard) -> None:
    ended = threading.Event()

    async def handle(job: AsyncRunningJob) -> None:
        if job.lapses:
            return
        try:
            await asyncio.sleep(NEVER)
        finally:
            ended.set()

    live_queue.add(b"", id="a")
    with working(live_queue, handle, lease=NEVER, hooks=[heard]):
        heard.wait_for("started")
        wait_until(live_queue.workers, "it to be listed")
        [worker] = live_queue.workers()
        live_queue.fail_worker(worker)
        assert ended.wait(DEADLINE)
        wait_until(lambda: is_done(live_queue), "somebody to do it")
        heard.wait_for("done")
    assert sorted(heard.of()) == ["done", "lost", "started", "started"]


def test_a_coroutine_is_ended_when_its_lease_is_over_and_its_job_pays_nothing(
    heard: Heard,
) -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        ended = threading.Event()

        async def handle(job: AsyncRunningJob) -> None:
            if not ended.is_set():
                try:
                    await asyncio.sleep(NEVER)
                finally:
                    ended.set()
            assert job.failures == 0

        queue.add(b"", id="a", max_failures=0)
        with working(queue, handle, lease=1, hooks=[heard]):
            heard.wait_for("started")
            server.freeze()
            assert ended.wait(DEADLINE)
            server.thaw()
            wait_until(lambda: is_done(queue), "it to be done")
        assert queue.counts().failed == 0
        assert queue.audit() == []


@pytest.mark.parametrize("of", ["handler", "job", "the shorter one"])
def test_a_coroutine_that_takes_too_long_is_ended_and_that_is_a_lapse(
    live_queue: Queue, heard: Heard, of: str
) -> None:
    worker = Worker(live_queue, hooks=[heard])
    worker.handler(sleep_for_ever, timeout={"handler": 0.02, "the shorter one": NEVER}.get(of))
    live_queue.add(b"", id="a", max_lapses=0, timeout=None if of == "handler" else 0.02)
    with at_work(worker):
        heard.wait_for("failed")
    job = shown(live_queue)
    assert (job.state, job.failures, job.lapses) == ("failed", 0, 1)
    assert job.error == "timeout: it ran for 0.02 s"


def test_a_lapse_that_is_not_the_last_lets_another_try(live_queue: Queue, heard: Heard) -> None:
    async def handle(job: AsyncRunningJob) -> None:
        if not job.lapses:
            await asyncio.sleep(NEVER)

    worker = Worker(live_queue, hooks=[heard])
    worker.handler(handle, timeout=0.02)
    live_queue.add(b"", id="a")
    with at_work(worker):
        heard.wait_for("done")
    assert heard.of() == ["started", "lapsed", "started", "done"]


def test_a_coroutine_that_is_in_time_is_left_alone(live_queue: Queue, heard: Heard) -> None:
    worker = Worker(live_queue, hooks=[heard])

    async def handle(job: AsyncRunningJob) -> None:
        await asyncio.sleep(0)

    worker.handler(handle, timeout=NEVER)
    live_queue.add(b"", id="a")
    with at_work(worker):
        heard.wait_for("done")


def test_a_batch_of_coroutines_is_ended_when_all_its_jobs_are_to_stop(
    live_queue: Queue, heard: Heard
) -> None:
    ended = threading.Event()

    async def handle(jobs: list[AsyncRunningJob]) -> None:
        try:
            await asyncio.sleep(NEVER)
        finally:
            ended.set()

    worker = Worker(live_queue, concurrency=1, hooks=[heard])
    worker.handler(handle, batch=2)
    live_queue.add_many([b""] * 2)
    a, b = (job.id for job in live_queue.peek(2))
    with at_work(worker):
        heard.wait_for("started", b)
        live_queue.cancel(a)
        heard.wait_for("cancelled", a)
        assert not ended.is_set()
        live_queue.cancel(b)
        assert ended.wait(DEADLINE)
        wait_until(lambda: is_done(live_queue), "both to end")


def test_a_batch_that_takes_too_long_is_a_lapse_of_each(live_queue: Queue, heard: Heard) -> None:
    async def handle(jobs: list[AsyncRunningJob]) -> None:
        await asyncio.sleep(NEVER)

    worker = Worker(live_queue, concurrency=1, hooks=[heard])
    worker.handler(handle, batch=2, timeout=0.02)
    live_queue.add_many([b""] * 2, max_lapses=0)
    with at_work(worker):
        wait_until(lambda: live_queue.counts().failed == 2, "both to lapse")
    assert {job.lapses for job in live_queue.failed()} == {1}


def test_a_coroutine_that_is_cancelled_by_somebody_else_has_raised(
    live_queue: Queue, heard: Heard
) -> None:
    async def handle(job: AsyncRunningJob) -> None:
        raise asyncio.CancelledError

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("retried")
    assert shown(live_queue).failures == 1


def test_a_coroutine_may_finish_what_it_does_when_it_is_to_end(
    live_queue: Queue, heard: Heard
) -> None:
    async def handle(job: AsyncRunningJob) -> str:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            return "as far as I came"
        return "all"

    worker = Worker(live_queue, hooks=[heard])
    worker.handler(handle, timeout=0.02)
    live_queue.add(b"", id="a", result_for=60)
    with at_work(worker):
        heard.wait_for("done")
    outcome = live_queue.result("a")
    assert outcome is not None
    assert outcome.result == b"as far as I came"


def test_a_handler_that_takes_longer_than_its_lease_is_not_told_to_stop(
    live_queue: Queue, heard: Heard
) -> None:
    def handle(job: RunningJob) -> None:
        before = job.lapses_at
        wait_until(lambda: job.lapses_at > before + 2, "some extensions")
        assert not job.cancelled

    live_queue.add(b"", id="a")
    with working(live_queue, handle, lease=2, hooks=[heard]):
        heard.wait_for("done")
    assert heard.of() == ["started", "done"]
