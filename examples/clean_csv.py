"""Clean a directory of CSV files into Parquet: bad rows out, types in.

python examples/clean_csv.py
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, session, transform


@transform
def sales(df: DataFrame, *, least: float) -> DataFrame:
    """Keep rows with a sensible amount and a day."""
    amount = F.expr("try_cast(amount AS DOUBLE)")
    day = F.expr("try_cast(day AS DATE)")
    typed = df.select("customer", amount.alias("amount"), day.alias("day"))
    return typed.where((F.col("amount") >= least) & F.col("day").isNotNull())


def make_data(root: Path, files: int = 12, rows: int = 2000) -> None:
    """Write files as they come from shops: mostly good."""
    dice = random.Random(1)
    (root / "shops").mkdir()
    for number in range(files):
        lines = ["customer,amount,day"]
        for _ in range(rows):
            amount = dice.choice(["12.50", "0.10", "99", "n/a"])
            lines.append(f"c{dice.randrange(500)},{amount},2026-01-{dice.randint(1, 35):02}")
        (root / f"shops/{number:02}.csv").write_text("\n".join(lines) + "\n")


def main(spark: SparkSession, root: Path, url: str | None = None) -> int:
    make_data(root)
    with Pipeline("clean-csv", url, roots=root) as pipeline:
        handle = pipeline.submit(
            "sales",
            params={"least": 1.0},
            input="shops/*.csv",
            options={"header": True},
            output="sales",
            output_format="parquet",
            part_size="200 KB",
        )
        with pipeline.working(spark):
            progress = handle.wait()
        print(progress.state, progress.parts, "parts,", progress.rows_out, "rows")
        return handle.read(spark).count()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(main(session(), Path(directory)))
