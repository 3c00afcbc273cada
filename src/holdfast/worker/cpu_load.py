"""How busy the processors are that this worker may use, and how much of that is its own doing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from holdfast.worker.executors.processes import trees

_GROUPS: Final = Path("/sys/fs/cgroup")


class Load(NamedTuple):
    """What was used since the last look."""

    busy: float
    """Of what may be used: 1 when nothing is left."""
    own: float
    """By this process and all that it started, in processors."""
    wanted: float | None = None
    """What they used and what they waited for while others ran; None where nobody can tell."""
    processors: float = 1.0
    """How many may be used."""


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
        self._wanted = _wanted_seconds(self._own)

    def read(self) -> Load:
        """Return what was used since the last look."""
        now, idle, group, own = time.monotonic(), _idle_seconds(), _group_seconds(), _own_seconds()
        seconds = max(now - self._at, 0.001)
        busy = 1 - (idle - self._idle) / seconds / len(_allowed())
        if quota := _quota():
            busy = max(busy, (group - self._group) / seconds / quota)
        used = _growth(self._own, own) / seconds
        after = _wanted_seconds(own)
        wanted = _growth(self._wanted, after) / seconds if after else None
        self._at, self._idle, self._group, self._own = now, idle, group, own
        self._wanted = after
        return Load(min(max(busy, 0.0), 1.0), used, wanted, processors())


def _growth(before: dict[int, float], after: dict[int, float]) -> float:
    """Return how much was added. What is new began at 0."""
    return sum(max(0.0, spent - before.get(name, 0.0)) for name, spent in after.items())


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
    for pid in (os.getpid(), *trees.below(os.getpid())):
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            spent[pid] = times.user + times.system
    return spent


def _wanted_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Return for each thread how long it ran and how long it waited for a processor.

    Empty where the kernel does not count that.
    """
    wanted = {}
    for pid in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError, ValueError):
                    ran, waited, _ = (task / "schedstat").read_text().split()
                    wanted[int(task.name)] = (int(ran) + int(waited)) / 1e9
    return wanted


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
