"""Ends a process with everything that it started, however it tried to hide.

On Linux a process can be made the one to whom orphans below it are given, so a daemon that was
forked twice is still found under it. When that process is killed, its orphans go to somebody else.
So all of them have a mark too: a resource limit with an odd number. Every process inherits it, over
fork, exec and setsid and with an empty environment, and can be asked for it. The limit is that of
file locks, which no Linux since 2.4 enforces.

Elsewhere what is left in the process group is ended.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NewType

import psutil

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_RLIMIT_LOCKS: Final = 10
LOOKS: Final = 5
"""So often nothing may be found before nothing is left: a process may fork and exit meanwhile."""
STOP_SECONDS: Final = 5.0
"""A tree that grows faster than it can be stopped is ended in this time."""


Mark = NewType("Mark", int)
"""What all processes have that descend from one fork server of a worker."""


def new_mark() -> Mark:
    """Return a mark that no other worker has."""
    return Mark(random.SystemRandom().randrange(2**61, 2**62))


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


def wear(mark: Mark) -> None:
    """Have this process, and all that it starts from now on, found by `marked`."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # A lower limit is set here already.
            _, most = resource.getrlimit(_RLIMIT_LOCKS)
            resource.setrlimit(_RLIMIT_LOCKS, (mark, most))


def marked(mark: Mark) -> set[int]:
    """Find the living processes that have this mark."""
    return {one.pid for one in _marked(mark) if one.lives}


def _marked(mark: Mark) -> list[_Process]:
    """Find all with this mark, with as little as possible for each: some are there for a moment."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):  # It has ended, or is another user's.
            if resource.prlimit(pid, _RLIMIT_LOCKS)[0] == mark:
                found.append((pid, os.getpgid(pid)))
    return [_Process(pid, 0, group, lives=_lives(pid)) for pid, group in found]


def _lives(pid: int) -> bool:
    with suppress(OSError, ValueError):  # It has ended meanwhile.
        return _stat(pid)[0] not in b"ZX"
    return False


def end_marked(mark: Mark, seconds: float, *, spared: int = 0) -> None:
    """Kill all processes with this mark; wait for their end, but not for longer than this."""
    if sys.platform == "linux":
        deadline = time.monotonic() + seconds
        left = LOOKS
        while left and time.monotonic() < deadline:
            found = [one for one in _marked(mark) if one.pid != spared]
            _signal(found, signal.SIGKILL)
            left = LOOKS if any(one.lives for one in found) else left - 1
            time.sleep(0.001)


def end_tree(leader: int) -> None:
    """Kill a process that leads a tree, and all that it started."""
    found: dict[int, _Process] = {}
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        new = [one for one in _tree(leader) if one.pid not in found]
        found |= {one.pid: one for one in new}
        if not any(one.lives for one in new):
            break
        _signal(new, signal.SIGSTOP)  # What is stopped starts nothing more.
    end_group(leader)
    _signal(found.values(), signal.SIGKILL)


def _signal(processes: Iterable[_Process], number: signal.Signals) -> None:
    """Signal processes of jobs, and their groups, also those of the dead.

    A process that forks and exits again and again is gone before it is found, but no fork slips
    through a signal to its group. A group is part of one session, and each job has its own.
    """
    ours = os.getpgrp()  # Who was just born is in that of its parent.
    groups = set()
    for one in processes:
        groups.add(one.group)
        if one.lives:
            with suppress(OSError):
                os.kill(one.pid, number)
    for group in groups - {0, ours}:
        with suppress(OSError):
            os.killpg(group, number)


def end_group(leader: int) -> None:
    """Kill what is left of a process and of those that it started, and that did not hide."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped, by SIGSTOP or a debugger."""
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def below(leader: int, *, only_children: bool = False) -> list[int]:
    """Find the living processes that descend from one."""
    tree = _tree(leader)
    return [
        one.pid
        for one in tree
        if one.lives and one.pid != leader and (not only_children or one.parent == leader)
    ]


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int
    """0 where it is not known."""
    lives: bool


def _tree(leader: int) -> list[_Process]:
    """Find a process and those that descend from it, also the dead that nobody waited for."""
    if sys.platform != "linux":
        return _tree_by_psutil(leader)
    children: dict[int, list[_Process]] = {}
    found = []
    for one in _all_processes():
        children.setdefault(one.parent, []).append(one)
        if one.pid == leader:
            found.append(one)
    for one in found:
        found += children.get(one.pid, ())
    return found


def _all_processes() -> Iterator[_Process]:
    """Read what the kernel says: for thousands of processes psutil would take seconds."""
    for pid in psutil.pids():
        with suppress(OSError, ValueError):  # It has ended meanwhile.
            state, parent, group = _stat(pid)
            yield _Process(pid, int(parent), int(group), lives=state not in b"ZX")


def _stat(pid: int) -> list[bytes]:
    """Return state, parent and group. The name comes before, and may have any characters."""
    with Path(f"/proc/{pid}/stat").open("rb") as file:
        return file.read().rpartition(b")")[2].split(None, 3)[:3]


def _tree_by_psutil(leader: int) -> list[_Process]:
    try:
        first = psutil.Process(leader)
        children = {one.pid for one in first.children()}
        others = {one.pid for one in first.children(recursive=True)} - children
    except psutil.NoSuchProcess:
        return []
    parents = {leader: 0, **dict.fromkeys(children, leader), **dict.fromkeys(others, 0)}
    return [_Process(pid, parent, 0, lives=True) for pid, parent in parents.items()]


def has_more_than(leader: int, megabytes: float) -> bool:
    """Tell whether a process and all that it started have more memory, not counting what is shared.

    What is shared takes long to tell apart, so that is looked at only where it could matter.
    """
    pids = [leader, *below(leader)]
    for size in (_with_shared, _own):
        total = 0
        for pid in pids:
            with suppress(psutil.Error):
                total += size(psutil.Process(pid))
        if total <= megabytes * 2**20:
            return False
    return True


def _with_shared(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _own(process: psutil.Process) -> int:
    return int(process.memory_full_info().uss)


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
