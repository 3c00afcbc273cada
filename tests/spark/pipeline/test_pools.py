"""Requests that share the cores of one worker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from spark.pipeline.support import must_be_published, numbers, wait_long


@transform(per_part=True)
def waits_for(df: DataFrame, *, file: str) -> DataFrame:
    """Have one task wait until a file is there."""

    @F.udf("long")
    def wait(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        import os
        import time

        while not os.path.exists(file):  # noqa: PTH110
            time.sleep(0.05)
        return n

    return df.coalesce(1).select(wait("n").alias("n"))


def test_requests_that_run_at_the_same_time_have_fair_pools_of_their_own(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=80, files=1)
    over = root / "over"
    with pipeline.working(spark, concurrency=2):
        long = pipeline.submit(
            "waits_for", input="in/*.parquet", output="out", params={"file": str(over)}
        )
        wait_long(lambda: long.progress().running, "it to begin")
        short = pipeline.submit("same", input="in/*.parquet", output="quick")
        wait_long(lambda: short.progress().done, "the other one")
        context: Any = spark.sparkContext._jsc.sc()
        pools = context.getAllPools()
        found = {pools.apply(number).name() for number in range(pools.size())}
        over.touch()
        must_be_published(short, root, "quick")
        must_be_published(long, root)
    assert str(context.getSchedulingMode()) == "FAIR"
    assert {"holdfast-0", "holdfast-1"} <= found


TASKS = 40


@transform(per_part=True)
def one_by_one(df: DataFrame, *, marks: str) -> DataFrame:
    """Have many tasks, each of which waits until a file allows it, or all, to end."""

    def wait(batches):  # type: ignore[no-untyped-def]
        import time
        from pathlib import Path

        from pyspark import TaskContext

        number = TaskContext.get().partitionId()  # type: ignore[union-attr]
        (Path(marks) / f"began-{number}").touch()
        while not any((Path(marks) / name).exists() for name in (f"end-{number}", "end-all")):
            time.sleep(0.02)
        yield from batches

    return df.repartition(TASKS).mapInArrow(wait, df.schema)


class Marks:
    """Which tasks of a big part began, and which were allowed to end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.ended: set[int] = set()

    def began(self) -> set[int]:
        return {int(one.name.removeprefix("began-")) for one in self.path.glob("began-*")}

    def end_one(self) -> None:
        number = min(self.began() - self.ended)
        self.ended.add(number)
        (self.path / f"end-{number}").touch()

    def end_all(self) -> None:
        (self.path / "end-all").touch()


def starving(spark: SparkSession) -> bool:
    """Tell whether a stage has tasks that wait for a core, and none that runs."""
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(
        one and not one.numActiveTasks and one.numCompletedTasks < one.numTasks for one in infos
    )


def test_a_small_request_gets_its_share_of_the_cores_that_a_big_part_occupies(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    """Each core that the big part gives up goes to the small request if that waits for one."""
    cores = spark.sparkContext.defaultParallelism
    numbers(spark, root / "in", rows=400, files=1)
    numbers(spark, root / "few", rows=10, files=1)
    marks = Marks(root.parent / "marks")
    with pipeline.working(spark, concurrency=2):
        big = pipeline.submit(
            "one_by_one", input="in/*.parquet", output="out", params={"marks": str(marks.path)}
        )
        wait_long(lambda: len(marks.began()) == cores, "all cores to be occupied")
        small = pipeline.submit("same", input="few/*.parquet", output="quick")
        while not small.progress().ended and len(marks.ended) < TASKS:
            occupied = len(marks.began() - marks.ended) == cores
            if occupied and starving(spark):
                marks.end_one()
            time.sleep(0.02)
        ended = len(marks.ended)
        marks.end_all()
        must_be_published(small, root, "quick")
        must_be_published(big, root)
    assert ended <= TASKS / 4, "tasks of the big part that had to end before the small one was done"


def test_a_request_waits_while_one_part_has_the_only_place(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    """Cores that come free do not help: the worker leases nothing before a part ends."""
    numbers(spark, root / "in", rows=400, files=1)
    numbers(spark, root / "few", rows=10, files=1)
    marks = Marks(root.parent / "marks")
    with pipeline.working(spark, concurrency=1):
        big = pipeline.submit(
            "one_by_one", input="in/*.parquet", output="out", params={"marks": str(marks.path)}
        )
        wait_long(marks.began, "the only place to be taken")
        small = pipeline.submit("same", input="few/*.parquet", output="quick")
        while len(marks.began()) < TASKS / 2:
            marks.end_one()
            wait_long(lambda: marks.began() - marks.ended, "the next task")
        assert pipeline.queue.show(f"{small.id}/plan").state == "ready"  # type: ignore[union-attr]
        marks.end_all()
        must_be_published(small, root, "quick")
        must_be_published(big, root)


def test_requests_take_turns_for_the_places_of_a_worker(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    """A plan, a part and a publishing are three turns, and the other request has as many."""
    numbers(spark, root / "in", rows=400, files=14)
    numbers(spark, root / "few", rows=10, files=1)
    with pipeline.working(spark, concurrency=1):
        over = root / "over"
        big = pipeline.submit(
            "waits_for",
            input="in/*.parquet",
            output="out",
            params={"file": str(over)},
            part_size=1,
        )
        wait_long(lambda: big.progress().running, "the only place to be taken")
        small = pipeline.submit("same", input="few/*.parquet", output="quick")
        over.touch()
        must_be_published(small, root, "quick")
        before = big.progress().done
        must_be_published(big, root)
    assert before <= 8, "parts of the big request that ended before the small one was published"


def test_a_session_without_fair_pools_is_warned_of(
    spark: SparkSession, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    with pipeline.working(spark):
        pass
    assert "FAIR" not in caplog.text
    settings: Any = spark.sparkContext._conf
    settings.set("spark.scheduler.mode", "FIFO")
    try:
        with pipeline.working(spark):
            pass
    finally:
        settings.set("spark.scheduler.mode", "FAIR")
    assert caplog.text.count("spark.scheduler.mode=FAIR") == 1
