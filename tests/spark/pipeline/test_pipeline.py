"""Requests of a pipeline: who goes first, what fails, what is published and what is not."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast import CodecError, InvalidArgument, WrongState
from holdfast.spark import Pipeline
from holdfast.spark.pipeline import attempts, working
from holdfast.spark.pipeline.files import Files
from spark.pipeline.support import (
    PATIENCE,
    finish,
    grouped,
    must_be_published,
    names,
    numbers,
    rows,
    running_at_once,
    spans,
    wait_long,
)

# ------------------------------------------------------------------------ turns


def test_an_urgent_request_is_done_first_and_the_big_one_keeps_to_its_limit(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers(spark, root / "big", rows=4000, files=12)
    numbers(spark, root / "small", rows=100, files=1)
    big = pipeline.submit("same", input="big/*.parquet", output="out", limit=1, part_size=1)
    begun, published = itertools.count(), threading.Event()

    def run_part(*given: Any) -> Any:
        """Have the second part of the big one take as long as the small one takes."""
        if given[-1].request == big.id and next(begun):
            assert published.wait(PATIENCE)
        return attempts.run_part(*given)

    monkeypatch.setattr(working, "run_part", run_part)
    with pipeline.working(spark, concurrency=2):
        wait_long(lambda: big.progress().done >= 1, "the first part")
        small = pipeline.submit("same", input="small/*.parquet", output="quick", priority=90)
        must_be_published(small, root, "quick")
        assert not big.progress().ended
        published.set()
        assert finish(big).state == "done"
    assert running_at_once(spans(big)) == 1
    assert len(spans(big)) == 12


def test_limit_and_priority_can_be_changed_while_it_runs(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=6)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", limit=0, part_size=1)
    with pipeline.working(spark, concurrency=2):
        wait_long(lambda: handle.progress().parts == 6, "the plan")
        assert handle.progress().running == 0
        handle.set_priority(99)
        handle.set_limit(None)
        must_be_published(handle, root)


# ---------------------------------------------------------------------- finish


def test_finish_sees_what_all_parts_wrote(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=1000, files=4)
    handle = pipeline.submit(
        "big_enough",
        params={"least": 100},
        input="in/*.parquet",
        output="out",
        part_size=1,
        finish="summed",
        finish_params={"named": "sum"},
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    (row,) = handle.read(spark).collect()
    assert row.asDict() == {"sum": sum(range(100, 1000)), "rows": 900}


def test_the_manifest_says_what_each_part_did(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=100, files=3)
    handle = pipeline.submit("same", id="a/b c", input="in/*.parquet", output="out", part_size=1)
    with pipeline.working(spark):
        must_be_published(handle, root)
    (path,) = (root / "out/_holdfast").glob("*.json")
    manifest = json.loads(path.read_text())
    assert manifest["request"] == "a/b c"
    assert manifest["rows"] == 100
    assert [part["number"] for part in manifest["parts"]] == [0, 1, 2]
    assert sum(part["rows_out"] for part in manifest["parts"]) == 100
    assert sorted(manifest["files"]) == sorted(p.name for p in (root / "out").glob("part-*"))
    assert [part["tries"] for part in manifest["parts"]] == [1, 1, 1]


# ------------------------------------------------------------------------ modes


def test_an_output_that_is_there_is_refused(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in")
    (root / "out").mkdir()
    with pytest.raises(InvalidArgument, match="is there already"):
        pipeline.submit("same", input="in/*.parquet", output="out")


def test_an_output_that_came_meanwhile_is_left_alone(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in")
    handle = pipeline.submit("same", input="in/*.parquet", output="out", limit=0, max_failures=0)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 1, "the plan")
        (root / "out").mkdir()
        (root / "out/mine").touch()
        handle.set_limit(None)
        progress = finish(handle)
    assert progress.state == "failed"
    assert "is there already" in (progress.error or "")
    assert names(root / "out") == ["mine"]


def test_overwrite_replaces_the_output_at_once(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in")
    numbers(spark, root / "out", rows=7)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", mode="overwrite")
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert rows(spark.read.parquet(str(root / "out"))) == rows(expected)


def test_append_adds_to_the_output_and_each_can_be_read_alone(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    first, second = numbers(spark, root / "a"), numbers(spark, root / "b", rows=50)
    with pipeline.working(spark):
        one = pipeline.submit("same", input="a/*.parquet", output="out", mode="append")
        must_be_published(one, root)
        two = pipeline.submit("same", input="b/*.parquet", output="out", mode="append")
        must_be_published(two, root)
    assert rows(one.read(spark)) == rows(first)
    assert rows(two.read(spark)) == rows(second)
    assert rows(spark.read.parquet(str(root / "out"))) == rows(first.union(second))


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
def test_an_output_that_became_a_file_is_refused_by_the_planner(
    spark: SparkSession, pipeline: Pipeline, root: Path, mode: Any
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", mode=mode)
    (root / "out").write_text("mine")
    with pipeline.working(spark):
        progress = finish(handle)
    assert (progress.state, progress.parts) == ("failed", 0)
    assert f"output {root}/out is a file: name a directory" in (progress.error or "")
    assert (root / "out").read_text() == "mine"
    assert names(root) == ["in", "out"]


# --------------------------------------------------------------------- failures


def test_a_transform_that_raises_fails_its_part_with_the_message(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("broken", input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "this row is no good" in (progress.error or "")
    assert len(progress.error or "") < 3000
    assert not (root / "out").exists()
    with pytest.raises(WrongState, match="has published nothing"):
        handle.read(spark)


def test_a_corrupt_file_is_named_and_revive_runs_just_that_part(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = rows(numbers(spark, root / "in", files=3))
    name = sorted((root / "in").glob("*.parquet"))[1]
    good = name.read_bytes()
    name.write_bytes(good[:-20] + b"x" * 20)
    planned = name.stat()
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        part_size=1,
        max_failures=0,
        schema="n LONG, name STRING",
    )
    with pipeline.working(spark):
        progress = finish(handle)
        assert (progress.state, progress.done, progress.failed) == ("failed", 2, 1)
        assert name.name in progress.errors[1]
        assert not (root / "out").exists()
        (root / f"in/.{name.name}.crc").unlink(missing_ok=True)
        name.write_bytes(good)
        os.utime(name, ns=(planned.st_mtime_ns, planned.st_mtime_ns))
        assert handle.revive() == 1
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == expected


def test_a_partial_output_may_be_asked_for(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=3)
    name = sorted((root / "in").glob("*.parquet"))[1]
    name.write_bytes(b"nothing of the kind")
    handle = pipeline.submit(
        "same",
        input="in/*.parquet",
        output="out",
        part_size=1,
        max_failures=0,
        partial=True,
        schema="n LONG, name STRING",
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    (path,) = (root / "out/_holdfast").glob("*.json")
    assert json.loads(path.read_text())["missing"] == [1]
    with pytest.raises(WrongState, match="without 1 failed parts: submit the request again"):
        handle.revive()


def test_a_transform_that_groups_is_refused_with_advice(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("grouped", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "grouped uses Aggregate" in (progress.error or "")
    assert progress.parts == 0
    assert "finish=" in (progress.error or "")


def test_a_shuffle_within_parts_may_be_wanted(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in", files=1)
    handle = pipeline.submit("grouped_in_parts", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == rows(grouped(expected))


@pytest.mark.parametrize(
    ("name", "said"), [("no_frame", "it must return a DataFrame"), ("counted", "runs a query")]
)
def test_what_is_no_frame_is_refused(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str, said: str
) -> None:
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit(name, input="in/*.parquet", output="out")
    with pipeline.working(spark):
        progress = finish(handle)
    assert said in (progress.error or "")


def test_an_input_that_is_not_there_fails_the_plan(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    handle = pipeline.submit("same", input="nowhere/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "nowhere" in (progress.error or "")
    assert not list(root.iterdir())


@pytest.fixture
def small_disk(root: Path) -> Iterator[Path]:
    """A file system with room for a megabyte."""
    disk = root / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)],
        check=False,
        capture_output=True,
    )
    if mount.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_parts_wait_for_room_on_a_full_disk_and_lose_no_try(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(working, "FULL_SECONDS", 0.1)
    numbers(spark, root / "in", rows=300_000, files=2)
    tried: list[str] = []
    monkeypatch.setattr(working, "run_part", counting(attempts.run_part, tried))
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="disk/out", max_failures=0, part_size=1
    )
    with pipeline.working(spark):
        wait_long(lambda: len(tried) >= 4, "each part to be tried again")
        assert handle.progress().failed == 0
        remount = ["mount", "-o", "remount,size=64m", str(small_disk)]
        subprocess.run(remount, check=True)
        must_be_published(handle, small_disk)
    assert [done.tries for _, done in handle.parts() if done] == [1, 1]
    told = [record for record in caplog.records if "no room for the output" in record.message]
    assert len(told) == 1
    assert "No space left on device" in told[0].message


def test_parts_wait_where_the_disk_has_no_room_for_a_directory_and_lose_no_try(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def allow(more: int) -> None:
        about = os.statvfs(small_disk)
        most = about.f_files - about.f_ffree + more
        remount = ["mount", "-o", f"remount,nr_inodes={most}", str(small_disk)]
        subprocess.run(remount, check=True)

    monkeypatch.setattr(working, "FULL_SECONDS", 0.1)
    expected = numbers(spark, root / "in", files=1)
    tried: list[str] = []
    monkeypatch.setattr(working, "run_part", counting(attempts.run_part, tried))
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="disk/out", max_failures=0, limit=0
    )
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 1, "the plan")
        allow(3)  # Spark needs more for the first file of a part.
        handle.set_limit(None)
        wait_long(lambda: len(tried) >= 2 or handle.progress().ended, "it to be tried again")
        assert handle.progress().failed == 0
        allow(1000)
        must_be_published(handle, small_disk)
    assert [done.tries for _, done in handle.parts() if done] == [1]
    assert rows(handle.read(spark)) == rows(expected)


def test_a_file_that_has_no_room_leaves_nothing_behind(
    spark: SparkSession, pipeline: Pipeline, small_disk: Path
) -> None:
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises(Py4JJavaError, match="No space left on device"):
        Files(spark, pipeline.roots).write(f"{small_disk}/manifest.json", b"{}")
    assert names(small_disk) == ["ballast"]


def counting(real: Any, calls: list[str]) -> Any:
    def counted(*given: Any) -> Any:
        calls.append(str(given[-1]))
        return real(*given)

    return counted


def test_cancel_ends_it_and_leaves_nothing(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=6)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", part_size=1, limit=1)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().done >= 1, "the first part")
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
        wait_long(lambda: names(root) == ["in"], "the staging to be gone")


# --------------------------------------------------------------------- refusals

GOOD: dict[str, Any] = {"input": "in/*.parquet", "output": "out"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transform": "nobody"}, "unknown transform 'nobody'"),
        ({"params": {"least": 5}}, "params of 'same'"),
        ({"transform": "big_enough"}, "argument: 'least'"),
        ({"transform": "big_enough", "params": {"least": "five"}}, "params of 'big_enough': least"),
        ({"transform": "big_enough", "params": {"least": 5, "most": 9}}, "unexpected keyword"),
        ({"params": {"least": object}}, "cannot be written as JSON"),
        ({"input": "../in"}, "must not go up"),
        ({"input": "/etc/passwd"}, "input must be below"),
        ({"input": "file:/etc"}, "without a scheme"),
        ({"input": "file:///etc"}, "without a scheme"),
        ({"input": "s3a://bucket/in"}, "input must be below"),
        ({"input": "link/*.parquet"}, "input must be below"),
        ({"input": []}, "at least one path"),
        ({"input": ""}, "must be a path"),
        ({"input": "a\0b"}, "must be a path"),
        ({"input": "in"}, "format must be given"),
        ({"output": "../out"}, "must not go up"),
        ({"output": "/tmp/out"}, "output must be below"),
        ({"output": "link/out"}, "output must be below"),
        ({"output": "out*"}, "without patterns"),
        ({"output": "."}, "below the roots"),
        ({"output": ".hidden"}, "must not begin with"),
        ({"mode": "replace"}, "mode must be"),
        ({"format": "xml"}, "format must be one of"),
        ({"part_size": "many"}, "part_size must be"),
        ({"part_size": 0}, "part_size must be"),
        ({"priority": 100}, "priority must be"),
        ({"limit": -1}, "limit must be"),
        ({"finish": "nobody"}, "unknown transform 'nobody'"),
        ({"keep_for": 0}, "keep_for must be"),
        ({"schema": 5}, "schema must be text"),
        ({"options": {"header": None}}, "options: 'header'"),
        ({"input": ["a", 5]}, "input must be a path"),
        ({"input": "\ud800.csv"}, "input must be a path"),
        ({"output": "\ud800"}, "output must be a path"),
        ({"output": 5}, "output must be a path"),
        ({"schema": "\ud800 LONG"}, "cannot be written as UTF-8"),
        ({"params": "x"}, "params must be a dict, such as {'day': '2030-01-31'}, not 'x'"),
        ({"params": []}, "params must be a dict"),
        ({"finish": "summed", "finish_params": "x"}, "finish_params must be a dict"),
        ({"finish_params": {"named": "n"}}, "finish_params need finish="),
        ({"output_format": ""}, "output_format must be one of"),
        ({"output": "ä" * 110}, "is too long: it has 220 bytes"),
        ({"output": f"{'x' * 300}/out"}, "is too long: it has 300 bytes"),
        ({"output": "in/file"}, "in/file is a file: name a directory"),
        ({"output": "in/file", "mode": "append"}, "in/file is a file: name a directory"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    pipeline: Pipeline, root: Path, changes: dict[str, Any], said: str
) -> None:
    (root / "link").symlink_to(root.parent)
    (root / "in").mkdir()
    (root / "in/file").touch()
    given = {"transform": "same", **GOOD, **changes}
    with pytest.raises((InvalidArgument, CodecError)) as raised:
        pipeline.submit(given.pop("transform"), **given)
    assert said in str(raised.value)
    assert len(pipeline.queue) == 0
    assert pipeline.queue.requests() == []


def test_a_link_behind_a_pattern_is_found_by_the_worker(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root.parent / "outside", files=1)
    (root / "in").mkdir()
    (root / "in/a").symlink_to(root.parent / "outside")
    handle = pipeline.submit("same", input="in/*", format="parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert "leads out of" in (progress.error or "")


def test_the_same_id_is_the_same_request(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in")
    one = pipeline.submit("same", id="daily", **GOOD)
    again = pipeline.submit("same", id="daily", **GOOD)
    with pipeline.working(spark):
        must_be_published(one, root)
        assert finish(again).done == 1
        assert pipeline.submit("same", id="daily", **GOOD).progress().state == "done"


def test_an_output_with_the_longest_name_is_published(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=1)
    given: dict[str, Any] = {"input": "in/*.parquet", "id": "i" * 100}
    with pytest.raises(InvalidArgument, match="is too long: it has 250 bytes, and may") as raised:
        pipeline.submit("same", output="x" * 250, **given)
    most = int(re.search(r"may have (\d+)", str(raised.value))[1])  # type: ignore[index]
    with pytest.raises(InvalidArgument, match="is too long"):
        pipeline.submit("same", output="x" * (most + 1), **given)
    with pipeline.working(spark):
        handle = pipeline.submit("same", output="x" * most, **given)
        must_be_published(handle, root, "x" * most)
        given = {**given, "output": "x" * most, "mode": "overwrite", "id": "j" * 100}
        must_be_published(pipeline.submit("same", **given), root, "x" * most)


def test_paths_may_be_path_objects(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    numbers(spark, root / "in", files=2)
    one = pipeline.submit("same", input=root / "in/*.parquet", output=root / "one")
    two = pipeline.submit("same", input=[root / "in/part-0.snappy.parquet"], output=Path("two"))
    with pipeline.working(spark):
        must_be_published(one, root, "one")
        must_be_published(two, root, "two")
    assert (one.progress().rows_out, two.progress().rows_out) == (1000, 500)


@pytest.mark.parametrize("given", [None, 5, "local[*]"])
def test_work_needs_a_session(pipeline: Pipeline, given: Any) -> None:
    with pytest.raises(InvalidArgument, match="needs a classic SparkSession, such as"):
        pipeline.work(given)
    with pytest.raises(InvalidArgument, match="needs a classic"), pipeline.working(given):
        pass


def test_what_has_ended_is_not_changed(pipeline: Pipeline) -> None:
    handle = pipeline.submit("same", **GOOD)
    assert handle.cancel()
    with pytest.raises(WrongState, match="has ended: its limit cannot be changed any more"):
        handle.set_limit(3)
    with pytest.raises(WrongState, match="has ended: its priority cannot be changed any more"):
        handle.set_priority(3)
