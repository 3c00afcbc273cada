"""Jobs that workers give back at no cost: `progress` and the command line say why they wait."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cli.support import Commands
from holdfast.job import WorkerInfo
from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying, notices, transforms, working
from holdfast.spark.pipeline.notices import Notices
from spark.pipeline.support import finish, must_be_published, numbers, wait_long
from support import TestServer, wait_until


@transform
def rarely_known(df: DataFrame) -> DataFrame:
    return df


def waits(handle: Any, said: str) -> bool:
    return said in (handle.progress().waiting_because or "")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give jobs back for a moment, and forget the reason soon after."""
    monkeypatch.setattr(applying, "GIVEN_BACK_SECONDS", 0.2)
    monkeypatch.setattr(working, "FULL_SECONDS", 0.2)


# ------------------------------------------------------------------------ reasons


def test_a_full_output_disk_is_told_until_a_part_succeeds(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    often: None,
) -> None:
    numbers(spark, root / "in", files=3)
    real = working.run_part  # type: ignore[attr-defined]

    def full(*_: object) -> Any:
        raise OSError("No space left on device at org.apache.hadoop.fs.RawLocalFileSystem")

    monkeypatch.setattr(working, "run_part", full)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        wait_until(lambda: waits(handle, "no room for the output"), "the reason")
        progress = handle.wait(timeout=0.01)
        assert (progress.state, progress.error) == ("running", None)
        assert "No space left on device" in (progress.waiting_because or "")
        monkeypatch.setattr(working, "run_part", real)
        must_be_published(handle, root)
        assert handle.progress().waiting_because is None
        wait_until(
            lambda: "notes" not in pipeline.queue.workers()[0].about, "the worker to drop it"
        )


@pytest.mark.parametrize("finish_with", [None, "rarely_known"])
def test_a_worker_without_the_transform_says_so_at_every_step(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    often: None,
    finish_with: str | None,
) -> None:
    numbers(spark, root / "in", files=2)
    handle = pipeline.submit(
        "same" if finish_with else "rarely_known",
        input="in/*.parquet",
        output="out",
        finish=finish_with,
        part_size=1,
    )
    known = transforms._known["rarely_known"]
    monkeypatch.delitem(transforms._known, "rarely_known")
    said = "unknown transform 'rarely_known': import its module in the workers (--transforms), or"
    with pipeline.working(spark), caplog.at_level(logging.WARNING, "holdfast"):
        wait_until(lambda: waits(handle, f"{said} cancel the request"), "the reason")
        progress = handle.progress()
        assert progress.state == "planning"
        assert progress.parts == 0
        assert "(worker " in (progress.waiting_because or "")
        first = len([one for one in caplog.records if said in one.getMessage()])
        monkeypatch.setitem(transforms._known, "rarely_known", known)
        must_be_published(handle, root)
    assert first == 1, "once per request, however often it was given back"
    assert handle.progress().waiting_because is None


def test_parts_that_no_worker_can_run_are_told_and_can_be_cancelled(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    hf: Commands,
) -> None:
    numbers(spark, root / "in", files=3)
    monkeypatch.setattr(working, "unlike", lambda plan, spark: "it was planned on Spark 4.2.9")
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        wait_until(lambda: waits(handle, "it was planned on Spark 4.2.9"), "the reason")
        assert handle.progress().state == "running"
        text = hf("pipeline", "status", pipeline.queue.name, handle.id)
        assert "waiting because" in text
        assert "it was planned on Spark 4.2.9 (worker " in text
        told = hf.json("pipeline", "status", pipeline.queue.name, handle.id)
        assert told["waiting_because"].startswith("it was planned on Spark 4.2.9")
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        assert handle.progress().waiting_because is None


@pytest.fixture
def hf(test_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("HOLDFAST_URL", test_server.queue_url)
    return Commands()


def test_the_more_parts_wait_for_a_worker_that_can_run_them_the_longer_each_is_given_back(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers(spark, root / "in", files=5)
    monkeypatch.setattr(applying, "GIVEN_BACK_SECONDS", 0.01)
    monkeypatch.setattr(working, "GIVEN_BACK_PER_SECOND", 1 / 3600)
    looked: list[str] = []

    def unlike(plan: Any, spark: Any) -> str:
        looked.append(plan.order.id)
        return "it has other code"

    monkeypatch.setattr(working, "unlike", unlike)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1)
    request = pipeline.queue.request(handle.id)

    def hours() -> list[int]:
        found = [pipeline.queue.show(f"{handle.id}/{number}") for number in range(5)]
        now = request.status().asked_at
        return [round(((one and one.at) or now) - now + 600) // 3600 for one in found]

    with pipeline.working(spark, concurrency=1):
        wait_until(lambda: request.status().total == 5 and min(hours()) >= 1, "all to wait")
    assert max(hours()) == 4, "the last one, when four others waited"
    assert len(looked) < 20


# ------------------------------------------------------------------------ the directory


def worker(host: str, notes: object, *, alive: bool = True) -> WorkerInfo:
    return WorkerInfo("w", alive, 0.0, {"host": host, "pid": 1, "notes": notes})


def test_reasons_of_several_workers_are_told_once_each() -> None:
    workers = [
        worker("b", [["daily", "it has other code"]]),
        worker("a", [["daily", "it has other code"], ["weekly", "no room"]]),
        worker("c", [["daily", "no room"]]),
        worker("d", [["daily", "it is gone"]], alive=False),
    ]
    told = notices.found(workers, "daily")
    assert told == "it has other code (worker a:1, and 1 more); no room (worker c:1)"
    assert notices.found(workers, "monthly") is None


@pytest.mark.parametrize("notes", [None, 1, "daily", {"daily": "x"}, [1], [["daily"]], [["x", 1]]])
def test_an_entry_that_another_program_wrote_says_nothing(notes: object) -> None:
    assert notices.found([worker("a", notes)], "daily") is None


def test_a_reason_is_short_and_shows_control_characters() -> None:
    told = notices.found([worker("a", [["daily", "x\n" * 1000]])], "daily") or ""
    assert "\n" not in told
    assert len(told) < 400


def test_reasons_are_bounded_and_go_away_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, str] = {}
    mine = Notices(published)
    for number in range(30):
        mine.put(str(number), "why" * 1000, 60)
    assert list(published) == [str(number) for number in range(20, 30)]
    assert max(map(len, published.values())) < 400
    mine.remove("20")
    mine.remove("unknown")
    assert "20" not in published
    mine.tidy()
    assert len(published) == 9
    monkeypatch.setattr(time, "monotonic", lambda: 1e12)
    mine.tidy()
    assert published == {}


def test_what_holds_up_a_request_from_outside_is_told(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", limit=0)
    assert waits(handle, "no worker of")
    with pipeline.working(spark):
        wait_long(lambda: waits(handle, "its limit is 0"), "the limit")
        assert handle.progress().ends_at is None
        pipeline.queue.pause()
        wait_long(lambda: waits(handle, "is paused"), "the pause")
        handle.set_limit(None)
        pipeline.queue.resume()
        must_be_published(handle, root)
        assert handle.progress().waiting_because is None
