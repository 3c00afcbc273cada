"""Daily totals: each part is reduced by itself, and `finish` adds the parts up.

python examples/daily_totals.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, session, transform


@transform(per_part=True)  # It groups, and may: `totals` groups again.
def totals_of_part(df: DataFrame) -> DataFrame:
    return df.groupBy("day").agg(F.sum("amount").alias("amount"))


@transform
def totals(df: DataFrame) -> DataFrame:
    return df.groupBy("day").agg(F.sum("amount").alias("amount")).orderBy("day")


def make_data(spark: SparkSession, root: Path) -> None:
    frame = spark.range(200_000).select(
        F.date_add(F.lit("2026-01-01"), (F.col("id") % 31).cast("int")).alias("day"),
        (F.col("id") % 100).alias("amount"),
    )
    frame.repartition(8).write.parquet(str(root / "payments"))


def main(spark: SparkSession, root: Path, url: str | None = None) -> int:
    make_data(spark, root)
    with Pipeline("daily-totals", url, roots=root) as pipeline:
        handle = pipeline.submit(
            "totals_of_part",
            input="payments/*.parquet",
            output="totals",
            finish="totals",
            part_size="20 KB",
        )
        with pipeline.working(spark):
            handle.wait()
        published = handle.read(spark)
        published.show(5)
        return published.count()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(session(), Path(directory))
