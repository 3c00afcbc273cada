"""`make demo`, stopped at any moment: nothing stays, and it can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from spark.pipeline.support import wait_long

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"
MOMENTS = (0.2, 2, 5, 9, 14, 20, 28)
"""Seconds after its start."""


def start(folder: Path, mark: str) -> subprocess.Popen[bytes]:
    with (folder.parent / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, DEMO, "--megabytes", "5", "--folder", folder],
            env={**os.environ, "HOLDFAST_TEST_MARK": mark},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def marked(mark: str) -> list[str]:
    """Return the processes that it started, and those that they did."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOLDFAST_TEST_MARK") == mark:
                found.append(" ".join(process.cmdline())[:200] or process.name())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def stop(folder: Path, seconds: float) -> None:
    """Start it, and press Ctrl-C after so many seconds."""
    mark = uuid.uuid4().hex
    running = start(folder, mark)
    stop_at = time.monotonic() + seconds
    wait_long(lambda: time.monotonic() >= stop_at, "the moment")
    os.killpg(running.pid, signal.SIGINT)  # As a terminal does.
    wait_long(lambda: running.poll() is not None, "its end")
    wait_long(lambda: not marked(mark), f"all to end, after {seconds} s")


def test_the_demo_deletes_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    (folder / "data").mkdir(parents=True)
    thesis = folder / "thesis"
    thesis.touch()
    demo = start(folder, uuid.uuid4().hex)
    wait_long(lambda: demo.poll() is not None, "its end")
    assert demo.returncode == 2
    assert thesis.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_can_be_stopped_at_any_moment_and_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for seconds in MOMENTS:
        stop(folder, seconds)
    running = start(folder, uuid.uuid4().hex)
    wait_long(lambda: running.poll() is not None, "its end")
    assert running.returncode == 0, (tmp_path / "said").read_text()
    assert (folder / "timeline.png").stat().st_size > 10_000


def test_the_picture_counts_runs_that_came_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util
    from types import SimpleNamespace
    from typing import Any

    from holdfast.spark.pipeline import transforms
    from holdfast.spark.pipeline.report import Cut, bars, draw

    monkeypatch.setattr(transforms, "_known", {})  # Other examples have transforms of that name.
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec
    assert spec.loader
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    done = [SimpleNamespace(began_at=at, seconds=10.0, worker="b") for at in (0.0, 10.0)]
    handle: Any = SimpleNamespace(
        id="r", parts=lambda: [(None, one) for one in done], priority=lambda: 50
    )
    cut = [Cut("r", "killed", 5.0, 3.0)]
    assert demo.most_at_once(handle, []) == 1
    assert demo.most_at_once(handle, cut) == 2
    found = bars([handle], cut)
    assert [(bar.lane, bar.cut) for bar in found] == [
        ("b #0", False),
        ("killed #0", True),
        ("b #0", False),
    ]
    assert draw([handle], tmp_path / "p.png", cut=cut).stat().st_size > 1000
