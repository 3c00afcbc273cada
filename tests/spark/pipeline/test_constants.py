"""What Python puts into a plan as a constant is the same in all parts, or the request fails."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying
from holdfast.worker import Fail
from spark.pipeline.support import finish, must_be_published, numbers, rows, wait_long

numbered = itertools.count()
batch = {"number": 1}


def other(df: DataFrame, value: Any) -> DataFrame:
    return df.sparkSession.range(20).select(F.col("id").alias("n"), F.lit(value).alias("m"))


def sql(df: DataFrame, text: str) -> DataFrame:
    name = f"v{uuid.uuid4().hex}"
    df.createOrReplaceTempView(name)
    return df.sparkSession.sql(text.format(name))


def with_a_column_of_its_own(df: DataFrame) -> DataFrame:
    name = f"c{uuid.uuid4().hex}"
    return df.withColumn(name, F.col("n") + 1).withColumn("m", F.col(name) * 2).drop(name)


VARYING: dict[str, Callable[[DataFrame], DataFrame]] = {
    "the time": lambda df: df.withColumn("at", F.lit(dt.datetime.now(dt.UTC))),
    "the time in SQL": lambda df: df.selectExpr("n", "timestamp'now' AS at"),
    "the time without a zone": lambda df: df.selectExpr("n", "timestamp_ntz'now' AS at"),
    "a random number": lambda df: df.withColumn("r", F.lit(random.random())),
    "a random text": lambda df: df.withColumn("r", F.lit(str(uuid.uuid4()))),
    "a counter in a filter": lambda df: df.where(F.col("n") > next(numbered)),
    "a counter in an array": lambda df: df.withColumn("a", F.array(F.lit(next(numbered)))),
    "a counter in another table": lambda df: df.join(other(df, next(numbered)), "n", "left"),
    "a counter in a subquery": lambda df: sql(
        df, f"SELECT * FROM {{}} WHERE n IN (SELECT {next(numbered)} + id FROM range(3))"
    ),
}
STABLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "values in any order": lambda df: df.where(
        F.col("n").isin(random.sample(range(100), 100))
        | F.col("name").isin(random.sample(["a", "b c", "d"], 3))
    ),
    "a view of its own": lambda df: sql(df, "SELECT * FROM {} WHERE n > 3"),
    "a column of its own": with_a_column_of_its_own,
    "a function of higher order": lambda df: df.select(
        F.transform(F.array("n"), lambda n: n + 1).alias("a")
    ),
    "a UDF": lambda df: df.withColumn("m", F.udf(lambda n: n)("n")),
    "the day": lambda df: df.selectExpr("n", "date'2026-01-01' AS day"),
    "another table": lambda df: df.join(other(df, "x"), "n", "left"),
}


@transform
def varied(df: DataFrame, *, kind: str) -> DataFrame:
    return {**VARYING, **STABLE}[kind](df)


@transform
def of_a_batch(df: DataFrame) -> DataFrame:
    return df.withColumn("batch", F.lit(batch["number"]))


@transform(per_part=True)
def of_any_batch(df: DataFrame) -> DataFrame:
    return df.withColumn("batch", F.lit(next(numbered)))


@transform
def unchanged(df: DataFrame) -> DataFrame:
    return df


@transform
def file_names(df: DataFrame) -> DataFrame:
    return df.select("_metadata.file_name")


@transform
def input_file_names(df: DataFrame) -> DataFrame:
    return df.select(F.input_file_name())


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = tmp_path_factory.mktemp("constants") / "in"
    numbers(spark, path, rows=10, files=1)
    return spark.newSession().read.parquet(str(path))


@pytest.mark.parametrize("kind", VARYING)
def test_a_transform_with_other_constants_in_each_call_is_refused(
    frame: DataFrame, kind: str
) -> None:
    with pytest.raises(Fail, match="does not build the same plan each time"):
        applying.tried("varied", {"kind": kind}, frame)


@pytest.mark.parametrize("kind", STABLE)
def test_names_and_orders_that_change_are_no_other_constants(frame: DataFrame, kind: str) -> None:
    planned = applying.tried("varied", {"kind": kind}, frame).constants
    with applying.transformed("varied", {"kind": kind}, frame, "open", planned) as result:
        assert result.columns


def test_the_refusal_shows_the_constant(frame: DataFrame) -> None:
    with pytest.raises(Fail, match=r"functions \(\d\d:\d\d:\d\d"):
        applying.tried("varied", {"kind": "the time"}, frame)


def test_a_request_fails_when_parts_would_have_other_constants_than_planned(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", files=3)
    handle = pipeline.submit("of_a_batch", input="in/*.parquet", output="out", part_size=1, limit=0)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 3, "the plan")
        monkeypatch.setitem(batch, "number", 2)
        handle.set_limit(1)
        progress = finish(handle)
    assert progress.state == "failed"
    assert "does not build the same plan each time" in (progress.error or "")
    assert progress.done == 0
    monkeypatch.setitem(batch, "number", 1)
    with pipeline.working(spark):
        handle.revive()
        must_be_published(handle, root)
    expected = of_a_batch(spark.read.parquet(str(root / "in")))
    assert rows(handle.read(spark)) == rows(expected)


def test_parts_may_have_constants_of_their_own_if_the_transform_says_so(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=2)
    handle = pipeline.submit("of_any_batch", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).select("batch").distinct().count() == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [("file_names", "_metadata"), ("input_file_names", "asks for the names of files")],
)
def test_a_finish_cannot_ask_for_the_files_that_parts_wrote(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str, said: str
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("unchanged", input="in/*.parquet", output="out", finish=name)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert said in (progress.error or "")
