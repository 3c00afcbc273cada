"""Ends a process with everything that it started, however it tried to hide.

On Linux a process can be made the one to whom orphans below it are given, so a daemon that was
forked twice is still found under it. Elsewhere what is left in its process group is ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")
_ROUNDS: Final = 100
"""A tree that grows faster than it can be stopped is ended in as many steps."""


def lead_tree() -> None:
    """Make this process the leader of a session, and the one to whom orphans below it are given."""
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Let this process be killed when its parent dies, whatever that dies of."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It died before.
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_tree(leader: int) -> None:
    """Kill a process that leads a tree, and all that it started."""
    found: set[int] = set()
    for _ in range(_ROUNDS):
        new = {leader, *below(leader)} - found
        for pid in new:
            _send(pid, signal.SIGSTOP)  # What is stopped starts nothing more.
        found |= new
        if not new:
            break
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for pid in found:
        _send(pid, signal.SIGKILL)


def children(leader: int) -> list[int]:
    """Find the processes whose parent is this one."""
    return [pid for pid, parent in _parents() if parent == leader]


def below(leader: int) -> Iterator[int]:
    """Find all processes that descend from one."""
    born = defaultdict(list)
    for pid, parent in _parents():
        born[parent].append(pid)
    waiting = [leader]
    while waiting:
        for pid in born.pop(waiting.pop(), ()):
            yield pid
            waiting.append(pid)


def megabytes(leader: int) -> float:
    """Return how much memory a process and all that it started have."""
    pages = 0
    for pid in (leader, *below(leader)):
        with suppress(OSError, ValueError, IndexError):
            pages += int((_PROC / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _parents() -> Iterator[tuple[int, int]]:
    if not _PROC.exists():
        return
    for process in _PROC.iterdir():
        if process.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (process / "stat").read_text()
                yield int(process.name), int(stat.rpartition(")")[2].split()[1])


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
