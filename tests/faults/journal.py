"""What handlers did, as they wrote it down themselves: a file for each worker.

Each line is one write to a file that is only appended to, so what was written before a kill -9 is
there after it. Times are milliseconds of the wall clock, which is also the server's here.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Way: TypeAlias = Literal["return", "raise", "retry", "fail", "hang", "linger"]
"""How a run ends: hang = only with its worker, or when somebody stops it; linger = in a while."""


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a job: its name, which no other has, and what its runs are to do."""

    name: str
    plan: list[Way]
    """One after the other; the last also for all that come after it."""
    max_failures: int = 0
    max_lapses: int = 0
    priority: int = 50
    follow_up: bool = False

    def way(self, runs: int) -> Way:
        """Return what a run does, after so many."""
        return self.plan[min(runs, len(self.plan) - 1)]

    def next(self) -> Order:
        """Return what follows when this is done."""
        return Order(f"{self.name}+", ["return"], self.max_failures, max_lapses=3)


class Began(msgspec.Struct, frozen=True, tag=True):
    """A handler was called."""

    id: str
    token: str
    name: str
    failed: bool
    """Whether it is the failure handler."""
    at: float


class Over(msgspec.Struct, frozen=True, tag=True):
    """A handler is about to return or to raise."""

    id: str
    token: str
    how: Way | Literal["stopped"]
    """stopped: a coroutine that was cancelled, or a process that dies."""
    after: float
    """Seconds after which it wants to be tried again."""
    at: float


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The process that ran a handler has ended, and its worker knows."""

    id: str
    token: str
    at: float


class Left(msgspec.Struct, frozen=True, tag=True):
    """The worker was told to stop: from now on it may give back what it runs."""

    at: float


Line: TypeAlias = Began | Over | Ended | Left

encode = msgspec.json.encode
read_order = msgspec.json.Decoder(Order).decode
_read = msgspec.json.Decoder(Line).decode


def now() -> float:
    return time.time() * 1000


class Journal:
    """Where one worker writes, and its children."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self.pid = os.getpid()
        # Not by the pid alone: the kernel gives that of a dead worker to another one.
        self._file = os.open(directory / f"{self.pid}.{secrets.token_hex(4)}", flags)

    def write(self, line: Line) -> None:
        os.write(self._file, encode(line) + b"\n")


def read(directory: Path) -> Iterator[list[Line]]:
    """Return what each worker wrote."""
    for path in directory.iterdir():
        yield [_read(line) for line in path.read_bytes().splitlines()]
