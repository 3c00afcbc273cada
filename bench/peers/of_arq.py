"""arq: its worker polls; every 10 ms here, as the half second of its default is slow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import uvloop
from arq import Worker, create_pool
from arq.connections import RedisSettings
from arq.worker import func


def add_each(url: str, payloads: Iterable[str], _settings: dict[str, Any]) -> None:
    async def add() -> None:
        pool = await create_pool(RedisSettings.from_dsn(url))
        for payload in payloads:
            await pool.enqueue_job("run", payload)

    uvloop.run(add())


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    async def run(_context: dict[str, Any], payload: str) -> None:
        handle(payload)

    async def serve() -> None:
        worker = Worker(
            [func(run, name="run", keep_result=0)],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=settings["concurrency"],
            poll_delay=0.01,
            job_timeout=settings.get("lease", 300),
            handle_signals=False,
        )
        await worker.async_run()

    logging.disable(logging.WARNING)
    uvloop.run(serve())
