"""Requests that end as done have the rows of one plain job; the others are refused, and early."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Handle, Pipeline, transform
from spark.pipeline.support import finish, must_be_published, numbers, rows, wait_long


def table(df: DataFrame) -> DataFrame:
    """Return twenty rows that are not the part's."""
    return df.sparkSession.range(20).select(F.col("id").alias("n"), F.lit("x").alias("other"))


@transform
def right_join(df: DataFrame) -> DataFrame:
    return df.join(table(df), "n", "right")


@transform
def anti_join_of_the_part(df: DataFrame) -> DataFrame:
    return table(df).join(df, "n", "left_anti")


@transform
def self_join(df: DataFrame) -> DataFrame:
    return df.join(df.select((F.col("n") + 500).alias("n")), "n")


@transform
def cross_self_join(df: DataFrame) -> DataFrame:
    return df.crossJoin(df.select(F.col("n").alias("m")))


@transform
def exists(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("part")
    table(df).createOrReplaceTempView("other")
    return df.sparkSession.sql(
        "SELECT * FROM other WHERE NOT EXISTS (SELECT 1 FROM part WHERE part.n = other.n)"
    )


@transform
def share(df: DataFrame) -> DataFrame:
    total = df.agg(F.sum("n")).first()
    assert total is not None
    return df.select(F.col("n") / total[0])


# ----------------------------------------------------------------- P1: joins, P2: actions


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("right_join", "a RightOuter join with its input on the left"),
        ("anti_join_of_the_part", "a LeftAnti join with its input on the right"),
        ("self_join", "reads its input more than once (Join)"),
        ("cross_self_join", "reads its input more than once (Join)"),
        ("exists", "reads its input in a subquery (Filter)"),
        ("share", "runs a query on its input"),
    ],
)
def test_what_depends_on_the_split_is_refused_before_a_part_has_run(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str, said: str
) -> None:
    numbers(spark, root / "in", files=4)
    handle = pipeline.submit(name, input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert progress.parts == 0
    assert f"{name} " in (progress.error or "")
    assert said in (progress.error or "")
    assert "finish=" in (progress.error or "")
    assert "per_part=True" in (progress.error or "")
    assert [path.name for path in root.iterdir()] == ["in"]


# --------------------------------------------------------------- P9: refused for nothing


@transform
def big_join(df: DataFrame) -> DataFrame:
    other = df.sparkSession.range(1000).select(F.col("id").alias("n"), F.lit("x").alias("other"))
    return df.hint("merge").join(other, "n", "left").repartition(2)


@transform
def join_with_rows(df: DataFrame) -> DataFrame:
    given = [(n, str(n)) for n in range(20)]
    return df.join(df.sparkSession.createDataFrame(given, "n LONG, other STRING"), "n", "left")


@pytest.mark.parametrize("build", [big_join, join_with_rows], ids=lambda one: str(one.__name__))
def test_a_legitimate_join_runs_whatever_its_size(
    spark: SparkSession, pipeline: Pipeline, root: Path, build: Any
) -> None:
    expected = numbers(spark, root / "in", files=3)
    for _ in range(60):
        spark.range(1).count()  # More stages than Spark remembers here: see conftest.py.
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        handle = pipeline.submit(
            build.__name__, input="in/*.parquet", output="out", part_size=1, max_failures=0
        )
        with pipeline.working(spark):
            must_be_published(handle, root)
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    assert rows(handle.read(spark)) == rows(build(expected))


# ------------------------------------------------------------- P3: what finish reads back


@transform
def told(df: DataFrame) -> DataFrame:
    return df.agg(
        F.count(F.lit(1)).alias("rows"),
        F.max(F.length("text")).alias("longest"),
        F.max("at").alias("at"),
        F.max(F.unix_micros("at")).alias("micros"),
        F.count("price").alias("prices"),
        F.sum(F.isnan("price").cast("int")).alias("nans"),
    )


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_finish_reads_what_the_parts_meant(
    spark: SparkSession, pipeline: Pipeline, root: Path, kind: Any
) -> None:
    (root / "in").mkdir()
    at = dt.datetime(2026, 3, 29, 1, 59, 59, 123456, tzinfo=dt.UTC)
    lines = pa.table(
        {
            "text": ['two\n"lines", and', "", None, "\\"] * 25,
            "at": pa.array([at, None] * 50, pa.timestamp("us", "UTC")),
            "price": [1.5, float("nan"), None, -0.0] * 25,
        }
    )
    for number in range(2):
        pq.write_table(lines, root / f"in/{number}.parquet")
    options = {} if kind == "parquet" else {"timestampFormat": "yyyy-MM-dd HH:mm"}
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        output_format=kind,
        output_options=options,
        finish="told",
        part_size=1,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    plain = root.parent / "plain"
    expected = told(spark.read.parquet(str(root / "in")))
    expected.write.format(kind).options(**options).save(str(plain))
    back = spark.read.format(kind)
    assert rows(handle.read(spark)) == rows(back.load(str(plain)))
    if kind == "parquet":
        assert expected.first() == handle.read(spark).first()


@transform
def as_an_interval(df: DataFrame) -> DataFrame:
    return df.select(F.make_interval(days=F.col("n").cast("int")).alias("length"))


@transform
def as_an_array(df: DataFrame) -> DataFrame:
    return df.select(F.array("n").alias("list"))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("as_an_interval", {}, "length"),
        ("as_an_interval", {"finish": "same", "output_format": "json"}, "in which parts are kept"),
        ("as_an_array", {"output_format": "csv"}, "list"),
        ("as_an_array", {"output_format": "text"}, "Text datasource"),
    ],
)
def test_types_that_the_files_cannot_hold_are_refused_before_a_part_has_run(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str, given: Any, said: str
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit(name, input="in/*.parquet", output="out", **given)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert progress.parts == 0
    assert said in (progress.error or "")


# ------------------------------------------------------------------ P4: types of the parts

calls = itertools.count()


@transform(per_part=True)
def of_another_type(df: DataFrame) -> DataFrame:
    kind = "long" if next(calls) % 2 == 0 else "string"
    return df.select(F.col("n").cast(kind).alias("number"))


@transform(per_part=True)
def sometimes_null(df: DataFrame) -> DataFrame:
    known = F.lit(1) if next(calls) % 2 == 0 else F.when(F.col("n") > -1, 1)
    return df.withColumn("one", known)


def test_a_part_with_other_types_fails_and_names_the_column(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=4)
    handle = pipeline.submit("of_another_type", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "column 'number'" in (progress.error or "")
    assert "bigint" in (progress.error or "")
    assert "string" in (progress.error or "")
    assert not (root / "out").exists()


def test_a_part_that_cannot_be_null_is_no_other_type(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=4)
    handle = pipeline.submit("sometimes_null", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("one = 1").count() == 1000


# --------------------------------------------------------------------------- P5: settings


@transform
def by_settings(df: DataFrame) -> DataFrame:
    return df.select(
        "n",
        F.date_format(F.timestamp_seconds(F.col("n") * 3600), "yyyy-MM-dd HH").alias("hour"),
        (F.col("name").cast("int") if ansi_is_off(df) else F.lit(None).cast("int")).alias("bad"),
    )


def ansi_is_off(df: DataFrame) -> bool:
    return str(df.sparkSession.conf.get("spark.sql.ansi.enabled")) == "false"


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of the planner; the worker has others."""
    planned = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
    for name, value in planned.items():
        spark.conf.set(name, value)
    yield planned
    for name in planned:
        spark.conf.unset(name)


def test_parts_have_the_settings_of_the_plan_on_every_worker(
    spark: SparkSession, pipeline: Pipeline, root: Path, settings: dict[str, str]
) -> None:
    expected = rows(by_settings(numbers(spark, root / "in", files=2)))
    handle = pipeline.submit(
        "by_settings", input="in/*.parquet", output="out", part_size=1, limit=0
    )
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 2, "the plan")
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        spark.conf.set("spark.sql.ansi.enabled", "true")
        handle.set_limit(None)
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == expected


@transform
def of_another_session(df: DataFrame) -> DataFrame:
    own = SparkSession.builder.getOrCreate()
    return own.range(20).join(df, F.col("id") == F.col("n"), "right").select(df.name)


def test_rows_of_a_session_with_other_settings_are_refused(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("of_another_session", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        progress = finish(handle)
    assert "Make other tables with df.sparkSession" in (progress.error or "")
    assert progress.parts == 0


# ------------------------------------------------------------------------ P6: the files


def planned(spark: SparkSession, pipeline: Pipeline, root: Path, worker: Any) -> Handle:
    numbers(spark, root / "in", files=2)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1, limit=0)
    wait_long(lambda: handle.progress().parts == 2, "the plan")
    return handle


def test_a_file_that_was_replaced_after_planning_fails_its_part_by_name(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    with pipeline.working(spark) as worker:
        handle = planned(spark, pipeline, root, worker)
        changed = root / "in/part-1.snappy.parquet"
        os.utime(changed, (1_700_000_000, 1_700_000_000))
        handle.set_limit(None)
        progress = finish(handle)
    assert (progress.state, progress.done, progress.failed) == ("failed", 1, 1)
    assert f"{changed} has changed" in progress.errors[1]
    assert "submit the request again" in progress.errors[1]
    assert not (root / "out").exists()


def test_a_file_that_is_gone_fails_its_part_by_name(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    with pipeline.working(spark) as worker:
        handle = planned(spark, pipeline, root, worker)
        gone = root / "in/part-0.snappy.parquet"
        gone.unlink()
        handle.set_limit(None)
        progress = finish(handle)
    assert f"{gone} is gone" in progress.errors[0]
    assert not (root / "out").exists()


# ------------------------------------------------------------------- before there is a part


def tries(handle: Handle) -> int | None:
    """Return how often a plan was tried that has failed."""
    plan = handle.queue.show(f"{handle.id}/plan")
    assert plan
    return plan.failures


@transform
def misspelt(df: DataFrame) -> DataFrame:
    return df.select("m")


@transform
def mistaken(df: DataFrame) -> DataFrame:
    return {"a": df}["b"]


@pytest.mark.parametrize(
    ("name", "said"), [("misspelt", "UNRESOLVED_COLUMN"), ("mistaken", "KeyError: 'b'")]
)
def test_a_mistake_of_the_transform_fails_the_request_at_once(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str, said: str
) -> None:
    numbers(spark, root / "in", files=4)
    with pipeline.working(spark):
        handle = pipeline.submit(name, input="in/*.parquet", output="out", part_size=1)
        progress = finish(handle)
    assert progress.state == "failed"
    assert (progress.parts, progress.failed) == (0, 0)
    assert said in (progress.error or "")
    assert tries(handle) == 1
    assert handle.progress().error == progress.error


@pytest.mark.parametrize(
    ("given", "said"),
    [({"input": "nowhere/*.parquet"}, "nowhere"), ({"schema": "n NUMBER"}, "NUMBER")],
)
def test_an_input_or_a_schema_that_there_is_not_fails_the_request_at_once(
    spark: SparkSession, pipeline: Pipeline, root: Path, given: Any, said: str
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("same", **{"input": "in/*.parquet", "output": "out", **given})
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert said in (progress.error or "")
    assert tries(handle) == 1


# --------------------------------------------------------------------- the names of files


@transform
def from_where(df: DataFrame) -> DataFrame:
    return df.select("_c0", F.col("_metadata.file_name").alias("file"))


@transform(per_part=True)
def from_where_in_all(df: DataFrame) -> DataFrame:
    return df.select("_c0", "_metadata").withColumn("file", F.col("_metadata.file_name"))


@pytest.mark.parametrize("name", ["from_where", "from_where_in_all"])
def test_a_file_whose_name_is_asked_for_is_not_divided(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str
) -> None:
    (root / "in").mkdir()
    (root / "in/big.csv").write_text("".join(f"{n}\n" for n in range(3000)))
    handle = pipeline.submit(
        name, input="in/*.csv", output="out", output_format="parquet", part_size=1000
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.progress().parts == 1
    assert handle.read(spark).where("file = 'big.csv'").count() == 3000


# ------------------------------------------------------------------------- per_part=True


@transform(per_part=True)
def share_of_the_part(df: DataFrame) -> DataFrame:
    total = df.agg(F.sum("n")).first()
    assert total is not None
    return df.select((F.col("n") / F.lit(total[0])).alias("share"), F.rand().alias("random"))


def test_a_transform_that_works_in_each_part_for_itself_may_read_it(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=4)
    handle = pipeline.submit("share_of_the_part", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        must_be_published(handle, root)
    total = handle.read(spark).agg(F.sum("share")).first()
    assert total is not None
    assert round(total[0], 6) == 4
