"""The guard: a process that briefly outlives its worker, to end processes that jobs left behind.

The fork server does the same when its worker dies, but a job may have stopped or killed the fork
server. The guard only watches the worker. When the worker is gone, the guard ends every process
with the mark of its jobs. Linux only: elsewhere there is no mark (`trees.py`).
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
"""How often it checks for the worker."""
END_SECONDS: Final = 10.0
"""How long to wait for the end of a killed process."""


class Guard:
    """The worker's side of the guard."""

    def __init__(self, mark: trees.Mark) -> None:
        self._link, link = socket.socketpair()
        worker = os.getpid()
        self.pid = fork()
        if self.pid == 0:
            _be_guard(link, worker, mark)
        link.close()

    def close(self) -> None:
        """Make the guard end remaining processes and exit."""
        with suppress(OSError):
            self._link.send(b".")
        self._link.close()
        reap(self.pid, END_SECONDS)


def fork() -> int:
    """Fork, even if this process has threads: the new process does not have them."""
    with warnings.catch_warnings():
        # The program may have threads; it is responsible for the locks that they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reap(pid: int, seconds: float) -> None:
    """Wait until a child process has ended. Kill it after `seconds`."""
    deadline = time.monotonic() + seconds
    killed = False
    with suppress(ChildProcessError):  # Reaped elsewhere: SIGCHLD is ignored, say.
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() >= deadline:
                if killed:
                    return  # The kernel does not end it.
                os.kill(pid, signal.SIGKILL)
                deadline, killed = time.monotonic() + seconds, True
            elif trees.is_stopped(pid):
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)


def readable(link: socket.socket, seconds: float) -> bool:
    """Wait until a socket is readable. Not with select, which is limited to 1024 descriptors."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def forget_signals() -> None:
    """Detach from the worker's signal handling, and get SIGCHLD for own children again."""
    signal.set_wakeup_fd(-1)  # An event loop of the worker may have set one.
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
    """Close inherited descriptors: the worker's connections, and pipes for its output."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) != kept:
            with suppress(OSError):
                os.close(int(path.name))
