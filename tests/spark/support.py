"""What the tests of Spark share: looks behind a queue, and processes of Spark to be killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession

from holdfast import Queue
from holdfast.job import State

Options: TypeAlias = dict[str, str]


def payloads(queue: Queue, state: State = "ready") -> list[bytes]:
    """Return the payloads of all jobs of a state."""
    found: list[bytes] = []
    while jobs := queue.peek(1000, state=state, first=len(found)):
        found += [job.data or b"" for job in jobs]
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def children(parent: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                yield int(entry.name)


def descendants(pid: int) -> list[int]:
    """Return a process and all that came from it."""
    return [pid, *(one for child in children(pid) for one in descendants(child))]


def source_processes(java: int) -> list[int]:
    """Return the processes in which streams ask their sources for offsets."""
    return [pid for pid in descendants(java) if "python_streaming_source" in command_line(pid)]


def is_alive(pid: int) -> bool:
    return command_line(pid) != ""


def java_of(spark: SparkSession) -> int:
    gateway = spark.sparkContext._gateway
    assert gateway
    pid: int = gateway.proc.pid
    return pid
