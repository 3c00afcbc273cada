"""Which plans are the same in parts as in one job, and which are refused, with the reason."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pandas as pd  # type: ignore[import-untyped]  # It has no types.
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

from holdfast.spark.pipeline import applying, rowwise
from holdfast.spark.pipeline.gate import Gate, behind_a_gate
from holdfast.spark.pipeline.logical import LogicalPlan
from holdfast.spark.pipeline.pinning import own_session
from holdfast.spark.pipeline.transforms import Transform
from holdfast.worker import Fail
from spark.pipeline.support import numbers, rows

Build = Callable[[DataFrame], Any]


def table(df: DataFrame, rows: int = 20) -> DataFrame:
    """Return another table than the part."""
    return df.sparkSession.range(rows).select(
        F.col("id").alias("n"), (F.col("id") * 2).alias("double")
    )


def sql(df: DataFrame, text: str) -> DataFrame:
    df.createOrReplaceTempView("part")
    table(df).createOrReplaceTempView("other")
    return df.sparkSession.sql(text)


def doubled(df: DataFrame) -> DataFrame:
    def double(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(n=batch.n * 2)

    return df.mapInPandas(double, df.schema)


def keyed(df: DataFrame) -> Any:
    return df.select("n", F.array("n").alias("ns"), F.lit("a").alias("a"), F.lit("b").alias("b"))


@F.udf(LongType())
def plus_one(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
    return n + 1


def table_functions() -> tuple[Any, Any]:
    """Return functions that have a state. Spark's workers cannot import this module."""

    class Counted:
        def __init__(self) -> None:
            self.seen = 0

        def eval(self, n: int) -> Iterator[tuple[int]]:
            self.seen += 1
            yield (self.seen,)

    class Sum:
        def __init__(self) -> None:
            self.sum = 0

        def eval(self, row: Any) -> None:
            self.sum += row["n"]

        def terminate(self) -> Iterator[tuple[int]]:
            yield (self.sum,)

    udtf = cast("Any", F.udtf)
    return udtf(Counted, returnType="m LONG"), udtf(Sum, returnType="m LONG")


def with_udtf(df: DataFrame, called: str) -> DataFrame:
    functions = df.sparkSession.udtf
    counted, summed = table_functions()
    functions.register("counted", counted)
    functions.register("sure", counted.asDeterministic())
    functions.register("summed", summed.asDeterministic())
    return sql(df, f"SELECT * FROM {called}")


def kept(df: DataFrame) -> DataFrame:
    other, _ = behind_a_gate(df.sparkSession.read.parquet(str(KEPT)))
    return other


def counted_elsewhere(df: DataFrame) -> DataFrame:
    thread = threading.Thread(target=ignoring, args=(df.count,))
    thread.start()
    thread.join()
    return df


KEPT = Path()

ACCEPTED: dict[str, Build] = {
    "the part itself": lambda df: df,
    "filter and project": lambda df: df.where("n > 3").select("name", (F.col("n") * 2).alias("m")),
    "explode": lambda df: keyed(df).select("n", F.explode("ns")),
    "more generators": lambda df: (
        keyed(df)
        .select("n", F.posexplode_outer("ns"))
        .select("n", F.stack(F.lit(2), "n", "col"))
        .select("n", F.json_tuple(F.lit('{"a": 1}'), "a"))
        .select("n", F.inline(F.array(F.struct("n"))))
    ),
    "unpivot": lambda df: keyed(df).unpivot("n", ["a", "b"], "key", "value"),
    "a function of higher order": lambda df: keyed(df).select(F.transform("ns", lambda n: n + 1)),
    "a UDF": lambda df: df.withColumn("m", plus_one("n")),
    "mapInPandas": doubled,
    "repartition": lambda df: df.repartition(3),
    "repartition by a column": lambda df: df.repartition(3, "name").coalesce(1),
    "sort within partitions": lambda df: df.sortWithinPartitions("n"),
    "hints": lambda df: F.broadcast(df).hint("rebalance"),
    "inner join": lambda df: df.join(table(df), "n"),
    "inner join, the part right": lambda df: table(df).join(df, "n"),
    "cross join": lambda df: df.crossJoin(table(df, 3).select("double")),
    "left join": lambda df: df.join(table(df), "n", "left"),
    "right join, the part right": lambda df: table(df).join(df, "n", "right"),
    "semi join": lambda df: df.join(table(df), "n", "semi"),
    "anti join": lambda df: df.join(table(df), "n", "anti"),
    "a broadcast of the part": lambda df: table(df).join(F.broadcast(df), "n"),
    "a table of rows": lambda df: df.join(
        df.sparkSession.createDataFrame([(n, str(n)) for n in range(20)], "n LONG, s STRING"),
        "n",
        "left",
    ),
    "a grouped table": lambda df: df.join(
        table(df)
        .groupBy("n")
        .agg(
            F.sort_array(F.collect_list("double")),
            F.max_by("double", "n"),
            F.size(F.collect_set("n")),
        ),
        "n",
        "left",
    ),
    "a table with windows": lambda df: df.join(
        table(df).withColumn("r", F.row_number().over(Window.orderBy("n"))), "n", "left"
    ),
    "a table that is joined to itself": lambda df: df.join(
        table(df).join(table(df).distinct(), "n").orderBy("n").limit(5), "n", "left"
    ),
    "IN over another table": lambda df: sql(
        df, "SELECT * FROM part WHERE n IN (SELECT n FROM other)"
    ),
    "NOT IN over another table": lambda df: sql(
        df, "SELECT * FROM part WHERE n NOT IN (SELECT n FROM other) OR n = 3"
    ),
    "a scalar subquery over another table": lambda df: sql(
        df, "SELECT *, (SELECT max(double) FROM other o WHERE o.n < part.n) m FROM part"
    ),
    "a lateral join": lambda df: sql(
        df, "SELECT * FROM part, LATERAL (SELECT count(*) c FROM other WHERE other.n < part.n)"
    ),
    "a lateral generator": lambda df: sql(
        df, "SELECT * FROM part, LATERAL explode(sequence(1, n)) LATERAL VIEW explode(array(n)) m"
    ),
    "a common table expression": lambda df: sql(
        df,
        "WITH a AS (SELECT * FROM part), o AS (SELECT * FROM other) "
        "SELECT a.* FROM a JOIN o USING (n) JOIN o p USING (n)",
    ),
    "a recursive one over another table": lambda df: sql(
        df,
        "WITH RECURSIVE r AS (SELECT 1 m UNION ALL SELECT m + 1 FROM r WHERE m < 5) "
        "SELECT part.* FROM part JOIN r ON n = m",
    ),
    "pipes": lambda df: sql(df, "FROM part |> WHERE n > 3 |> EXTEND n + 1 AS m"),
    "the name of the file": lambda df: df.select(
        "n", F.regexp_extract("_metadata.file_path", "part-.*", 0), "_metadata.file_size"
    ),
    "the name of the file, later": lambda df: (
        df.select("n").where("n > 1").select("_metadata.file_name")
    ),
    "a cipher with a vector, or without need of one": lambda df: df.selectExpr(
        "aes_encrypt(name, '0123456789abcdef', 'ECB') AS a",
        "aes_encrypt(name, '0123456789abcdef', 'CBC', 'PKCS', '0123456789abcdef') AS b",
    ),
    "a cache without an action": lambda df: df.where("n > 3").cache().select("n"),
    "a table that is collected": lambda df: df.where(
        F.col("n").isin([row.n for row in table(df).collect()])
    ),
    "a table that is counted": lambda df: df.withColumn("c", F.lit(table(df).count())),
}

REFUSED: dict[str, tuple[Build, str]] = {
    "union": (lambda df: df.union(table(df).select("n", F.lit("x"))), "uses Union"),
    "union with itself": (lambda df: df.union(df), "more than once (Union)"),
    "group": (lambda df: df.groupBy("name").count(), "uses Aggregate (groupBy, agg, distinct)"),
    "cube": (lambda df: df.cube("name").count(), "uses Aggregate"),
    "pivot": (
        lambda df: df.groupBy("n").pivot("name", ["a"]).count(),  # noqa: PD010
        "uses Aggregate",
    ),
    "distinct": (lambda df: df.distinct(), "uses Deduplicate"),
    "dropDuplicates": (lambda df: df.dropDuplicates(["n"]), "uses Deduplicate (dropDuplicates)"),
    "limit": (lambda df: df.limit(3), "uses GlobalLimit (limit)"),
    "offset": (lambda df: df.offset(3), "uses Offset"),
    "sample": (lambda df: df.sample(fraction=0.5, seed=1), "uses Sample"),
    "a sample of another table": (
        lambda df: df.join(table(df).sample(0.5), "n", "left"),
        "uses Sample",
    ),
    "sort": (lambda df: df.orderBy("n"), "uses Sort (orderBy)"),
    "window": (
        lambda df: df.withColumn("r", F.row_number().over(Window.orderBy("n"))),
        "uses Window (over)",
    ),
    "intersect": (lambda df: df.intersect(df), "more than once (Intersect)"),
    "except": (
        lambda df: df.select("n").exceptAll(table(df).select("n")),
        "uses Except",
    ),
    "full join": (lambda df: df.join(table(df), "n", "full"), "FullOuter join"),
    "left join, the part right": (lambda df: table(df).join(df, "n", "left"), "LeftOuter join"),
    "right join, the part left": (lambda df: df.join(table(df), "n", "right"), "RightOuter join"),
    "semi join, the part right": (lambda df: table(df).join(df, "n", "semi"), "LeftSemi join"),
    "anti join, the part right": (lambda df: table(df).join(df, "n", "anti"), "LeftAnti join"),
    "self-join": (lambda df: df.join(df.select("n"), "n"), "more than once (Join)"),
    "cross self-join": (lambda df: df.crossJoin(df), "more than once (Join)"),
    "EXISTS": (
        lambda df: sql(
            df, "SELECT * FROM other o WHERE EXISTS (SELECT 1 FROM part p WHERE p.n = o.n)"
        ),
        "in a subquery (Filter)",
    ),
    "IN": (
        lambda df: sql(df, "SELECT * FROM part WHERE n IN (SELECT n + 1 FROM part)"),
        "in a subquery (Filter)",
    ),
    "a scalar subquery": (
        lambda df: sql(df, "SELECT n / (SELECT sum(n) FROM part) FROM part"),
        "in a subquery (Project)",
    ),
    "a subquery in a subquery": (
        lambda df: sql(
            df,
            "SELECT * FROM part WHERE n < "
            "(SELECT max(n) FROM other WHERE n IN (SELECT n FROM part))",
        ),
        "in a subquery",
    ),
    "a lateral join, the part inside": (
        lambda df: sql(
            df, "SELECT * FROM other, LATERAL (SELECT count(*) FROM part WHERE part.n < other.n)"
        ),
        "in a subquery (LateralJoin)",
    ),
    "a common table expression that is used twice": (
        lambda df: sql(df, "WITH a AS (SELECT * FROM part) SELECT * FROM a JOIN a b USING (n)"),
        "more than once (Join)",
    ),
    "a recursive one": (
        lambda df: sql(
            df,
            "WITH RECURSIVE r AS (SELECT n FROM part UNION ALL SELECT n + 1 FROM r WHERE n < 5) "
            "SELECT * FROM r",
        ),
        "uses UnionLoop",
    ),
    "applyInPandas": (
        lambda df: df.groupBy("name").applyInPandas(lambda group: group, df.schema),
        "uses FlatMapGroupsInPandas (applyInPandas)",
    ),
    "cogroup": (
        lambda df: (
            df.groupBy("n")
            .cogroup(table(df).groupBy("n"))
            .applyInPandas(lambda one, other: one, df.schema)
        ),
        "uses FlatMapCoGroupsInPandas",
    ),
    "pandas on Spark": (lambda df: df.pandas_api(index_col="n").cummax().to_spark("n"), "uses "),
    "mapInPandas by key": (
        lambda df: doubled(df.repartition("name")),
        "MapInPandas after RepartitionByExpression",
    ),
    "mapInPandas in order": (
        lambda df: doubled(df.sortWithinPartitions("n").where("n > 0")),
        "MapInPandas after Sort",
    ),
    "observe": (lambda df: df.observe("o", F.count(F.lit(1))), "uses CollectMetrics (observe)"),
    "a table function with a state": (
        lambda df: with_udtf(df, "part, LATERAL counted(n)"),
        "uses ",
    ),
    "a table function that is declared deterministic": (
        lambda df: with_udtf(df, "part, LATERAL sure(n)"),
        "calls the table function sure",
    ),
    "a table function over a table": (
        lambda df: with_udtf(df, "summed(TABLE(part))"),
        "calls the table function summed",
    ),
    "a table function over the partitions of a table": (
        lambda df: with_udtf(df, "summed(TABLE(part) PARTITION BY name)"),
        "calls the table function summed",
    ),
    "a table function as a lateral join": (
        lambda df: df.lateralJoin(table_functions()[0].asDeterministic()(F.col("n").outer())),
        "calls the table function Counted",
    ),
    "monotonically_increasing_id": (
        lambda df: df.withColumn("id", F.monotonically_increasing_id()),
        "uses monotonically_increasing_id()",
    ),
    "spark_partition_id": (
        lambda df: df.where(F.spark_partition_id() == 0),
        "uses SPARK_PARTITION_ID()",
    ),
    "rand": (lambda df: df.withColumn("r", F.rand(1) * 2), "uses rand()"),
    "randn": (lambda df: df.withColumn("r", F.randn()), "uses randn()"),
    "uuid": (lambda df: df.withColumn("r", F.uuid()), "uses uuid()"),
    "shuffle": (lambda df: keyed(df).select(F.shuffle("ns")), "uses shuffle()"),
    "rand in another table": (
        lambda df: df.join(table(df).withColumn("r", F.rand()), "n", "left"),
        "uses rand()",
    ),
    "rand in a subquery": (
        lambda df: sql(
            df, "SELECT * FROM part WHERE n > (SELECT max(r) FROM (SELECT rand() r FROM other))"
        ),
        "uses rand()",
    ),
    "a cipher with a random vector": (
        lambda df: df.selectExpr("aes_encrypt(name, '0123456789abcdef') AS a"),
        "aes_encrypt() without an initialization vector",
    ),
    "a stream": (
        lambda df: df.join(
            df.sparkSession.readStream.format("rate").load().withColumnRenamed("value", "n"), "n"
        ),
        "reads a stream",
    ),
    "a fact of the session": (
        lambda df: df.withColumn("u", F.current_user()),
        "depends on the session of a worker",
    ),
    "a UDF that is not deterministic": (
        lambda df: df.withColumn("m", F.udf(lambda n: n, "long").asNondeterministic()("n")),
        "uses ",
    ),
    "current_timestamp": (
        lambda df: df.withColumn("t", F.current_timestamp()),
        "uses current_timestamp()",
    ),
    "current_date": (lambda df: df.where(F.current_date() > "2020-01-01"), "uses current_date()"),
    "now": (lambda df: sql(df, "SELECT *, now() FROM part"), "uses now()"),
    "localtimestamp": (lambda df: df.select(F.localtimestamp()), "uses localtimestamp()"),
    "unix_timestamp": (lambda df: df.select(F.unix_timestamp()), "uses current_timestamp()"),
    "the time in another table": (
        lambda df: df.join(table(df).where(F.current_date() > "2020-01-01"), "n", "left"),
        "uses current_date()",
    ),
    "a word for the time": (
        lambda df: sql(df, "SELECT *, CAST('now' AS TIMESTAMP) FROM part"),
        "'now' or 'today' as a time",
    ),
    "a computed word for the time": (
        lambda df: df.selectExpr("cast(concat('no', 'w') as timestamp_ntz) AS t"),
        "'now' or 'today' as a time",
    ),
    "a computed word for a day in a subquery": (
        lambda df: sql(
            df, "SELECT * FROM part WHERE n > (SELECT day(to_date(lower(' TODAY '))) FROM other)"
        ),
        "'now' or 'today' as a time",
    ),
    "a word for a day": (
        lambda df: df.where(F.to_date(F.lit("today")) > "2020-01-01"),
        "'now' or 'today' as a time",
    ),
    "input_file_name": (lambda df: df.select(F.input_file_name()), "uses input_file_name()"),
    "input_file_block_start": (
        lambda df: df.select(F.input_file_block_start()),
        "uses input_file_block_start()",
    ),
    "all of _metadata": (lambda df: df.select("_metadata"), "reads all of _metadata"),
    "all of _metadata, renamed": (
        lambda df: df.select(F.col("_metadata").alias("m")).select("m.file_path"),
        "reads all of _metadata",
    ),
    "where Spark divides a file": (
        lambda df: df.select("_metadata.file_block_start"),
        "reads file_block_start of _metadata",
    ),
    "no rows of the part": (table, "do not come from its input"),
    "rows of another run": (kept, "rows of another run"),
    "another run beside it": (lambda df: df.join(kept(df), "n"), "more than once"),
}

ACTIONS: dict[str, Build] = {
    "count": lambda df: df.withColumn("c", F.lit(df.count())),
    "first": lambda df: df.withColumn("c", F.lit(df.first().n)),  # type: ignore[union-attr]
    "a sum": lambda df: df.select(F.col("n") / df.agg(F.sum("n")).first()[0]),  # type: ignore[index]
    "collect": lambda df: df.sparkSession.createDataFrame(df.collect()),
    "isEmpty": lambda df: df if df.isEmpty() else df.where("n > 3"),
    "take": lambda df: df.where(F.col("n") > df.take(1)[0].n),
    "tail": lambda df: df.where(F.col("n") > df.tail(1)[0].n),
    "toPandas": lambda df: df.where(F.col("n") < len(cast("Any", df.toPandas()))),
    "toArrow": lambda df: df.where(F.col("n") < df.toArrow().num_rows),
    "toLocalIterator": lambda df: df.where(F.col("n") > next(df.toLocalIterator()).n),
    "foreach": lambda df: after(df.foreach(print), df),
    "cache and count": lambda df: df.where(F.col("n") < df.cache().count()),
    "checkpoint": lambda df: df.localCheckpoint(),
    "a lazy checkpoint": lambda df: df.localCheckpoint(eager=False),
    "an RDD": lambda df: df.rdd.map(tuple).toDF(df.schema),
    "an RDD that is counted": lambda df: df.where(F.col("n") < df.rdd.count()),
    "partitions": lambda df: df.where(F.col("n") < df.rdd.getNumPartitions()),
    "names of files": lambda df: df.withColumn("f", F.lit(df.inputFiles()[0])),
    "values of a pivot": lambda df: df.groupBy("n").pivot("name").count(),  # noqa: PD010
    "quantiles": lambda df: df.where(F.col("n") > df.approxQuantile("n", [0.5], 0)[0]),
    "pandas on Spark": lambda df: df.where(F.col("n") < len(df.pandas_api())),
    "a view": lambda df: after(sql(df, "CACHE TABLE c AS SELECT * FROM part"), df),
    "a query over a view": lambda df: df.where(
        F.col("n") < sql(df, "SELECT max(n) m FROM part").first().m  # type: ignore[union-attr]
    ),
    "an error that is swallowed": lambda df: after(ignoring(df.count), df),
    "another thread": counted_elsewhere,
}


def after(_: object, df: DataFrame) -> DataFrame:
    return df


def ignoring(action: Callable[[], object]) -> object:
    with suppress(Exception):
        return action()
    return None


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    global KEPT  # noqa: PLW0603
    KEPT = tmp_path_factory.mktemp("rowwise") / "in"
    numbers(spark, KEPT, rows=60, files=3)
    return KEPT


def applied(spark: SparkSession, path: str, build: Build) -> DataFrame:
    """Do what a part does with a transform."""
    frame, gate = behind_a_gate(spark.read.parquet(path))
    plan = applying.called(Transform("it", build), {}, frame, gate, "open")
    gate.state = "open"
    return plan.frame


@pytest.mark.parametrize(
    ("name", "broadcast"),
    [(name, True) for name in ACCEPTED]
    + [(name, False) for name in ACCEPTED if "join" in name or "table" in name or "IN" in name],
)
def test_what_works_row_by_row_is_equal_in_parts(
    spark: SparkSession, files: Path, name: str, broadcast: bool
) -> None:
    session = spark.newSession()
    if not broadcast:
        session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    build = ACCEPTED[name]
    parts = [applied(session, str(path), build) for path in sorted(files.glob("*.parquet"))]
    together = rows(functools.reduce(DataFrame.union, parts))
    assert together == rows(build(session.read.parquet(str(files))))
    assert together


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_other_rows_is_refused_by_name(
    spark: SparkSession, files: Path, name: str
) -> None:
    build, said = REFUSED[name]
    with pytest.raises(Fail) as raised:
        applied(spark.newSession(), str(files), build)
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_query_on_the_part_is_refused_while_the_transform_is_called(
    spark: SparkSession, files: Path, name: str
) -> None:
    with pytest.raises(Fail, match="runs a query on its input"):
        applied(spark.newSession(), str(files), ACTIONS[name])


def test_the_gate_has_every_method_that_spark_may_call(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    (name,) = Gate.Java.implements
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    methods = jvm.java.lang.Class.forName(name, False, loader).getMethods()
    wanted = {method.getName() for method in methods if "$" not in method.getName()}
    assert wanted <= set(dir(Gate))
    assert "listFiles" in wanted


def test_what_a_transform_cached_is_forgotten(spark: SparkSession, files: Path) -> None:
    own = own_session(spark)
    manager = own._jsparkSession.sharedState().cacheManager()
    frame = own.read.parquet(str(files))
    with applying._gated(frame) as (gated, gate):
        found = Transform("it", lambda df: df.where("n > 3").cache().select("n"))
        plan = applying.called(found, {}, gated, gate, "open")
        gate.state = "open"
        assert plan.frame.count() == 56
        assert manager.numCachedEntries() == 1
    assert manager.numCachedEntries() == 0


def test_the_check_takes_few_calls_of_java(
    spark: SparkSession, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, gate = behind_a_gate(spark.read.parquet(str(files)))
    for number in range(10):
        frame = frame.withColumn(f"c{number}", F.col("n") + number)
    frame = frame.join(table(frame), "n", "left")
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    send, sent = client.send_command, list[str]()

    def counted(command: str, *more: Any, **named: Any) -> Any:
        sent.append(command)
        return send(command, *more, **named)

    monkeypatch.setattr(client, "send_command", counted)
    rowwise.refuse_unequal("it", LogicalPlan(frame, gate))
    assert len(sent) < 400, "each takes about 0.1 ms"
