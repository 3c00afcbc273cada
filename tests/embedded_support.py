"""What tests of the embedded server share: who runs in a directory, and how it is ended."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.server.embedded import Embedded
from support import wait_until


def pid_in(directory: Path, lock: str) -> int:
    return int((directory / lock).read_text().split()[0])


def runs(pid: int) -> bool:
    """Say whether a process has not ended; one that only waits to be reaped has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


def is_held(lock: Path) -> bool:
    """Say whether a process has this lock."""
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not runs(pid), f"process {pid} ended")


def kill_server(directory: Path) -> None:
    pid = pid_in(directory, "server.lock")
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def connect(user: Embedded) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(user.socket),
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


def end(directory: Path) -> None:
    """End the keeper and the server of a directory, if they run, and remove its short name."""
    for lock in ("keeper.lock", "server.lock"):
        with suppress(FileNotFoundError, NotADirectoryError, ProcessLookupError, IndexError):
            pid = pid_in(directory, lock)
            # One that has ended left its pid there, which may be somebody else's by now.
            if is_held(directory / lock) and runs(pid):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
                wait_for_end(pid)
    with suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree((directory / "short-path").read_text().strip(), ignore_errors=True)


def wait_until_stopped(directory: Path) -> None:
    """Wait until the keeper has stopped the server that nobody uses any more."""
    for lock in ("server.lock", "keeper.lock"):
        wait_for_end(pid_in(directory, lock))
