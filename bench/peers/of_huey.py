"""Huey: its consumer with threads; a task that was popped is lost with its worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from huey import RedisHuey

_handle: list[Callable[[str], None]] = []


def run(payload: str) -> None:
    _handle[0](payload)


def _huey(url: str) -> tuple[RedisHuey, Any]:
    huey = RedisHuey("bench", url=url, results=False)
    return huey, huey.task()(run)


def add_each(url: str, payloads: Iterable[str], _settings: dict[str, Any]) -> None:
    _, task = _huey(url)
    for payload in payloads:
        task(payload)


def work(url: str, settings: dict[str, Any], handle: Callable[[str], None]) -> None:
    _handle[:] = [handle]
    logging.disable(logging.WARNING)
    huey, _ = _huey(url)
    huey.create_consumer(
        workers=settings["concurrency"], periodic=False, check_worker_health=False
    ).run()
