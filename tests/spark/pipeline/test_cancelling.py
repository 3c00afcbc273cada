"""`handle.cancel()` after the last part has ended: nothing is published, nothing is lost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast import NewJob, WrongState
from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import attempts, publishing
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.order import Done
from holdfast.spark.pipeline.roots import Roots
from spark.pipeline.support import finish, must_be_published, names, numbers, rows, wait_long


@transform
def slow_total(df: DataFrame, *, gate: str) -> DataFrame:
    """Wait in a task until there is a file, and tell that it waits."""

    @F.udf("long")
    def held(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        Path(gate, "waits").touch()
        while not Path(gate, "open").exists():
            time.sleep(0.02)
        return n

    return df.agg(F.sum(held("n")).alias("total"))


def test_cancel_while_the_finish_runs_publishes_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path, tmp_path: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        finish="slow_total",
        finish_params={"gate": str(tmp_path)},
    )
    with pipeline.working(spark):
        wait_long((tmp_path / "waits").exists, "the finish")
        assert handle.progress().state == "publishing"
        assert handle.cancel()
        assert not handle.cancel(), "the first call did it"
        assert finish(handle).state == "cancelled"
        (tmp_path / "open").touch()
        wait_long(lambda: names(root) == ["in"], "the staging to be gone")
    with pytest.raises(WrongState, match="was cancelled"):
        handle.revive()
    with pytest.raises(WrongState, match="published nothing"):
        handle.read(spark)


def test_a_request_that_could_not_be_published_can_be_cancelled(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", limit=0)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 1, "the plan")
        (root / "out").mkdir()
        handle.set_limit(None)
        assert finish(handle).state == "failed"
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in", "out"], "the staging to be gone")
    assert names(root / "out") == []


def test_a_request_with_failed_parts_can_be_cancelled(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    handle = pipeline.submit("broken", input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in"], "the staging to be gone")


def test_a_request_whose_staging_is_gone_says_so_and_can_be_cancelled(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1)
    real = attempts.run_part

    def run_part(*given: Any) -> Done:
        done = real(*given)
        shutil.rmtree(given[2].order.staging)  # By a cleaner, right after the part has written.
        return done

    monkeypatch.setattr("holdfast.spark.pipeline.working.run_part", run_part)
    with pipeline.working(spark, concurrency=1):
        progress = finish(handle)
        assert (progress.state, progress.done) == ("failed", 2)
        assert "is gone, and with it what the parts wrote" in (progress.error or "")
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in"], "the staging to be gone")
    assert pipeline.queue.counts().failed == 0


def test_what_is_published_is_not_cancelled(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
        assert not handle.cancel()
    assert handle.progress().state == "done"


def test_cancel_in_the_middle_of_a_replacement_keeps_the_old_output(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=100, files=1)
    before = rows(numbers(spark, root / "out", rows=7, files=1))
    real = Files.move

    def dies(self: Files, path: str, to: str) -> bool:
        if path.endswith("/_gathered"):
            raise OSError("this publisher cannot go on")
        return real(self, path, to)

    monkeypatch.setattr(Files, "move", dies)
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="out", mode="overwrite", max_failures=0
    )
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        assert not (root / "out").exists(), "it was moved away, and the new one has no name yet"
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in", "out"], "the staging to be gone")
    assert rows(spark.read.schema("n LONG, name STRING").parquet(str(root / "out"))) == before


def test_cancel_in_the_middle_of_an_append_takes_back_what_was_appended(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=100, files=3)
    numbers(spark, root / "out", rows=7, files=1)
    before = sorted(path.name for path in (root / "out").iterdir() if path.name[0] != ".")
    real = Files.move
    moved: list[str] = []

    def dies(self: Files, path: str, to: str) -> bool:
        if to.startswith(f"{root}/out/"):
            if len(moved) == 2:
                raise OSError("this publisher cannot go on")
            moved.append(to)
        return real(self, path, to)

    monkeypatch.setattr(Files, "move", dies)
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        mode="append",
        part_size=1,
        max_failures=0,
    )
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        assert all(Path(path).exists() for path in moved)
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in", "out"], "the staging to be gone")
    assert len(moved) == 2
    assert sorted(path.name for path in (root / "out").iterdir() if path.name[0] != ".") == before


def test_a_cancel_that_fails_says_why_and_can_be_repeated(
    spark: SparkSession, pipeline: Pipeline, root: Path, tmp_path: Path
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    (root / "parent").mkdir()
    handle = pipeline.submit("broken", input="in/*.parquet", output="parent/x", max_failures=0)
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        (root / "parent").rename(tmp_path / "elsewhere")
        (root / "parent").symlink_to(tmp_path / "elsewhere")
        assert handle.cancel()
        wait_long(lambda: "could not be cancelled" in (handle.progress().error or ""), "the error")
        assert handle.progress().state == "failed"
        (root / "parent").unlink()
        (tmp_path / "elsewhere").rename(root / "parent")
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root / "parent") == [], "the staging to be gone")


def test_a_cancel_that_comes_at_the_last_moment_says_what_happened(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    real = publishing._put
    told: list[bool] = []

    def put(*given: Any) -> None:
        real(*given)
        told.append(handle.cancel())  # The output has its name by now.

    monkeypatch.setattr(publishing, "_put", put)
    with pipeline.working(spark):
        assert finish(handle).state == "done"
        assert told == [True]
        wait_long(lambda: pipeline.queue.counts().leased == 0, "the cancel to end")
    assert handle.progress().state == "done"
    assert handle.read(spark).count() == 10


# ------------------------------------------------- a publisher that wakes up too late


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Move an output away, as a frozen publisher would, right before its staging is removed."""

    def plan(output: str) -> list[str]:
        moved: list[str] = []
        real = Files.move

        def move(self: Files, path: str, to: str) -> bool:
            if to.endswith(".gone") and not moved and Path(path).exists():
                moved.append(f"{path}/_replaced.late")
                Path(output).rename(moved[0])
            return real(self, path, to)

        monkeypatch.setattr(Files, "move", move)
        return moved

    return plan


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_an_output_is_put_back_that_a_late_publisher_moves_away(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    late: Callable[[str], list[str]],
    mode: Literal["error", "overwrite"],
) -> None:
    expected = rows(numbers(spark, root / "in", rows=100, files=1))
    if mode == "overwrite":
        numbers(spark, root / "out", rows=7, files=1)
    moved = late(str(root / "out"))
    handle = pipeline.submit("same", input="in/*.parquet", output="out", mode=mode)
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert moved
    assert rows(handle.read(spark)) == expected


def test_a_cancel_puts_back_the_old_output_that_a_late_publisher_moves_away(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    late: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    before = rows(numbers(spark, root / "out", rows=7, files=1))

    def fails(*_: object) -> None:
        raise OSError("this publisher cannot go on")

    monkeypatch.setattr(publishing, "_put", fails)
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="out", mode="overwrite", max_failures=0
    )
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        moved = late(str(root / "out"))
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in", "out"], "the staging to be gone")
    assert moved
    assert rows(spark.read.schema("n LONG, name STRING").parquet(str(root / "out"))) == before


def test_nothing_is_moved_into_a_staging_that_is_gone(spark: SparkSession, root: Path) -> None:
    files = Files(spark, Roots([str(root)]))
    (root / "out").mkdir()
    (root / "out/part-0.csv").write_text("1")
    with pytest.raises(OSError, match="could not be moved"):
        files.move(f"{root}/out", f"{root}/.out.r.1/_replaced.late")
    assert names(root / "out") == ["part-0.csv"]


def test_revived_parts_go_before_a_cancel_that_is_late(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    """The job that gives up is of one ending; what was revived since has another."""
    numbers(spark, root / "in", rows=10, files=2)
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
        schema="n LONG, name STRING",
    )
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
    bad.write_bytes(good)
    os.utime(bad, ns=(planned.st_mtime_ns, planned.st_mtime_ns))
    assert handle.cancel()
    assert handle.progress().state == "cancelling"
    (failed,) = handle.errors()
    assert pipeline.queue.revive(f"{handle.id}/{failed}"), "somebody was a moment earlier"
    with pipeline.working(spark):
        must_be_published(handle, root)


def test_a_forged_cancel_touches_nothing_outside_the_roots(
    spark: SparkSession, pipeline: Pipeline, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    forged = [
        NewJob(f'{{"output": "{outside}/x"}}'.encode(), id="a/end/1/cancel", handler="cancel"),
        NewJob(f'{{"output": "{root}/x"}}'.encode(), id="../outside", handler="cancel"),
        NewJob(b"{}", id="b/end/1/cancel", handler="cancel"),
    ]
    pipeline.queue.add_many(forged)
    with pipeline.working(spark):
        wait_long(lambda: pipeline.queue.counts().failed == 3, "them to fail")
    assert names(outside) == ["precious"]
    assert names(root) == []
