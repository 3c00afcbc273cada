"""Holdfast, as settings["kind"] says: threads, limited, coroutines, batch, single, processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast import Hooks, Queue, Worker

REQUESTS = 10


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    logging.disable(logging.WARNING)
    queue = Queue("bench", url)
    if settings["kind"] == "limited":
        _as_parts(queue, payloads)
        return
    for payload in payloads:
        queue.add(payload)


def _as_parts(queue: Queue, payloads: Iterable[str]) -> None:
    """Add parts of requests that have a limit and a priority each."""
    requests = [
        queue.request(f"r{number}", limit=1000, priority=10 * number) for number in range(REQUESTS)
    ]
    for request in requests:
        request.open()
    for number, payload in enumerate(payloads):
        requests[number % REQUESTS].add(payload)


def add_bulk(url: str, chunks: Iterable[list[str]], _settings: dict[str, Any]) -> None:
    logging.disable(logging.WARNING)
    queue = Queue("bench", url)
    for chunk in chunks:
        queue.add_many(chunk)


def len_of(job: Any) -> int:
    return len(job.data)


def work(url: str, settings: dict[str, Any], handle: Callable[[bytes], None]) -> None:
    logging.disable(logging.WARNING)
    queue, concurrency = Queue("bench", url), settings["concurrency"]
    more = {"lease": settings["lease"]} if "lease" in settings else {}

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

    match settings["kind"]:
        case "threads" | "limited":
            worker = Worker(queue, concurrency=concurrency, **more)
            worker.handler(run)
        case "coroutines":
            worker = Worker(queue, concurrency=concurrency, executor="async", **more)
            worker.handler(run_async)
        case "batch":
            worker = Worker(queue, concurrency=1, **more)
            worker.handler(batch=concurrency)(run_batch)
        case "single":  # The next is leased when the last is done.
            worker = Worker(queue, concurrency=1, ahead=0, **more)
            worker.handler(run)
        case "processes":
            worker = Worker(queue, concurrency=concurrency, executor="process", hooks=[Told()])
            worker.handler(len_of)
    worker.start()
