"""A driver to be killed: one stream, or one batch write, in a process of its own.

    python program.py <what to do, as JSON>

It tells the id of its JVM in its first line. A stream takes all that waits, and ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.spark import session

# What starts a JVM sooner, and does less for jobs that are run once.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}

# What makes each plan a fifth sooner: it is run once, and compiling takes longer than running.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True)
class Plan:
    """What to do."""

    what: str
    """files, queue or batch: a stream into files, into a queue, or a batch write."""
    url: str
    queue: str
    folder: str
    rows: int = 6000
    per_batch: int = 2000

    @property
    def out(self) -> str:
        """Where the rows go: the queue that a stream writes to."""
        return self.queue + " out"

    def command(self) -> list[str]:
        return [sys.executable, __file__, json.dumps(asdict(self))]


def run(plan: Plan) -> None:
    spark = session("to be killed", master="local[2]", config=QUICK)
    gateway = spark.sparkContext._gateway
    assert gateway
    print(gateway.proc.pid, flush=True)
    if plan.what == "batch":
        table = spark.range(0, plan.rows, 1, 2).selectExpr("cast(id as string) value")
        options = {"url": plan.url, "queue": plan.queue}
        table.write.format("holdfast").options(**options).mode("append").save()
        return
    query = stream(spark, plan).trigger(availableNow=True).start()
    query.awaitTermination()


def stream(spark: SparkSession, plan: Plan) -> DataStreamWriter:
    folder = Path(plan.folder)
    jobs = (
        spark.readStream.format("holdfast")
        .options(url=plan.url, queue=plan.queue, reader="r")
        .options(maxJobsPerTrigger=plan.per_batch, maxJobsPerPartition=1000)
        .load()
    )
    checkpoint = str(folder / "checkpoint")
    if plan.what == "files":
        text = jobs.selectExpr("cast(value as string) value").writeStream.format("parquet")
        return text.options(path=str(folder / "out"), checkpointLocation=checkpoint)
    out = jobs.select("value").writeStream.format("holdfast")
    return out.options(url=plan.url, queue=plan.out, checkpointLocation=checkpoint)


if __name__ == "__main__":
    run(Plan(**json.loads(sys.argv[1])))
