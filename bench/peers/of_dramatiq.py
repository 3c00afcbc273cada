"""Dramatiq: its own worker with threads, on its Redis broker."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any


def _actor(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> Any:
    if prefetch := settings.get("prefetch"):  # Read when it is imported.
        os.environ["dramatiq_queue_prefetch"] = str(prefetch)  # noqa: SIM112
    dramatiq = importlib.import_module("dramatiq")
    redis = importlib.import_module("dramatiq.brokers.redis")
    more = {"heartbeat_timeout": 1000 * settings["lease"]} if "lease" in settings else {}
    broker = redis.RedisBroker(url=url, **more)
    dramatiq.set_broker(broker)
    return dramatiq.actor(handle, actor_name="run", broker=broker)


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    actor = _actor(url, settings, print)
    for payload in payloads:
        actor.send(payload)


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    broker = _actor(url, settings, handle).broker
    threads = settings["concurrency"]
    importlib.import_module("dramatiq").Worker(broker, worker_threads=threads).start()
