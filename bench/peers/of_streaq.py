"""streaq: its worker on asyncio; results are not kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from streaq import Worker


def _task(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> tuple[Any, Any]:
    more = {"idle_timeout": settings["lease"]} if "lease" in settings else {}
    worker: Any = Worker(
        redis_url=url,
        queue_name="bench",
        concurrency=settings.get("concurrency", 16),
        prefetch=settings.get("prefetch"),
        anyio_kwargs={"use_uvloop": True},
        **more,
    )

    async def run(payload: str) -> None:
        handle(payload)

    return worker, worker.task(name="run", ttl=0, silent=True)(run)


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    async def add() -> None:
        worker, task = _task(url, settings, print)
        async with worker:
            for payload in payloads:
                await task.enqueue(payload)

    uvloop.run(add())


def add_bulk(url: str, chunks: Iterable[list[str]], settings: dict[str, Any]) -> None:
    async def add() -> None:
        worker, task = _task(url, settings, print)
        async with worker:
            for chunk in chunks:
                await worker.enqueue_many([task.enqueue(payload) for payload in chunk])

    uvloop.run(add())


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    logging.disable(logging.WARNING)
    worker, _ = _task(url, settings, handle)
    worker.run_sync()
