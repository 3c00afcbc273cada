"""Coroutine functions: on a loop of the worker's own, or on the caller's."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Literal, cast

import pytest

from engine_support import own_server
from holdfast import (
    AsyncQueue,
    AsyncRunningJob,
    AsyncServer,
    InvalidArgument,
    Lease,
    NewJob,
    Queue,
    RunningJob,
    Worker,
    WrongState,
)
from holdfast.worker.executors.event_loop import EventLoop
from holdfast.worker.handlers import Handler
from holdfast.worker.job import Run, RunContext
from holdfast.worker.outcomes import GIVEN_BACK, Stop
from support import DEADLINE, TestServer, wait_until
from worker.support import Heard, at_work, is_done, shown, worker_of, working


async def comes_true(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def nothing(job: AsyncRunningJob) -> None: ...


# ----------------------------------------------------------------- an own loop


def test_coroutines_wait_together(live_queue: Queue) -> None:
    """Each waits until all are there."""
    there = asyncio.Barrier(50)

    async def handle(job: AsyncRunningJob) -> None:
        async with asyncio.timeout(DEADLINE):
            await there.wait()

    live_queue.add_many([b""] * 50)
    with working(live_queue, handle, concurrency=50, executor="async"):
        wait_until(lambda: is_done(live_queue), "all")


def test_a_hundred_coroutines_run_at_a_time_where_nobody_says_how_many(live_queue: Queue) -> None:
    running: set[str] = set()
    most: list[int] = []
    go_on = threading.Event()

    async def handle(job: AsyncRunningJob) -> None:
        running.add(job.id)
        most.append(len(running))
        await comes_true(go_on.is_set)
        running.discard(job.id)

    live_queue.add_many([b""] * 120)
    with working(live_queue, handle, executor="async"):
        wait_until(lambda: len(running) == 100, "a hundred")
        go_on.set()
        wait_until(lambda: is_done(live_queue), "all")
    assert max(most) == 100


def test_plain_functions_and_coroutines_go_together(live_queue: Queue) -> None:
    seen: list[tuple[str, str]] = []
    worker = Worker(live_queue)

    @worker.handler("plain")
    def plain(job: RunningJob) -> None:
        seen.append(("plain", threading.current_thread().name))

    @worker.handler("coroutine")
    async def coroutine(job: AsyncRunningJob) -> None:
        seen.append(("coroutine", threading.current_thread().name))

    live_queue.add_many([b""] * 3, handler="plain")
    live_queue.add_many([b""] * 3, handler="coroutine")
    assert worker.run(until_empty=True)
    assert {(kind, name.rstrip("0123456789")) for kind, name in seen} == {
        ("plain", "holdfast handler "),
        ("coroutine", "holdfast loop"),
    }
    assert len(seen) == 6


def test_the_loop_of_a_worker_ends_with_it(live_queue: Queue) -> None:
    heard = Heard()
    live_queue.add(b"", id="a")
    with working(live_queue, nothing, hooks=[heard]):
        heard.wait_for("done")
    wait_until(
        lambda: "holdfast loop" not in {thread.name for thread in threading.enumerate()},
        "the loop to end",
    )


def test_what_coroutines_left_behind_is_ended_with_the_loop(live_queue: Queue) -> None:
    heard = Heard()
    ended = threading.Event()
    left: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(2 * DEADLINE)
        finally:
            ended.set()

    async def handle(job: AsyncRunningJob) -> None:
        left.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    live_queue.add(b"", id="a")
    with working(live_queue, handle, hooks=[heard]):
        heard.wait_for("done")
    assert ended.wait(DEADLINE)


def test_a_coroutine_that_does_not_want_to_end_is_left_behind(live_queue: Queue) -> None:
    """Its job is given back, the worker leaves, and it comes to its end in its own time."""
    go_on, ended, heard = threading.Event(), threading.Event(), Heard()

    async def handle(job: AsyncRunningJob) -> None:
        while not go_on.is_set():
            try:
                await comes_true(go_on.is_set)
            except asyncio.CancelledError:
                continue
        ended.set()

    live_queue.add(b"", id="a")
    worker = worker_of(live_queue, handle, hooks=[heard])
    worker.start()
    heard.wait_for("started")
    assert not worker.stop(0)
    job = shown(live_queue)
    assert (job.state, job.failures, job.lapses) == ("ready", 0, 0)
    go_on.set()
    assert ended.wait(DEADLINE)
    gc.collect()  # Whatever was not ended well complains now.


class Noting:
    """Stands for a control loop."""

    hooks = ()

    def __init__(self) -> None:
        self.over: list[Run] = []

    def finished(self, work: Run) -> None:
        self.over.append(work)


def test_a_coroutine_that_is_cancelled_before_it_begins_has_an_answer() -> None:
    async def run() -> None:
        noting = Noting()
        executor = EventLoop(1, asyncio.current_task())
        first, second = (
            RunningJob(
                Lease(id, b"", "holder.1"),
                Handler(nothing, is_async=True),
                cast("RunContext", noting),
                float("inf"),
            )
            for id in "ab"
        )
        executor.submit([first, second])
        executor._begin()
        first.stop_reason = Stop.LEAVING
        executor._stop_job(first)
        await comes_true(lambda: len(noting.over) == 2)
        assert noting.over == [first, second]
        assert first.answer is GIVEN_BACK
        assert second.answer is not None
        assert second.answer.way == "complete"
        executor.close()

    asyncio.run(run())


async def exits() -> None:
    await asyncio.sleep(0)
    sys.exit("usage: …")


async def exits_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(exits())


async def exits_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, "usage: …")
    await asyncio.sleep(0.01)
    raise ZeroDivisionError


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    raise ZeroDivisionError


async def cancels_itself() -> None:
    running = asyncio.current_task()
    assert running
    running.cancel()
    await asyncio.sleep(DEADLINE)


async def is_cancelled_by_its_own_timer() -> None:
    running = asyncio.current_task()
    assert running
    asyncio.get_running_loop().call_later(0.01, running.cancel)
    await asyncio.sleep(DEADLINE)


HARM: dict[str, tuple[Callable[[], Awaitable[object]], str]] = {
    "a task exits": (lambda: asyncio.create_task(exits()), "SystemExit"),
    "one of several tasks exits": (
        lambda: asyncio.gather(exits(), asyncio.sleep(0.01)),
        "SystemExit",
    ),
    "what it waits for exits": (lambda: asyncio.wait_for(exits(), DEADLINE), "SystemExit"),
    "a task of a group exits": (exits_in_a_group, "SystemExit"),
    "a callback exits": (exits_in_a_callback, "ZeroDivisionError"),
    "it stops the loop": (stops_the_loop, "ZeroDivisionError"),
    "it cancels itself": (cancels_itself, "CancelledError"),
    "its own timer cancels it": (is_cancelled_by_its_own_timer, "CancelledError"),
}


@pytest.mark.parametrize("executor", ["async", "thread"])
@pytest.mark.parametrize("harm", HARM.values(), ids=list(HARM))
def test_a_coroutine_that_harms_the_loop_or_itself_fails_and_the_others_run(
    live_queue: Queue,
    executor: Literal["async", "thread"],
    harm: tuple[Callable[[], Awaitable[object]], str],
) -> None:
    do, kind = harm
    ran: list[str] = []

    async def handle(job: AsyncRunningJob) -> None:
        ran.append(job.id)
        if job.id == "bad":
            await do()

    live_queue.add(b"", id="bad", max_failures=1, min_backoff=0, priority=90)
    live_queue.add_many([NewJob(b"", id=f"{n}") for n in range(5)])
    worker = worker_of(live_queue, handle, executor=executor, concurrency=2)
    worker.start()
    wait_until(lambda: live_queue.counts().failed == 1 and is_done(live_queue), "all to end")
    live_queue.add(b"", id="after")
    wait_until(lambda: is_done(live_queue), "what is added later")
    assert worker.stop()
    assert sorted(ran) == ["0", "1", "2", "3", "4", "after", "bad", "bad"]
    assert kind in (shown(live_queue, "bad").error or "")


# ------------------------------------------------------------ the caller's loop


def test_coroutines_run_on_the_loop_that_awaits_the_worker(live_queue: Queue) -> None:
    loops: list[object] = []
    worker = Worker(live_queue)

    @worker.handler
    async def handle(job: AsyncRunningJob) -> None:
        loops.append(asyncio.get_running_loop())

    async def run() -> None:
        assert await worker.run_async(until_empty=True)
        assert loops == [asyncio.get_running_loop()]

    live_queue.add(b"")
    asyncio.run(run())


def test_plain_functions_do_not_hold_up_the_loop_that_awaits_the_worker(
    live_queue: Queue,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(job: RunningJob) -> None:
        begun.set()
        assert go_on.wait(DEADLINE)

    async def run() -> None:
        running = asyncio.create_task(worker_of(live_queue, handle).run_async(until_empty=True))
        await comes_true(begun.is_set)
        go_on.set()
        assert await running

    live_queue.add(b"")
    asyncio.run(run())


@pytest.mark.parametrize("how", ["cancel", "ask"])
def test_who_awaits_a_worker_can_stop_it(live_queue: Queue, how: str) -> None:
    """What runs is finished first."""
    heard = Heard()

    async def run() -> None:
        go_on = asyncio.Event()

        async def handle(job: AsyncRunningJob) -> None:
            await go_on.wait()

        worker = worker_of(live_queue, handle, hooks=[heard])
        running = asyncio.create_task(worker.run_async())
        await comes_true(lambda: heard.ids("started"))
        if how == "cancel":
            running.cancel()
        else:
            worker.ask_to_stop()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        if how == "cancel":
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            assert await running

    live_queue.add(b"", id="a")
    asyncio.run(run())
    assert heard.of() == ["started", "done"]
    assert is_done(live_queue)


def test_a_coroutine_that_cancels_itself_on_the_loop_of_the_caller_fails(
    live_queue: Queue,
) -> None:
    async def handle(job: AsyncRunningJob) -> None:
        await cancels_itself()

    async def run() -> None:
        assert await worker_of(live_queue, handle).run_async(until_empty=True)

    live_queue.add(b"", id="a", max_failures=0)
    asyncio.run(run())
    assert (shown(live_queue).state, shown(live_queue).failures) == ("failed", 1)


def test_a_program_that_ends_costs_what_runs_on_its_loop_no_attempt(live_queue: Queue) -> None:
    heard = Heard()

    async def handle(job: AsyncRunningJob) -> None:
        await asyncio.sleep(DEADLINE)

    async def run() -> None:
        worker = worker_of(live_queue, handle, hooks=[heard], grace=0)
        running.append(asyncio.create_task(worker.run_async()))
        await comes_true(lambda: heard.ids("started"))

    running: list[object] = []
    live_queue.add(b"", id="a", max_failures=0)
    asyncio.run(run())  # It cancels all tasks that are left, the handler's too.
    assert heard.of()[:2] == ["started", "released"]
    assert (shown(live_queue).state, shown(live_queue).failures) == ("ready", 0)


def test_nothing_of_a_worker_stays_on_the_loop_of_the_caller(live_queue: Queue) -> None:
    async def run() -> None:
        before = len(asyncio.all_tasks())
        for _ in range(2):
            live_queue.add(b"")
            assert await worker_of(live_queue, nothing).run_async(until_empty=True)
        assert len(asyncio.all_tasks()) == before
        await comes_true(lambda: not any("_watch" in repr(timer) for timer in timers()))

    def timers() -> list[object]:
        return list(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    asyncio.run(run())


def test_the_loop_goes_on_while_the_worker_greets_a_server_that_is_lost() -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        server.freeze()

        async def run() -> None:
            worker = worker_of(queue, nothing)
            running = asyncio.create_task(worker.run_async(until_empty=True))
            for _ in range(5):
                await asyncio.sleep(0.001)
                assert not running.done()
            server.thaw()
            assert await running

        asyncio.run(run())


def test_a_worker_that_runs_is_not_stopped_by_who_runs_it_again(live_queue: Queue) -> None:
    heard = Heard()

    async def run(worker: Worker) -> None:
        with pytest.raises(WrongState, match="is running already"):
            await worker.run_async()

    worker = worker_of(live_queue, nothing, hooks=[heard])
    with at_work(worker):
        asyncio.run(run(worker))
        live_queue.add(b"", id="a")
        heard.wait_for("done")


def test_a_worker_without_a_handler_is_refused_on_a_loop_too(live_queue: Queue) -> None:
    async def run() -> None:
        with pytest.raises(InvalidArgument, match="no handler"):
            await Worker(live_queue).run_async()

    asyncio.run(run())


def test_a_worker_may_be_given_an_async_queue(test_server: TestServer, live_queue: Queue) -> None:
    seen: list[str] = []

    async def handle(job: AsyncRunningJob) -> None:
        seen.append(job.id)

    async def run() -> None:
        async with AsyncQueue(live_queue.name, AsyncServer(test_server.queue_url)) as queue:
            await queue.add(b"", id="a")
            worker = Worker(queue)
            worker.handler(handle)
            assert await worker.run_async(until_empty=True)

    asyncio.run(run())
    assert seen == ["a"]
