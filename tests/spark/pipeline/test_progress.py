"""What `handle.progress` tells, and what it costs; very many parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import Lease
from holdfast.engine import request_calls
from holdfast.spark import Pipeline
from holdfast.spark.pipeline import handle as handles
from holdfast.spark.pipeline import order, planning
from spark.pipeline.support import finish, must_be_published, numbers


def result_of(part: Lease) -> bytes:
    number = int(part.id.rpartition("/")[2])
    return (
        b'{"attempt":"%05d.a","files":[],"rows_in":3,"rows_out":2,"began_at":0,"seconds":1,'
        b'"worker":"w"}' % number
    )


def test_progress_costs_two_calls_however_many_parts_there_are_and_counts_each_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "PAGE", 10)
    handle = pipeline.submit("same", id="daily", input="in/*.parquet", output="out")
    pipeline.queue.cancel("daily/plan")
    request = pipeline.queue.request("daily")
    request.add_many([b"{}"] * 100)
    first, *others = pipeline.queue.lease_many(61, 60)
    for lease in others[:35]:
        pipeline.queue.complete(lease, result_of(lease))
    for lease in others[35:]:
        pipeline.queue.fail(lease, error="it is no good")
    asked: list[int] = []
    real = request_calls.parts

    def parts(request: str, first: int, count: int = 1000) -> Any:
        asked.append(first)
        return real(request, first, count)

    monkeypatch.setattr(request_calls, "parts", parts)
    progress = handle.progress()
    assert asked == [0, 10]
    assert (progress.done, progress.failed, progress.counted) == (35, 25, 19)
    assert (progress.rows_in, progress.rows_out) == (19 * 3, 19 * 2)
    while progress.counted < 60:
        progress = handle.progress()
    assert asked == [0, 10, 20, 30, 40, 50, 60]
    assert (progress.rows_in, progress.rows_out) == (35 * 3, 35 * 2)
    assert list(progress.errors) == list(range(36, 56))
    assert (progress.error or "").startswith("part 36: it is no good, and 24 more")
    handle.progress()
    assert len(asked) == 7, "nothing has changed"
    pipeline.queue.complete(first, result_of(first))
    while progress.counted < 61:
        progress = handle.progress()
    assert progress.rows_in == 36 * 3
    assert len(handle.errors()) == 25
    pipeline.queue.revive("daily/40")
    while (progress := handle.progress()).counted < 60:
        assert 40 not in progress.errors
    assert progress.failed == 24
    assert 40 not in progress.errors


def test_very_many_parts_are_warned_of_and_absurdly_many_refused(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(order, "MANY_PARTS", 3)
    numbers(spark, root / "in", files=5)
    many = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1)
    assert many.progress().warning is None
    with pipeline.working(spark):
        must_be_published(many, root)
        assert "greater part_size" in (many.progress().warning or "")
        assert f"{many.id}: more than 3 parts" in caplog.text
        monkeypatch.setattr(planning, "MOST_PARTS", 4)
        too_many = pipeline.submit("same", input="in/*.parquet", output="out2", part_size=1)
        progress = finish(too_many)
        assert progress.state == "failed"
        assert (progress.error or "").startswith("part_size=1 makes more than")
        assert too_many.cancel()
    with (root / "in/big.csv").open("wb") as file:
        file.truncate(1_000_001)
    absurd = pipeline.submit("same", input="in/*.csv", output="out3", part_size=1)
    with pipeline.working(spark):
        progress = finish(absurd)
    assert (progress.state, progress.parts) == ("failed", 0)
    assert "part_size=1 makes more than 1,000,000 parts" in (progress.error or "")
