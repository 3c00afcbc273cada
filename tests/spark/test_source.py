"""The source of a stream: every job once, settled soon, fenced, replayed or refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast import Queue
from holdfast.spark.claiming import BEFORE_ALL, Claiming
from holdfast.spark.options import source_options
from spark.pipeline.support import wait_long
from spark.support import Options, java_of, payloads, source_processes
from support import TestServer

Start = Callable[..., StreamingQuery]


@pytest.fixture
def start(spark: SparkSession, options: Options, tmp_path: Path) -> Iterator[Start]:
    """Start a stream from the queue into files; it is stopped at the end."""
    started: list[StreamingQuery] = []

    def start(folder: str = "one", *, now: bool = False, **more: str) -> StreamingQuery:
        stream = spark.readStream.format("holdfast").options(**options, **{"reader": "r", **more})
        writer = (
            stream.load()
            .selectExpr("cast(value as string) value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / folder / "checkpoint"))
            .option("path", str(tmp_path / folder / "out"))
        )
        writer = writer.trigger(availableNow=True) if now else writer
        started.append(writer.start())
        return started[-1]

    yield start
    for query in started:
        query.stop()


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> Callable[[str], list[int]]:
    """What a stream has written, as numbers."""

    def written(folder: str = "one") -> list[int]:
        table = spark.read.schema("value string").parquet(str(tmp_path / folder / "out"))
        return sorted(int(row.value) for row in table.collect())

    return written


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def is_done(queue: Queue) -> bool:
    """Say whether nothing waits and nothing is held, at one moment."""
    counts = queue.counts()
    return counts.ready == counts.leased == 0


def test_what_is_there_is_drained_in_batches_and_settled(
    live_queue: Queue, start: Start, written: Callable[..., list[int]]
) -> None:
    live_queue.add_many(numbers(2500))
    query = start(now=True, maxJobsPerTrigger="1000")
    assert query.awaitTermination(300)
    assert written() == list(range(2500))
    sizes = [progress.numInputRows for progress in query.recentProgress]
    assert [size for size in sizes if size] == [1000, 1000, 500]
    counts = live_queue.counts()
    assert (counts.waiting, counts.leased, counts.claims) == (0, 0, 0)


def test_a_batch_may_ask_for_more_than_a_claim_holds(live_queue: Queue, options: Options) -> None:
    live_queue.add_many(numbers(5))
    claims = Claiming(source_options({**options, "reader": "r", "maxJobsPerTrigger": "2000000"}))
    assert claims.after(BEFORE_ALL, 2_000_000) == 0
    assert claims.chunks(0) == (5,)
    claims.stop()


def test_a_stream_that_is_idle_has_settled_what_it_did(
    live_queue: Queue, start: Start, written: Callable[..., list[int]]
) -> None:
    query = start()
    live_queue.add_many(numbers(10))
    wait_long(lambda: not query.isActive or live_queue.counts().leased, "a claim")
    wait_long(lambda: not query.isActive or live_queue.counts().leased == 0, "its end")
    assert query.isActive
    assert written() == list(range(10))


def test_the_limit_of_a_request_holds_for_claims(
    live_queue: Queue, start: Start, written: Callable[..., list[int]]
) -> None:
    with live_queue.request("report", limit=2) as request:
        for number in numbers(5):
            request.add(number)
    query = start(now=True)
    assert query.awaitTermination(300)
    assert written() == list(range(5))
    assert max(progress.numInputRows for progress in query.recentProgress) == 2
    assert request.status().state == "completed"


def test_the_older_of_two_readers_of_one_name_is_fenced(
    live_queue: Queue, start: Start, written: Callable[..., list[int]]
) -> None:
    live_queue.add_many(numbers(10))
    older = start("one")
    wait_long(lambda: is_done(live_queue), "all to be settled")
    newer = start("two")
    with pytest.raises(StreamingQueryException, match="Fenced"):
        older.awaitTermination(60)
    live_queue.add_many(numbers(10, 10))
    wait_long(lambda: is_done(live_queue), "all to be settled")
    assert newer.isActive
    assert (written("one"), written("two")) == (list(range(10)), list(range(10, 20)))


class Broken(Exception):
    """The sink does not work today."""


def failing_run(spark: SparkSession, options: Options, checkpoint: Path, **more: str) -> None:
    """Run a stream whose sink fails at its first batch, which Spark then has to replay."""

    def fail(table: DataFrame, number: int) -> None:
        raise Broken

    stream = spark.readStream.format("holdfast").options(**options, reader="r", **more).load()
    query = (
        stream.selectExpr("cast(value as string) value")
        .writeStream.foreachBatch(fail)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)


def test_a_claim_that_was_given_back_is_not_replayed_with_other_jobs(
    spark: SparkSession,
    options: Options,
    live_queue: Queue,
    start: Start,
    tmp_path: Path,
) -> None:
    live_queue.add_many(numbers(10))
    failing_run(spark, options, tmp_path / "one" / "checkpoint", claimFor="1")

    def given_back() -> bool:
        live_queue.tidy(force=True)
        return live_queue.counts().ready == 10

    wait_long(given_back, "the claim to lapse")
    with pytest.raises(StreamingQueryException, match="claim 0 of reader 'r' cannot be replayed"):
        start().awaitTermination(120)
    assert live_queue.counts().ready == 10
    assert all(job.lapses == 0 for job in live_queue.peek(10))
    # Under a new checkpoint they come again, all of them.
    seen = start("two", now=True)
    assert seen.awaitTermination(300)
    assert live_queue.counts().ready == 0


def test_a_stream_goes_on_after_its_source_process_was_killed(
    spark: SparkSession,
    live_queue: Queue,
    start: Start,
    written: Callable[..., list[int]],
) -> None:
    live_queue.add_many(numbers(3000))
    query = start(maxJobsPerTrigger="500")
    wait_long(lambda: live_queue.counts().leased, "a claim")
    for process in source_processes(java_of(spark)):
        os.kill(process, signal.SIGKILL)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(120)
    again = start(maxJobsPerTrigger="500", now=True)
    assert again.awaitTermination(300)
    assert written() == list(range(3000))
    assert live_queue.counts().leased == 0


def test_a_stream_that_is_stopped_holds_one_batch_at_most(
    live_queue: Queue, start: Start, written: Callable[..., list[int]]
) -> None:
    live_queue.add_many(numbers(3000))
    query = start(maxJobsPerTrigger="100")
    wait_long(lambda: live_queue.counts().leased == 200, "a claim ahead")
    query.stop()
    wait_long(lambda: live_queue.counts().leased <= 100, "its return")
    assert all(job.lapses == 0 for job in live_queue.peek(1000))
    again = start(maxJobsPerTrigger="1000", now=True)
    assert again.awaitTermination(300)
    assert written() == list(range(3000))
    assert live_queue.counts().leased == 0


def test_from_queue_to_queue(
    spark: SparkSession,
    options: Options,
    live_queue: Queue,
    test_server: TestServer,
    tmp_path: Path,
) -> None:
    live_queue.add_many(numbers(30))
    with Queue(live_queue.name + " out", test_server.queue_url) as out:
        stream = spark.readStream.format("holdfast").options(**options, reader="r").load()
        query = (
            stream.select("value", "id")
            .writeStream.format("holdfast")
            .options(url=options["url"], queue=out.name)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert sorted(payloads(out)) == sorted(number.encode() for number in numbers(30))
        assert live_queue.counts().leased == 0
        assert out.audit() == []


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"maxJobsPerTrigger": "many"}, "option 'maxJobsPerTrigger' must be a whole number"),
        ({"reader": "a name"}, "option 'reader' must have 1 to 440 bytes and no white space"),
        ({"startingOffsets": "earliest"}, "unknown option 'startingoffsets'"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver(
    live_queue: Queue, start: Start, more: dict[str, str], told: str
) -> None:
    live_queue.add("a")
    with pytest.raises(PySparkException, match=told):
        start(**more)
    assert live_queue.counts().ready == 1
