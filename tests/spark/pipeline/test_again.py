"""Ids that are used again, runs that come too late, and what a handle says of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from holdfast import JobNotFound, NewJob, RequestNotFound, WrongState
from holdfast.spark import Handle, Pipeline
from holdfast.spark.pipeline import planning, publishing, working
from holdfast.spark.pipeline.files import Files
from holdfast.worker import Retry
from spark.pipeline.support import (
    finish,
    must_be_published,
    names,
    numbers,
    rows,
    summed,
    wait_long,
)


def forgotten(handle: Handle) -> bool:
    try:
        handle.progress()
    except JobNotFound:
        return True
    handle.queue.tidy()
    return False


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_an_id_that_was_forgotten_can_be_used_again(
    spark: SparkSession, pipeline: Pipeline, root: Path, mode: Any
) -> None:
    numbers(spark, root / "in", rows=100, files=2)
    common: dict[str, Any] = {"id": "daily", "input": "in/*.parquet", "output": "out", "mode": mode}
    with pipeline.working(spark):
        first = pipeline.submit("big_enough", params={"least": 90}, keep_for=3, **common)
        must_be_published(first, root)
        wait_long(lambda: forgotten(first), "it to be forgotten")
        again = pipeline.submit("big_enough", params={"least": 50}, **common)
        must_be_published(again, root)
        assert again.read(spark).count() == 50
    expected = 50 if mode == "overwrite" else 60
    assert spark.read.parquet(str(root / "out")).count() == expected


def test_a_request_is_done_for_as_long_as_it_is_there(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=100, files=1)
    with pipeline.working(spark):
        handle = pipeline.submit("same", input="in/*.parquet", output="out", keep_for=2)
        states = {handle.wait().state}
        with suppress(RequestNotFound):
            while True:
                states.add(handle.progress().state)
                pipeline.queue.tidy()
    assert states == {"done"}


@pytest.mark.parametrize("id", ["_daily", ".daily"])
def test_append_shows_what_any_id_wrote(
    spark: SparkSession, pipeline: Pipeline, root: Path, id: str
) -> None:
    numbers(spark, root / "in", rows=100, files=2)
    with pipeline.working(spark):
        for name in ("first", id):
            handle = pipeline.submit(
                "same", id=name, input="in/*.parquet", output="out", mode="append"
            )
            must_be_published(handle, root)
            assert handle.read(spark).count() == 100
    assert spark.read.parquet(str(root / "out")).count() == 200


def test_a_publisher_that_dies_before_it_says_so_has_published(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=100, files=1)
    real = publishing.publish
    runs = []

    def publish(*given: Any) -> Any:
        done = real(*given)
        runs.append(done)
        if len(runs) == 1:
            raise Retry("killed", after=0.01)
        return done

    monkeypatch.setattr(working, "publish", publish)
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)


def test_a_publisher_that_comes_too_late_leaves_the_output_alone(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=100, files=1)
    numbers(spark, root / "out", rows=7, files=1)
    real_put, real_publish = publishing._put, publishing.publish
    given: list[Any] = []

    def publish(*arguments: Any) -> Any:
        given.append(arguments)
        return real_publish(*arguments)

    def put(*arguments: Any) -> None:
        monkeypatch.setattr(publishing, "_put", real_put)
        real_publish(*given[0])  # Another does it all, while this one is frozen.
        real_put(*arguments)

    monkeypatch.setattr(working, "publish", publish)
    monkeypatch.setattr(publishing, "_put", put)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", mode="overwrite")
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).count() == 100


def test_what_another_publisher_has_gathered_meanwhile_is_there(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=100, files=1)
    real = Files.move
    moved: list[bool] = []

    def move(self: Files, path: str, to: str) -> bool:
        if "_gathered" in to and not moved:
            moved.append(real(self, path, to))  # Another was a moment earlier.
        return real(self, path, to)

    monkeypatch.setattr(Files, "move", move)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        must_be_published(handle, root)


def test_a_publisher_keeps_to_its_roots(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    said = {"staging": str(outside), "output": str(outside / "out")}
    request = pipeline.queue.request(
        "evil", follow_up=NewJob(msgspec.json.encode(said), handler="publish", result_for=60)
    )
    with pipeline.working(spark), request:
        pass
    with pipeline.working(spark):
        assert pipeline.handle("evil").wait(30).ended
    assert names(outside) == ["precious"]


def test_cancel_while_it_is_planned_leaves_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    real = planning.read_all  # type: ignore[attr-defined]

    def read_all(*given: Any) -> Any:
        frame = real(*given)
        handle.cancel()
        wait_long(lambda: pipeline.queue.counts().ended == 1, "its publisher")
        return frame

    monkeypatch.setattr(planning, "read_all", read_all)
    with pipeline.working(spark, concurrency=2):
        wait_long(lambda: pipeline.queue.counts().leased == 0, "the plan to end")
        assert finish(handle).state == "cancelled"
        wait_long(lambda: pipeline.queue.counts().leased == 0, "the plan to end")
    assert names(root) == ["in"]


# ------------------------------------------------------------------------- handle


def test_what_is_not_published_cannot_be_read(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pytest.raises(WrongState, match="published nothing"):
        handle.read(spark)


def test_a_request_that_is_sealed_or_done_is_not_submitted_again(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    given: dict[str, Any] = {"id": "daily", "input": "in/*.parquet", "output": "out"}
    handle = pipeline.submit("same", **given, limit=0)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 1, "the plan")
        again = pipeline.submit("same", **given)
        again.set_limit(None)
        must_be_published(again, root)
        assert finish(pipeline.submit("same", **given)).state == "done"


def test_a_long_id_of_letters_of_many_bytes(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit(
        "same", id="ü/" * 60, input="in/*.parquet", output="out", mode="append", max_failures=0
    )
    with pipeline.working(spark):
        must_be_published(handle, root)


def test_only_parts_count_for_how_far_it_is(pipeline: Pipeline) -> None:
    handle = pipeline.submit("same", id="daily", input="in/*.parquet", output="out")
    request = pipeline.queue.request("daily")
    request.add(b"")
    pipeline.queue.lease_many(2, 30)
    running = [{"id": f"daily/{name}", "progress": [0.5, ""]} for name in ("0", "plan", "sub/0")]
    pipeline.queue.register(running=running)
    assert handle.progress().fraction == 0.5


@pytest.mark.parametrize("last", [None, "summed"])
def test_parts_that_are_revived_are_in_the_output_whatever_was_gathered_before(
    spark: SparkSession, pipeline: Pipeline, root: Path, last: str | None
) -> None:
    """Also where an output without them was asked for, and could not be put into place."""
    written = numbers(spark, root / "in", files=3)
    bad = sorted((root / "in").glob("*.parquet"))[1]
    good, planned = bad.read_bytes(), bad.stat()
    bad.write_bytes(b"x" * len(good))
    os.utime(bad, ns=(planned.st_mtime_ns, planned.st_mtime_ns))
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        part_size=1,
        max_failures=0,
        partial=True,
        limit=0,
        schema="n LONG, name STRING",
        finish=last,
    )
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 3, "the plan")
        (root / "out").mkdir()
        handle.set_limit(None)
        progress = finish(handle)
        assert progress.state == "failed"
        assert "is there already" in (progress.error or "")
        (root / "out").rmdir()
        bad.write_bytes(good)
        os.utime(bad, ns=(planned.st_mtime_ns, planned.st_mtime_ns))
        assert handle.revive() == 1
        must_be_published(handle, root)
    expected = summed(written) if last else written
    assert rows(handle.read(spark)) == rows(expected)
    (manifest,) = (root / "out/_holdfast").glob("*.json")
    assert msgspec.json.decode(manifest.read_bytes())["missing"] == []
