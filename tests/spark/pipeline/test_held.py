"""Errors of the whole request that a part meets: the request fails at once, and can be revived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from cli.support import Commands
from holdfast.spark import Handle, Pipeline, transform
from holdfast.spark.pipeline import working
from spark.pipeline.support import finish, must_be_published, numbers, rows
from support import TestServer, wait_until

PARTS = 16


@transform
def with_a_table(df: DataFrame, *, table: str) -> DataFrame:
    names = df.sparkSession.read.parquet(table)
    return df.join(names, "n", "left")


@transform(per_part=True)
def without_one(df: DataFrame) -> DataFrame:
    """Fail over the rows of one part."""
    if df.where("n = 3").count():
        raise KeyError("of this part")
    return df


class Held:
    """A request whose table is moved away between its planning and its parts."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
        self.pipeline = pipeline
        self.table, self.away = root / "table", root.parent / "away"
        self.input = numbers(spark, root / "in", rows=160, files=PARTS)
        spark.range(10).withColumnRenamed("id", "n").withColumn("is_low", F.lit(True)).coalesce(
            1
        ).write.parquet(str(self.table))

    def submit(self, **options: Any) -> Handle:
        return self.pipeline.submit(
            "with_a_table",
            input="in/*.parquet",
            output="out",
            params={"table": str(self.table)},
            part_size=1,
            **options,
        )

    def planned(self, **options: Any) -> Handle:
        """Submit it, have it planned, and move the table away before a part runs."""
        handle = self.submit(**options)
        handle.set_limit(0)
        request = self.pipeline.queue.request(handle.id)
        wait_until(lambda: request.status().sealed, "the plan")
        self.table.rename(self.away)
        handle.set_limit(options.get("limit"))
        return handle

    def mend(self) -> None:
        self.away.rename(self.table)


@pytest.fixture
def held(spark: SparkSession, pipeline: Pipeline, root: Path) -> Held:
    return Held(spark, pipeline, root)


@pytest.mark.parametrize("limit", [None, 1])
def test_an_error_of_the_request_fails_it_at_once_and_reviving_brings_back_all_parts(
    spark: SparkSession, pipeline: Pipeline, root: Path, held: Held, limit: int | None
) -> None:
    with pipeline.working(spark):
        handle = held.planned(limit=limit)
        progress = finish(handle)
        assert progress.state == "failed"
        assert "PATH_NOT_FOUND" in (progress.error or "")
        assert f"{__file__}:" in (progress.error or "")
        request = pipeline.queue.request(handle.id)
        wait_until(lambda: not request.status().running, "what ran to end")
        assert request.status().failed < PARTS / 2, "the others were not tried"
        assert request.status().limit == 0
        assert handle.progress().state == "failed"
        held.mend()
        failed = request.status().failed
        assert handle.revive() == 1 + failed
        must_be_published(handle, root)
        assert request.status().limit == limit
    expected = held.input.join(spark.read.parquet(str(held.table)), "n", "left")
    assert rows(handle.read(spark)) == rows(expected)
    assert pipeline.queue.failed() == []


def test_a_request_that_is_revived_too_early_fails_again_and_no_part_is_tried(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pipeline.working(spark):
        handle = held.planned()
        assert finish(handle).state == "failed"
        request = pipeline.queue.request(handle.id)
        wait_until(lambda: not request.status().running, "what ran to end")
        real, tried = working.run_part, []  # type: ignore[attr-defined]

        def run_part(*given: Any) -> Any:
            tried.append(given)
            return real(*given)

        monkeypatch.setattr(working, "run_part", run_part)
        assert handle.revive() > 0
        assert finish(handle).state == "failed"
        assert tried == []
        held.mend()
        handle.revive()
        must_be_published(handle, root)
    assert len(tried) == PARTS


def test_a_request_that_failed_as_a_whole_is_told_on_the_command_line_and_can_be_cancelled(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    held: Held,
    test_server: TestServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", test_server.queue_url)
    hf = Commands()
    name = pipeline.queue.name
    with pipeline.working(spark):
        handle = held.planned()
        assert finish(handle).state == "failed"
        told = hf.json("pipeline", "status", name, handle.id)
        assert told["state"] == "failed"
        assert "PATH_NOT_FOUND" in told["error"]
        assert "PATH_NOT_FOUND" in hf("pipeline", "status", name, handle.id)
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_until(lambda: not [*root.glob(".out.*")], "what was staged to go away")
    assert f"{handle.id}/plan" not in [job.id for job in pipeline.queue.failed()]


def test_with_partial_every_part_is_tried_and_what_is_done_is_published(
    spark: SparkSession, pipeline: Pipeline, root: Path, held: Held
) -> None:
    with pipeline.working(spark):
        handle = held.submit(partial=True, limit=1)
        wait_until(lambda: handle.progress().done >= 2, "some parts")
        held.table.rename(held.away)
        must_be_published(handle, root)
        progress = handle.progress()
        assert progress.done + progress.failed == PARTS
        assert progress.failed > 0
        assert "PATH_NOT_FOUND" in (progress.error or "")
    assert handle.read(spark).count() == 10 * progress.done


def test_an_error_of_the_rows_of_one_part_fails_that_part_alone(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=160, files=PARTS)
    with pipeline.working(spark):
        handle = pipeline.submit("without_one", input="in/*.parquet", output="out", part_size=1)
        progress = finish(handle)
    assert (progress.state, progress.done, progress.failed) == ("failed", PARTS - 1, 1)
    assert "KeyError: 'of this part'" in (progress.error or "")
    assert pipeline.queue.request(handle.id).status().limit is None


@pytest.mark.parametrize("what", ["corrupt", "replaced", "missing"])
def test_a_file_that_changed_fails_its_part_alone(
    spark: SparkSession, pipeline: Pipeline, root: Path, what: str
) -> None:
    numbers(spark, root / "in", rows=120, files=4)
    path = root / "in/part-1.snappy.parquet"
    if what == "corrupt":
        path.write_bytes(b"nothing of the kind" * 10)
    with pipeline.working(spark):
        handle = pipeline.submit(
            "same", input="in/*.parquet", output="out", part_size=1, limit=0, max_failures=0
        )
        request = pipeline.queue.request(handle.id)
        wait_until(lambda: request.status().sealed, "the plan")
        if what == "replaced":
            path.write_bytes(path.read_bytes() + b"more")
        elif what == "missing":
            path.unlink()
        handle.set_limit(None)
        progress = finish(handle)
    assert (progress.state, progress.done, progress.failed) == ("failed", 3, 1)
    assert request.status().limit is None


def test_a_table_that_was_replaced_fails_the_request(
    spark: SparkSession, pipeline: Pipeline, root: Path, held: Held
) -> None:
    with pipeline.working(spark):
        handle = held.planned()
        assert finish(handle).state == "failed"
        spark.range(1).withColumnRenamed("id", "n").write.parquet(str(held.table))
        handle.revive()
        progress = finish(handle)
        assert progress.state == "failed"
        assert "reads other tables than when the request was planned" in (progress.error or "")
        assert handle.cancel()


def test_the_limit_that_was_set_last_is_in_force_after_reviving(
    spark: SparkSession, pipeline: Pipeline, root: Path, held: Held
) -> None:
    with pipeline.working(spark):
        handle = held.submit(limit=0)
        request = pipeline.queue.request(handle.id)
        wait_until(lambda: request.status().sealed, "the plan")
        held.table.rename(held.away)
        handle.set_limit(3)
        assert finish(handle).state == "failed"
        held.mend()
        handle.revive()
        must_be_published(handle, root)
    assert request.status().limit == 3
