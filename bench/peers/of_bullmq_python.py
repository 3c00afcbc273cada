"""BullMQ's port to Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from bullmq import Queue, Worker

ONCE = {"removeOnComplete": True}


def add_each(url: str, payloads: Iterable[str], _settings: dict[str, Any]) -> None:
    async def add() -> None:
        queue = Queue("bench", {"connection": url})
        for payload in payloads:
            await queue.add("run", payload, ONCE)

    uvloop.run(add())


def add_bulk(url: str, chunks: Iterable[list[str]], _settings: dict[str, Any]) -> None:
    async def add() -> None:
        queue = Queue("bench", {"connection": url})
        for chunk in chunks:
            await queue.addBulk([{"name": "run", "data": data, "opts": ONCE} for data in chunk])

    uvloop.run(add())


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    async def run(job: Any, _token: str) -> None:
        handle(job.data)

    async def serve() -> None:
        more = {}
        if lease := settings.get("lease"):
            more = {"lockDuration": 1000 * lease, "stalledInterval": 1000 * lease}
        options = {"connection": url, "concurrency": settings["concurrency"], **more}
        worker = Worker("bench", run, options)
        await asyncio.Event().wait()
        await worker.close()

    uvloop.run(serve())
