"""Whoever dies, and whenever: the output is that of the plain job, once, and nothing beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from holdfast.spark import Handle, Pipeline
from spark.pipeline.doomed import STEPS
from spark.pipeline.support import PATIENCE, big_enough, must_be_published, numbers, rows, wait_long
from support import TestServer

SHORT = "after Spark wrote"
KILLED = [step for step, how in STEPS.items() if how == "die"]
WITHOUT_JVM = [step for step, how in STEPS.items() if how == "kill the JVM"]
FROZEN = [step for step, how in STEPS.items() if how == "freeze"]


@contextmanager
def doomed(
    test_server: TestServer, pipeline: Pipeline, root: Path, step: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Let a worker with a Spark of its own work until it is at this step."""
    name = pipeline.queue.name.encode().hex()
    tests = Path(__file__).parents[2]
    said = (root.parent / "said").open("wb")
    running = subprocess.Popen(
        [sys.executable, "-m", "spark.pipeline.doomed", test_server.queue_url, name, root, step],
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"},
        cwd=tests,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        said.close()
        jvm = root.parent / "jvm"
        wait_long(
            lambda: not jvm.exists() or not psutil.pid_exists(int(jvm.read_text())),
            "its JVM to be gone",
        )


def submitted(spark: SparkSession, pipeline: Pipeline, root: Path) -> Handle:
    numbers(spark, root / "in", files=3)
    return pipeline.submit(
        "big_enough", params={"least": 7}, input="in/*.parquet", output="out", part_size=4000
    )


def the_plain_output(pipeline: Pipeline, spark: SparkSession, root: Path) -> None:
    expected = big_enough(spark.read.parquet(str(root / "in")), least=7)
    assert rows(spark.read.parquet(str(root / "out"))) == rows(expected)
    assert pipeline.queue.audit() == []


def survives(
    spark: SparkSession, test_server: TestServer, pipeline: Pipeline, root: Path, step: str
) -> None:
    """Let a worker die at a step, and another go on."""
    handle = submitted(spark, pipeline, root)
    with doomed(test_server, pipeline, root, step) as running:
        wait_long(lambda: running.poll() is not None, f"its end, {step}")
        expected = 1 if step in WITHOUT_JVM else -signal.SIGKILL
        assert running.returncode == expected, (root.parent / "said").read_text()
    with pipeline.working(spark):
        must_be_published(handle, root)
    the_plain_output(pipeline, spark, root)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step == SHORT else pytest.mark.slow)
        for step in [*KILLED, *WITHOUT_JVM]
    ],
)
def test_a_worker_that_dies_is_followed_by_another(
    spark: SparkSession, test_server: TestServer, pipeline: Pipeline, root: Path, step: str
) -> None:
    survives(spark, test_server, pipeline, root, step)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", FROZEN)
def test_what_a_frozen_worker_wrote_too_late_is_not_in_the_output(
    spark: SparkSession, test_server: TestServer, pipeline: Pipeline, root: Path, step: str
) -> None:
    handle = submitted(spark, pipeline, root)
    with doomed(test_server, pipeline, root, step) as running:
        process = psutil.Process(running.pid)
        wait_long(lambda: process.status() == psutil.STATUS_STOPPED, "it to freeze")
        with pipeline.working(spark):
            must_be_published(handle, root)
        running.send_signal(signal.SIGCONT)
        said = root.parent / "said"
        wait_long(lambda: b"lost" in said.read_bytes(), "it to hear of it")
        running.terminate()
        wait_long(lambda: running.poll() is not None, "its end")
    must_be_published(handle, root)
    the_plain_output(pipeline, spark, root)


def test_a_worker_without_local_directories_leaves_and_another_does_its_parts(
    spark: SparkSession, test_server: TestServer, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in", files=4)
    handle = pipeline.submit(
        "regrouped", input="in/*.parquet", output="out", part_size=1, max_failures=0, limit=0
    )
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts == 4, "the plan")
    handle.set_limit(None)
    with doomed(test_server, pipeline, root, "without its local directories") as running:
        wait_long(
            lambda: running.poll() is not None or handle.progress().ended, "it to leave, or fail"
        )
        assert handle.progress().failed == 0
        assert running.wait(PATIENCE) == 1
    said = (root.parent / "said").read_text()
    assert "SparkLost: Spark cannot work here" in said
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert all(done and done.tries == 1 for _, done in handle.parts())
    assert rows(handle.read(spark)) == rows(expected)
