"""The floor: the least that moves a job at all. It is no queue, and loses what its taker had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.floor import Floor, PlainFloor


def _floor(url: str, settings: dict[str, Any]) -> Floor | PlainFloor:
    return PlainFloor(url) if settings["client"] == "redis-py" else Floor(url)


def add_each(url: str, payloads: Iterable[str], settings: dict[str, Any]) -> None:
    floor = _floor(url, settings)
    for payload in payloads:
        floor.add(payload.encode())


def add_bulk(url: str, chunks: Iterable[list[str]], settings: dict[str, Any]) -> None:
    floor = _floor(url, settings)
    for chunk in chunks:
        floor.add_many([payload.encode() for payload in chunk])


def work(url: str, settings: dict[str, Any], handle: Callable[[bytes], None]) -> None:
    floor = _floor(url, settings)
    while True:
        for payload in floor.take(settings["concurrency"], 1):
            handle(payload)
