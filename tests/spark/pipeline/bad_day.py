"""A pipeline worker with a process, a Spark and local directories of its own, to do harm to.

    python -m spark.pipeline.bad_day <url> <queue as hex> <root> <folder>

Its folder has the id of its JVM, its log, and the local directories of its Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import spark.pipeline.support  # noqa: F401  # Registers the transforms.
from holdfast.spark import Pipeline, session
from holdfast.spark.pipeline import working
from spark.program import INTERPRETED, QUICK

LEASE_SECONDS = 4
FULL_SECONDS = 1.0
"""For how long a part is given back when the disk is full, instead of half a minute."""
TESTS = Path(__file__).parents[2]


class Victim:
    """Such a worker, from outside."""

    def __init__(self, pipeline: Pipeline, url: str, root: Path, folder: Path) -> None:
        folder.mkdir()
        self.local = folder / "local"
        self._jvm = folder / "jvm"
        self._log = folder / "log"
        name = pipeline.queue.name.encode().hex()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark.pipeline.bad_day", url, name, root, folder],
                env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{TESTS}"},
                cwd=TESTS,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._known: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def kill_the_jvm(self) -> None:
        self.look()
        os.kill(int(self._jvm.read_text()), signal.SIGKILL)

    def kill(self) -> None:
        """Kill all of it at once, as the kernel does where memory is short."""
        for process in self.look():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def freeze(self) -> None:
        for process in self.look():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        for process in reversed(self._known):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def left(self) -> list[psutil.Process]:
        """Return what still runs of it: its JVM, and the Python processes of its Spark."""
        return [process for process in self._known if _runs(process)]

    def look(self) -> list[psutil.Process]:
        """Return its processes, and remember them: when it is dead, nobody knows its children."""
        this = psutil.Process(self.pid)
        self._known += [
            found for found in [this, *this.children(recursive=True)] if found not in self._known
        ]
        return self._known

    def end(self) -> None:
        """Leave nothing of it, whatever became of the test."""
        if not self.is_over:
            self.look()
        for process in self._known:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def main(url: str, queue: str, root: str, folder: str) -> None:
    working.FULL_SECONDS = FULL_SECONDS  # type: ignore[misc]
    config = {"spark.local.dir": f"{folder}/local"}
    os.environ["WORKER_PID"] = str(os.getpid())  # Spark's Python processes have it, too.
    spark = session(
        "bad day", master="local[2]", memory="512m", config=QUICK | INTERPRETED | config
    )
    gateway: Any = spark.sparkContext._gateway
    Path(folder, "jvm").write_text(str(gateway.proc.pid))
    with Pipeline(bytes.fromhex(queue).decode(), url, roots=root) as pipeline:
        pipeline.work(spark, concurrency=2, lease=LEASE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
