"""What a transform may do with other tables: each part must find the same rows in them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # It has no types.
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark.pipeline import applying, branches
from holdfast.spark.pipeline.gate import behind_a_gate
from holdfast.spark.pipeline.logical import LogicalPlan
from holdfast.spark.pipeline.transforms import Transform, transform
from holdfast.worker import Fail
from spark.pipeline.support import numbers

Build = Callable[[DataFrame], DataFrame]
Ask = Callable[[Callable[[DataFrame], Any]], None]


def mean(values: pd.Series) -> float:
    return float(values.mean())


def average(column: str) -> Column:
    return F.pandas_udf(mean, "double")(column)  # type: ignore[attr-defined, no-any-return]


def grouped(*columns: str) -> Build:
    return lambda other: other.groupBy("k").agg(*map(F.expr, columns))


def with_window(value: str) -> Build:
    return lambda other: other.withColumn("w", F.expr(value))


def asked(query: str) -> Build:
    def build(other: DataFrame) -> DataFrame:
        other.createOrReplaceTempView("other")
        return other.sparkSession.sql(query)

    return build


ALWAYS: dict[str, Build] = {
    "aggregates": grouped("count(*)", "sum(v)", "avg(v)", "max(s)", "stddev(v)", "median(v)"),
    "more aggregates": grouped(
        "count(DISTINCT s)",
        "bool_or(v > 1)",
        "approx_count_distinct(s)",
        "corr(k, v)",
        "count_if(v > 1)",
    ),
    "percentiles": grouped("percentile(v, 0.5)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY v)"),
    "lists that are sorted": grouped(
        "sort_array(collect_list(s))",
        "array_sort(collect_set(s))",
        "sort_array(transform(collect_list(s), s -> upper(s)))",
        "sort_array(flatten(collect_list(array(s))))",
        "array_max(array_distinct(collect_list(v)))",
    ),
    "lists of which the order does not count": grouped(
        "size(collect_list(s))",
        "array_contains(collect_list(s), 'a')",
        "exists(collect_list(v), v -> v > 1)",
        "arrays_overlap(collect_list(v), array(1.0D))",
    ),
    "the mode with an order": grouped("mode() WITHIN GROUP (ORDER BY s)", "mode(s, true)"),
    "listagg in its own order": grouped("listagg(s, ',') WITHIN GROUP (ORDER BY s DESC)"),
    "a pivot": lambda other: other.groupBy("k").pivot("s", ["a", "b"]).sum("v"),  # noqa: PD010
    "distinct, union, intersect, except": lambda other: (
        other.union(other).distinct().intersect(other).exceptAll(other.where("k > 2"))
    ),
    "ranks": with_window("dense_rank() OVER (PARTITION BY k ORDER BY tie)"),
    "a sum up to equals": with_window("sum(v) OVER (PARTITION BY k ORDER BY tie)"),
    "a share of the whole": with_window("v / sum(v) OVER (PARTITION BY k)"),
    "the largest, over all rows": with_window(
        "max(v) OVER (PARTITION BY k ORDER BY tie "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
    ),
    "a sort": lambda other: other.orderBy("tie"),
    "recursion": asked(
        "WITH RECURSIVE r AS (SELECT 1 m UNION ALL SELECT m + 1 FROM r WHERE m < 5) "
        "SELECT * FROM other JOIN r ON k = m"
    ),
    "a table function over one row": asked("SELECT * FROM other JOIN range(5) ON k = id"),
    "rows that Python made": lambda other: other.join(
        other.sparkSession.sparkContext.parallelize([(1, 2)]).map(lambda row: row).toDF(["k", "z"]),
        "k",
    ),
    "mapInPandas": lambda other: other.mapInPandas(lambda some: some, other.schema),
}

DECIDED: dict[str, tuple[Callable[[str], Build], str]] = {
    "a limit after a sort": (
        lambda by: lambda other: other.orderBy(by).limit(2),
        "GlobalLimit (limit) after orderBy",
    ),
    "an offset after a sort, with a filter between": (
        lambda by: lambda other: other.orderBy(by).where("k > 0").select("s").offset(2),
        "Offset (offset) after orderBy",
    ),
    "dropDuplicates of some columns": (
        lambda by: lambda other: other.dropDuplicates([by]),
        "Deduplicate (dropDuplicates) of some columns",
    ),
    "row_number": (
        lambda by: with_window(f"row_number() OVER (PARTITION BY k ORDER BY {by})"),
        "a window (row_number)",
    ),
    "lag": (lambda by: with_window(f"lag(v) OVER (ORDER BY {by})"), "a window (lag)"),
    "a running sum by rows": (
        lambda by: with_window(
            f"sum(v) OVER (PARTITION BY k ORDER BY {by} ROWS UNBOUNDED PRECEDING)"
        ),
        "a window (sum)",
    ),
    "a window in Python": (
        lambda by: lambda other: other.withColumn("w", average("v").over(Window.partitionBy(by))),
        "a window (",
    ),
    "the first of a window": (
        lambda by: with_window(f"first(s) OVER (PARTITION BY k ORDER BY {by})"),
        "a window (first)",
    ),
    "the first of a group": (
        lambda by: lambda other: other.groupBy(by).agg(F.max("k"), F.first("s")),
        "uses first",
    ),
    "any of a group": (
        lambda by: lambda other: other.groupBy(by).agg(F.any_value("s")),
        "uses any_value",
    ),
    "a list": (
        lambda by: lambda other: other.groupBy(by).agg(F.collect_list("s")),
        "uses collect_list",
    ),
    "a list by a comparison of one's own": (
        lambda by: (
            lambda other: other.groupBy(by).agg(
                F.array_sort(F.collect_list("s"), lambda a, b: F.length(a) - F.length(b))
            )
        ),
        "uses collect_list",
    ),
    "a list with places": (
        lambda by: (
            lambda other: other.groupBy(by).agg(
                F.sort_array(F.transform(F.collect_list("v"), lambda v, i: v * i))
            )
        ),
        "uses collect_list",
    ),
    "max_by": (
        lambda by: lambda other: other.groupBy("k").agg(F.max_by("s", by)),
        "uses max_by",
    ),
    "the mode": (lambda by: lambda other: other.groupBy(by).agg(F.mode("s")), "uses mode"),
    "listagg in another order": (
        lambda by: asked(f"SELECT listagg(s) WITHIN GROUP (ORDER BY {by}) FROM other"),
        "uses listagg",
    ),
    "an approximate percentile": (
        lambda by: lambda other: other.groupBy(by).agg(F.percentile_approx("v", 0.5)),
        "uses percentile_approx",
    ),
    "an aggregate in Python": (
        lambda by: lambda other: other.groupBy(by).agg(average("v")),
        "uses mean",
    ),
    "groups in Python": (
        lambda by: lambda other: other.groupBy(by).applyInPandas(lambda group: group, other.schema),
        "uses FlatMapGroupsInPandas (applyInPandas)",
    ),
    "a limit in a common table expression": (
        lambda by: asked(
            "WITH o AS (SELECT * FROM other), "
            f"p AS (SELECT * FROM o ORDER BY {by} LIMIT 2) SELECT * FROM p JOIN o USING (k)"
        ),
        "GlobalLimit (limit) after orderBy",
    ),
}
"""What is accepted where the column `only` decides, and refused where `tie` has equal values."""

NEVER: dict[str, tuple[Build, str]] = {
    "a limit": (lambda other: other.limit(5), "uses GlobalLimit (limit) without orderBy"),
    "an offset": (lambda other: other.offset(5), "uses Offset (offset) without orderBy"),
    "a limit after a sort of partitions": (
        lambda other: other.sortWithinPartitions("only").limit(2),
        "uses GlobalLimit (limit) without orderBy",
    ),
    "a checkpoint": (
        lambda other: other.orderBy("only").limit(3).localCheckpoint(),
        "uses an RDD (LocalCheckpointRDD)",
    ),
    "an RDD of another table": (
        lambda other: other.rdd.map(tuple).toDF(other.schema),
        "uses an RDD (SQLExecutionRDD)",
    ),
    "cogroup": (
        lambda other: (
            other.groupBy("k")
            .cogroup(other.groupBy("k"))
            .applyInPandas(lambda one, _: one, other.schema)
        ),
        "uses FlatMapCoGroupsInPandas (cogroup",
    ),
    "mapInPandas by key": (
        lambda other: other.repartition("k").mapInPandas(lambda some: some, other.schema),
        "uses MapInPandas over partitions that were made",
    ),
    "groups of text that is equal without its case": (
        asked("SELECT collate(s, 'UTF8_LCASE') c, count(*) FROM other GROUP BY 1"),
        "uses Aggregate of text with a collation",
    ),
    "distinct text with a collation": (
        asked("SELECT DISTINCT s COLLATE UNICODE_CI c FROM other"),
        "of text with a collation",
    ),
    "a limit in a correlated subquery": (
        asked(
            "SELECT *, (SELECT s FROM other o WHERE o.k = p.k ORDER BY only LIMIT 1) FROM other p"
        ),
        "in a subquery whose rows depend on others",
    ),
}


@pytest.fixture(scope="module")
def other(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table: `only` decides about all columns, and rows that are equal in `tie` differ."""
    path = str(tmp_path_factory.mktemp("branches") / "other")
    rows = [(n // 4, n, n // 2, "abc"[n % 3], n / 2) for n in range(12)]
    frame = spark.createDataFrame(rows, "k LONG, only LONG, tie LONG, s STRING, v DOUBLE")
    frame.union(frame).repartition(3).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("branches") / "in"
    numbers(spark, path, rows=20, files=2)
    return path


@pytest.fixture
def ask(spark: SparkSession, files: Path, other: str) -> Ask:
    """Check a transform that joins what a function makes from the other table."""
    session = spark.newSession()

    def ask(build: Build) -> None:
        frame, gate = behind_a_gate(session.read.parquet(str(files)))
        it = Transform("it", lambda df: df.crossJoin(build(session.read.parquet(other))))
        branches.refuse_unsure("it", applying.called(it, {}, frame, gate, "empty"))

    return ask


@pytest.mark.parametrize("name", ALWAYS)
def test_what_gives_the_same_rows_each_time_is_accepted(ask: Ask, name: str) -> None:
    ask(ALWAYS[name])


@pytest.mark.parametrize("name", DECIDED)
def test_what_picks_rows_is_accepted_where_the_data_decide(ask: Ask, name: str) -> None:
    build, _ = DECIDED[name]
    ask(build("only"))


@pytest.mark.parametrize("name", DECIDED)
def test_what_picks_rows_is_refused_where_the_data_do_not_decide(ask: Ask, name: str) -> None:
    build, said = DECIDED[name]
    with pytest.raises(Fail) as raised:
        ask(build("tie"))
    assert said in str(raised.value)
    assert "over another table" in str(raised.value)


@pytest.mark.parametrize("name", NEVER)
def test_what_may_give_other_rows_each_time_is_refused(ask: Ask, name: str) -> None:
    build, said = NEVER[name]
    with pytest.raises(Fail) as raised:
        ask(build)
    assert said in str(raised.value)


def test_rows_that_have_no_order_must_be_alone_with_their_keys(ask: Ask) -> None:
    def mapped(by: str) -> Build:
        return lambda other: other.withColumn("m", F.create_map("s", "v")).dropDuplicates([by])

    ask(lambda other: mapped("only")(other.distinct()))
    with pytest.raises(Fail, match="Deduplicate"):
        ask(mapped("tie"))


@transform(name="test.branches.tied")
def tied(df: DataFrame, *, path: str, by: str) -> DataFrame:
    other = df.sparkSession.read.parquet(path)
    return df.crossJoin(
        other.withColumn("r", F.expr(f"row_number() OVER (PARTITION BY k ORDER BY {by})"))
    )


def test_the_planner_asks_the_data(spark: SparkSession, files: Path, other: str) -> None:
    frame = spark.newSession().read.parquet(str(files))
    given: dict[str, object] = {"path": other, "by": "only"}
    assert "r" in applying.tried("test.branches.tied", given, frame).schema.names
    with pytest.raises(Fail, match=r"a window \(row_number\), where rows are equal"):
        applying.tried("test.branches.tied", {**given, "by": "tie"}, frame)


# ------------------------------------------------------------------ random picks

CASES = int(os.environ.get("HOLDFAST_EQUALITY_CASES", "220")) // 5
ROWS = "k LONG, o LONG, t LONG, s STRING, x DOUBLE"
KEYS = ("k", "o", "t", "s", "x", "k, t", "t, s", "k, x")
FUNCTIONS = (
    "first(s)",
    "last(t)",
    "any_value(k)",
    "collect_list(t)",
    "sort_array(collect_list(s))",
    "array_sort(collect_list(s), (a, b) -> length(a) - length(b))",
    "size(collect_set(s))",
    "max_by(s, t)",
    "max_by(s, struct(t, s))",
    "min_by(k, o)",
    "mode(s)",
    "mode() WITHIN GROUP (ORDER BY s)",
    "listagg(s) WITHIN GROUP (ORDER BY t)",
    "listagg(s) WITHIN GROUP (ORDER BY s)",
    "sum(t)",
    "count(DISTINCT s)",
)
OVER = (
    "row_number()",
    "rank()",
    "lag(s)",
    "first(t)",
    "nth_value(s, 2)",
    "ntile(3)",
    "sum(t)",
    "count(*)",
)


class RandomPicks:
    """A random table, and a query that picks rows of it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.rows = [
            (
                rng.choice((0, 1, None)),
                number,
                number // rng.choice((1, 1, 2)),
                rng.choice(("a", "A", "bb", None)),
                rng.choice((0.0, 1.5, float("nan"))),
            )
            for number in range(rng.randint(2, 12))
        ]
        self.rows += self.rows[: rng.choice((0, 0, 1))]
        self.query = "given"
        for _ in range(rng.randint(1, 2)):
            self.query = f"({self._step(rng)})"

    def _step(self, rng: random.Random) -> str:
        keys, order = rng.choice(KEYS), rng.choice(KEYS)
        frame = rng.choice(("", "", "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"))
        over, largest = rng.choice(OVER), "max(k) k, max(o) o, max(t) t, max(s) s"
        window = f"PARTITION BY {keys} ORDER BY {order} {frame if '(t)' in over else ''}"
        return rng.choice(
            (
                f"SELECT * FROM {self.query} ORDER BY {order} LIMIT {rng.randint(1, 6)}",
                f"SELECT * FROM {self.query} ORDER BY {order} LIMIT 9 OFFSET {rng.randint(1, 4)}",
                f"SELECT k, o, t, s, {over} OVER ({window}) x FROM {self.query}",
                f"SELECT {largest}, {rng.choice(FUNCTIONS)} x FROM {self.query} GROUP BY {keys}",
                f"SELECT DISTINCT k, o, t, s, {over} OVER ({window}) x FROM {self.query}",
            )
        )

    def made(self, session: SparkSession, layout: int) -> DataFrame:
        """Return what the query gives for rows in another order, on other partitions."""
        rng = random.Random(layout)
        given = session.createDataFrame(rng.sample(self.rows, len(self.rows)), ROWS)
        given.repartition(1 + layout % 4).createOrReplaceTempView("given")
        session.conf.set("spark.sql.shuffle.partitions", 1 + layout % 3)
        return session.sql(f"SELECT * FROM {self.query}")

    def found(self, session: SparkSession, layout: int) -> Counter[str]:
        return Counter(map(repr, self.made(session, layout).collect()))


def is_accepted(frame: DataFrame) -> bool:
    try:
        branches.refuse_unsure("it", LogicalPlan(frame, None))
    except Fail:
        return False
    return True


@pytest.fixture(scope="module")
def refused(spark: SparkSession) -> list[RandomPicks]:
    """Compare what is accepted; return what is refused."""
    session = spark.newSession()
    found, accepted = [], 0
    for case in map(RandomPicks, range(CASES)):
        if is_accepted(case.made(session, 0)):
            accepted += 1
            first = case.found(session, 1)
            assert all(case.found(session, layout) == first for layout in (2, 3, 6)), (
                case.seed,
                case.query,
            )
        else:
            found.append(case)
    print(f"{accepted} accepted, {len(found)} refused")
    assert accepted > CASES * 0.2
    return found


@pytest.mark.timeout(0)
def test_what_is_accepted_gives_the_same_for_each_order_of_rows(refused: list[RandomPicks]) -> None:
    assert len(refused) > CASES * 0.2


@pytest.mark.timeout(0)
def test_a_hole_in_the_check_would_be_noticed(
    spark: SparkSession, refused: list[RandomPicks]
) -> None:
    session = spark.newSession()
    assert any(
        case.found(session, 1) != case.found(session, layout)
        for case in refused
        for layout in (2, 3, 6)
    )
