"""The source of a stream: maps Spark's offsets to claims.

Spark makes this object in several processes and pickles it. So it opens its reader only when Spark
asks for an offset. That happens in one process only: the source's own, on the driver.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from holdfast.job import NO_FACTS, Lease
from holdfast.spark.claiming import BEFORE_ALL, Claiming
from holdfast.spark.options import SourceOptions
from holdfast.spark.tables import BINARY, INT, STRING, Table
from holdfast.spark.tasks import freeze_loaded_objects

JOBS: Final = Table(
    id=STRING,
    value=BINARY,
    failures=INT,
    lapses=INT,
    error=STRING,
    request=STRING,
    group=STRING,
    handler=STRING,
)

JOBS_PER_CHUNK: Final = 1000
IDLE_SECONDS: Final = 0.05
"""A pause while the source is idle: Spark asks it a hundred times a second."""


@dataclass
class Chunks(InputPartition):
    """Some chunks of a claim, and the epoch of the reader that may read them."""

    n: int
    numbers: range
    epoch: int


class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream: each batch is a claim, completed when Spark has committed it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._claiming: Claiming | None = None
        self._stopping = self._ending = False

    def _claims(self) -> Claiming:
        if self._claiming is None:
            # Only the main thread may set a handler; Spark calls from it.
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, self._end)
            self._claiming = Claiming(self._options)
        return self._claiming

    def _end(self, _signal: int, frame: FrameType | None) -> None:
        """Raise SystemExit at SIGTERM, so that `stop` runs before Spark ends this process.

        Python often handles a signal when it enters a function. In `stop` itself nothing is raised,
        as that would skip the cleanup.
        """
        once, self._ending = not self._ending, True
        is_called = frame is not None and frame.f_code is StreamSource.stop.__code__
        if once and not self._stopping and not is_called:
            raise SystemExit

    # ------------------------------------------------------------- on the driver

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset of a new stream: the same one after a restart."""
        return _offset(BEFORE_ALL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Limit a batch to the option `maxJobsPerTrigger`."""
        return ReadMaxRows(self._options.max_jobs)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop after as many jobs as are waiting now."""
        self._claims().limit_to_waiting()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Settle committed claims, and claim the next batch; return `start` if there is none.

        Spark asks for the offset after `start` when it has committed `start`.
        """
        claims = self._claims()
        begin = _claim(start)
        if isinstance(limit, ReadAllAvailable):
            count = claims.waiting()
        else:
            count = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_jobs
        n = claims.after(begin, count)
        if n is None:
            time.sleep(IDLE_SECONDS)
            return start
        return _offset(n)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Divide the chunks of a claim among tasks. A replay gets the same partitions.

        A Python task takes tens of milliseconds to start, as long as it takes to read ten chunks.
        So one task reads several chunks.
        """
        if start == end:
            return []
        claims, n = self._claims(), _claim(end)
        count = len(claims.chunks(n))
        step = max(1, self._options.partition_jobs // JOBS_PER_CHUNK)
        return [
            Chunks(n, range(first, min(first + step, count)), claims.epoch)
            for first in range(0, count, step)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Settle the claims that Spark has committed."""
        self._claims().settle(_claim(end))

    def stop(self) -> None:
        """Stop renewing claims, and give back a claim whose offset Spark does not know."""
        self._stopping = True
        if self._claiming:
            self._claiming.stop()
        if self._ending:
            os._exit(0)  # Spark reads no answer any more.

    # -------------------------------------------------------------- in the tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the jobs of some chunks: always the same jobs, in the same order."""
        assert isinstance(partition, Chunks)
        freeze_loaded_objects()
        options = self._options
        reader = options.place.open().reader(options.reader, epoch=partition.epoch)
        for number in partition.numbers:
            yield _batch(reader.read(partition.n, number))


def _batch(leases: list[Lease]) -> pa.RecordBatch:
    """Return jobs as columns. It is faster for jobs without facts, which most are."""
    columns: dict[str, list[Any]] = {
        "id": [lease.id for lease in leases],
        "value": [lease.data for lease in leases],
    }
    if all(lease.facts is NO_FACTS for lease in leases):
        count = len(leases)
        columns |= {"failures": [0] * count, "lapses": [0] * count}
        columns |= {name: [None] * count for name in ("error", "request", "group", "handler")}
    else:
        facts = [lease.facts for lease in leases]
        for name in ("failures", "lapses", "error", "request", "group", "handler"):
            columns[name] = [getattr(fact, name) for fact in facts]
    return JOBS.batch(columns)


def _offset(n: int) -> dict[str, int]:
    return {"claim": n}


def _claim(offset: dict[str, int]) -> int:
    return offset["claim"]
