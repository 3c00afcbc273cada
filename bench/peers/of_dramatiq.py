"""Dramatiq: its own worker with threads, on its Redis broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker


def _actor(url: str, handle: Callable[[str], None]) -> tuple[RedisBroker, dramatiq.Actor]:
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    return broker, dramatiq.actor(handle, actor_name="run", broker=broker)


def fill(url: str, payloads: Sequence[str]) -> None:
    _, actor = _actor(url, print)
    for payload in payloads:
        actor.send(payload)


def work(url: str, concurrency: int, handle: Callable[[str], None]) -> Callable[[str], object]:
    broker, actor = _actor(url, handle)
    dramatiq.Worker(broker, worker_threads=concurrency).start()
    return actor.send
