"""A batch read looks at a queue: every state, nothing taken."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from holdfast import Queue

Options = dict[str, str]


def look(spark: SparkSession, options: Options, **more: str) -> DataFrame:
    return spark.read.format("holdfast").options(**options, **more).load()


def test_a_table_of_jobs_has_every_state(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    live_queue.add(b"\xff\x00", id="failing", priority=90, handler="mail")
    lease = live_queue.lease(60)
    assert lease
    live_queue.fail(lease, error="no such address")
    live_queue.add("held", id="held")
    held = live_queue.lease(60)
    assert held
    live_queue.add("later", id="later", at=datetime(2100, 1, 1, tzinfo=UTC))
    live_queue.add("plain", id="plain", priority=7)
    with live_queue.request("report", limit=1) as request:
        request.add("part")

    rows = {row.id: row for row in look(spark, options).collect()}
    states = {id: row.state for id, row in rows.items()}
    assert states == {
        "failing": "failed",
        "held": "leased",
        "later": "delayed",
        "plain": "ready",
        "report/0": "parked",
    }
    failing = rows["failing"]
    assert (bytes(failing.value), failing.error, failing.handler) == (
        b"\xff\x00",
        "no such address",
        "mail",
    )
    assert rows["plain"].priority == 7
    assert rows["later"].at.astimezone(UTC) == datetime(2100, 1, 1, tzinfo=UTC)
    assert rows["report/0"].request == "report"
    assert rows["held"].leased_at is not None
    assert rows["plain"].at is None
    # Nothing moved.
    assert live_queue.counts().leased == 1


def test_only_the_states_that_are_asked_for(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    live_queue.add("a", id="a")
    live_queue.add("b", id="b", delay=1000)
    assert [row.id for row in look(spark, options, state="delayed").collect()] == ["b"]
    assert look(spark, options, state="ready, delayed").count() == 2
    assert look(spark, options, STATE="failed").count() == 0


def test_a_queue_without_jobs_is_an_empty_table(spark: SparkSession, options: Options) -> None:
    assert look(spark, options).collect() == []


def test_every_job_of_a_long_queue_is_seen_once(
    spark: SparkSession, live_queue: Queue, options: Options
) -> None:
    live_queue.add_many(str(number) for number in range(45_000))
    table = look(spark, options)
    seen = table.selectExpr(
        "count(*)", "count(distinct id)", "sum(cast(cast(value as string) as int))"
    )
    assert tuple(seen.collect()[0]) == (45_000, 45_000, sum(range(45_000)))
