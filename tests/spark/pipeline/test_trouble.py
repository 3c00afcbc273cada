"""What goes wrong: whose fault it is, what follows from it, and what is told about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import planning
from holdfast.spark.pipeline.trouble import place_of, reason
from holdfast.worker import Retry
from spark.pipeline.support import finish, must_be_published, numbers, rows
from support import TestServer, wait_until

HERE = Path(__file__)


def line_of(text: str) -> int:
    """Return the number of the one line of this file that ends so."""
    (number,) = [
        n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(text)
    ]
    return number


# -------------------------------------------------------------------- errors for good


@transform
def of_a_column_that_is_not_there(df: DataFrame) -> DataFrame:
    return df.where(F.col("nope") > 1)  # The line of the column.


@transform
def of_a_missing_key(df: DataFrame) -> DataFrame:
    columns: dict[str, str] = {}
    return df.select(columns["amount"])  # The line of the key.


@transform
def of_a_wrong_type(df: DataFrame) -> DataFrame:
    return df.limit("3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("of_a_column_that_is_not_there", {}, "UNRESOLVED_COLUMN"),
        ("of_a_missing_key", {}, "KeyError: 'amount'"),
        ("of_a_wrong_type", {}, "in of_a_wrong_type"),
        ("same", {"input": "nowhere/*.parquet"}, "PATH_NOT_FOUND"),
        ("same", {"schema": "n LNG"}, "LNG"),
        ("same", {"options": {"samplingRatio": "x"}, "format": "json"}, '"x"'),
        ("same", {"output_format": "text"}, "UNSUPPORTED_DATA_TYPE"),
    ],
    ids=str,
)
def test_an_error_that_would_come_again_ends_the_request_at_once(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    options: dict[str, Any],
    said: str,
) -> None:
    numbers(spark, root / "in", files=1)
    given = {"input": "in/*.parquet", "output": "out", **options}
    handle = pipeline.submit(name, **given)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert said in (progress.error or "")
    assert "is tried again" not in caplog.text


@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        (
            ("a.parquet", "b.parquet"),
            {"options": {"mergeSchema": True}},
            'Initial schema: "STRUCT<x: BIGINT>" Schema that cannot be merged',
        ),
        (("a/k=1/a.parquet", "b/a.parquet"), {}, "Suspicious paths: file:"),
        (("k=1/a.parquet", "l=1/a.parquet"), {}, "Partition column name list #1: "),
        (("a.parquet",), {"schema": "x INT"}, "Expected Spark type int, actual Parquet type INT64"),
        (
            ("a.csv",),
            {"schema": "y LONG", "options": {"header": True, "enforceSchema": False}},
            "CSV header does not conform to the schema",
        ),
    ],
    ids=str,
)
def test_files_that_do_not_fit_fail_at_once_with_the_whole_message(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    caplog: pytest.LogCaptureFixture,
    files: tuple[str, ...],
    options: dict[str, Any],
    said: str,
) -> None:
    for value, name in zip((1, "text"), files, strict=False):
        path = root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            path.write_text(f"x\n{value}\n")
        else:
            pq.write_table(pa.table({"x": [value]}), path)
    given = {"format": Path(files[0]).suffix[1:], **options}
    handle = pipeline.submit("same", input="in", output="out", **given)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert said in " ".join([progress.error or "", *progress.errors.values()])
    assert "is tried again" not in caplog.text


def test_what_could_not_be_planned_runs_when_it_is_revived(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        expected = numbers(spark, root / "in", files=1)
        assert handle.revive() == 1
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == rows(expected)


def test_what_could_not_be_planned_can_be_cancelled(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        assert finish(handle).state == "failed"
        assert handle.cancel()
        assert finish(handle).state == "cancelled"
    assert pipeline.queue.failed() == []


def test_while_a_plan_is_tried_again_its_error_is_told(
    spark: SparkSession, pipeline: Pipeline, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> DataFrame:
        raise Retry("the catalog is away", after=3600)

    monkeypatch.setattr(planning, "read_all", away)
    numbers(spark, root / "in", files=1)
    handle = pipeline.submit("same", input="in/*.parquet", output="out")
    with pipeline.working(spark):
        wait_until(lambda: handle.progress().error, "its error")
    assert handle.progress().state == "planning"
    assert handle.progress().error == "the catalog is away"


# ----------------------------------------------------------------- where it was raised


@transform
def with_a_bad_function(df: DataFrame) -> DataFrame:
    @F.udf("long")
    def fail(n):  # type: ignore[no-untyped-def]  # Spark would look for more in the types.
        raise ValueError("this row is no good")  # The line of the row.

    return df.select(fail(F.col(df.columns[0])))


@pytest.mark.parametrize(
    ("name", "line", "raised"),
    [
        ("of_a_column_that_is_not_there", "The line of the column.", "UNRESOLVED_COLUMN"),
        ("of_a_missing_key", "The line of the key.", "KeyError: 'amount'"),
        ("with_a_bad_function", "The line of the row.", "ValueError: this row is no good"),
    ],
)
def test_an_error_names_the_line_of_the_transform_and_its_traceback_is_logged_once(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    line: str,
    raised: str,
) -> None:
    numbers(spark, root / "in", files=3)
    handle = pipeline.submit(name, input="in/*.parquet", output="out", part_size=1, max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert raised in (progress.error or "")
    assert f"{HERE}:{line_of(line)} in " in (progress.error or "")
    shown = [record.exc_text for record in caplog.records if record.exc_text]
    assert len(shown) == 1
    assert f'File "{HERE}", line {line_of(line)}' in shown[0]
    assert raised in shown[0]
    assert "\tat " not in caplog.text
    assert all("\n" not in error for error in handle.errors().values())


def test_the_code_of_the_user_is_found_between_that_of_libraries() -> None:
    with pytest.raises(AttributeError) as raised:
        of_a_wrong_type(None)  # type: ignore[arg-type]
    place = place_of(raised.value)
    assert place is not None
    assert (place.file, place.function) == (str(HERE), "of_a_wrong_type")
    assert place_of(ValueError("of nowhere")) is None
    assert reason(ValueError("of nowhere")) == "ValueError: of nowhere"


# ---------------------------------------------------------------------- what it read


def test_an_error_in_a_piece_of_lines_names_the_file_and_its_bytes(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in dir").mkdir()
    path = root / "in dir/a b.csv"
    path.write_text("".join(f"{n}\n" for n in range(900)) + "no number\n" * 10)
    handle = pipeline.submit(
        "same",
        input="in dir/*.csv",
        output="out",
        schema="n LONG",
        options={"mode": "FAILFAST"},
        part_size=1000,
        max_failures=0,
    )
    with pipeline.working(spark):
        progress = finish(handle)
    (error,) = progress.errors.values()
    size = path.stat().st_size
    assert f"[input: {path}, bytes {size * 3 // 4} to {size}]" in error
    assert f"file {path}" in error.replace("file://", "")
    assert "/_piece." not in error


def test_an_error_in_some_row_groups_names_the_file_and_them(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in").mkdir()
    path = root / "in/a.parquet"
    pq.write_table(pa.table({"n": list(range(4000))}), path, row_group_size=1000)
    handle = pipeline.submit(
        "with_a_bad_function", input="in/*.parquet", output="out", part_size=3000, max_failures=0
    )
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.failed > 1
    assert f"[input: {path}, row groups 0 to 0]" in progress.errors[0]
    assert not [error for error in progress.errors.values() if "/_piece." in error]


# -------------------------------------------------------------------- corrupt files


@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("merge", [False, True])
def test_a_corrupt_file_fails_its_part_also_where_it_is_the_first(
    spark: SparkSession, pipeline: Pipeline, root: Path, format: Any, merge: bool
) -> None:
    for day in (1, 2, 3):
        frame = spark.range(day * 10, day * 10 + 10).coalesce(1)
        frame.write.format(format).save(str(root / f"in put/day={day}"))
    for bad in (1, 2):
        (path,) = (root / f"in put/day={bad}").glob("part-*")
        path.write_bytes(b"nothing of the kind" * 10)
        path.with_name(f".{path.name}.crc").unlink()
    expected = (
        spark.read.schema("id LONG").format(format).load(str(root / "in put")).where("day = 3")
    )
    handle = pipeline.submit(
        "same",
        input="in put",
        format=format,
        options={"mergeSchema": merge},
        output="out",
        output_format="parquet",
        part_size=1,
        max_failures=0,
        partial=True,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == rows(expected)
    progress = handle.progress()
    assert (progress.done, progress.failed) == (1, 2)
    assert "day=1/part-" in progress.errors[0]
    assert "day=2/part-" in progress.errors[1]


def test_where_all_files_are_corrupt_the_plan_fails_and_names_them(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in").mkdir()
    for name in range(7):
        (root / f"in/{name}.parquet").write_bytes(b"nothing of the kind" * 10)
    handle = pipeline.submit("same", input="in/*.parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        progress = finish(handle)
    assert progress.state == "failed"
    assert progress.parts == 0
    assert "no file of the input can be read" in (progress.error or "")
    assert "in/0.parquet" in (progress.error or "")
    assert "and 2 more" in (progress.error or "")


# ------------------------------------------------------------------------------ log


def test_the_log_of_a_worker_has_a_line_for_each_failed_run(
    spark: SparkSession, test_server: TestServer, root: Path, tmp_path: Path
) -> None:
    numbers(spark, root / "in", files=5)
    (root / "in/part-0.snappy.parquet").write_bytes(b"nothing of the kind" * 10)
    with Pipeline("logged", test_server.queue_url, roots=root) as pipeline:
        handle = pipeline.submit(
            "broken", input="in/*.parquet", output="out", part_size=1, max_failures=0
        )
        command = [sys.executable, "-m", "holdfast", "pipeline", "work", "logged", "--until-empty"]
        said = subprocess.run(
            [*command, "--transforms", "spark.pipeline.support", "--root", root],
            env={
                **os.environ,
                "HOLDFAST_URL": test_server.queue_url,
                "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{HERE.parents[2]}",
            },
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        assert handle.progress().failed == 5
    assert "\tat " not in said
    failed = [line for line in said.splitlines() if ": failed: " in line]
    assert len(failed) == 5
    assert len(said.splitlines()) < 30, said
