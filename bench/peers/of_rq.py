"""RQ: SimpleWorker, which runs jobs in its own process and is its fastest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from redis import Redis
from rq import Queue, SimpleWorker

_handle: list[Callable[[str], None]] = []
_urls: SimpleQueue[str] = SimpleQueue()


def run(payload: str) -> None:
    _handle[0](payload)


def fill(url: str, payloads: Sequence[str]) -> None:
    queue = Queue("bench", connection=Redis.from_url(url))
    queue.enqueue_many([Queue.prepare_data(run, (payload,), result_ttl=0) for payload in payloads])


def work(url: str, _concurrency: int, handle: Callable[[str], None]) -> Callable[[str], object]:
    _handle[:] = [handle]
    _urls.put(url)
    queue = Queue("bench", connection=Redis.from_url(url))
    return lambda payload: queue.enqueue(run, payload, result_ttl=0)


def main() -> None:
    connection = Redis.from_url(_urls.get())
    logging.disable(logging.WARNING)
    SimpleWorker([Queue("bench", connection=connection)], connection=connection).work(
        logging_level="ERROR"
    )
