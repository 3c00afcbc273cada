"""`holdfast pipeline …`: submit, work, status, report, revive, cancel."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cli.support import Commands
from holdfast.cli.main import main
from holdfast.spark import Pipeline
from holdfast.spark.pipeline import working
from spark.pipeline.support import must_be_published, numbers, rows
from support import TestServer

TRANSFORMS = "spark.pipeline.support"


@pytest.fixture
def hf(test_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("HOLDFAST_URL", test_server.queue_url)
    return Commands()


@pytest.fixture
def queue_name(request: pytest.FixtureRequest) -> str:
    return f"q-{request.node.name}"


def test_a_request_from_submit_to_report(
    spark: SparkSession, hf: Commands, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", files=3)
    name, where = pipeline.queue.name, ("--root", root)
    said = hf(
        *("pipeline", "submit", name, "big_enough", "in/*.parquet", "out", "--id", "daily"),
        *("--param", "least=7", "--transforms", TRANSFORMS, "--limit", 2, *where),
    )
    assert said == "daily\n"
    assert hf.json("pipeline", "status", name, "daily")["state"] == "planning"
    hf("pipeline", "work", name, "--transforms", TRANSFORMS, "--until-empty", *where)
    handle = pipeline.handle("daily")
    must_be_published(handle, root)
    told = hf.json("pipeline", "status", name, "daily")
    assert (told["state"], told["done"], told["rows_out"]) == ("done", 1, 993)
    assert "1 of 1 parts, done" in hf("pipeline", "status", name, "daily", "--follow")
    assert rows(handle.read(spark)).total() == 993
    picture = root.parent / "timeline.png"
    assert hf("pipeline", "report", name, picture) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert hf("pipeline", "revive", name, "daily") == "0 run again\n"
    assert "is over already" in hf.error("pipeline", "cancel", name, "daily", "--yes")


def test_a_worker_tells_what_goes_wrong(
    spark: SparkSession,
    hf: Commands,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # As in a process of its own.
    numbers(spark, root / "in", files=1)
    name, where = pipeline.queue.name, ("--transforms", TRANSFORMS, "--root", root)
    hf("pipeline", "submit", name, "broken", "in/*.parquet", "out", "--id", "daily", *where)
    work = ("pipeline", "work", name, "--until-empty", *map(str, where))
    told = CliRunner().invoke(main, work).stderr
    assert "WARNING daily/0: raised, and will be retried" in told
    assert told.count("Traceback (most recent call last)") == 1


def test_status_says_why_a_request_failed(
    spark: SparkSession, hf: Commands, pipeline: Pipeline, root: Path
) -> None:
    name, where = pipeline.queue.name, ("--transforms", TRANSFORMS, "--root", root)
    hf("pipeline", "submit", name, "same", "in/*.parquet", "out", "--id", "daily", *where)
    hf("pipeline", "work", name, "--until-empty", *where)
    told = hf("pipeline", "status", name, "daily")
    assert "failed" in told
    assert "PATH_NOT_FOUND" in told


def test_a_worker_that_cannot_work_leaves_with_an_error(
    spark: SparkSession,
    hf: Commands,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def probe(spark: SparkSession) -> None:
        raise OSError("no local directory")

    monkeypatch.setattr(working, "probe", probe)
    (root / "in").mkdir()
    (root / "in/a.parquet").write_bytes(b"nothing of the kind" * 10)
    name, where = pipeline.queue.name, ("--transforms", TRANSFORMS, "--root", root)
    given = ("in/*.parquet", "out", "--id", "daily", "--schema", "n LONG")
    hf("pipeline", "submit", name, "same", *given, *where)
    assert "OSError: no local directory" in hf.error("pipeline", "work", name, *where)
    assert pipeline.handle("daily").progress().waiting == 1


def test_a_request_is_cancelled(hf: Commands, pipeline: Pipeline, root: Path) -> None:
    name = pipeline.queue.name
    submit = ("pipeline", "submit", name, "same", "in/*.parquet", "out", "--root", root)
    hf(*submit, "--id", "x", "--transforms", TRANSFORMS)
    hf("pipeline", "cancel", name, "x", "--yes")
    assert hf.json("pipeline", "status", name, "x")["state"] == "cancelled"
    hf.ran("pipeline", "status", name, "x", "--follow", code=1)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["nobody", "in/*.csv", "out"], 2, "unknown transform 'nobody'"),
        (["same", "../in/*.csv", "out"], 2, "must not go up"),
        (["same", "in/*.csv", "out", "--param", "least"], 2, "should look like name=value"),
        (["same", "in/*.csv", "out", "--transforms", "nowhere"], 2, "there is no module 'nowhere'"),
        (["same", "in/*.csv", "out", "--mode", "replace"], 2, "'replace' is not one of"),
        (["same", "out"], 2, "Missing argument 'INPUT...'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_line(
    hf: Commands, pipeline: Pipeline, root: Path, options: list[str], code: int, said: str
) -> None:
    name = pipeline.queue.name
    error = hf.error("pipeline", "submit", name, *options, "--root", root, code=code)
    assert said in error
    assert len(pipeline.queue) == 0
