"""Another event loop, which web servers such as uvicorn choose by themselves where it is there."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from holdfast import AsyncQueue, AsyncRunningJob, AsyncServer, Queue, Worker
from support import DEADLINE

uvloop = pytest.importorskip("uvloop")


def test_an_async_queue_works_on_uvloop(live_queue: Queue) -> None:
    async def work() -> list[str]:
        async with AsyncQueue(live_queue.name, AsyncServer.like(live_queue.server)) as queue:
            await queue.add_many([b"x" * 100_000] * 3)
            leases = await queue.lease_many(3, 30)
            assert all(await queue.complete_many((lease, b"done") for lease in leases))
            assert await queue.lease(30, wait=0.05) is None
            async with queue.request("r", limit=1) as request:
                await request.add(b"part")
            lease = await queue.lease(30, wait=DEADLINE)
            assert lease is not None
            await queue.complete(lease)
            return [(await request.wait(DEADLINE)).state]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == ["completed"]


def test_calls_that_are_cancelled_on_uvloop_lose_nothing(live_queue: Queue) -> None:
    async def storm() -> None:
        async with AsyncQueue(live_queue.name, AsyncServer.like(live_queue.server)) as queue:
            for number in range(200):
                task = asyncio.create_task(queue.add(b"x", id=f"{number}"))
                await asyncio.sleep(random.uniform(0, 0.001))
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await queue.add(b"x", id=f"{number}")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(storm())
    assert live_queue.counts().ready == 200


def test_a_worker_runs_on_uvloop(live_queue: Queue) -> None:
    ran: list[str] = []
    worker = Worker(live_queue, executor="async", concurrency=2)

    @worker.handler
    async def handle(job: AsyncRunningJob) -> None:
        await asyncio.sleep(0)
        ran.append(type(asyncio.get_running_loop()).__module__)

    live_queue.add_many([b"x"] * 3)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(worker.run_async(until_empty=True))
    assert ran == ["uvloop"] * 3
