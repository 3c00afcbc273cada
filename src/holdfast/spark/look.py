"""A batch read: the jobs of a queue as a table. It leases none, and the queue goes on.

A partition is a range of positions in the order of one state. A job that moves during the read may
appear twice or not at all; a queue that does not change is read exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.job import Job, State
from holdfast.spark.options import LookOptions, reach
from holdfast.spark.tables import BINARY, INT, STRING, TIMESTAMP, Table

JOBS: Final = Table(
    id=STRING,
    value=BINARY,
    state=STRING,
    priority=INT,
    at=TIMESTAMP,
    failures=INT,
    lapses=INT,
    error=STRING,
    request=STRING,
    group=STRING,
    handler=STRING,
    leased_at=TIMESTAMP,
)

JOBS_PER_CALL: Final = 1000
JOBS_PER_PARTITION: Final = 20_000


@dataclass
class Range(InputPartition):
    """A range of positions in one state."""

    state: State
    first: int
    count: int


class LookReader(DataSourceReader):
    """Reads the jobs of a queue, and leases none."""

    def __init__(self, options: LookOptions) -> None:
        self._options = options

    def partitions(self) -> list[Range]:
        """Divide the jobs into ranges, at least one: Spark would read an empty list as [None]."""
        reach(self._options.place)
        counts = self._options.place.open().counts()
        ranges = [
            Range(state, first, JOBS_PER_PARTITION)
            for state in self._options.states
            for first in range(0, getattr(counts, state), JOBS_PER_PARTITION)
        ]
        return ranges or [Range(self._options.states[0], 0, JOBS_PER_PARTITION)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the jobs of one range, a batch per call to the server."""
        assert isinstance(partition, Range)
        queue = self._options.place.open()
        first, end = partition.first, partition.first + partition.count
        while first < end:
            jobs = queue.peek(min(JOBS_PER_CALL, end - first), state=partition.state, first=first)
            if not jobs:
                return
            rows = [_row(job) for job in jobs]
            yield JOBS.batch(dict(zip(JOBS.names, map(list, zip(*rows, strict=True)), strict=True)))
            first += len(jobs)


def _row(job: Job) -> tuple[object, ...]:
    """Return the value of each column for a job."""
    facts = job.facts
    return (
        job.id,
        job.data,
        job.state,
        job.priority,
        _instant(job.at),
        facts.failures,
        facts.lapses,
        facts.error,
        facts.request,
        facts.group,
        facts.handler,
        _instant(job.leased_at),
    )


def _instant(seconds: float | None) -> int | None:
    """Return an instant in microseconds, for Arrow; None for never."""
    if seconds is None or not math.isfinite(seconds):
        return None
    return round(seconds * 1_000_000)
