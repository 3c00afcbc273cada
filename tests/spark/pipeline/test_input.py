"""Inputs with odd names, options and headers, whole and divided."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from spark.pipeline.support import must_be_published, numbers


def test_a_directory_with_a_comma_in_its_name(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in,put/day=1", rows=100, files=2)
    handle = pipeline.submit("same", input="in,put", format="parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("day = 1").count() == expected.count()


@pytest.mark.parametrize(
    ("input", "part_size"), [("in/day=*", 100_000_000), ("in/day=*/*.parquet", 1000)]
)
def test_a_base_path_of_the_users_own(
    spark: SparkSession, pipeline: Pipeline, root: Path, input: str, part_size: int
) -> None:
    for day in (1, 2):
        spark.range(3000).repartition(1).write.option("parquet.block.size", 4000).parquet(
            str(root / f"in/day={day}")
        )
    handle = pipeline.submit(
        "same",
        input=input,
        format="parquet",
        options={"basePath": str(root / "in")},
        output="out",
        max_failures=0,
        part_size=part_size,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("day = 1").count() == 3000
    assert handle.read(spark).where("day = 2").count() == 3000


def test_the_names_of_options_are_without_case(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in/deep").mkdir(parents=True)
    (root / "in/deep/a.csv").write_text("".join(f'{n},"two\nlines"\n' for n in range(300)))
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options={"recursivefilelookup": "True", "MULTILINE": "TRUE"},
        output="out",
        output_format="parquet",
        part_size=1000,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("_c1 = 'two\nlines'").count() == 300


def test_a_divided_file_keeps_its_age(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    (root / "in").mkdir()
    (root / "in/old.csv").write_text("".join(f"{n}\n" for n in range(3000)))
    os.utime(root / "in/old.csv", (1_000_000_000, 1_000_000_000))
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options={"modifiedBefore": "2020-01-01T00:00:00"},
        output="out",
        part_size=2000,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).count() == 3000


def test_a_header_behind_a_mark_and_a_comment(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in").mkdir()
    lines = ["\ufeff# of today", "", "n", *map(str, range(300))]
    (root / "in/marked.csv").write_text("\n".join(lines) + "\n")
    options = {"header": True, "comment": "#"}
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options=options,
        part_size=400,
        output="out",
        output_format="parquet",
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert sorted(int(row.n) for row in handle.read(spark).collect()) == list(range(300))


def test_a_header_that_is_longer_than_a_megabyte(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    columns = [f"{'column' * 10_000}{n}" for n in range(20)]
    (root / "in").mkdir()
    lines = [",".join(columns), *(",".join([str(n), *["x" * 200] * 19]) for n in range(300))]
    (root / "in/wide.csv").write_text("\n".join(lines) + "\n")
    handle = pipeline.submit(
        "first_column", input="in/*.csv", options={"header": True}, output="out", part_size="700 KB"
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert sorted(int(row[0]) for row in handle.read(spark).collect()) == list(range(300))


@transform
def first_column(df: DataFrame) -> DataFrame:
    return df.select(F.col(df.columns[0]).alias("n"))
