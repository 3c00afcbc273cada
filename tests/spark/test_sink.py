"""Batch and streaming sinks: all or nothing, each row once, whatever happens to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from holdfast import Queue
from spark.pipeline.support import wait_long
from spark.support import Options, payloads


def write(table: DataFrame, options: Options, **more: str) -> None:
    table.write.format("holdfast").options(**options, **more).mode("append").save()


def nothing_is_staged(queue: Queue) -> bool:
    queue.tidy()
    return queue.counts().staged == 0


def test_rows_become_jobs_with_all_that_they_say(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    table = spark.sql("""
        select named_struct('to', 'a@b.c', 'n', 7) value, 'invoice-7' id, 90 priority,
               timestamp'2100-01-01 00:00:00Z' due_at
        union all select named_struct('to', 'd@e.f', 'n', null), 'invoice-8', null, null
    """)
    write(table, options)
    [due] = live_queue.peek(10, state="delayed")
    [ready] = live_queue.peek(10)
    assert (due.id, due.json(), due.priority) == ("invoice-7", {"to": "a@b.c", "n": 7}, 90)
    assert due.at == datetime(2100, 1, 1, tzinfo=UTC).timestamp()
    assert (ready.id, ready.json(), ready.priority) == ("invoice-8", {"to": "d@e.f", "n": None}, 50)


def test_a_write_of_many_tasks_adds_each_row_once_and_leaves_nothing_staged(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    write(spark.range(0, 7000, 1, 4).selectExpr("cast(id as string) value"), options)
    assert sorted(payloads(live_queue)) == sorted(b"%d" % n for n in range(7000))
    assert live_queue.counts().staged == 0


def test_an_id_that_is_taken_is_left_alone(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    live_queue.add("first", id="a")
    write(spark.sql("select 'second' value, 'a' id union all select 'b', 'b'"), options)
    assert sorted(payloads(live_queue)) == [b"b", b"first"]


def test_rows_become_parts_of_a_request(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    with live_queue.request("report", limit=2) as request:
        write(spark.range(10).selectExpr("cast(id as string) value", "'report' request"), options)
    assert request.status().total == 10
    assert sorted(payloads(live_queue, "parked")) == [b"%d" % n for n in range(10)]


def test_a_write_to_a_request_that_is_not_open_writes_nothing(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    with pytest.raises(PySparkException, match="request"):
        write(spark.sql("select 'a' value, 'nobody' request"), options)
    assert live_queue.counts().waiting == 0


def test_a_task_that_is_tried_again_adds_its_rows_once(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    def fail_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task
        yield from batches
        if task.attemptNumber() == 0 and task.partitionId() == 1:
            raise RuntimeError("the first attempt")

    table = spark.range(0, 4000, 1, 2).selectExpr("cast(id as string) value")
    write(table.mapInArrow(fail_once, table.schema), options, stagedFor="1")
    assert sorted(payloads(live_queue)) == sorted(b"%d" % n for n in range(4000))
    wait_long(lambda: nothing_is_staged(live_queue), "staging to be gone")


def test_a_write_that_fails_adds_nothing_and_its_staging_goes_in_time(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    table = spark.range(0, 4000, 1, 2).withColumn("value", functions.col("id").cast("string"))
    bad = table.select(
        functions.expr("if(id = 3999, raise_error('the last row'), value)").alias("value")
    )
    with pytest.raises(PySparkException, match="the last row"):
        write(bad, options, stagedFor="1")
    assert live_queue.counts().waiting == 0
    wait_long(lambda: nothing_is_staged(live_queue), "staging to be gone")
    assert live_queue.counts().waiting == 0


@pytest.mark.parametrize(
    ("query", "more", "told"),
    [
        ("select 'a' text", {}, "column 'value' is missing"),
        ("select 'a' value, 1 id", {}, "column 'id' must be a string, not int"),
        ("select 'a' value, 'x' id union all select 'b', null", {}, "column 'id' has a null"),
        ("select 'a' value", {"quue": "x"}, "unknown option 'quue'"),
        ("select 'a' value", {"stagedFor": "soon"}, "option 'stagedFor' must be seconds"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver_and_nothing_is_written(
    spark: SparkSession,
    live_queue: Queue,
    options: Options,
    query: str,
    more: dict[str, Any],
    told: str,
) -> None:
    with pytest.raises(PySparkException, match=told):
        write(spark.sql(query), options, **more)
    assert live_queue.counts().waiting == 0


def test_a_queue_cannot_be_overwritten(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    live_queue.add("old")
    with pytest.raises(PySparkException, match=r"use mode\('append'\)"):
        spark.sql("select 'a' value").write.format("holdfast").options(**options).mode(
            "overwrite"
        ).save()
    assert payloads(live_queue) == [b"old"]


def test_a_server_that_is_not_there_is_said_on_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"option 'url': .*nowhere"):
        write(spark.sql("select 'a' value"), {"queue": "q", "url": f"unix://{tmp_path}/nowhere"})


# --------------------------------------------------------------------------------- streams


def run_stream(spark: SparkSession, folder: Path, options: Options, **more: str) -> None:
    """Write all files of a folder into the queue, each as a batch."""
    query = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", 1)
        .text(str(folder / "in"))
        .writeStream.format("holdfast")
        .options(**options, **more)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of lines that a stream can read."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("a\nb\n")
    (tmp_path / "in" / "2").write_text("c\nd\n")
    return tmp_path


def forget_last_commit(folder: Path) -> None:
    """Let Spark believe that it died before it noted its last batch as done."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_replayed_is_not_added_again(
    spark: SparkSession, live_queue: Queue, options: Options, folder: Path
) -> None:
    run_stream(spark, folder, options)
    assert sorted(payloads(live_queue)) == [b"a", b"b", b"c", b"d"]
    forget_last_commit(folder)
    (folder / "in" / "3").write_text("e\n")
    run_stream(spark, folder, options)
    assert sorted(payloads(live_queue)) == [b"a", b"b", b"c", b"d", b"e"]
    assert live_queue.counts().staged == 0


def test_another_checkpoint_is_another_stream(
    spark: SparkSession, live_queue: Queue, options: Options, folder: Path
) -> None:
    run_stream(spark, folder, options)
    (folder / "checkpoint").rename(folder / "old checkpoint")
    run_stream(spark, folder, options)
    assert live_queue.counts().ready == 8
