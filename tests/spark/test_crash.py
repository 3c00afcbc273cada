"""Kill -9 at every step: what arrives is every job, once.

`make spark-crash ROUNDS=5` runs all of them several times; `make test` one of each kind.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql import SparkSession

from spark.program import Plan
from spark.scene import Deadly, FunctionProxy, Scene, kill_all, kill_java
from spark.support import java_of, source_processes
from support import TestServer

Act: TypeAlias = Callable[[str], Scene]

ROUNDS = range(int(os.environ.get("HOLDFAST_SPARK_ROUNDS", "1")))

# In the second of three batches, each of which has two chunks: which call of which script, and
# whether before or after the server has it. The third is claimed ahead.
POINTS: dict[str, Deadly] = {
    "in the middle of a claim": ("claim", 3, "after"),
    "after the claim": ("claim", 4, "after"),
    "in the middle of a claim ahead": ("claim", 5, "after"),
    "after a claim ahead": ("claim", 6, "after"),
    "in the read": ("read_claim", 3, "after"),
    "at the end of the read": ("read_claim", 4, "after"),
    "after the sink's commit, before the source settles": ("settle_claims", 3, "before"),
    "in the middle of settling": ("settle_claims", 3, "after"),
    "when the source has settled": ("settle_claims", 4, "after"),
}
OF_THE_QUEUE_SINK: dict[str, Deadly] = {
    "when a task has staged": ("stage", 3, "after"),
    "before the sink commits": ("commit", 2, "before"),
    "when the sink has committed": ("commit", 2, "after"),
    "in the middle of publishing": ("publish", 3, "after"),
}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Act]:
    """A server that keeps what it has answered, and a connection that can be held."""
    (tmp_path / "server").mkdir()
    server = TestServer(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        stack.callback(server.stop)
        proxy = stack.enter_context(FunctionProxy(server.socket))

        def scene(what: str) -> Scene:
            scene = Scene(server, proxy, Plan(what, proxy.url, "q", str(tmp_path)))
            stack.callback(scene.close)
            return scene

        yield scene


def test_a_driver_that_is_killed_before_its_source_settles_goes_on_where_it_was(
    spark: SparkSession, scene: Act
) -> None:
    act = scene("queue")
    assert act.run(POINTS["after the sink's commit, before the source settles"], kill_java) != 0
    act.finish_in(spark)


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("sink", ["files", "queue"])
@pytest.mark.parametrize("point", POINTS)
def test_the_jvm_is_killed(scene: Act, sink: str, point: str, round: int) -> None:
    act = scene(sink)
    assert act.run(POINTS[point], kill_java) != 0
    act.finish()


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("point", OF_THE_QUEUE_SINK)
def test_the_jvm_is_killed_while_the_queue_is_written(scene: Act, point: str, round: int) -> None:
    act = scene("queue")
    assert act.run(OF_THE_QUEUE_SINK[point], kill_java) != 0
    act.finish()


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("sink", ["files", "queue"])
@pytest.mark.parametrize("point", POINTS)
def test_the_process_of_the_source_is_killed(
    spark: SparkSession, scene: Act, sink: str, point: str, round: int
) -> None:
    def kill_source() -> None:
        for process in source_processes(java_of(spark)):
            os.kill(process, signal.SIGKILL)

    act = scene(sink)
    act.run_in(spark, POINTS[point], kill_source)
    act.finish_in(spark)


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("sink", ["files", "queue"])
@pytest.mark.parametrize("point", POINTS)
def test_the_server_is_killed(
    spark: SparkSession, scene: Act, sink: str, point: str, round: int
) -> None:
    act = scene(sink)

    def kill_server() -> None:
        act.server.kill()
        act.server.start()

    act.run_in(spark, POINTS[point], kill_server, cut=True)
    act.finish_in(spark)


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_write_whose_driver_dies_after_its_commit_is_published_by_others(
    scene: Act, when: str, round: int
) -> None:
    act = scene("batch")
    assert act.run(("publish", 1, when), kill_all) != 0
    assert len(act.result()) < act.plan.rows
    act.check()


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
@pytest.mark.parametrize("when", [("stage", 2, "after"), ("commit", 1, "before")])
def test_a_batch_write_whose_driver_dies_before_its_commit_is_not_there(
    scene: Act, when: Deadly, round: int
) -> None:
    act = scene("batch")
    assert act.run(when, kill_all) != 0
    act.queue.tidy()
    assert act.result() == []
