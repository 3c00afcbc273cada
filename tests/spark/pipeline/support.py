"""Transforms and looks that the tests of pipelines share."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import transform
from holdfast.spark.pipeline import Handle, Progress

PATIENCE = 120


@transform
def same(df: DataFrame) -> DataFrame:
    return df


@transform
def big_enough(df: DataFrame, *, least: int) -> DataFrame:
    return df.where(F.col("n") >= least).withColumn("half", F.col("n") / 2)


@transform
def broken(df: DataFrame) -> DataFrame:
    @F.udf("long")
    def fail(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        raise ValueError("this row is no good")

    return df.select(fail("n"))


@transform
def grouped(df: DataFrame) -> DataFrame:
    return df.groupBy((F.col("n") % 10).alias("digit")).count()


@transform(per_part=True)
def grouped_in_parts(df: DataFrame) -> DataFrame:
    return grouped(df)


@transform(per_part=True)
def regrouped(df: DataFrame) -> DataFrame:
    return df.repartition(4)


@transform
def summed(df: DataFrame, *, named: str = "total") -> DataFrame:
    return df.agg(F.sum("n").alias(named), F.count(F.lit(1)).alias("rows"))


@transform
def halved_at_the_gate(df: DataFrame, *, gate: str) -> DataFrame:
    """Needs Python and a shuffle. While the gate is closed, rows wait and name their worker."""
    closed = Path(gate, "closed")

    @F.udf("long")
    def half(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        while closed.exists():
            Path(gate, os.environ.get("WORKER_PID", "the test")).touch()
            time.sleep(0.02)
        return n // 2

    return df.withColumn("half", half("n")).repartition(2)


@transform
def no_frame(df: DataFrame) -> list[str]:
    return df.columns


@transform
def counted(df: DataFrame) -> int:
    return df.count()


def numbers(spark: SparkSession, path: Path, rows: int = 1000, files: int = 8) -> DataFrame:
    """Write rows as Parquet, into so many files."""
    path.mkdir(parents=True)
    for file in range(files):
        mine = range(file, rows, files)
        table = pa.table({"n": pa.array(mine, pa.int64()), "name": [f"näme {n}" for n in mine]})
        pq.write_table(table, path / f"part-{file}.snappy.parquet")
    return spark.read.schema("n LONG, name STRING").parquet(str(path))


def rows(frame: DataFrame) -> Counter[str]:
    """Return the rows, whatever is in them, without their order."""
    said = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
    return Counter(row.row for row in said.collect())


def finish(handle: Handle) -> Progress:
    """Wait until it is over."""
    progress = handle.wait(PATIENCE)
    assert progress.ended, progress
    return progress


def wait_long(condition: Callable[[], object], what: str) -> None:
    """Wait for what needs a JVM that starts."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.05)


def must_be_published(handle: Handle, root: Path, output: str = "out") -> None:
    """Check that the output is there as a whole, and nothing else beside it."""
    progress = finish(handle)
    assert progress.state == "done", progress
    assert "_SUCCESS" in names(root / output)
    left = [name for name in names(root) if name.startswith(f".{output}.")]
    assert not left, "something was left beside it"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def running_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of these times overlapped at most."""
    changes: list[tuple[float, int]] = []
    for began, seconds in spans:
        changes += [(began, 1), (began + seconds, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def spans(handle: Handle) -> list[tuple[float, float]]:
    return [(done.began_at, done.seconds) for _, done in handle.parts() if done]
