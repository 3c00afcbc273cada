"""What a pipeline publishes is what one plain Spark job over the same input gives."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline
from spark.pipeline.support import big_enough, must_be_published, numbers, rows

LINES = 3000


@dataclass
class Case:
    make: Callable[[SparkSession, Path], object]
    input: str
    format: Any = None
    options: dict[str, bool] = field(default_factory=dict)
    part_size: int | str = "128 MB"
    parts: Callable[[int], bool] = lambda parts: parts == 1
    output_options: dict[str, bool] = field(default_factory=dict)


def csv_lines(lines: int = LINES) -> str:
    """Make lines with letters of two bytes, and fields with commas and quotes."""
    return "".join(f'{n},"{"ü" * (n % 7)}, said ""{n}""",\n' for n in range(lines))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def small_csvs(spark: SparkSession, root: Path) -> None:
    for number in range(6):
        write(root / f"in/{number}.csv", "n,name,none\n" + csv_lines(number * 3))
    write(root / "in/empty.csv", "")
    write(root / "in/_hidden.csv", "n,name,none\n1,2,3\n")


def big_csv(spark: SparkSession, root: Path) -> None:
    write(root / "in/big.csv", "n,name,none\n" + csv_lines())


def gzipped_csv(spark: SparkSession, root: Path) -> None:
    (root / "in").mkdir()
    with gzip.open(root / "in/big.csv.gz", "wt") as file:
        file.write("n,name,none\n" + csv_lines())


def csv_over_lines(spark: SparkSession, root: Path) -> None:
    text = "".join(f'{n},"two\nlines",\n' for n in range(LINES))
    write(root / "in/big.csv", "n,name,none\n" + text)


def big_json(spark: SparkSession, root: Path) -> None:
    line = '{{"n": {n}, "tags": ["ü", "{n}"], "deep": {{"a": {n}.5, "b": null}}}}\n'
    write(root / "in/big.jsonl", "".join(line.format(n=n) for n in range(LINES)))
    write(root / "in/other.jsonl", '{"n": 5, "late": true}\n')


def odd_names(spark: SparkSession, root: Path) -> None:
    for name in ("with space", "100%", "[a]", "a,b", "ü{x}*", "plus+&=q?"):
        write(root / f"in/{name}.csv", "n,name,none\n" + csv_lines(20))


def big_parquet(spark: SparkSession, root: Path) -> None:
    frame = spark.range(60_000).select(F.col("id").alias("n"), F.uuid(F.lit(1)).alias("name"))
    frame.coalesce(1).write.option("parquet.block.size", 200_000).option(
        "parquet.page.size.row.check.min", 100
    ).parquet(str(root / "in"))


def nested_parquet(spark: SparkSession, root: Path) -> None:
    spark.range(500).select(
        F.col("id").alias("n"),
        F.struct(F.col("id").alias("a"), F.array(F.col("id"), F.lit(None)).alias("b")).alias("s"),
        F.create_map(F.lit("k"), F.struct(F.lit("v").alias("x"))).alias("m"),
        (F.col("id") / 7).cast("decimal(20,6)").alias("d"),
        F.timestamp_seconds(F.col("id") * 1000).alias("t"),
        F.date_add(F.lit("2026-01-01"), F.col("id").cast("int")).alias("day"),
        F.encode(F.lit("\x00ü"), "utf-8").alias("raw"),
        F.when(F.col("id") % 2 == 0, F.col("id")).alias("sometimes"),
    ).repartition(3).write.parquet(str(root / "in"))


def partitioned(spark: SparkSession, root: Path) -> None:
    frame = spark.range(300).select(
        F.col("id").alias("n"),
        (F.col("id") % 3).alias("kind"),
        F.concat(F.lit("a b%"), F.col("id") % 2).alias("day"),
    )
    frame.repartition(1).write.partitionBy("day", "kind").parquet(str(root / "in"))


HEADER: dict[str, bool] = {"header": True}
TYPED: dict[str, bool] = {"header": True, "inferSchema": True}

CASES = {
    "many small parquet files": Case(
        lambda spark, root: numbers(spark, root / "in"), "in/*.parquet"
    ),
    "small files in several parts": Case(
        lambda spark, root: numbers(spark, root / "in"),
        "in",
        "parquet",
        part_size=5000,
        parts=lambda parts: parts > 2,
    ),
    "a big parquet file by row groups": Case(
        big_parquet, "in", "parquet", part_size="400 KB", parts=lambda parts: parts > 2
    ),
    "nested types": Case(nested_parquet, "in", "parquet"),
    "directories that are columns": Case(
        partitioned, "in", "parquet", part_size=2000, parts=lambda parts: parts > 2
    ),
    "many small csv files, one empty, one with a header only": Case(
        small_csvs, "in/*.csv", options=TYPED, output_options=HEADER
    ),
    "a big csv file by lines": Case(
        big_csv,
        "in/big.csv",
        options=TYPED,
        part_size=20_000,
        parts=lambda parts: parts > 4,
        output_options=HEADER,
    ),
    "a compressed file is not divided": Case(
        gzipped_csv, "in/*.csv.gz", options=TYPED, part_size=1000, output_options=HEADER
    ),
    "records over several lines are not divided": Case(
        csv_over_lines,
        "in",
        "csv",
        options={**TYPED, "multiLine": True},
        part_size=1000,
        output_options={**HEADER, "multiLine": True},
    ),
    "a big file of json lines": Case(
        big_json, "in/*.jsonl", part_size=40_000, parts=lambda parts: parts > 4
    ),
    "odd names": Case(
        odd_names,
        "in",
        "csv",
        options=TYPED,
        output_options=HEADER,
        part_size=2000,
        parts=lambda parts: parts == 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_that_of_the_plain_job(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str
) -> None:
    case = CASES[name]
    case.make(spark, root)
    handle = pipeline.submit(
        "big_enough",
        params={"least": 7},
        input=case.input,
        output="out",
        format=case.format,
        options=case.options,
        part_size=case.part_size,
        output_options=case.output_options,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    progress = handle.progress()
    assert case.parts(progress.parts), progress

    read_as = case.format or told_format(case.input)
    reader = spark.read.format(read_as).options(**case.options)
    expected = big_enough(reader.load(str(root / case.input)), least=7)
    plain = root.parent / "plain"
    expected.write.format(read_as).options(**case.output_options).save(str(plain))
    back = {**case.output_options, "inferSchema": True} if read_as == "csv" else {}
    again = spark.read.format(read_as).options(**back)
    published, wanted = rows(again.load(str(root / "out"))), rows(again.load(str(plain)))
    assert published == wanted
    assert wanted
    assert progress.rows_out == wanted.total()


def told_format(path: str) -> str:
    return {"parquet": "parquet", "csv": "csv", "gz": "csv", "jsonl": "json"}[
        path.rpartition(".")[2]
    ]


def test_an_input_without_rows_has_an_output_without_rows(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=0, files=1)
    handle = pipeline.submit("same", input="in", format="parquet", output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
    back = spark.read.parquet(str(root / "out"))
    assert back.columns == ["n", "name"]
    assert back.count() == 0


@pytest.mark.parametrize("kind", ["text", "orc"])
def test_other_formats_go_as_they_came(
    spark: SparkSession, pipeline: Pipeline, root: Path, kind: Any
) -> None:
    frame = spark.range(100).select(F.col("id").cast("string").alias("value"))
    frame.repartition(3).write.format(kind).save(str(root / "in"))
    handle = pipeline.submit("same", input="in", format=kind, output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert rows(spark.read.format(kind).load(str(root / "out"))) == rows(frame)


def test_one_format_may_become_another(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    big_csv(spark, root)
    schema = "n LONG, name STRING, none STRING"
    handle = pipeline.submit(
        "same",
        input="in/*.csv",
        options=HEADER,
        schema=schema,
        output="out",
        output_format="parquet",
        part_size="20 KB",
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    expected = spark.read.csv(str(root / "in"), header=True, schema=schema)
    assert rows(handle.read(spark)) == rows(expected)
