"""Random inputs, splits and plans. Each follows from a number, by which it can be run again.

A plan is a chain of steps. Most work row by row; about every second plan has one that does not.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # It has no types.
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType

ZONES = ("UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe")
STRINGS = ("", " ", "a", "Ä", "two\nlines", '"', "a,b", "\\", "NULL", "x" * 50)
DOUBLES = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -2.25, 1e300)
DECIMALS = ("0.00", "-0.01", "99999999.99", "1.10", "-12345.67")
MOMENTS = (
    dt.datetime(2026, 3, 29, 0, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(2026, 3, 29, 1, 0, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC),
    dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC),
)
COLUMNS: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "d": (pa.float64(), lambda rng: rng.choice(DOUBLES)),
    "m": (pa.decimal128(10, 2), lambda rng: Decimal(rng.choice(DECIMALS))),
    "s": (pa.string(), lambda rng: rng.choice(STRINGS)),
    "t": (pa.timestamp("us", "UTC"), lambda rng: rng.choice(MOMENTS)),
    "w": (pa.timestamp("us"), lambda rng: rng.choice(MOMENTS).replace(tzinfo=None)),
    "day": (pa.date32(), lambda rng: rng.choice(MOMENTS).date()),
    "b": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "raw": (pa.binary(), lambda rng: rng.choice(STRINGS).encode()),
    "xs": (
        pa.list_(pa.int64()),
        lambda rng: [rng.choice((1, 2, None)) for _ in range(rng.randrange(4))],
    ),
    "st": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        lambda rng: {"a": rng.randrange(5), "b": rng.choice((None, "x"))},
    ),
    "mp": (
        pa.map_(pa.string(), pa.int64()),
        lambda rng: [(key, rng.randrange(3)) for key in ("p", "q")[: rng.randrange(3)]],
    ),
}
DDL = {
    "d": "DOUBLE",
    "m": "DECIMAL(10,2)",
    "s": "STRING",
    "t": "TIMESTAMP",
    "w": "TIMESTAMP_NTZ",
    "day": "DATE",
    "b": "BOOLEAN",
    "raw": "BINARY",
    "xs": "ARRAY<BIGINT>",
    "st": "STRUCT<a: BIGINT, b: STRING>",
    "mp": "MAP<STRING, BIGINT>",
}


def write_input(rng: random.Random, folder: Path) -> str:
    """Write two or three files of a random schema; return the schema."""
    extra = rng.sample(sorted(COLUMNS), rng.randint(2, 4))
    kinds = {"k": (pa.int64(), small), "n": (pa.int64(), None), **{c: COLUMNS[c] for c in extra}}
    folder.mkdir()
    number = 0
    for file in range(rng.randint(2, 3)):
        count = rng.choice((3, 12, 20) if file < 2 else (0, 3))
        arrays = {}
        for name, (kind, make) in kinds.items():
            values = [
                number + row if make is None else None if rng.random() < 0.2 else make(rng)
                for row in range(count)
            ]
            arrays[name] = pa.array(values, kind)
        number += count
        pq.write_table(
            pa.table(arrays), folder / f"{file}.parquet", row_group_size=rng.choice((8, 100, 100))
        )
    return ", ".join(["k BIGINT", "n BIGINT", *(f"{name} {DDL[name]}" for name in extra)])


def small(rng: random.Random) -> int:
    return rng.randrange(6)


class Builder:
    """Builds one plan: the same for each DataFrame of the same schema."""

    def __init__(self, seed: int, *, risky: bool, python: bool = True) -> None:
        self.seed = seed
        self.risky = risky
        self.python = python
        self.steps: list[str] = []

    def __call__(self, df: DataFrame) -> DataFrame:
        self.rng = random.Random(self.seed)
        self.names = (f"c{number}" for number in range(1000))
        self.steps = []
        count = self.rng.randint(1, 4)
        place = self.rng.randrange(count + 1) if self.risky else -1
        for number in range(count + 1):
            if number == place:
                df = self.step(df, RISKY)
            elif number < count:
                df = self.step(df, ROW_WISE)
        return df

    @property
    def may_be_refused(self) -> bool:
        """Whether the check has a reason to refuse it."""
        by_partition = "mapInPandas (Python)" in self.steps and "spread" in self.steps
        return self.risky or by_partition

    def step(self, df: DataFrame, pool: dict[str, Step]) -> DataFrame:
        usable = [name for name in pool if self.python or "Python" not in name]
        # What starts a Python process takes longest, so it comes less often.
        weights = [1 if "Python" in name else 4 for name in usable]
        (name,) = self.rng.choices(usable, weights)
        self.steps.append(name)
        df = pool[name](self, df)
        for wanted in ("k", "n"):  # What follows asks for them.
            if wanted not in df.columns:
                df = df.withColumn(wanted, F.lit(1).cast("bigint"))
        return df

    # ------------------------------------------------------------- ingredients

    def name(self) -> str:
        return next(self.names)

    def other(self, df: DataFrame, key: str = "k") -> DataFrame:
        """Return another table, with columns that no other has: `key`, and one more."""
        spark, rng = df.sparkSession, self.rng
        value = self.name()
        rows = ", ".join(
            f"({rng.choice((0, 1, 2, 2, 3, 9, 'NULL'))}, {n})" for n in range(rng.randint(1, 6))
        )
        table = spark.sql(f"SELECT CAST(k AS BIGINT) k, v {value} FROM VALUES {rows} AS t(k, v)")
        match rng.randrange(6):
            case 0:
                table = table.groupBy("k").agg(F.max(value).alias(value))
            case 1:
                order = Window.partitionBy("k").orderBy(value)
                table = table.withColumn(value, F.row_number().over(order))
            case 2:
                table = table.union(spark.range(3).select("id", F.lit(7))).distinct()
            case 3:
                table = spark.range(8).select(
                    (F.col("id") % 4).alias("k"), F.col("id").alias(value)
                )
            case 4:
                table = F.broadcast(table)
            case _:
                pass
        return table.withColumnRenamed("k", key)

    def view(self, df: DataFrame) -> str:
        name = self.name()
        df.createOrReplaceTempView(name)
        return name

    def some(self, df: DataFrame) -> tuple[str, str]:
        """Return a column, and its type."""
        return self.rng.choice(df.dtypes)

    def sql(self, df: DataFrame, text: str, **tables: DataFrame) -> DataFrame:
        views = {name: self.view(table) for name, table in tables.items()}
        return df.sparkSession.sql(text.format(p=self.view(df), **views))


Step = Callable[[Builder, DataFrame], DataFrame]


def value_of(it: Builder, name: str, kind: str) -> Column:
    """Return a value that follows from one column."""
    column = F.col(name)
    told = F.coalesce(column.cast("string"), F.lit("none"))
    choices: list[Column] = [F.isnull(column), F.lit(1)]
    match kind.partition("<")[0].partition("(")[0]:
        case "bigint" | "int":
            choices += [column % 3, F.when(column > 2, "big").otherwise("small"), told]
            choices += [F.xxhash64(column), column / 7]
        case "double":
            choices += [column * 2, -column, F.isnan(column), F.nanvl(column, F.lit(0.0)), told]
        case "decimal":
            choices += [column + 1, F.round(column, 1), column.cast("double"), column * column]
        case "string":
            choices += [
                F.upper(column),
                F.length(column),
                F.concat(column, F.lit("!")),
                F.md5(column),
            ]
            choices += [F.split(column, ","), F.try_to_number(column, F.lit("9"))]
        case "timestamp":
            choices += [F.hour(column), F.to_date(column), F.date_trunc("hour", column), told]
            choices += [F.date_format(column, "yyyy-MM-dd HH:mm VV"), F.unix_micros(column)]
        case "timestamp_ntz":
            choices += [F.hour(column), column.cast("timestamp"), F.date_add(column, 1)]
        case "date":
            choices += [F.date_add(column, 30), column.cast("timestamp"), F.dayofweek(column)]
        case "boolean":
            choices += [~column, column & F.lit(True)]
        case "binary":
            choices += [F.base64(column), F.length(column), F.hex(column)]
        case "array":
            choices += [F.size(column), F.array_distinct(column), F.reverse(column)]
            choices += [F.transform(column, lambda x: F.struct(x.alias("x"), x.alias("y")))]
        case "struct":
            choices += [F.to_json(column), F.array(column)]
        case "map":
            choices += [F.map_keys(column), F.map_values(column), F.size(column)]
        case _:
            pass
    return it.rng.choice(choices)


def keep(it: Builder, df: DataFrame) -> DataFrame:
    name, kind = it.some(df)
    conditions = [F.col(name).isNotNull(), F.col("n") % 2 == 0, F.col("k").isin(1, 2, 3)]
    if kind == "double":
        conditions += [F.isnan(name), F.col(name) == 0.0, F.col(name) > 0]
    if kind == "string":
        conditions += [F.col(name).like("%a%"), F.col(name) == ""]
    return df.where(it.rng.choice(conditions))


def add(it: Builder, df: DataFrame) -> DataFrame:
    return df.withColumn(it.name(), value_of(it, *it.some(df)))


def choose(it: Builder, df: DataFrame) -> DataFrame:
    others = [name for name in df.columns if name not in ("k", "n")]
    return df.select("k", "n", *it.rng.sample(others, it.rng.randint(0, len(others))))


def explode(it: Builder, df: DataFrame) -> DataFrame:
    lists = [name for name, kind in df.dtypes if kind.startswith("array")]
    given = F.col(lists[0]) if lists else F.sequence(F.lit(1), F.coalesce("k", F.lit(1)))
    how = it.rng.choice((F.explode, F.explode_outer))
    return df.withColumn(it.name(), how(given))


def unpivot(it: Builder, df: DataFrame) -> DataFrame:
    key, value, same = it.name(), it.name(), it.name()
    given = df.withColumn(same, F.col("k") + 1)
    return given.unpivot(["k", "n"], [same], key, value)


def fill(it: Builder, df: DataFrame) -> DataFrame:
    match it.rng.randrange(3):
        case 0:
            return df.fillna({"k": 2})
        case 1:
            return df.dropna(subset=["k"])
        case _:
            return df.replace(1, 4, subset=["k"])


def spread(it: Builder, df: DataFrame) -> DataFrame:
    ways: list[Callable[[], DataFrame]] = [
        lambda: df.repartition(2),
        lambda: df.coalesce(1),
        lambda: df.repartition(2, "k"),
        lambda: df.sortWithinPartitions("k", "n"),
        lambda: df.hint("rebalance"),
        lambda: df.alias("part"),
    ]
    return it.rng.choice(ways)()


def join(it: Builder, df: DataFrame) -> DataFrame:
    how = it.rng.choice(
        ("inner", "left", "semi", "anti", "cross", "right, turned", "inner, turned")
    )
    key = it.name()
    other = it.other(df, key)
    same = F.col("k") == F.col(key)
    if it.rng.random() < 0.3:
        same = F.col("k").eqNullSafe(F.col(key))
    if it.rng.random() < 0.2:
        same &= F.col("n") > 3
    if how == "cross":
        return df.crossJoin(other)
    if how.endswith("turned"):
        return other.join(df, same, how.partition(",")[0])
    return df.join(other, same, how)


def join_by_double(it: Builder, df: DataFrame) -> DataFrame:
    key, made = it.name(), it.name()
    other = df.sparkSession.sql(
        f"SELECT DOUBLE(v) {key} FROM VALUES ('NaN'), ('0.0'), ('1.5'), (NULL) AS t(v)"
    )
    column = "d" if "d" in df.columns else made
    given = df if column == "d" else df.withColumn(made, F.col("k") * -0.0)
    return given.join(other, F.col(column) == F.col(key), it.rng.choice(("left", "anti", "inner")))


def subquery(it: Builder, df: DataFrame) -> DataFrame:
    key, value = it.name(), it.name()
    texts = (
        "SELECT * FROM {p} WHERE k IN (SELECT {key} FROM {o})",
        "SELECT * FROM {p} WHERE k NOT IN (SELECT {key} FROM {o} WHERE {key} IS NOT NULL)",
        "SELECT * FROM {p} p WHERE EXISTS (SELECT 1 FROM {o} WHERE {key} = p.k) OR n = 3",
        "SELECT *, (SELECT max({key}) FROM {o}) AS {value} FROM {p}",
        "SELECT *, (SELECT count(*) FROM {o} WHERE {key} < p.k) AS {value} FROM {p} p",
        "SELECT * FROM {p} p, LATERAL (SELECT count(*) AS {value} FROM {o} WHERE {key} = p.k)",
    )
    text = it.rng.choice(texts).replace("{key}", key).replace("{value}", value)
    return it.sql(df, text, o=it.other(df, key))


def common(it: Builder, df: DataFrame) -> DataFrame:
    return it.sql(
        df, "WITH a AS (SELECT * FROM {p} WHERE n > 1) SELECT * FROM a WHERE k IS NOT NULL"
    )


def python_udf(it: Builder, df: DataFrame) -> DataFrame:
    @F.udf(LongType())
    def tripled(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        return None if n is None else n * 3

    return df.withColumn(it.name(), tripled("n"))


def map_in_pandas(it: Builder, df: DataFrame) -> DataFrame:
    def doubled(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(n=batch.n * 2)

    return df.select("k", "n").mapInPandas(doubled, "k BIGINT, n BIGINT")


ROW_WISE: dict[str, Step] = {
    "filter": keep,
    "add": add,
    "add another": add,
    "select": choose,
    "explode": explode,
    "unpivot": unpivot,
    "fill": fill,
    "spread": spread,
    "join": join,
    "join again": join,
    "join by double": join_by_double,
    "subquery over another table": subquery,
    "common table expression": common,
    "Python UDF": python_udf,
    "mapInPandas (Python)": map_in_pandas,
}


# ----------------------------------------------------- what needs more than one row


def union(it: Builder, df: DataFrame) -> DataFrame:
    if it.rng.random() < 0.5:
        return df.select("k", "n").union(it.other(df))
    return df.union(df)


def group(it: Builder, df: DataFrame) -> DataFrame:
    totals = [F.count(F.lit(1)), F.sum("n"), F.max("n"), F.collect_set("k")]
    grouped = df.groupBy("k") if it.rng.random() < 0.7 else df.groupBy()
    return (
        grouped.agg(it.rng.choice(totals).alias("n"))
        if it.rng.random() < 0.9
        else df.cube("k").count()
    )


def distinct(it: Builder, df: DataFrame) -> DataFrame:
    given = df.select("k")
    return given.distinct() if it.rng.random() < 0.5 else df.select("k", "n").dropDuplicates(["k"])


def limit(it: Builder, df: DataFrame) -> DataFrame:
    ways: list[Callable[[], DataFrame]] = [
        lambda: df.limit(3),
        lambda: df.offset(2),
        lambda: df.orderBy("n").limit(2),
    ]
    return it.rng.choice(ways)()


def window(it: Builder, df: DataFrame) -> DataFrame:
    over = Window.partitionBy("k") if it.rng.random() < 0.5 else Window.partitionBy()
    return df.withColumn(it.name(), it.rng.choice((F.count("n"), F.max("n"))).over(over))


def set_operation(it: Builder, df: DataFrame) -> DataFrame:
    given, other = df.select("k"), it.other(df).select("k")
    ways = (given.intersect, given.subtract, given.exceptAll, given.intersectAll)
    return it.rng.choice(ways)(other)


def wrong_side(it: Builder, df: DataFrame) -> DataFrame:
    key = it.name()
    other, same = it.other(df, key), F.col("k") == F.col(key)
    if it.rng.random() < 0.4:
        return df.join(other, same, "right")
    return other.join(df, same, it.rng.choice(("left", "semi", "anti")))


def full_join(it: Builder, df: DataFrame) -> DataFrame:
    key = it.name()
    return df.join(it.other(df, key), F.col("k") == F.col(key), "full")


def self_join(it: Builder, df: DataFrame) -> DataFrame:
    key = it.name()
    other = df.select(F.col("k").alias(key))
    if it.rng.random() < 0.3:
        return df.crossJoin(other)
    return df.join(other, F.col("k") == F.col(key), it.rng.choice(("inner", "left", "semi")))


def subquery_over_the_part(it: Builder, df: DataFrame) -> DataFrame:
    texts = (
        "SELECT * FROM {p} WHERE n >= (SELECT max(n) FROM {p})",
        "SELECT *, (SELECT count(*) FROM {p}) AS c FROM {p}",
        "SELECT * FROM {p} WHERE k IN (SELECT k + 1 FROM {p})",
        "SELECT * FROM {p} p WHERE NOT EXISTS (SELECT 1 FROM {p} q WHERE q.k = p.k AND q.n > p.n)",
        "SELECT * FROM {o} WHERE k IN (SELECT k FROM {p})",
        "SELECT * FROM {o} o, LATERAL (SELECT count(*) FROM {p} p WHERE p.k = o.k)",
        "WITH a AS (SELECT k FROM {p}) SELECT a.k FROM a JOIN a b ON a.k = b.k",
    )
    return it.sql(df, it.rng.choice(texts), o=it.other(df))


def chance(it: Builder, df: DataFrame) -> DataFrame:
    ways: list[Callable[[], DataFrame]] = [
        lambda: df.withColumn(it.name(), F.monotonically_increasing_id()),
        lambda: df.withColumn(it.name(), F.rand(it.seed)),
        lambda: df.sample(fraction=0.5, seed=it.seed),
        lambda: df.withColumn(it.name(), F.uuid()),
        lambda: df.where(F.spark_partition_id() == 0),
    ]
    return it.rng.choice(ways)()


def moment(it: Builder, df: DataFrame) -> DataFrame:
    return df.withColumn(it.name(), it.rng.choice((F.current_timestamp(), F.now())))


def action(it: Builder, df: DataFrame) -> DataFrame:
    ways: list[Callable[[], Any]] = [
        df.count,
        lambda: len(df.collect()),
        lambda: df.agg(F.max("n")).first()[0],  # type: ignore[index]
        lambda: len(df.select("n").tail(9)),
    ]
    found = F.lit(it.rng.choice(ways)()).cast("bigint")
    if it.rng.random() < 0.5:
        return df.where(F.col("n") + 9 < found)
    return df.withColumn(it.name(), found)


def only_other(it: Builder, df: DataFrame) -> DataFrame:
    return it.other(df)


def by_partition(it: Builder, df: DataFrame) -> DataFrame:
    def counted(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"n": [sum(len(batch) for batch in batches)]})

    given = df.select("n")
    way = given.coalesce(1) if it.rng.random() < 0.5 else given.repartition(1, "n")
    return way.mapInPandas(counted, "n BIGINT")


RISKY: dict[str, Step] = {
    "union": union,
    "group": group,
    "distinct": distinct,
    "limit": limit,
    "window": window,
    "set operation": set_operation,
    "wrong side": wrong_side,
    "wrong side again": wrong_side,
    "full join": full_join,
    "self-join": self_join,
    "subquery over the part": subquery_over_the_part,
    "chance": chance,
    "moment": moment,
    "action": action,
    "action and more": action,
    "another table only": only_other,
    "by partition": by_partition,
}
