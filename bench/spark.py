"""The connectors beside Spark's own sources and sinks, in one run: `make bench-spark`.

Jobs of 100 bytes, one Spark session on all cores, a server on the same machine. The sinks write a
DataFrame, the sources feed a stream that throws away what it gets. Rounds alternate; a rate is that
of the median round. Of a stream the batches are timed as Spark reports them, after the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from bench.measure import BenchServer, Load, bench_server
from bench.results import keep
from bench.targets import SPARK_SINK, SPARK_SOURCE
from holdfast import Queue
from holdfast.spark import session

PER_BATCH = 20_000
WARM_BATCHES = 2
SINK, PARQUET_SINK = "sink: value", "sink: Parquet files"
SOURCE, PARQUET_SOURCE = f"source: {PER_BATCH} a batch", "source: Parquet files"


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows with a value of 100 bytes, no two alike."""
    return spark.range(count).selectExpr("lpad(cast(id as string), 100, 'x') value")


class Bench:
    """One session, one server, and a folder for files."""

    def __init__(self, spark: SparkSession, server: BenchServer, folder: Path) -> None:
        self.spark = spark
        self.server = server
        self.folder = folder
        self._number = 0

    def fresh(self, what: str) -> str:
        self._number += 1
        return f"{what}-{self._number}"

    # ------------------------------------------------------------------------- sinks

    def sink(self, count: int, columns: str = "value") -> float:
        name = self.fresh("sink")
        table = rows(self.spark, count).selectExpr(*columns.split("; "))
        writer = table.write.format("holdfast").options(url=self.server.url, queue=name)
        spent = seconds_of(lambda: writer.mode("append").save())
        with Queue(name, self.server.url) as queue:
            assert queue.counts().ready == count
            queue.delete()
        return count / spent

    def parquet_sink(self, count: int) -> float:
        path = str(self.folder / self.fresh("parquet"))
        return count / seconds_of(lambda: rows(self.spark, count).write.parquet(path))

    def queue_alone(self, count: int) -> float:
        """What `add_many` of one process does, for comparison."""
        name = self.fresh("alone")
        payloads = [b"%0100d" % number for number in range(count)]
        with Queue(name, self.server.url) as queue:
            spent = seconds_of(lambda: queue.add_many(payloads))
            queue.delete()
        return count / spent

    # ----------------------------------------------------------------------- sources

    def source(self, count: int) -> float:
        name = self.fresh("source")
        with Queue(name, self.server.url) as queue:
            queue.add_many(b"%0100d" % number for number in range(count))
            reader = self.spark.readStream.format("holdfast").options(
                url=self.server.url, queue=name, reader="bench", maxJobsPerTrigger=PER_BATCH
            )
            rate = self._stream(reader, count)
            queue.delete()
        return rate

    def rate_source(self, count: int) -> float:
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PER_BATCH)
        return self._stream(reader, count)

    def parquet_source(self, count: int) -> float:
        path = self.folder / f"parquet-source-{count}"
        if not path.exists():
            rows(self.spark, count).repartition(count // PER_BATCH).write.parquet(str(path))
        reader = self.spark.readStream.format("parquet").schema("value string")
        return self._stream(reader.option("maxFilesPerTrigger", 1).option("path", str(path)), count)

    def _stream(self, reader: DataStreamReader, count: int) -> float:
        """Run a stream until it has read so many rows; return its rate, batch by batch."""
        writer = reader.load().writeStream.format("noop")
        checkpoint = str(self.folder / self.fresh("checkpoint"))
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            while sum(one.numInputRows for one in query.recentProgress) < count:
                assert query.isActive, query.exception()
                time.sleep(0.05)
        finally:
            query.stop()
        batches = [one for one in query.recentProgress if one.numInputRows][WARM_BATCHES:]
        spent = sum(one.durationMs["triggerExecution"] for one in batches) / 1000
        return sum(one.numInputRows for one in batches) / spent


def seconds_of(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows that a sink is given")
    parser.add_argument("--jobs", type=int, default=400_000, help="jobs that a source is given")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    load = Load()
    spark = session("bench", memory="2g")
    with bench_server() as server, tempfile.TemporaryDirectory(prefix="hf-bench") as folder:
        bench = Bench(spark, server, Path(folder))
        ways: dict[str, Callable[[], float]] = {
            SINK: lambda: bench.sink(given.rows),
            "sink: value, id, priority": lambda: bench.sink(
                given.rows, "value; value as id; 7 as priority"
            ),
            PARQUET_SINK: lambda: bench.parquet_sink(given.rows),
            "add_many, one process": lambda: bench.queue_alone(given.rows // 4),
            SOURCE: lambda: bench.source(given.jobs),
            "source: rate-micro-batch": lambda: bench.rate_source(given.jobs),
            PARQUET_SOURCE: lambda: bench.parquet_source(given.jobs),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(given.rounds + 1):
            for name, way in ways.items():
                rate = way()
                if number:  # The first round warms up.
                    rates[name].append(rate)
        print(f"{server.version()}, Spark {spark.version}, medians of {given.rounds} rounds;")
        print(load)
        medians = {name: statistics.median(measured) for name, measured in rates.items()}
        for name, rate in medians.items():
            print(f"  {name:<28} {rate:>12,.0f} rows/s")
        for target, ours, theirs in (
            (SPARK_SINK, SINK, PARQUET_SINK),
            (SPARK_SOURCE, SOURCE, PARQUET_SOURCE),
        ):
            ratio = medians[ours] / medians[theirs]
            keep(target.row, ratio)
            reached = "reached" if target.reached(ratio) else "MISSED"
            print(f"  {target.row} / {target.beside}: {ratio:.2f} ×, {target.wanted}: {reached}")
    spark.stop()


if __name__ == "__main__":
    main()
