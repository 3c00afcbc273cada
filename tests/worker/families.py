"""Processes that handlers start, and that must be gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support import wait_until


class Pids:
    """A file in which handlers note the processes that they are and that they start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def note(self, pid: int | None = None) -> None:
        with self._path.open("a") as file:
            file.write(f"{os.getpid() if pid is None else pid}\n")

    def all(self) -> list[int]:
        return [int(line) for line in self._path.read_text().split()]

    def wait(self, count: int) -> list[int]:
        wait_until(lambda: len(self.all()) >= count, f"{count} processes")
        return self.all()

    def wait_for_end(self) -> None:
        wait_until(lambda: not any(map(is_alive, self.all())), "all processes to be gone")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Pids]:
    pids = Pids(tmp_path / "pids")
    yield pids
    for pid in filter(is_alive, pids.all()):
        os.kill(pid, signal.SIGKILL)


def start_family(pids: Pids) -> None:
    """Start a child, a daemon in a session of its own, and one whose parent is gone."""
    command = "echo $$ >> $0; exec sleep 1000"
    for shell in (command, f"setsid sh -c '{command}' $0 &", f"(setsid sh -c '{command}' $0 &) &"):
        subprocess.Popen(["sh", "-c", shell, str(pids._path)], stdin=subprocess.DEVNULL)
    pids.wait(4)
