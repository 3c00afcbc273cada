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
from collections.abc import Callable, Iterator
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
    """A server on loopback TCP for one run of a bench; with `aof`, it fsyncs as that says."""

    def __init__(self, directory: Path, port: int, aof: str = "off") -> None:
        self.url = f"redis://127.0.0.1:{port}"
        command = [str(find_binary()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(directory), "--logfile", "log"]
        command += ["--appendonly", "no" if aof == "off" else "yes"]
        command += [] if aof == "off" else ["--appendfsync", aof]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=port)
        deadline = time.monotonic() + 20
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
def bench_server(aof: str = "off") -> Iterator[BenchServer]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="hf-bench") as directory:
        server = BenchServer(Path(directory), port, aof)
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


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    """The median and how far the rounds lie apart."""
    middle = statistics.median(values)
    return f"±{100 * (max(values) - min(values)) / 2 / middle:.0f} %" if middle else ""
