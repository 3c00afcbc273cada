"""taskiq: streams with acknowledgement, its receiver run as its documentation shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker


def _broker(url: str, settings: dict[str, Any]) -> RedisStreamBroker:
    more: dict[str, Any] = {"xread_count": settings.get("prefetch") or 100}
    if lease := settings.get("lease"):
        more |= {"idle_timeout": 1000 * lease, "unacknowledged_lock_timeout": lease}
    return RedisStreamBroker(url, queue_name="bench", **more)


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    async def run(_payload: str) -> None:
        pass

    async def add() -> None:
        broker = _broker(url, settings)
        task = broker.task(task_name="run")(run)
        await broker.startup()
        for payload in payloads:
            await task.kiq(payload)

    uvloop.run(add())


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    async def run(payload: str) -> None:
        handle(payload)

    async def serve() -> None:
        broker = _broker(url, settings)
        broker.is_worker_process = True
        broker.task(task_name="run")(run)
        await run_receiver_task(
            broker,
            validate_params=False,
            max_async_tasks=settings["concurrency"],
            max_prefetch=settings.get("prefetch", 0),
            run_startup=True,
        )

    logging.disable(logging.WARNING)
    uvloop.run(serve())
