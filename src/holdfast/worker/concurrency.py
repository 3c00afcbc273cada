"""Adapts the number of concurrent handlers to the load: `concurrency="auto"`.

The rule: the number of this worker's tasks that want a processor, averaged over the last second,
should equal the number of processors that it may use. A CPU-bound handler wants a processor all the
time, so one handler runs per processor. A handler that waits for the network wants one for a small
part of the time, so many run. A worker may use the processors that it uses now and the idle ones,
but always at least half of all, whatever other programs do.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from holdfast import arguments
from holdfast.errors import InvalidArgument
from holdfast.escaping import logger
from holdfast.worker.executors import trees
from holdfast.worker.handlers import ExecutorKind

log = logger(__name__)

TICK_SECONDS: Final = 1.0
ROOMY: Final = 0.8
"""More handlers may run while the running ones want less than this fraction of the processors."""
CROWDED: Final = 1.1
"""Fewer should run when they want more than this. In between nothing changes."""
SATURATED: Final = 0.95
"""When all programs together use more than this fraction, some of them wait for a processor."""
ONE_PROCESSOR: Final = 1.1
"""Threads that together use less than this may be waiting for each other: the interpreter runs one
at a time."""


@dataclass(frozen=True)
class Auto:
    """Bounds of an automatic concurrency: `Worker(queue, concurrency=Auto(2, 32))`."""

    least: int = 1
    most: int | None = None
    """By default 4 processes per processor, 64 threads, 1,000 coroutines."""

    def __post_init__(self) -> None:
        arguments.whole("least", self.least, 1, 10_000)
        if self.most is not None:
            arguments.whole("most", self.most, 1, 10_000)
            if self.most < self.least:
                raise InvalidArgument(f"most must be at least {self.least}, which is the least")


def bounds_of(concurrency: object, executor: ExecutorKind) -> tuple[int, int]:
    """Return the bounds of a `concurrency` argument. A plain number is both bounds."""
    per_processor = max(1, math.floor(processors()))
    usual, many = {
        "thread": (16, 64),
        "async": (100, 1000),
        "process": (per_processor, 4 * per_processor),
    }[executor]
    if concurrency is None:
        return usual, usual
    if concurrency == "auto":
        concurrency = Auto()
    if isinstance(concurrency, Auto):
        return concurrency.least, max(concurrency.least, concurrency.most or many)
    if isinstance(concurrency, str):
        raise InvalidArgument(f"concurrency must be a number or 'auto', not {concurrency!r}")
    return (arguments.whole("concurrency", concurrency, 1, 10_000),) * 2


def next_count(count: int, bounds: tuple[int, int], load: Load, *, wants: bool, one: bool) -> int:
    """Return how many handlers should run from now on.

    wants  all slots are taken, and there may be more work
    one    handlers share one interpreter
    """
    least, most = bounds
    available = max(load.own + load.processors * (1 - load.busy), load.processors / 2, 1.0)
    if one and count > 1 and load.own <= ONE_PROCESSOR:
        available = 1.0
    wanted = max(_wanted(count, load), 0.01)
    fit = count * available / wanted  # This many would use all available processors.
    if wanted > available * CROWDED:
        return max(least, min(count, max(math.ceil(fit - 0.25), count - max(1, count // 8))))
    if wants and (wanted <= available * ROOMY or count + 1 <= available):
        more = min(count + max(1, count // 2), math.floor(fit))
        return min(most, max(count, more))
    return count


def _wanted(count: int, load: Load) -> float:
    """Return how many processors the handlers want: those they used and those they waited for."""
    if load.wanted is not None:
        return max(load.wanted, load.own)
    # The time spent waiting is unknown. When all processors are busy, all handlers may be waiting.
    return count if load.busy >= SATURATED else load.own


class Tuner:
    """Adjusts the concurrency once a second."""

    def __init__(
        self,
        bounds: tuple[int, int],
        count: int,
        *,
        one: bool,
        wants: Callable[[], bool],
        resize: Callable[[int], None],
    ) -> None:
        self._bounds = bounds
        self._count = count
        self._one = one
        self._wants = wants
        self._resize = resize
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast tuner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. The concurrency does not change after this returns."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        meter = LoadMeter()
        while not self._over.wait(TICK_SECONDS):
            try:
                self.look(meter.read())
            except Exception:
                log.exception("concurrency: unexpected error; it stays unchanged for now")

    def look(self, load: Load) -> None:
        """Change the concurrency if this load calls for it."""
        count = next_count(self._count, self._bounds, load, wants=self._wants(), one=self._one)
        if count != self._count:
            log.info(
                "concurrency: %d -> %d; handlers want %.1f of %.1f processors, %.0f %% busy",
                self._count,
                count,
                _wanted(self._count, load),
                load.processors,
                load.busy * 100,
            )
            self._resize(count)
            self._count = count


# --------------------------------------------------------------- how busy the processors are


_GROUPS: Final = Path("/sys/fs/cgroup")


class Load(NamedTuple):
    """Processor use since the previous reading."""

    busy: float
    """The fraction of the usable processors that was busy, 0 to 1."""
    own: float
    """Processors used by this process and all its descendants."""
    wanted: float | None = None
    """Processors they used or waited for; None where the kernel does not record waiting."""
    processors: float = 1.0
    """How many processors may be used."""


def processors() -> float:
    """Return how many processors this process may use. A container's quota may be a fraction."""
    allowed = float(len(_allowed()))
    quota = _quota()
    return min(allowed, quota) if quota else allowed


class LoadMeter:
    """Measures processor use between one `read` and the next."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._idle = _idle_seconds()
        self._group = _group_seconds()
        self._own = _own_seconds()
        self._wanted = _wanted_seconds(self._own)

    def read(self) -> Load:
        """Return the processor use since the previous reading."""
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
    """Return the total increase. An entry without an earlier value started at 0."""
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
    """Return, for each thread, the seconds it ran plus the seconds it waited for a processor.

    Empty where the kernel does not record them.
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
    """Return the container's processor quota; 0 when it has none."""
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
