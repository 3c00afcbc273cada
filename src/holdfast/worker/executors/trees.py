"""Ends a process with all its descendants, even if they tried to detach.

On Linux a process can be made a subreaper: orphans below it are reparented to it, so a daemon that
was forked twice is still found under it. When the subreaper is killed, its orphans are reparented
elsewhere. So all descendants also have a mark: an unusual value of a resource limit. Processes
inherit it over fork, exec and setsid, even with an empty environment, and it can be read from
outside. The limit is that of file locks, which Linux has not enforced since 2.4.

On other systems only the process group is killed.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NewType

import psutil

with suppress(ModuleNotFoundError):
    import resource  # Windows has none, and no workers.

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_RLIMIT_LOCKS: Final = 10
LOOKS: Final = 5
"""How many searches in a row must find nothing: a process may fork and exit during one."""
STOP_SECONDS: Final = 5.0
"""How long to try to stop a growing tree before it is killed as it is."""


Mark = NewType("Mark", int)
"""The resource limit of all descendants of a worker's fork servers."""


def new_mark() -> Mark:
    """Return a mark that no other worker uses."""
    return Mark(random.SystemRandom().randrange(2**61, 2**62))


def lead_tree() -> None:
    """Make this process a session leader and a subreaper."""
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, for whatever reason.

    Call it in the child of a process without threads: the kernel counts the end of the thread that
    forked as the parent's death.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent has died already.
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def wear(mark: Mark) -> None:
    """Set the mark on this process and its future descendants."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # A lower hard limit is set already.
            _, most = resource.getrlimit(_RLIMIT_LOCKS)
            resource.setrlimit(_RLIMIT_LOCKS, (mark, most))


def _marked(mark: Mark) -> list[_Process]:
    """Find all processes with this mark. Fast for each process, since some live only briefly."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError):  # It has ended, or belongs to another user.
            if resource.prlimit(pid, _RLIMIT_LOCKS)[0] == mark:
                found.append((pid, os.getpgid(pid)))
    return [_Process(pid, 0, group, lives=_lives(pid)) for pid, group in found]


def _lives(pid: int) -> bool:
    with suppress(OSError, ValueError):  # It has ended meanwhile.
        return _stat(pid)[0] not in b"ZX"
    return False


def end_marked(mark: Mark, seconds: float, *, spared: int = 0) -> None:
    """Kill all processes with this mark, and wait up to `seconds` for their end."""
    if sys.platform == "linux":
        deadline = time.monotonic() + seconds
        left = LOOKS
        while left and time.monotonic() < deadline:
            found = [one for one in _marked(mark) if one.pid != spared]
            _signal(found, signal.SIGKILL)
            left = LOOKS if any(one.lives for one in found) else left - 1
            time.sleep(0.001)


def end_tree(leader: int) -> None:
    """Kill the leader of a tree and all its descendants."""
    found: dict[int, _Process] = {}
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        new = [one for one in _tree(leader) if one.pid not in found]
        found |= {one.pid: one for one in new}
        if not any(one.lives for one in new):
            break
        _signal(new, signal.SIGSTOP)  # A stopped process cannot fork.
    end_group(leader)
    _signal(found.values(), signal.SIGKILL)


def _signal(processes: Iterable[_Process], number: signal.Signals) -> None:
    """Signal processes of jobs and their process groups, including the groups of dead processes.

    A process that forks and exits again and again is gone before it is found, but a signal to its
    group reaches every fork. A group belongs to one session, and each job has its own session.
    """
    ours = os.getpgrp()  # A process just forked is in its parent's group.
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
    """Kill the process group of a leader."""
    with suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger."""
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def below(leader: int, *, only_children: bool = False) -> list[int]:
    """Return the living descendants of a process."""
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
    """0 if unknown."""
    lives: bool


def _tree(leader: int) -> list[_Process]:
    """Find a process and its descendants, including zombies."""
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
    """Read /proc directly: with thousands of processes psutil would take seconds."""
    for pid in psutil.pids():
        with suppress(OSError, ValueError):  # It has ended meanwhile.
            state, parent, group = _stat(pid)
            yield _Process(pid, int(parent), int(group), lives=state not in b"ZX")


def _stat(pid: int) -> list[bytes]:
    """Return state, parent and group. They follow the name, which may contain any characters."""
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
    """Return whether a process and its descendants use more memory, not counting shared memory.

    Measuring shared memory is slow, so that is done only if the total exceeds the limit.
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
    """Becomes readable when a process has ended. Raises ProcessLookupError where unsupported."""

    def __init__(self, pid: int) -> None:
        if sys.platform != "linux":
            raise ProcessLookupError
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
