"""The pipeline beside one plain Spark job over the same input, in one run: `make bench-pipeline`.

The same session, the same transform, alternated; wall time, and the processor time of Spark, Python
and the server together. Once in whole files, once with files that have to be divided.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.measure import BenchServer, Load, bench_server
from bench.results import keep
from bench.targets import DIVIDED_FILES, WHOLE_FILES, Ratio
from holdfast.spark import Pipeline, session, transform

LEAST = 0.2
WARM = 3
"""Rounds that do not count."""


class Cost(NamedTuple):
    wall: float
    cpu: float


@transform
def clean(df: DataFrame, *, least: float) -> DataFrame:
    """Do what a cleaning job does: parse, filter, compute, look at text."""
    return (
        df.where(F.col("amount") >= least)
        .withColumn("day", F.to_date(F.timestamp_seconds(F.col("at"))))
        .withColumn("tax", F.round(F.col("amount") * 0.19, 2))
        .withColumn("domain", F.lower(F.regexp_extract("email", "@(.+)$", 1)))
        .withColumn("key", F.sha2(F.col("email"), 256))
    )


def make_input(spark: SparkSession, path: Path, megabytes: int, files: int) -> int:
    """Write about so much Parquet; return the bytes."""
    rows = megabytes * 13_500
    frame = spark.range(rows, numPartitions=files).select(
        "id",
        F.rand(1).alias("amount"),
        (F.lit(1_700_000_000) + F.col("id")).alias("at"),
        F.concat(F.sha1(F.col("id").cast("string")), F.lit("@Example"), F.col("id") % 97).alias(
            "email"
        ),
        F.sha2(F.col("id").cast("string"), 256).alias("note"),
    )
    # Row groups that can be handed out one by one where files are divided.
    frame.write.option("parquet.block.size", 32 * 2**20).parquet(str(path))
    return sum(file.stat().st_size for file in path.glob("*.parquet"))


class Bench:
    def __init__(self, spark: SparkSession, server: BenchServer, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self._number = 0

    def plain(self, source: Path) -> None:
        frame = clean(self.spark.read.parquet(str(source)), least=LEAST)
        frame.write.parquet(self._output())

    def pipeline(self, source: Path) -> None:
        with Pipeline("bench", self.server.url, roots=self.folder) as pipeline:
            handle = pipeline.submit(
                "clean",
                params={"least": LEAST},
                input=str(source / "*.parquet"),
                output=self._output(),
            )
            with pipeline.working(self.spark):
                progress = handle.wait(3600)
            assert progress.state == "done", progress
            pipeline.queue.delete()

    def _output(self) -> str:
        self._number += 1
        return str(self.folder / f"out-{self._number}")

    def cost(self, run: Callable[[Path], None], source: Path) -> Cost:
        began, used = time.monotonic(), self._cpu()
        run(source)
        cost = Cost(time.monotonic() - began, self._cpu() - used)
        shutil.rmtree(self.folder / f"out-{self._number}")
        return cost

    def _cpu(self) -> float:
        me = psutil.Process()
        times = [one.cpu_times() for one in (me, *me.children(recursive=True))]
        return sum(one.user + one.system for one in times)


def compare(bench: Bench, target: Ratio, what: str, source: Path, rounds: int) -> None:
    """Alternate both, and print their medians."""
    for _ in range(WARM):  # Java is still compiling what it runs: both get sooner for a while.
        bench.plain(source)
        bench.pipeline(source)
    plain, queued = [], []
    for _ in range(rounds):
        plain.append(bench.cost(bench.plain, source))
        queued.append(bench.cost(bench.pipeline, source))
    for name, place in (("wall time", 0), ("processor time", 1)):
        mine = statistics.median(cost[place] for cost in queued)
        theirs = statistics.median(cost[place] for cost in plain)
        ratio = mine / theirs
        reached = "reached" if target.reached(ratio) else "MISSED"
        numbers = f"{mine:.1f} s | {theirs:.1f} s | {ratio:.2f} ×"
        print(f"| {what}, {name} | {numbers} | {target.wanted} | {reached} |", flush=True)
        if not place:
            keep(target.row, ratio)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512)
    options = parser.parse_args()
    load = Load()
    spark = session("bench", memory="2g", config={"spark.scheduler.mode": "FAIR"})
    with bench_server() as server, tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, server, Path(folder))
        print("| row | pipeline | plain job | ratio | target | |\n|---|---|---|---|---|---|")
        for what, files, target in (
            ("whole files", 16, WHOLE_FILES),
            ("divided files", 1, DIVIDED_FILES),
        ):
            source = Path(folder) / what.replace(" ", "-")
            size = make_input(spark, source, options.megabytes, files)
            shown = f"{what} ({size / 2**20:.0f} MB)"
            compare(bench, target, shown, source, options.rounds)
        print(f"\n{load}")
    spark.stop()


if __name__ == "__main__":
    main()
