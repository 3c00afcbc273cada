"""Other tables of files: parts read them as they are, whatever was cached or listed before."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying
from holdfast.spark.pipeline.apart import session_apart
from holdfast.spark.pipeline.order import Plan
from holdfast.spark.pipeline.pinning import own_session
from holdfast.worker import Fail
from spark.pipeline.support import finish, must_be_published, numbers

ROWS = 20


def price(directory: Path, word: str, name: str = "prices") -> None:
    """Write a table, or replace its one file by another of the same length."""
    directory.mkdir(exist_ok=True)
    table = pa.table({"n": pa.array(range(ROWS), pa.int64()), "word": [word] * ROWS})
    pq.write_table(table, directory.parent / "new")
    (directory.parent / "new").replace(directory / f"{name}.parquet")


@transform
def priced(df: DataFrame, *, at: str, how: str) -> DataFrame:
    return df.join(LOADING[how](df, at), "n").select("n", "word")


@functools.lru_cache
def kept(at: str) -> DataFrame:
    return SparkSession.builder.getOrCreate().read.parquet(at)


def cached_by_sql(df: DataFrame, at: str) -> DataFrame:
    df.sparkSession.sql(f"CACHE TABLE prices AS SELECT * FROM parquet.`{at}`")
    return df.sparkSession.table("prices")


def as_a_global_view(df: DataFrame, at: str) -> DataFrame:
    df.sparkSession.read.parquet(at).createOrReplaceGlobalTempView("prices")
    return df.sparkSession.table("global_temp.prices")


def in_the_second_way(df: DataFrame, at: str) -> DataFrame:
    df.sparkSession.conf.set("spark.sql.sources.useV1SourceList", "")
    return df.sparkSession.read.parquet(at)


LOADING: dict[str, Callable[[DataFrame, str], DataFrame]] = {
    "anew": lambda df, at: df.sparkSession.read.parquet(at),
    "and caches it": lambda df, at: df.sparkSession.read.parquet(at).cache(),
    "and caches and counts it": lambda df, at: counted(df.sparkSession.read.parquet(at).cache()),
    "and caches it by SQL": cached_by_sql,
    "elsewhere, and caches it": lambda _, at: (
        SparkSession.builder.getOrCreate().read.parquet(at).cache()
    ),
    "and keeps it": lambda _, at: kept(at),
    "as a global view": as_a_global_view,
    "in the second way of Spark": in_the_second_way,
    "as a view of the worker": lambda df, _: df.sparkSession.table("prices_of_the_worker"),
}
CORRECT = sorted(LOADING.keys() - {"and keeps it", "in the second way of Spark"})


def counted(frame: DataFrame) -> DataFrame:
    assert frame.count() == ROWS
    return frame


@transform
def cached_twice(df: DataFrame) -> DataFrame:
    cached = df.cache()
    return cached.where(f"n < {cached.count()}")


@pytest.fixture
def prices(spark: SparkSession, root: Path) -> Path:
    numbers(spark, root / "in", rows=ROWS, files=2)
    price(root / "prices", "old")
    return root / "prices"


@pytest.mark.parametrize("how", CORRECT)
def test_a_request_reads_the_files_that_are_there_whatever_was_cached_before(
    spark: SparkSession, pipeline: Pipeline, root: Path, prices: Path, how: str
) -> None:
    at = str(prices)
    before = spark.read.parquet(at)
    before.createOrReplaceTempView("prices_of_the_worker")
    cached = spark.read.parquet(at).cache()  # By somebody in the worker.
    try:
        assert cached.count() == ROWS
        with pipeline.working(spark, concurrency=2):
            for word in ("old", "new"):
                price(prices, word)
                handle = pipeline.submit(
                    "priced",
                    input="in/*.parquet",
                    output=word,
                    part_size=1,
                    params={"at": at, "how": how},
                )
                must_be_published(handle, root, word)
                found = pq.read_table(root / word).column("word").to_pylist()
                assert found == [word] * ROWS
    finally:
        spark.catalog.dropTempView("prices_of_the_worker")
        spark.catalog.clearCache()


def test_a_frame_of_another_table_that_is_kept_is_refused(
    spark: SparkSession, pipeline: Pipeline, prices: Path
) -> None:
    params = {"at": str(prices), "how": "and keeps it"}
    with pipeline.working(spark):
        handle = pipeline.submit("priced", input="in/*.parquet", output="out", params=params)
        progress = finish(handle)
    assert progress.state == "failed"
    assert "through a DataFrame that it keeps from call to call" in (progress.error or "")
    assert "Load the table anew in each call, with df.sparkSession" in (progress.error or "")


@pytest.mark.parametrize("how", ["anew", "as a view of the worker"])
def test_a_part_fails_if_another_table_changes_while_it_runs(
    spark: SparkSession, root: Path, prices: Path, how: str
) -> None:
    params: dict[str, object] = {"at": str(prices), "how": how}
    spark.read.parquet(str(prices)).createOrReplaceTempView("prices_of_the_worker")

    def part() -> DataFrame:
        return own_session(spark).read.parquet(str(root / "in"))

    trial = applying.tried("priced", params, part())
    told: Any = SimpleNamespace(constants=trial.constants, tables=trial.tables)
    plan: Plan = told

    def run(meanwhile: Callable[[], None]) -> None:
        with applying.transformed(
            "priced", params, part(), "open", plan, lambda: own_session(spark)
        ) as result:
            assert {row.word for row in result.collect()} == {"old"}
            meanwhile()

    run(lambda: None)
    with pytest.raises(Fail, match="or their files have changed"):
        run(lambda: price(prices, "new"))


def test_a_table_that_was_loaded_with_other_settings_is_refused(
    spark: SparkSession, root: Path, prices: Path
) -> None:
    """Spark reads it with those: a time zone, say."""
    session = own_session(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"})
    params: dict[str, object] = {"at": str(prices), "how": "elsewhere, and caches it"}
    with pytest.raises(Fail, match=r"where spark\.sql\.session\.timeZone is '.*' and not 'Asia"):
        applying.tried("priced", params, session.read.parquet(str(root / "in")))
    spark.catalog.clearCache()


def test_a_table_whose_files_cannot_be_compared_is_refused(
    spark: SparkSession, root: Path, prices: Path
) -> None:
    params: dict[str, object] = {"at": str(prices), "how": "in the second way of Spark"}
    with pytest.raises(Fail, match=r"reads .*prices with another value of .*useV1SourceList"):
        applying.tried("priced", params, own_session(spark).read.parquet(str(root / "in")))


def test_nothing_that_a_request_cached_is_left(
    spark: SparkSession, pipeline: Pipeline, root: Path, prices: Path
) -> None:
    context: Any = spark.sparkContext._jsc
    before = set(context.getPersistentRDDs())
    with pipeline.working(spark):
        handle = pipeline.submit(
            "priced",
            input="in/*.parquet",
            output="out",
            params={"at": str(prices), "how": "and caches and counts it"},
            finish="cached_twice",
        )
        must_be_published(handle, root)
    assert set(context.getPersistentRDDs()) <= before


def test_sessions_apart_share_no_global_views(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceGlobalTempView("of_the_worker")
    try:
        one, other = session_apart(spark), session_apart(spark)
        for session, rows in ((one, 1), (other, 2)):
            assert session.table("global_temp.of_the_worker").count() == 3
            session.range(rows).createOrReplaceGlobalTempView("same_name")
        assert one.table("global_temp.same_name").count() == 1
        assert other.table("global_temp.same_name").count() == 2
        assert not spark.catalog.tableExists("global_temp.same_name")
        one.catalog.dropGlobalTempView("of_the_worker")
        assert spark.table("global_temp.of_the_worker").count() == 3
    finally:
        spark.catalog.dropGlobalTempView("of_the_worker")


LONG = """
from holdfast.spark.pipeline import branches, logical, repeatable, rowwise, trouble

for piece in (
    "x", "'", "\\\\", "1", ".", "(", "[", "#", "a-", "#1 ", ") AS ", "lambda ", "lambda x#1 ",
    "subquery", "exists#", "aes_encrypt(", ", GCM, ", "quota ", "/py4j", "COLLATE ", "\\n", " ",
    "Mkdirs failed to create file:/", 'File "', "x: ",
):
    text = piece * (3_000_000 // len(piece))
    repeatable._renumbered(f"f({text}) AS {text}#1", {"1": "#0"}, {"1": f"{text}#1"}, {})
    repeatable._renumbered(text, {}, {}, {})
    repeatable._unnumbered(text)
    rowwise._draws_vector(text)
    branches._COLLATION.search(text)
    branches._NUMBER.sub("", text)
    list(logical._fields(text, "_metadata#1"))
    trouble._OURS.search(text)
    trouble.is_output_full(OSError(f"{text} org.apache.hadoop.fs."))
    trouble.reason(ValueError(f"Traceback (most recent call last){text}"))
    trouble.trace_of(ValueError(f"Traceback (most recent call last){text}"))
"""


def test_long_texts_in_plans_and_errors_take_time_in_proportion() -> None:
    """Seconds of CPU for all of them. What goes back over a text takes hours for the first."""
    subprocess.run(
        [sys.executable, "-c", LONG],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (200, 200)),
        check=True,
    )
