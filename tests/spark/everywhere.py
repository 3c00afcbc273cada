"""All connectors in one go, as a program of its own: in a cluster, or through Spark Connect.

    python everywhere.py <master, or connect> <url> <folder>

It writes, on a cluster with speculation and a task that hangs at its first attempt, looks at what
it has written, reads it as a stream into another queue, and tells what it found as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from holdfast.spark import prepare, session

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 8000

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.executor.memory": "512m",
    # Rows go on to the sink while the task that reads them hangs, not only at its end.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def begin(master: str) -> SparkSession:
    if master == "connect":
        prepare()
        return SparkSession.builder.remote("local[2]").getOrCreate()
    return session("everywhere", master=master, config=SPECULATION)


def main(master: str, url: str, folder: str) -> None:
    hanging = master.startswith("spark:")  # Elsewhere there is one host, and no double.

    def hang(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if hanging and task and task.partitionId() == 3 and task.attemptNumber() == 0:
            time.sleep(3600)  # It is killed when its double, which does not hang, has finished.

    spark = begin(master)
    options = {"url": url, "queue": "in"}
    table = spark.range(0, ROWS, 1, 4).selectExpr("lpad(cast(id as string), 400, '0') value")
    slow = table.mapInArrow(hang, "value string")
    slow.write.format("holdfast").options(**options).mode("append").save()
    looked = spark.read.format("holdfast").options(**options).load().count()
    query = (
        spark.readStream.format("holdfast")
        .options(**options, reader="r", maxJobsPerTrigger="2000")
        .load()
        .select("value")
        .writeStream.format("holdfast")
        .options(url=url, queue="out", checkpointLocation=folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    kind = type(spark).__module__
    print(json.dumps({"looked": looked, "kind": kind, "version": spark.version}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
