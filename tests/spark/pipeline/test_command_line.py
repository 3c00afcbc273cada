"""`holdfast pipeline …`: submit, work, status, report, revive, cancel."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cli.support import COMMAND, Commands
from holdfast.cli.main import main
from holdfast.spark import Pipeline
from holdfast.spark.pipeline import transforms, working
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
    listed = hf("pipeline", "ls", name).splitlines()
    assert listed[0].split() == [
        *("request", "state", "done", "failed", "running", "parts", "opened", "when", "why")
    ]
    assert listed[1].startswith("daily    planning     0       0        0      0  20")
    assert "no worker of" in listed[1]
    hf("pipeline", "work", name, "--transforms", TRANSFORMS, "--until-empty", *where)
    handle = pipeline.handle("daily")
    must_be_published(handle, root)
    told = hf.json("pipeline", "status", name, "daily")
    assert (told["state"], told["done"], told["rows_out"]) == ("done", 1, 993)
    [told] = hf.json("pipeline", "ls", name)
    assert (told["id"], told["state"], told["parts"]) == ("daily", "done", 1)
    assert told["opened_at"].endswith("Z")
    assert "1 of 1 parts, done" in hf("pipeline", "status", name, "daily", "--follow")
    assert rows(handle.read(spark)).total() == 993
    picture = root.parent / "timeline.png"
    assert hf("pipeline", "report", name, picture) == f"{picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert hf("pipeline", "revive", name, "daily") == "0 revived\n"
    assert "has already ended" in hf.error("pipeline", "cancel", name, "daily", "--yes")


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
        (["same", "in/*.csv", "out", "--transforms", "nowhere"], 2, "'nowhere' was not found"),
        (["same", "in/*.csv", "out", "--mode", "replace"], 2, "'replace' is not one of"),
        (["same", "out"], 2, "Missing argument 'INPUT...'"),
        (["same", "in/*.csv", "out", *("--param", "a=1") * 2], 2, "'a' is given twice"),
        (["same", "in/*.csv", "out", "--finish-param", "a=1"], 2, "finish_params need finish="),
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


def test_all_workers_hash_alike_unless_the_user_says_otherwise(
    test_server: TestServer, root: Path, tmp_path: Path
) -> None:
    """So that the order of sets, and what is made from it, is the same in all of them."""
    (tmp_path / "tells.py").write_text("import sys\nsys.exit(f'hash {hash(\"a\")}')\n")
    command = [sys.executable, "-m", "holdfast", "pipeline", "work", "q", "--transforms", "tells"]

    usual = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}

    def told(**environment: str) -> str:
        ran = subprocess.run(
            [*command, "--root", str(root), "--url", test_server.url],
            cwd=tmp_path,
            env={**usual, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stderr.strip()

    assert told() == told() == told(PYTHONHASHSEED="0")
    assert told().startswith("hash ")
    assert told(PYTHONHASHSEED="1") != told()


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a command that gets as far as Java fail."""

    def prepare(**_: object) -> None:
        raise AssertionError("Java would be started")

    # By their names would be those of the function `session`.
    module = import_module("holdfast.spark.session")
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(module, "prepare", prepare)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory", "foo"], "memory must be a number with k, m, g or t, such as 1g, not 'foo'"),
        (["--memory", "10"], "memory must be a number with k, m, g or t, such as 1g, not '10'"),
        (["--master", "foo"], "master must be local[*], local[4], spark://host:7077"),
        (["--master", "local[x]"], "master must be local[*]"),
        (["--concurrency", "0"], "concurrency must be 1 to"),
        (["--lease", "0"], "lease must be more than 0 seconds"),
        (["--lease", "10ms"], "lease must be at least 1 second"),
    ],
    ids=str,
)
def test_a_worker_refuses_a_wrong_value_before_java_starts(
    hf: Commands, pipeline: Pipeline, root: Path, no_java: None, options: list[str], said: str
) -> None:
    given = ("pipeline", "work", pipeline.queue.name, "--transforms", TRANSFORMS, "--root", root)
    assert said in hf.error(*given, *options, code=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name the modules that have them with --transforms"),
        (["--transforms", "json"], "json registers none with @transform"),
    ],
)
def test_a_worker_without_transforms_is_refused(
    hf: Commands,
    pipeline: Pipeline,
    root: Path,
    no_java: None,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(transforms, "_known", {})
    error = hf.error("pipeline", "work", pipeline.queue.name, "--root", root, *options, code=2)
    assert "no transforms: " in error
    assert said in error


def test_a_java_that_does_not_start_is_one_line(
    hf: Commands, pipeline: Pipeline, root: Path
) -> None:
    given = ["pipeline", "work", pipeline.queue.name, "--transforms", TRANSFORMS, "--memory", "1k"]
    ran = subprocess.run(
        [*COMMAND, *given, "--root", str(root)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    told = ran.stderr.splitlines()[-1]
    assert told.startswith("Error: Spark does not start with --master local[*] and --memory 1k: ")
