"""RQ: SimpleWorker runs jobs in its own process and is its fastest; Worker forks for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker, Worker

_handle: list[Callable[[str], None]] = []


def run(payload: str) -> None:
    _handle[0](payload)


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    queue = Queue("bench", connection=Redis.from_url(url))
    again = Retry(max=3) if "lease" in settings else None  # Else what was abandoned has failed.
    for payload in payloads:
        queue.enqueue(run, payload, result_ttl=0, retry=again)


def add_bulk(url: str, chunks: Iterable[list[str]], _settings: dict[str, Any]) -> None:
    queue = Queue("bench", connection=Redis.from_url(url))
    for chunk in chunks:
        queue.enqueue_many([Queue.prepare_data(run, (payload,), result_ttl=0) for payload in chunk])


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    _handle[:] = [handle]
    logging.disable(logging.WARNING)
    connection = Redis.from_url(url)
    kind = Worker if settings.get("forks") else SimpleWorker
    more = {}
    if lease := settings.get("lease"):
        more = {
            "worker_ttl": lease,
            "maintenance_interval": lease,
            "job_monitoring_interval": lease,
        }
    kind([Queue("bench", connection=connection)], connection=connection, **more).work(
        logging_level="ERROR"
    )
