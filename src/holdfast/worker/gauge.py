"""How busy the processors are that this worker may use, and how much of that is its own doing."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_GROUPS: Final = Path("/sys/fs/cgroup")


class Load(NamedTuple):
    """What was used since the last look."""

    busy: float
    """Of what may be used: 1 when nothing is left."""
    own: float
    """By this process and all that it started, in processors."""


def processors() -> float:
    """Return how many processors this process may use: a container may have half a one."""
    allowed = float(len(_allowed()))
    quota = _quota()
    return min(allowed, quota) if quota else allowed


class Gauge:
    """Each `read` tells about the time since the one before."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._idle = _idle_seconds()
        self._group = _group_seconds()
        self._own = _own_seconds()

    def read(self) -> Load:
        """Return what was used since the last look."""
        now, idle, group, own = time.monotonic(), _idle_seconds(), _group_seconds(), _own_seconds()
        seconds = max(now - self._at, 0.001)
        busy = 1 - (idle - self._idle) / seconds / len(_allowed())
        if quota := _quota():
            busy = max(busy, (group - self._group) / seconds / quota)
        used = sum(max(0.0, spent - self._own.get(pid, 0.0)) for pid, spent in own.items())
        self._at, self._idle, self._group, self._own = now, idle, group, own
        return Load(min(max(busy, 0.0), 1.0), used / seconds)


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _idle_seconds() -> float:
    idle = 0.0
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in _allowed():
            idle += times.idle + getattr(times, "iowait", 0.0)
    return idle


def _own_seconds() -> dict[int, float]:
    spent = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            spent[process.pid] = times.user + times.system
    return spent


def _quota() -> float:
    """Return how many processors the container may use; 0 where nothing is said."""
    with suppress(OSError, ValueError):
        most, period = (_group() / "cpu.max").read_text().split()
        return int(most) / int(period)
    return 0.0


def _group_seconds() -> float:
    with suppress(OSError, ValueError):
        for line in (_group() / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
    return 0.0


def _group() -> Path:
    name = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    return _GROUPS / name.lstrip("/")
