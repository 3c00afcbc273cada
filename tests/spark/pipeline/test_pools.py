"""Requests that share the cores of one worker."""

from __future__ import annotations

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
