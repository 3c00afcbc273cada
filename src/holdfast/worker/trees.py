"""Ends a process with everything that it started, however it tried to hide.

On Linux a process can be made the one to whom orphans below it are given, so a daemon that was
forked twice is still found under it. Elsewhere what is left in its process group is ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Final

import psutil

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ROUNDS: Final = 100
"""A tree that grows faster than it can be stopped is ended in as many steps."""


def lead_tree() -> None:
    """Make this process the leader of a session, and the one to whom orphans below it are given."""
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Let this process be killed when its parent dies, whatever that dies of.

    To be called in the child of a process without threads: what counts as the parent's death is
    that of the thread that forked.
    """
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
    end_group(leader)
    for pid in found:
        _send(pid, signal.SIGKILL)


def end_group(leader: int) -> None:
    """Kill what is left of a process and of those that it started, and that did not hide."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def below(leader: int, *, only_children: bool = False) -> list[int]:
    """Find the processes that descend from one."""
    try:
        found = psutil.Process(leader).children(recursive=not only_children)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in found]


def has_more_than(leader: int, megabytes: float) -> bool:
    """Tell whether a process and all that it started have more memory, not counting what is shared.

    What is shared takes long to tell apart, so that is looked at only where it could matter.
    """
    try:
        first = psutil.Process(leader)
        processes = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return False
    for size in (_with_shared, _own):
        total = 0
        for process in processes:
            with suppress(psutil.Error):
                total += size(process)
        if total <= megabytes * 2**20:
            return False
    return True


def _with_shared(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _own(process: psutil.Process) -> int:
    return int(process.memory_full_info().uss)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Death:
    """Becomes readable when a process has ended; ProcessLookupError where that cannot be told."""

    listening = True

    def __init__(self, pid: int) -> None:
        if sys.platform != "linux":
            raise ProcessLookupError
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return what to wait for."""
        return self._descriptor

    def close(self) -> None:
        """Watch no more."""
        os.close(self._descriptor)
