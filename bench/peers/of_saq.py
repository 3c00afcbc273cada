"""SAQ: its worker; results are not kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from saq import Queue, Worker


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    more = {"timeout": settings["lease"], "retries": 3} if "lease" in settings else {}

    async def add() -> None:
        queue = Queue.from_url(url, name="bench")
        await queue.connect()
        for payload in payloads:
            await queue.enqueue("run", payload=payload, ttl=-1, **more)

    uvloop.run(add())


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    async def run(_context: dict[str, Any], *, payload: str) -> None:
        handle(payload)

    async def serve() -> None:
        concurrency = settings["concurrency"]
        queue = Queue.from_url(url, name="bench", max_concurrent_ops=max(20, concurrency))
        await queue.connect()
        timers = {"sweep": settings["lease"]} if "lease" in settings else None
        worker = Worker(queue, [("run", run)], concurrency=concurrency, timers=timers)
        await worker.start()

    logging.disable(logging.WARNING)
    uvloop.run(serve())
