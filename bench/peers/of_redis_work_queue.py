"""redis-work-queue: the loop of its README in threads. Somebody must clean: here a thread does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

QUEUE = KeyPrefix("bench")


def add_each(url: str, payloads: Iterable[str], _settings: dict[str, Any]) -> None:
    queue, client = WorkQueue(QUEUE), Redis.from_url(url)
    for payload in payloads:
        queue.add_item(client, Item(payload))


def add_bulk(url: str, chunks: Iterable[list[str]], _settings: dict[str, Any]) -> None:
    queue, client = WorkQueue(QUEUE), Redis.from_url(url)
    for chunk in chunks:
        pipeline = client.pipeline()
        for payload in chunk:
            queue.add_item_to_pipeline(pipeline, Item(payload))
        pipeline.execute()


def work(url: str, settings: dict[str, Any], handle: Callable[[bytes], None]) -> None:
    def run() -> None:
        queue, client = WorkQueue(QUEUE), Redis.from_url(url)
        while True:
            if item := queue.lease(client, settings.get("lease", 30), timeout=1):
                handle(item.data())
                queue.complete(client, item)

    for _ in range(settings["concurrency"]):
        threading.Thread(target=run, daemon=True).start()
    queue, client = WorkQueue(QUEUE), Redis.from_url(url)
    while True:
        time.sleep(1)
        queue.light_clean(client)
