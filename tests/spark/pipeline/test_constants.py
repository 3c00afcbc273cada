"""What Python puts into a plan is the same in all parts, or the request fails."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying
from holdfast.spark.pipeline.gate import in_session
from holdfast.spark.pipeline.logical import LogicalPlan
from holdfast.spark.pipeline.order import Plan
from holdfast.spark.pipeline.pinning import own_session
from holdfast.spark.pipeline.repeatable import built
from holdfast.worker import Fail
from spark.pipeline.support import finish, must_be_published, numbers, rows, wait_long

numbered = itertools.count()
two = itertools.cycle([1, 2, 2, 1])
columns = itertools.cycle(["n", "m", "m", "n"])
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


def capturing(value: Any) -> Callable[[DataFrame], DataFrame]:
    """Return a transform with a UDF that captures a new value in each call."""

    def build(df: DataFrame) -> DataFrame:
        made = value()
        return df.withColumn("m", F.udf(lambda n, v=made: f"{n} {v}")("n"))

    return build


def named_view(df: DataFrame) -> DataFrame:
    df.createTempView("only_once")
    return df.sparkSession.sql("SELECT * FROM only_once")


cache: dict[str, int] = {}


def cached_number() -> int:
    return cache.setdefault("number", 7)


def with_a_cache(df: DataFrame) -> DataFrame:
    """Use a cache in a function before it is filled here."""
    filled = df.withColumn("m", F.udf(lambda n: n + cached_number())("n"))
    return filled.where(F.col("n") < cached_number())


class Rate:
    def __init__(self, value: float) -> None:
        self.value = value
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Rate, (self.value,)


class Elsewhere:
    """What can be loaded in other processes only, and is the same each time or is not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return elsewhere, (os.getpid(), self.value)


def elsewhere(pid: int, value: Any) -> Any:
    if pid == os.getpid():
        raise OSError("not here")
    return value


def in_a_closure(df: DataFrame, value: Any) -> DataFrame:
    return df.withColumn("m", F.udf(lambda n: f"{n} {value}")("n"))


def in_a_function_of_a_function(df: DataFrame, value: Any) -> DataFrame:
    def inner(n: int) -> str:
        return f"{n} {value}"

    return df.withColumn("m", F.udf(lambda n: inner(n + 1))("n"))


def in_a_pandas_function(df: DataFrame, value: int) -> DataFrame:
    def added(batches: Any) -> Any:
        for one in batches:
            yield one.assign(n=one.n + value)

    return df.mapInPandas(added, df.schema)


def in_a_broadcast(df: DataFrame, value: Any) -> DataFrame:
    shared = df.sparkSession.sparkContext.broadcast({"a": value})
    return df.withColumn("m", F.udf(lambda n: f"{n} {shared.value}")("n"))


def in_a_local_class(df: DataFrame, value: Any) -> DataFrame:
    class Named:
        one = value

        def text(self, n: int) -> str:
            return f"{n} {self.one}"

    return df.withColumn("m", F.udf(lambda n: Named().text(n))("n"))


def joined(df: DataFrame, rows: Any, schema: str = "n LONG, m STRING") -> DataFrame:
    return df.join(df.sparkSession.createDataFrame(rows, schema), "n", "left")


def joined_with_values(df: DataFrame, numbers: Sequence[int]) -> DataFrame:
    values = ", ".join(f"({n}L, map('a', X'0{n % 10}'))" for n in numbers)
    return df.join(df.sparkSession.sql(f"SELECT * FROM VALUES {values} AS t(n, m)"), "n", "left")


def with_setting(df: DataFrame, value: str) -> DataFrame:
    df.sparkSession.conf.set("spark.sql.session.timeZone", value)
    return df


def from_an_rdd(df: DataFrame, value: Any) -> DataFrame:
    context = df.sparkSession.sparkContext
    return joined(df, context.parallelize(range(3)).map(lambda n: (n, str(value))))


def random_zone() -> str:
    return f"+{next(numbered) % 10:02d}:00"


ARRAY = np.arange(1000)
SETTLED = {"de", "fr", "it"}
CHANGING = {"number": 0}


def of_a_global(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
    return f"{n} {CHANGING['number']}"


def in_a_global(df: DataFrame) -> DataFrame:
    """Spark's processes import this function, and have the global as its module made it."""
    CHANGING["number"] += 1
    return df.withColumn("m", F.udf(of_a_global)("n"))


def captured_global(df: DataFrame) -> DataFrame:
    """A function that is made here is pickled with the global as it is now."""
    CHANGING["number"] += 1
    return df.withColumn("m", F.udf(lambda n: f"{n} {CHANGING['number']}")("n"))


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
    "the time in a default": capturing(time.time_ns),
    "a random array": capturing(lambda: np.random.default_rng().random(3)),
    "an object with a value of its own": capturing(lambda: Rate(random.random())),
    "an object that cannot be loaded here": capturing(lambda: Elsewhere(random.random())),
    "a counter in a closure": lambda df: in_a_closure(df, next(numbered)),
    "a set in a closure": lambda df: in_a_closure(df, {next(numbered)}),
    "a nested value": lambda df: in_a_closure(df, [{"a": (1, [next(numbered), {}])}, {}]),
    "an iterator": lambda df: in_a_closure(df, itertools.count(next(numbered))),
    "a generator of random numbers": lambda df: in_a_closure(df, random.Random()),
    "a large value": lambda df: in_a_closure(df, str(next(numbered)) * 2_000_000),
    "a function that calls another": lambda df: in_a_function_of_a_function(df, next(numbered)),
    "a function of pandas": lambda df: in_a_pandas_function(df, next(numbered)),
    "a broadcast variable": lambda df: in_a_broadcast(df, next(numbered)),
    "a local class": lambda df: in_a_local_class(df, next(numbered)),
    "a function by chance": lambda df: df.withColumn(
        "m", F.udf((lambda n: n + 1) if next(numbered) % 2 else (lambda n: n + 2))("n")
    ),
    "another function of Python by chance": lambda df: df.withColumn(
        "m", F.udf((lambda n: min(n, 5)) if next(numbered) % 2 else (lambda n: max(n, 5)))("n")
    ),
    "a global of its module": captured_global,
    "rows": lambda df: joined(df, [(1, str(next(numbered)))]),
    "many rows": lambda df: joined(df, [(n, str(n * next(numbered))) for n in range(2000)]),
    "rows of pandas": lambda df: joined(df, pd.DataFrame({"n": [1], "m": [str(next(numbered))]})),
    "many rows of pandas": lambda df: joined(
        df, pd.DataFrame({"n": range(2000), "m": [str(next(numbered))] * 2000})
    ),
    "rows of an RDD": lambda df: from_an_rdd(df, next(numbered)),
    "values in SQL": lambda df: df.join(
        df.sparkSession.sql(f"SELECT * FROM VALUES (1L, {next(numbered)}) AS t(n, m)"), "n", "left"
    ),
    "a range": lambda df: df.join(
        df.sparkSession.range(next(numbered)).withColumnRenamed("id", "n"), "n", "leftsemi"
    ),
    "a setting": lambda df: with_setting(df, random_zone()),
    "values that change places": lambda df: df.selectExpr(
        f"element_at(array({', '.join(map(repr, random.sample('abcdefgh', 8)))}), 1) AS m"
    ),
    "values that change columns": lambda df: df.where(
        (F.col("n") != F.lit(next(two))) & (F.length("name") != F.lit(next(two)))
    ),
    "columns that change places": lambda df: df.withColumn("m", F.col("n") + 1).where(
        f"{next(columns)} > 3 AND {next(columns)} > 5"
    ),
    "a number behind a mark": lambda df: df.withColumn("m", F.lit(f"ticket#{next(numbered)}")),
    "the order of the arguments of a lambda": lambda df: df.select(
        F.aggregate(
            F.array("n", "n"),
            F.lit(0).cast("long"),
            (lambda a, x: a * 2 + x) if next(numbered) % 2 else (lambda a, x: x * 2 + a),
        )
    ),
    "the way of a join": lambda df: df.join(
        other(df, 1), "n", "left_semi" if next(numbered) % 2 else "left_anti"
    ),
    "whether rows without elements are kept": lambda df: df.select(
        (F.explode if next(numbered) % 2 else F.explode_outer)(F.array("n"))
    ),
    "the order of a dict": lambda df: in_a_closure(df, dict.fromkeys(random.sample(range(99), 99))),
}
STABLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "values in any order": lambda df: df.where(
        F.col("n").isin(random.sample(range(100), 100))
        | F.col("name").isin(random.sample(["a", "b c", "d"], 3))
    ),
    "a view of its own": lambda df: sql(df, "SELECT * FROM {} WHERE n > 3"),
    "a column of its own": with_a_column_of_its_own,
    "always a function of higher order": lambda df: df.select(
        F.transform(F.array("n"), lambda n: n + 1).alias("a")
    ),
    "always a UDF": lambda df: df.withColumn("m", F.udf(lambda n: n)("n")),
    "always the day": lambda df: df.selectExpr("n", "date'2026-01-01' AS day"),
    "always another table": lambda df: df.join(other(df, "x"), "n", "left"),
    "always a set": lambda df: in_a_closure(df, {"a", "b", "c"}),
    "always a global set": lambda df: df.withColumn("m", F.udf(lambda n: n in SETTLED)("n")),
    "always an array": lambda df: df.withColumn("m", F.udf(lambda n: int(ARRAY[n]))("n")),
    "always a seeded generator": lambda df: in_a_closure(df, random.Random(1)),
    "always a local class": lambda df: in_a_local_class(df, 1),
    "always a large value": lambda df: in_a_closure(df, "x" * 2_000_000),
    "always a broadcast variable": lambda df: in_a_broadcast(df, 1),
    "always an object that cannot be loaded here": capturing(lambda: Elsewhere(1)),
    "always a lock in an object": capturing(lambda: Rate(1)),
    "always a module": lambda df: df.withColumn("m", F.udf(lambda n: json.dumps([n]))("n")),
    "always a function of pandas": lambda df: in_a_pandas_function(df, 1),
    "always rows": lambda df: joined(df, [(1, "a"), (2, None)]),
    "always rows with everything in them": lambda df: joined(
        df,
        [(1, {"a": [1.5, None]}, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))],
        "n LONG, m MAP<STRING, ARRAY<DOUBLE>>, t TIMESTAMP",
    ),
    "always rows of pandas": lambda df: joined(df, pd.DataFrame({"n": [1], "m": ["a"]})),
    "always bytes and maps in SQL": lambda df: df.join(
        df.sparkSession.sql("SELECT * FROM VALUES (1L, X'01', map('a', X'02')) AS t(n, m, k)"), "n"
    ),
    "always many rows": lambda df: joined(df, [(n, str(n)) for n in range(3000)]),
    "always many rows in SQL": lambda df: joined_with_values(df, range(1500)),
    "always rows of an RDD": lambda df: from_an_rdd(df, 1),
    "a view that must be new": named_view,
    "a global that changes only here": in_a_global,
    "always a mark": lambda df: df.withColumn("m", F.lit("ticket#17")),
    "rows in any order": lambda df: joined(df, random.sample([(n, str(n)) for n in range(20)], 20)),
    "many rows in any order": lambda df: joined_with_values(df, random.sample(range(1500), 1500)),
    "always subqueries": lambda df: sql(
        df,
        "SELECT *, (SELECT max(id) FROM range(5)) m FROM {} WHERE n IN (SELECT id FROM range(9)) "
        "AND EXISTS (SELECT 1 FROM range(3))",
    ),
    "always two functions": lambda df: df.withColumn(
        "m", F.udf(lambda n: n)(F.udf(lambda n: n)("n"))
    ),
    "a cache that the first call fills": with_a_cache,
    "always a setting": lambda df: with_setting(df, "Asia/Tokyo"),
}


assert not VARYING.keys() & STABLE.keys()


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


def new_frame(frame: DataFrame) -> DataFrame:
    """Return the same in a session of its own, as each part has one."""
    return in_session(frame, own_session(frame.sparkSession))


def planned(trial: applying.Trial) -> Plan:
    """Return what a part asks of a plan."""
    told: Any = SimpleNamespace(constants=trial.constants, tables=trial.tables)
    plan: Plan = told
    return plan


@pytest.mark.parametrize("kind", STABLE)
def test_names_and_orders_that_change_are_no_other_constants(frame: DataFrame, kind: str) -> None:
    trial = applying.tried("varied", {"kind": kind}, new_frame(frame))
    plan = planned(trial)
    with applying.transformed(
        "varied",
        {"kind": kind},
        new_frame(frame),
        "open",
        plan,
        lambda: own_session(frame.sparkSession),
    ) as result:
        assert result.columns


def test_the_session_of_a_thread_makes_no_moment_another_constant(
    spark: SparkSession, frame: DataFrame
) -> None:
    """Java writes moments by the time zone of the session that is active in a thread."""
    session = own_session(spark)
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    here = in_session(frame, session)
    moment = "timestamp'2024-03-30 20:00:00 UTC' AS at"
    found = LogicalPlan(here.selectExpr("n", moment), None)
    before = built(found, package="").digests
    sessions: Any = SparkSession._get_j_spark_session_module(spark._jvm)
    active = sessions.getActiveSession()
    other = own_session(spark)
    other.conf.set("spark.sql.session.timeZone", "America/Lima")
    sessions.setActiveSession(other._jsparkSession)
    try:
        again = LogicalPlan(here.selectExpr("n", moment), None)
        assert built(again, package="").digests == before
        assert sessions.getActiveSession().get().equals(other._jsparkSession)
    finally:
        sessions.clearActiveSession()
        if active.isDefined():
            sessions.setActiveSession(active.get())


def test_the_refusal_shows_the_constant(frame: DataFrame) -> None:
    with pytest.raises(Fail, match=r"\(Project 0: .* \d\d:\d\d:\d\d"):
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
