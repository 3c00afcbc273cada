"""What transforms may do, and what of it is another matter when parts run side by side."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from holdfast import InvalidArgument
from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import transforms, working
from spark.pipeline.support import finish, must_be_published, numbers, rows, wait_long
from support import DEADLINE

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame


@transform
def no_connection(df: DataFrame) -> DataFrame:
    raise ConnectionRefusedError("the price server is away")


def test_a_transform_without_a_connection_fails_its_part_and_not_the_worker(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit("no_connection", input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "the price server is away" in (progress.error or "")


def test_a_worker_that_lost_its_spark_takes_no_more_in_the_background_either(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    pipeline.submit("no_connection", input="in/*.parquet", output="out")
    monkeypatch.setattr(working, "is_lost", lambda spark: True)
    with (
        pytest.raises(working.SparkLost, match="the price server is away"),
        pipeline.working(spark) as worker,
    ):
        wait_long(lambda: not worker._controls, "it to stop by itself")


both_are_there = threading.Barrier(2, timeout=DEADLINE)
calls = itertools.count()


@transform
def through_a_view(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("part")
    if next(calls) > 1:  # The first two are the planner's.
        both_are_there.wait()
    return df.sparkSession.sql("SELECT * FROM part")


def test_parts_that_run_side_by_side_have_views_of_their_own(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in", rows=100, files=4)
    handle = pipeline.submit("through_a_view", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark, concurrency=2):
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == rows(expected)


@transform
def limited(df: DataFrame) -> DataFrame:
    return df.limit(3)


@transform
def top(df: DataFrame) -> DataFrame:
    return df.orderBy("n").limit(3)


@transform
def cached(df: DataFrame) -> DataFrame:
    return df.groupBy("name").count().cache()


@transform
def above_average(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("above_average")
    return df.sparkSession.sql(
        "SELECT * FROM above_average WHERE n > (SELECT avg(n) FROM above_average)"
    )


@transform
def in_one_piece(df: DataFrame) -> DataFrame:
    return df.coalesce(1).groupBy("name").count()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with plans as users have them, where what is compiled stands in other nodes."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    yield spark
    spark.conf.set("spark.sql.codegen.wholeStage", "false")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("limited", "limited uses GlobalLimit (limit)"),
        ("top", "top uses GlobalLimit (limit)"),
        ("cached", "cached uses Aggregate (groupBy, agg, distinct)"),
        ("above_average", "above_average reads its input in a subquery"),
        ("in_one_piece", "in_one_piece uses Aggregate"),
    ],
)
def test_what_looks_at_many_rows_is_refused(
    compiled: SparkSession, pipeline: Pipeline, root: Path, name: str, said: str
) -> None:
    numbers(compiled, root / "in", rows=100, files=1)
    handle = pipeline.submit(name, input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(compiled):
        progress = finish(handle)
    assert progress.state == "failed"
    assert said in (progress.error or "")


def on_day(df: DataFrame, *, day: dt.date, least: int = 0) -> DataFrame:
    return df


def test_a_name_for_type_checkers_only_does_not_hide_the_other_types() -> None:
    found = transforms.Transform("on_day", on_day)
    assert found.parameters({"day": "today", "least": 3})["least"] == 3
    with pytest.raises(Exception, match="least"):
        found.parameters({"day": "2026-01-01", "least": "three"})


def test_finish_sees_the_columns_of_the_parts_in_csv_too(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=100, files=2)
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="out", output_format="csv", finish="summed"
    )
    with pipeline.working(spark):
        must_be_published(handle, root)


class NoFunction:
    def __call__(self, df: object) -> object:
        return df


async def in_turns(df: object) -> object:
    return df


def by_and_by(df: object) -> Iterator[object]:
    yield df


async def by_turns(df: object) -> Any:
    yield df


def from_nothing(*, day: str) -> str:
    return day


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (NoFunction, "a transform must be a function, not a class: <class"),
        (NoFunction(), "a transform must be a function, not <"),
        (partial(on_day, least=3), "a transform must be a function, not functools.partial"),
        (5, "a transform must be a function, not 5"),
        (in_turns, "transform in_turns must be a plain function"),
        (by_and_by, "transform by_and_by must be a plain function"),
        (by_turns, "transform by_turns must be a plain function"),
        (from_nothing, "transform from_nothing must take the DataFrame as its first"),
        (lambda: None, "must take the DataFrame as its first"),
    ],
)
def test_what_cannot_be_a_transform_is_refused(given: Any, said: str) -> None:
    before = transforms.registered()
    for register in (transform, transform(name="mine")):
        with pytest.raises(InvalidArgument) as raised:
            register(given)
        assert said in str(raised.value)
    assert transforms.registered() == before
