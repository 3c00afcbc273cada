"""Concurrency that follows the load: up while processors are idle, down when they are all busy."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Auto, Queue, RunningJob, Worker
from holdfast.worker import concurrency
from holdfast.worker.concurrency import Load, LoadMeter, Tuner, bounds_of, next_count, processors
from holdfast.worker.executors.threads import ThreadPool
from holdfast.worker.job import Run
from support import DEADLINE, TestServer, wait_until
from worker.support import Gate, at_work, is_done, program, worker_of

IDLE = Load(busy=0.1, own=0.1, wanted=0.1, processors=2.0)
BUSY = Load(busy=1.0, own=2.0, wanted=20.0, processors=2.0)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing look by itself: what this machine does otherwise is not what is tested."""
    monkeypatch.setattr(concurrency, "TICK_SECONDS", 3600.0)


def look(worker: Worker, load: Load) -> None:
    assert worker._tuner
    worker._tuner.look(load)


def shown_concurrency(worker: Worker) -> object:
    assert worker._shared
    return worker._shared.about["concurrency"]


# ------------------------------------------------------------------- the decision


class Machine:
    """A computer with so many processors, and other programs that want some of them.

    It shares fairly: when more tasks want a processor than there are, all of them slow down.
    """

    def __init__(self, processors: int, others: float = 0.0) -> None:
        self.processors = processors
        self.others = others
        self.most = 64
        self.one = False
        self.tells_who_waits = True
        self.noise = Random(1)
        self.noisy = 0.0

    def load(self, count: int, computing: float) -> Load:
        """Return the load of handlers that would compute for this part of their time."""
        slower = wanted = 1.0
        for _ in range(100):  # The slower it is the more of them want one.
            wanted = count * computing * slower / (computing * slower + 1 - computing)
            wanted = min(wanted, 1.0) if self.one else wanted
            slower = (slower + max(1.0, (wanted + self.others) / self.processors)) / 2
        wanted *= 1 + self.noise.uniform(-self.noisy, self.noisy)
        own = wanted / slower
        busy = min(1.0, (own + self.others / slower) / self.processors)
        return Load(busy, own, wanted if self.tells_who_waits else None, self.processors)

    def run(self, count: int, computing: float, seconds: int = 60) -> list[int]:
        """Return the concurrency, second after second."""
        counts = [count]
        for _ in range(seconds):
            load = self.load(counts[-1], computing)
            counts.append(next_count(counts[-1], (1, self.most), load, wants=True, one=self.one))
        return counts


def test_it_goes_up_by_half_while_work_waits_and_processors_are_idle() -> None:
    counts = Machine(2).run(1, computing=0.001)
    assert counts[:9] == [1, 2, 3, 4, 6, 9, 13, 19, 28]
    assert counts[-1] == 64


def test_it_goes_down_by_an_eighth_while_handlers_wait_for_processors() -> None:
    counts = Machine(2).run(20, computing=1.0)
    assert counts[:3] == [20, 18, 16]
    assert counts[-1] == 2


@pytest.mark.parametrize("first", [1, 64])
@pytest.mark.parametrize("processors", [1, 2, 4, 8, 32])
def test_handlers_that_compute_end_with_one_per_processor(processors: int, first: int) -> None:
    counts = Machine(processors).run(first, computing=1.0)
    assert processors <= counts[-1] <= processors * concurrency.CROWDED
    assert len(set(counts[-20:])) == 1


@pytest.mark.parametrize("first", [1, 64])
@pytest.mark.parametrize("others", [0, 2, 8])
def test_handlers_that_wait_go_up_also_on_a_machine_that_others_keep_busy(
    others: int, first: int
) -> None:
    assert Machine(2, others).run(first, computing=0.001)[-1] == 64
    assert Machine(2, others).run(first, computing=0.01)[-1] > 16


@pytest.mark.parametrize("others", [8, 16, 64])
def test_handlers_that_compute_leave_others_half_of_the_processors(others: int) -> None:
    for first in (1, 32):
        assert Machine(8, others).run(first, computing=1.0)[-1] == 4


def test_it_comes_back_when_the_others_are_gone() -> None:
    machine = Machine(8, others=16)
    held_down = machine.run(8, computing=1.0)[-1]
    assert held_down == 4
    machine.others = 0
    assert machine.run(held_down, computing=1.0)[-1] == 8


@pytest.mark.parametrize("others", [0, 1, 2, 8])
@pytest.mark.parametrize("computing", [1.0, 0.5, 0.2, 0.05, 0.01])
@pytest.mark.parametrize("processors", [1, 2, 8])
def test_it_does_not_swing(processors: int, computing: float, others: int) -> None:
    machine = Machine(processors, others)
    machine.noisy = 0.1
    settled = machine.run(1, computing, seconds=300)[-200:]
    assert max(settled) - min(settled) <= max(2, min(settled) // 2)
    turns = sum(
        (b - a) * (c - b) < 0 for a, b, c in zip(settled, settled[1:], settled[2:], strict=False)
    )
    assert turns <= len(settled) // 10


def test_where_nobody_tells_who_waits_a_busy_machine_holds_it_down() -> None:
    machine = Machine(8, others=16)
    machine.tells_who_waits = False
    assert machine.run(1, computing=0.01)[-1] == 4
    machine.others = 0
    assert machine.run(4, computing=0.01)[-1] == 64
    assert machine.run(1, computing=1.0)[-1] == 8


def test_it_stays_while_no_work_waits() -> None:
    assert next_count(5, (1, 20), IDLE, wants=False, one=False) == 5


def test_it_stays_while_processors_are_well_used() -> None:
    assert next_count(5, (1, 20), Load(0.9, 1.8, 1.8, 2.0), wants=True, one=False) == 5


def test_it_stays_within_its_bounds() -> None:
    assert next_count(4, (4, 8), BUSY, wants=True, one=False) == 4
    assert next_count(8, (4, 8), IDLE, wants=True, one=False) == 8


def test_threads_that_wait_for_each_other_are_not_joined_by_more() -> None:
    one_processor = Load(0.25, 1.0, 1.0, 4.0)
    assert next_count(4, (1, 20), one_processor, wants=True, one=True) == 4
    assert next_count(4, (1, 20), one_processor, wants=True, one=False) == 6
    assert next_count(1, (1, 20), one_processor, wants=True, one=True) == 2, "it may be C code"
    machine = Machine(8)
    machine.one = True
    assert machine.run(1, computing=1.0)[-1] == 2


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
        first = shown_concurrency(worker)
        assert isinstance(first, int)
        wait_until(lambda: len(worker.running()) == first, "the first")
        wait_until(lambda: worker._shared and worker._shared.slots.are_wanted(), "hunger")
        look(worker, IDLE)
        more = shown_concurrency(worker)
        assert isinstance(more, int)
        assert more > first
        wait_until(lambda: len(worker.running()) == more, "more")
        wait_until(lambda: worker._shared and worker._shared.slots.are_wanted(), "hunger")
        look(worker, BUSY)
        assert shown_concurrency(worker) == more - 1
        (tmp_path / "go").touch()
        wait_until(lambda: not len(live_queue), "all to be done")
        assert worker.stop()


def test_handlers_that_wait_go_up_on_a_busy_machine_for_real(
    test_server: TestServer, queue_name: str, tmp_path: Path
) -> None:
    """Others keep every processor busy, and the worker looks by itself."""
    most = math.ceil(processors()) + 4
    text = f"""
    import time
    from holdfast import Auto, Queue, Worker
    from holdfast.worker import queues
    queues.REGISTER_SECONDS = 0.5
    worker = Worker(Queue({queue_name!r}, {test_server.queue_url!r}), concurrency=Auto(1, {most}))
    worker.handler(lambda job: time.sleep(2))
    worker.run()
    """
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        with Queue(queue_name, test_server.queue_url) as queue:
            queue.add_many([b""] * 20_000)
            with program(tmp_path, text):
                wait_until(lambda: _most_known(queue) == most, "it to be at the most")
            queue.delete()
    finally:
        for one in others:
            one.kill()
            one.wait()


def _most_known(queue: Queue) -> int:
    known = [worker.about.get("concurrency", 0) for worker in queue.workers()]
    return max((count for count in known if isinstance(count, int)), default=0)


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
        assert shown_concurrency(worker) == 3


def test_who_leaves_is_wanted_again_before_somebody_new_is(gate: Gate) -> None:
    """A number is a slot of shared memory: there are no more than the most."""
    seen: list[int] = []

    def labour(number: int, works: Iterator[Run]) -> None:
        seen.append(number)
        for _ in works:
            pass
        gate.entered.set()
        assert gate.open.wait(DEADLINE)  # To end a process may take a while.

    crew = ThreadPool("crew of a test", labour, 2)
    wait_until(lambda: len(seen) == 2, "both to be there")
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

    class Slow(LoadMeter):
        def read(self) -> Load:
            looking.set()
            assert look_on.wait(DEADLINE)
            return BUSY

    monkeypatch.setattr("holdfast.worker.concurrency.LoadMeter", Slow)
    monkeypatch.setattr("holdfast.worker.concurrency.TICK_SECONDS", 0.001)
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
    assert changed_late  # At least once: it looks until it is told to stop.
    assert not any(changed_late)


# ----------------------------------------------------------------------- the gauge


def test_the_gauge_sees_what_this_process_uses() -> None:
    before, used = time.monotonic(), time.process_time()
    gauge = LoadMeter()
    after = time.monotonic()
    while time.process_time() - used < 0.5:
        pass
    shortest = time.monotonic() - after
    load = gauge.read()
    longest, used = time.monotonic() - before, time.process_time() - used
    # It measured some time between these two: any of us may be held up meanwhile.
    assert load.own * shortest <= used * 1.3
    assert load.own * longest >= 0.5 * 0.7
    assert load.busy > 0


def test_the_gauge_sees_what_those_use_that_this_process_started() -> None:
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before, used = time.monotonic(), time.process_time()
    gauge = LoadMeter()
    after = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout
        running.stdout.readline()
        shortest = time.monotonic() - after
        load = gauge.read()
        longest, used = time.monotonic() - before, time.process_time() - used
        assert load.own * shortest <= (used + 0.5) * 1.3
        assert load.own * longest >= 0.5 * 0.7
        running.communicate(b"\n")


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")
def test_the_gauge_sees_what_those_wait_for_that_do_not_get_a_processor() -> None:
    spin = f"import os\nos.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    try:
        gauge = LoadMeter()

        def is_seen() -> bool:
            time.sleep(0.2)
            load = gauge.read()
            return (load.wanted or 0) > 2.5 and load.own < 1.8

        wait_until(is_seen, "three that want a processor, while there is one for them")
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def test_no_more_processors_than_there_are() -> None:
    assert 0 < processors() <= (os.cpu_count() or 1)
