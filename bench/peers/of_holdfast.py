"""Holdfast, in the way that BENCH_KIND names: threads, coroutines, batch, single."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import Queue, Worker


def fill(url: str, payloads: Sequence[str]) -> None:
    Queue("bench", url).add_many(payloads)


def work(url: str, concurrency: int, handle: Callable[[bytes], None]) -> Callable[[str], object]:
    queue = Queue("bench", url)

    def run(job: Any) -> None:
        handle(job.data)

    async def run_async(job: Any) -> None:
        handle(job.data)

    def run_batch(jobs: Sequence[Any]) -> None:
        for job in jobs:
            handle(job.data)

    match os.environ["BENCH_KIND"]:
        case "threads":
            worker = Worker(queue, concurrency=concurrency)
            worker.handler(run)
        case "coroutines":
            worker = Worker(queue, concurrency=concurrency, executor="async")
            worker.handler(run_async)
        case "batch":
            worker = Worker(queue, concurrency=1)
            worker.handler(batch=concurrency)(run_batch)
        case "single":  # The next is leased when the last is done.
            worker = Worker(queue, concurrency=1, ahead=0)
            worker.handler(run)
    worker.start()
    return queue.add
