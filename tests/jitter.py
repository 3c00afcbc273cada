"""A pytest plugin that pauses threads and child processes at random: `make jitter`.

A busy machine does the same, but rarely. A test that fails here while the product is right depends
on the machine's speed, and will fail one day in a run that counts. Python 3.11 crashes in its
garbage collector when many threads have a profile function, so this needs 3.12.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil
import pytest

LONGEST = 0.4
BETWEEN_PAUSES = 0.15
BETWEEN_FREEZES = 0.7

_ROOT = Path(__file__).parents[1]
_OURS = (str(_ROOT / "src"), str(_ROOT / "tests"))
_seed = int(os.environ.get("HOLDFAST_JITTER_SEED") or 0) or time.time_ns() % 1_000_000
_random = random.Random(f"{_seed} {os.environ.get('PYTEST_XDIST_WORKER', '')}")


def pytest_configure() -> None:
    if sys.version_info < (3, 12):
        raise pytest.UsageError("Jitter needs Python 3.12: make PYTHON=python3.12 VENV=… jitter")
    os.kill = _noting


def pytest_report_header() -> str:
    return f"jitter: HOLDFAST_JITTER_SEED={_seed}"


class _Pauses:
    """Pauses whichever thread calls a function of ours at a random time."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if time.monotonic() < self._next or not frame.f_code.co_filename.startswith(_OURS):
            return
        seconds = LONGEST * _random.random() ** 3
        self._next = time.monotonic() + seconds + _random.expovariate(1 / BETWEEN_PAUSES)
        time.sleep(seconds)


def _freeze_children(over: threading.Event) -> None:
    """Freeze a random child process for a moment, again and again."""
    me = psutil.Process()
    while not over.wait(_random.expovariate(1 / BETWEEN_FREEZES)):
        with suppress(psutil.Error):
            if children := me.children(recursive=True):
                _freeze(_random.choice(children))


_frozen: set[int] = set()
"""Processes that a test froze, which only the test may thaw."""
_kill = os.kill


def _noting(pid: int, number: int) -> None:
    if number == signal.SIGSTOP:
        _frozen.add(pid)
    elif number == signal.SIGCONT:
        _frozen.discard(pid)
    _kill(pid, number)


def _freeze(process: psutil.Process) -> None:
    if process.pid in _frozen or process.status() == psutil.STATUS_STOPPED:
        return
    _kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(LONGEST * _random.random() ** 2)
    finally:
        if process.pid not in _frozen:
            with suppress(ProcessLookupError):
                _kill(process.pid, signal.SIGCONT)


@pytest.fixture(autouse=True)
def jitter() -> Iterator[None]:
    """Pause the threads and the child processes of each test."""
    pauses, over = _Pauses(), threading.Event()
    freezing = threading.Thread(target=_freeze_children, args=(over,), daemon=True)
    freezing.start()
    threading.setprofile(pauses)
    sys.setprofile(pauses)
    yield
    sys.setprofile(None)
    threading.setprofile(None)
    over.set()
    freezing.join()
