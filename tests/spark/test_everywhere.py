"""The connectors on real executors, on a standalone cluster and through Spark Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast import Queue
from holdfast.spark import prepare
from spark import everywhere
from spark.support import payloads
from support import TestServer, wait_until

pytestmark = pytest.mark.slow

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def run(master: str, folder: Path) -> dict[str, Any]:
    """Run it all there, on a server that is reached over TCP; return what it told."""
    (folder / "server").mkdir()
    server = TestServer(folder / "server", tcp=True)
    try:
        ran = subprocess.run(
            [sys.executable, everywhere.__file__, master, server.url, str(folder / "checkpoint")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout)
        with Queue("in", server.url) as source, Queue("out", server.url) as out:
            assert sorted(map(int, payloads(out))) == list(range(everywhere.ROWS))
            assert (len(source), source.counts().leased, source.counts().claims) == (0, 0, 0)
            assert source.audit() == out.audit() == []
            told["staged"] = source.counts().staged
    finally:
        server.stop()
    assert told["looked"] == everywhere.ROWS
    return told


def test_on_executors_of_their_own(tmp_path: Path) -> None:
    run("local-cluster[2,1,512]", tmp_path)


def has_registered(log: Path) -> bool:
    return "Successfully registered" in log.read_text()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and two workers from the package, each on an address of its own.

    Spark runs the double of a task on another host only.
    """
    prepare()
    started: list[subprocess.Popen[bytes]] = []

    def start(log: Path, *command: str) -> None:
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    [SPARK_CLASS, *command],
                    stdout=out,
                    stderr=out,
                    env={**os.environ, "SPARK_WORKER_DIR": str(tmp_path / "work")},
                )
            )

    log = tmp_path / "master.log"
    try:
        start(
            log, "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
        )  # fmt: skip
        told = r"Starting Spark master at (spark://\S+)"
        wait_until(lambda: re.search(told, log.read_text()), "the master")
        found = re.search(told, log.read_text())
        assert found
        for host in ("127.0.0.1", "127.0.0.2"):
            log = tmp_path / f"{host}.log"
            start(
                log, "org.apache.spark.deploy.worker.Worker",
                "--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g", found[1],
            )  # fmt: skip
            wait_until(partial(has_registered, log), "a worker")
        yield found[1]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_on_a_standalone_cluster_with_speculation(standalone: str, tmp_path: Path) -> None:
    told = run(standalone, tmp_path)
    # What the task that hung had staged is still there, and was not committed beside its double.
    assert told["staged"] >= 1


def test_through_spark_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    assert "connect" in run("connect", tmp_path)["kind"]
