"""How things are measured here: a server of our own, alternated rounds, medians, steady cores."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from holdfast.server.embedded import find_binary


@dataclass(frozen=True)
class Effort:
    """What a server did since it was started."""

    reads: int
    """How often it read from a connection."""
    seconds: float
    """Processor time."""


class BenchServer:
    """A server on loopback TCP for one run of a bench; with `aof`, it fsyncs as that says.

    under   the program that runs it, such as valgrind, with its arguments
    more    settings of the server
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        aof: str = "off",
        *,
        under: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        command = [*under, str(find_binary()), "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--save", "", *more]
        command += ["--dir", str(directory), "--logfile", "log"]
        command += ["--appendonly", "no" if aof == "off" else "yes"]
        command += [] if aof == "off" else ["--appendfsync", aof]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet if under else None)
        self.client = redis.Redis(port=port)
        deadline = time.monotonic() + (60 if under else 20)
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def clear(self) -> None:
        """Empty it, and be done with that: else a thread of the server frees while we measure."""
        self.client.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]

    def used_memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def script_usec(self) -> int:
        """Microseconds that the server spent in functions so far."""
        stats = self.client.info("commandstats")
        found = (stats.get(f"cmdstat_{name}") for name in ("fcall", "fcall_ro"))
        return sum(int(stat["usec"]) for stat in found if stat)

    def effort(self) -> Effort:
        info = self.client.info("all")
        seconds = info["used_cpu_user"] + info["used_cpu_sys"]
        return Effort(int(info["total_reads_processed"]), float(seconds))

    def version(self) -> str:
        info = self.client.info("server")
        version = info.get("valkey_version", info["redis_version"])
        return f"{info.get('server_name', 'redis')} {version}"


def free_port() -> int:
    """Find a port below those that systems give to whoever connects: nobody takes it before us."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def bench_server(
    aof: str = "off", *, under: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[BenchServer]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hf-bench") as directory:
        server = BenchServer(Path(directory), port, aof, under=under, more=more)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait()


@contextlib.contextmanager
def steady_cores() -> Iterator[None]:
    """Keep the cores awake with idle-priority spinners: a halted core costs each trip ~80 µs."""
    spin = [sys.executable, "-c", "import os\nos.nice(19)\nwhile os.getppid() != 1: pass"]
    spinners = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.send_signal(signal.SIGKILL)
            spinner.wait()


class Load:
    """How busy the machine is from now on, for the line beside a table."""

    def __init__(self) -> None:
        self._began = os.getloadavg()[0]
        self._ticks = _ticks()

    def __str__(self) -> str:
        said = f"load average {self._began:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
        passed = [now - then for now, then in zip(_ticks(), self._ticks, strict=True)]
        total = sum(passed)
        if total and len(passed) > STEAL:
            said += f", {100 * passed[STEAL] / total:.1f} % of the processor time stolen"
        return said


STEAL = 7
"""The place of the time that a hypervisor gave to others, in the line `cpu` of /proc/stat."""


def _ticks() -> list[int]:
    """Return the processor time of the machine by kind; nothing where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return []
    first = stat.read_text().partition("\n")[0]
    return [int(word) for word in first.split()[1:9]]  # What follows is counted twice.


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    """The median and how far the rounds lie apart."""
    middle = statistics.median(values)
    return f"±{100 * (max(values) - min(values)) / 2 / middle:.0f} %" if middle else ""
