"""A big backfill with a limit, and a small urgent request that overtakes it.

python examples/urgent_beside_backfill.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, session, transform


@transform
def hashed(df: DataFrame) -> DataFrame:
    return df.withColumn("hash", F.sha2(F.col("id").cast("string"), 256))


def main(spark: SparkSession, root: Path, url: str | None = None) -> Path:
    spark.range(300_000).repartition(12).write.parquet(str(root / "years"))
    spark.range(1_000).coalesce(1).write.parquet(str(root / "today"))
    with Pipeline("backfill", url, roots=root) as pipeline:
        backfill = pipeline.submit(
            "hashed", input="years/*.parquet", output="old", limit=1, part_size="100 KB"
        )
        with pipeline.working(spark, concurrency=2):
            urgent = pipeline.submit("hashed", input="today/*.parquet", output="new", priority=90)
            print("urgent:", urgent.wait().state, "- backfill:", backfill.progress().state)
            print("backfill:", backfill.wait().state)
        return pipeline.plot(root / "timeline.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(main(session(), Path(directory)).stat().st_size, "bytes of picture")
