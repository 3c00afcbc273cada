"""A process that outlives its worker by a moment, and ends what the worker's jobs left running.

The fork server does the same when its worker dies. But a job may have stopped or killed the fork
server, and then nobody would be left. The guard is another process with nothing to do until then:
it watches the worker, and when that is gone it ends every process that has the mark of the jobs.
Linux only: elsewhere there is no mark (`trees.py`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from holdfast.worker.executors.processes import trees

LOOK_SECONDS: Final = 1.0
"""How often it looks whether the worker is there."""
END_SECONDS: Final = 10.0
"""How long the end of a process is waited for that the kernel does not let go."""


class Guard:
    """The worker's side."""

    def __init__(self, mark: trees.Mark) -> None:
        self._link, link = socket.socketpair()
        worker = os.getpid()
        self.pid = fork()
        if self.pid == 0:
            _be_guard(link, worker, mark)
        link.close()

    def close(self) -> None:
        """Dismiss it. It looks once more whether something is left."""
        with suppress(OSError):
            self._link.send(b".")
        self._link.close()
        reap(self.pid, END_SECONDS)


def fork() -> int:
    """Fork, also where this process has threads: they are not in the new one."""
    with warnings.catch_warnings():
        # Other threads than ours may be there: whoever has some knows what they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reap(pid: int, seconds: float) -> None:
    """Wait until a child of ours has ended, and end it when that takes longer."""
    deadline = time.monotonic() + seconds
    killed = False
    with suppress(ChildProcessError):  # Somebody else, or nobody, waits for children here.
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                if killed:
                    return  # The kernel does not let it go.
                os.kill(pid, signal.SIGKILL)
                deadline, killed = time.monotonic() + seconds, True
            elif trees.is_stopped(pid):
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)


def readable(link: socket.socket, seconds: float) -> bool:
    """Wait until there is something to read; not with select, which knows 1024 descriptors."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def forget_signals() -> None:
    """Let signals that this process gets be heard by nobody else, and be told of its children."""
    signal.set_wakeup_fd(-1)  # That of an event loop is in the worker.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _be_guard(link: socket.socket, worker: int, mark: trees.Mark) -> NoReturn:
    try:
        os.setsid()
        forget_signals()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _close_all_but(link.fileno())
        while os.getppid() == worker and not readable(link, LOOK_SECONDS):
            pass
        trees.end_marked(mark, END_SECONDS)
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    """Close what was inherited: connections of the worker, and what others read its output from."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) != kept:
            with suppress(OSError):
                os.close(int(path.name))
