"""Concurrency that follows the load: up while processors are idle, down when they are all busy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Auto, Queue, RunningJob, Worker
from holdfast.worker import auto
from holdfast.worker.auto import Tuner, bounds_of, next_count
from holdfast.worker.crew import Crew
from holdfast.worker.gauge import Gauge, Load, processors
from holdfast.worker.running import Run
from support import DEADLINE, wait_until
from worker.support import Gate, at_work, is_done, worker_of

IDLE = Load(busy=0.1, own=0.1)
BUSY = Load(busy=1.0, own=2.0)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing look by itself: what this machine does otherwise is not what is tested."""
    monkeypatch.setattr(auto, "TICK_SECONDS", 3600.0)


def look(worker: Worker, load: Load) -> None:
    assert worker._tuner
    worker._tuner.look(load)


def concurrency(worker: Worker) -> object:
    assert worker._shared
    return worker._shared.about["concurrency"]


# ------------------------------------------------------------------- the decision


def test_it_goes_up_while_work_waits_and_processors_are_idle() -> None:
    counts = [1]
    while (count := next_count(counts[-1], (1, 20), IDLE, wants=True, one=False)) != counts[-1]:
        counts.append(count)
    assert counts == [1, 2, 3, 4, 6, 9, 13, 19, 20]


def test_it_stays_while_no_work_waits() -> None:
    assert next_count(5, (1, 20), IDLE, wants=False, one=False) == 5


def test_it_stays_while_processors_are_well_used() -> None:
    assert next_count(5, (1, 20), Load(0.9, 1.8), wants=True, one=False) == 5


def test_it_goes_down_while_all_processors_are_busy() -> None:
    counts = [20]
    while (count := next_count(counts[-1], (1, 20), BUSY, wants=True, one=False)) != counts[-1]:
        counts.append(count)
    assert counts[:3] == [20, 18, 16]
    assert counts[-1] == 2, "jobs that compute end with one for each processor that they have"


def test_it_goes_below_the_processors_when_others_need_them() -> None:
    assert next_count(2, (1, 20), Load(1.0, 1.0), wants=True, one=False) == 1


def test_it_stays_within_its_bounds() -> None:
    assert next_count(4, (4, 8), BUSY, wants=True, one=False) == 4
    assert next_count(8, (4, 8), IDLE, wants=True, one=False) == 8


def test_threads_that_wait_for_each_other_are_not_joined_by_more() -> None:
    one_processor = Load(busy=0.25, own=1.0)
    assert next_count(4, (1, 20), one_processor, wants=True, one=True) == 4
    assert next_count(4, (1, 20), one_processor, wants=True, one=False) == 6


@pytest.mark.parametrize(
    ("given", "executor", "bounds"),
    [
        (None, "thread", (16, 16)),
        (None, "async", (100, 100)),
        (7, "process", (7, 7)),
        ("auto", "thread", (1, 64)),
        ("auto", "async", (1, 1000)),
        (Auto(3), "thread", (3, 64)),
        (Auto(100), "thread", (100, 100)),
        (Auto(2, 5), "process", (2, 5)),
    ],
)
def test_what_may_be_said(given: object, executor: Any, bounds: tuple[int, int]) -> None:
    assert bounds_of(given, executor) == bounds


# ---------------------------------------------------------------------- the worker


@pytest.mark.parametrize("executor", ["thread", "process", "async"])
def test_a_worker_runs_as_many_as_the_load_allows(
    live_queue: Queue, executor: Any, tmp_path: Path
) -> None:
    def wait(job: RunningJob) -> None:
        (tmp_path / job.id).touch()
        wait_until((tmp_path / "go").exists, "to be let go")

    async def wait_on_loop(job: RunningJob) -> None:
        (tmp_path / job.id).touch()
        while not (tmp_path / "go").exists():  # noqa: ASYNC110 (a file tells all executors)
            await asyncio.sleep(0.01)

    handler = wait_on_loop if executor == "async" else wait
    worker = worker_of(live_queue, handler, executor=executor, concurrency=Auto(1, 6), ahead=0)
    for n in range(20):
        live_queue.add(b"", id=f"{n:02}")
    with at_work(worker):
        first = concurrency(worker)
        assert isinstance(first, int)
        wait_until(lambda: len(worker.running()) == first, "the first")
        wait_until(lambda: worker._shared and worker._shared.places.are_wanted(), "hunger")
        look(worker, IDLE)
        more = concurrency(worker)
        assert isinstance(more, int)
        assert more > first
        wait_until(lambda: len(worker.running()) == more, "more")
        wait_until(lambda: worker._shared and worker._shared.places.are_wanted(), "hunger")
        look(worker, BUSY)
        assert concurrency(worker) == more - 1
        (tmp_path / "go").touch()
        wait_until(lambda: not len(live_queue), "all to be done")
        assert worker.stop()


def test_fewer_run_once_it_went_down(live_queue: Queue, gate: Gate) -> None:
    worker = worker_of(live_queue, gate, concurrency=Auto(1, 4), ahead=0)
    with at_work(worker):
        assert worker._shared
        worker._shared.resize(4)
        live_queue.add_many([b"x"] * 4)
        gate.wait(4)
        worker._shared.resize(1)
        live_queue.add_many([b"x"] * 4)
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "all to be done")
        gate.open.clear()
        live_queue.add_many([b"x"] * 4)
        gate.wait(9)
        assert len(worker.running()) == 1
        assert live_queue.counts().ready == 3
        gate.open.set()


def test_the_directory_says_how_many_may_run(live_queue: Queue, gate: Gate) -> None:
    worker = worker_of(live_queue, gate, concurrency=Auto(1, 4))
    with at_work(worker):
        assert worker._shared
        worker._shared.resize(3)
        assert concurrency(worker) == 3


def test_who_leaves_is_wanted_again_before_somebody_new_is(gate: Gate) -> None:
    """A number is a slot of shared memory: there are no more than the most."""
    seen: list[int] = []

    def labour(number: int, works: Iterator[Run]) -> None:
        seen.append(number)
        for _ in works:
            pass
        gate.entered.set()
        assert gate.open.wait(DEADLINE)  # To end a process may take a while.

    crew = Crew("crew of a test", labour, 2)
    crew.resize(1)
    assert gate.entered.wait(DEADLINE)
    crew.resize(2)
    gate.open.set()
    wait_until(lambda: len(seen) == 3, "the one who left to be back")
    assert sorted(seen[:2]) == [0, 1]
    assert seen[2] in (0, 1)
    crew.close()
    wait_until(lambda: not crew._there, "all to leave")


def test_nothing_is_changed_once_a_worker_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, look_on = threading.Event(), threading.Event()
    changed_late: list[bool] = []
    stopped = threading.Event()

    class Slow(Gauge):
        def read(self) -> Load:
            looking.set()
            assert look_on.wait(DEADLINE)
            return BUSY

    monkeypatch.setattr("holdfast.worker.auto.Gauge", Slow)
    monkeypatch.setattr("holdfast.worker.auto.TICK_SECONDS", 0.001)
    tuner = Tuner(
        (1, 4),
        4,
        one=True,
        wants=lambda: False,
        resize=lambda count: changed_late.append(stopped.wait(0.1)),
    )
    tuner.start()
    assert looking.wait(DEADLINE)
    threading.Timer(0.05, look_on.set).start()
    tuner.stop()
    stopped.set()
    wait_until(lambda: changed_late, "the last look")
    assert changed_late == [False]


# ----------------------------------------------------------------------- the gauge


def test_the_gauge_sees_what_this_process_uses() -> None:
    gauge = Gauge()
    begun, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.5:
        pass
    load = gauge.read()
    seconds = time.monotonic() - begun
    assert load.own * seconds == pytest.approx(0.5, rel=0.3)
    assert load.busy > 0


def test_the_gauge_sees_what_those_use_that_this_process_started() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    gauge = Gauge()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout
        begun = time.monotonic()
        used = time.process_time()
        running.stdout.readline()
        load = gauge.read()
        own = load.own * (time.monotonic() - begun) - (time.process_time() - used)
        assert own == pytest.approx(0.5, rel=0.3)
        running.communicate(b"\n")


def test_no_more_processors_than_there_are() -> None:
    assert 0 < processors() <= (os.cpu_count() or 1)
