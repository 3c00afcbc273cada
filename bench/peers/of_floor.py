"""The floors: the least that moves a job at all, which is no queue, and the least with leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.floor import Floor, LeanFloor, PlainFloor

FLOORS = {"redis-py": PlainFloor, "own client": Floor, "lean": LeanFloor}


def _floor(url: str, settings: dict[str, Any]) -> Floor | PlainFloor | LeanFloor:
    return FLOORS[settings["client"]](url)


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
