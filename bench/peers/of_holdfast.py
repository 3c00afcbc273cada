"""Holdfast, as BENCH_KIND says: threads, coroutines, batch, single, processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import Hooks, Queue, Worker


def fill(url: str, payloads: Sequence[str]) -> None:
    Queue("bench", url).add_many(payloads)


def len_of(job: Any) -> int:
    return len(job.data)


def work(url: str, concurrency: int, handle: Callable[[bytes], None]) -> Callable[[str], object]:
    queue = Queue("bench", url)

    def run(job: Any) -> None:
        handle(job.data)

    async def run_async(job: Any) -> None:
        handle(job.data)

    def run_batch(jobs: Sequence[Any]) -> None:
        for job in jobs:
            handle(job.data)

    class Told(Hooks):
        """What children do is counted when the worker hears of it."""

        def done(self, job: Any) -> None:
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
        case "processes":
            worker = Worker(queue, concurrency=concurrency, executor="process", hooks=[Told()])
            worker.handler(len_of)
    worker.start()
    return queue.add
