"""Short runs wait in a child: what it does not begin is nobody's loss."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Fail, Queue, RunningJob, Worker
from holdfast.job import Lease
from holdfast.worker.executors import child as child_module
from holdfast.worker.executors import messages, processes
from holdfast.worker.executors.child import Channel
from holdfast.worker.executors.messages import Board
from holdfast.worker.handlers import Handlers
from holdfast.worker.job import Origin
from holdfast.worker.outcomes import GIVEN_BACK
from support import DEADLINE, wait_until
from worker.support import NEVER, Heard, at_work, executor_of, is_done, shown, worker_of

pytestmark = pytest.mark.usefixtures("unhurried")


class Log:
    """A file in which handlers write what they do: a line is written at once, or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def write(self, line: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def lines(self) -> list[str]:
        return self._path.read_text().split()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
def most_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let as much wait in a child as can; return how many it had, each time it was given some."""
    monkeypatch.setattr(processes, "AHEAD_SECONDS", 60.0)
    had: list[int] = []
    give = processes.Child.give

    def note(child: processes.Child, works: Any) -> Any:
        too_much = give(child, works)
        had.append(len(child.given))
        return too_much

    monkeypatch.setattr(processes.Child, "give", note)
    yield had
    assert max(had, default=2) > 1, "nothing ever waited in a child"


def worker_with(queue: Queue, handle: Any, **options: Any) -> Worker:
    options = {"executor": "process", "concurrency": 1, "ahead": 10, **options}
    return worker_of(queue, handle, **options)


def add(queue: Queue, count: int, **options: Any) -> list[str]:
    ids = [str(number) for number in range(count)]
    for id in ids:
        queue.add(b"", id=id, **options)
    return ids


def test_each_runs_once_and_in_order(live_queue: Queue, log: Log, most_ahead: list[int]) -> None:
    ids = add(live_queue, 500)
    assert worker_with(live_queue, lambda job: log.write(job.id)).run(until_empty=True)
    assert log.lines() == ids
    assert max(most_ahead) <= processes.MOST_RUNS


def test_every_answer_is_that_of_its_job(live_queue: Queue, most_ahead: list[int]) -> None:
    def handle(job: RunningJob) -> str:
        number = int(job.id)
        if number % 3 == 1:
            raise Fail(f"said {job.id}")
        if number % 3 == 2:
            job.add(b"", id=f"after {job.id}", delay=60)
        return job.id

    ids = add(live_queue, 120, result_for=60)
    assert worker_with(live_queue, handle).run(until_empty=True)
    for id in ids:
        if int(id) % 3 == 1:
            assert shown(live_queue, id).error == f"said {id}"
            continue
        outcome = live_queue.result(id)
        assert outcome
        assert outcome.result == id.encode()
        assert (live_queue.show(f"after {id}") is not None) == (int(id) % 3 == 2)


@pytest.mark.usefixtures("most_ahead")
def test_what_waits_behind_a_long_run_is_run_by_others(
    live_queue: Queue, log: Log, tmp_path: Path
) -> None:
    done = tmp_path / "done"

    def handle(job: RunningJob) -> None:
        if job.id == "100":
            wait_until(done.exists, "all others to be done")
        log.write(job.id)

    ids = add(live_queue, 300)
    with at_work(worker_with(live_queue, handle, concurrency=2)):
        wait_until(lambda: len(log.lines()) == len(ids) - 1, "all but one to be done")
        done.touch()
        wait_until(lambda: is_done(live_queue), "all to be done")
    assert sorted(log.lines()) == sorted(ids)
    assert log.lines()[-1] == "100"


@pytest.mark.usefixtures("most_ahead")
def test_a_crash_costs_a_lapse_of_the_one_that_ran(live_queue: Queue, log: Log) -> None:
    def handle(job: RunningJob) -> None:
        log.write(job.id)
        if int(job.id) % 40 == 20 and not job.lapses:
            os.kill(os.getpid(), signal.SIGKILL)

    ids = add(live_queue, 200, max_lapses=1)
    assert worker_with(live_queue, handle, concurrency=2).run(until_empty=True)
    assert Counter(log.lines()) == {id: 2 if int(id) % 40 == 20 else 1 for id in ids}
    assert live_queue.counts().failed == 0


@pytest.mark.usefixtures("most_ahead")
def test_what_waited_behind_a_crash_is_the_next(live_queue: Queue, log: Log) -> None:
    def handle(job: RunningJob) -> None:
        log.write(job.id)
        if job.id == "20" and not job.lapses:
            os.kill(os.getpid(), signal.SIGKILL)

    ids = add(live_queue, 200)
    assert worker_with(live_queue, handle).run(until_empty=True)
    assert [id for id in log.lines() if id != "20"] == [id for id in ids if id != "20"]


@pytest.mark.usefixtures("most_ahead")
def test_a_timeout_is_of_one_run(live_queue: Queue, log: Log) -> None:
    def handle(job: RunningJob) -> None:
        log.write(job.id)
        if job.id == "20":
            time.sleep(NEVER)

    ids = add(live_queue, 60, max_lapses=0, timeout=0.5)
    assert worker_with(live_queue, handle).run(until_empty=True)
    assert sorted(log.lines()) == sorted(ids)
    assert [job.id for job in live_queue.failed()] == ["20"]
    assert shown(live_queue, "20").error == "timeout: it ran for 0.5 s"


@pytest.mark.usefixtures("most_ahead")
def test_a_worker_that_leaves_gives_back_what_waits(
    live_queue: Queue, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SLOW_SECONDS", NEVER)
    go_on = tmp_path / "go on"

    def handle(job: RunningJob) -> None:
        log.write(job.id)
        if job.id == "60":
            wait_until(go_on.exists, "the worker to leave")

    ids = add(live_queue, 200)
    worker = worker_with(live_queue, handle)
    with at_work(worker):
        wait_until(lambda: "60" in log.lines(), "it to be in the midst of it")
        executor = executor_of(worker)
        wait_until(executor.waiting, "some to wait behind it")
        with ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(worker.stop, DEADLINE)
            wait_until(lambda: not executor.waiting(), "it to have taken back what waits")
            go_on.touch()
            assert stopping.result()
    ran = log.lines()
    assert ran == ids[: len(ran)]
    left = [shown(live_queue, id) for id in ids[len(ran) :]]
    assert {(job.state, job.failures, job.lapses) for job in left} == {("ready", 0, 0)}


@pytest.mark.usefixtures("most_ahead")
def test_who_is_told_to_stop_is_told_alone(
    live_queue: Queue, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SLOW_SECONDS", NEVER)

    def handle(job: RunningJob) -> None:
        if job.id == "20":
            log.write("here")
            wait_until(lambda: job.cancelled, "it to be told")
        log.write(f"{job.id}:{job.cancelled}")

    ids = add(live_queue, 400)
    with at_work(worker_with(live_queue, handle)):
        wait_until(lambda: "here" in log.lines(), "it to run")
        live_queue.cancel("20")
        wait_until(lambda: is_done(live_queue), "all to be done")
    told = [line for line in log.lines() if line != "here"]
    assert told == [f"{id}:{id == '20'}" for id in ids]


@pytest.mark.usefixtures("most_ahead")
def test_who_asks_hears_the_answer_and_not_what_waits(live_queue: Queue, log: Log) -> None:
    def handle(job: RunningJob) -> None:
        if int(job.id) % 10 == 5:
            job.progress(0.5)
            job.extend(60)
        log.write(job.id)

    ids = add(live_queue, 100)
    assert worker_with(live_queue, handle).run(until_empty=True)
    assert sorted(log.lines()) == sorted(ids)


@pytest.mark.parametrize("size", [300, 20_000, 300_000])
def test_payloads_of_any_size_reach_their_handlers(live_queue: Queue, log: Log, size: int) -> None:
    payloads = [bytes([number]) * size for number in range(40)]
    live_queue.add_many([b"x", *payloads])

    def handle(job: RunningJob) -> None:
        log.write(f"{job.data[0]}:{len(job.data)}")

    assert worker_with(live_queue, handle).run(until_empty=True)
    assert log.lines()[1:] == [f"{number}:{size}" for number in range(40)]


@pytest.mark.usefixtures("most_ahead")
def test_what_waits_for_a_child_keeps_nobody_from_ending_it(live_queue: Queue, log: Log) -> None:
    def handle(job: RunningJob) -> None:
        log.write(job.id)
        if job.id == "20" and not job.lapses:
            time.sleep(NEVER)

    for number in range(100):
        live_queue.add(bytes(30_000), id=str(number), timeout=0.5)
    assert worker_with(live_queue, handle).run(until_empty=True)
    assert Counter(log.lines()) == {str(n): 2 if n == 20 else 1 for n in range(100)}


def test_who_is_told_when_a_run_begins_is_told_before(live_queue: Queue, log: Log) -> None:
    class Told(Heard):
        def started(self, job: RunningJob) -> None:
            log.write(f"told:{job.id}")

    ids = add(live_queue, 50)
    worker = worker_with(live_queue, lambda job: log.write(job.id), hooks=[Told()])
    assert worker.run(until_empty=True)
    assert log.lines() == [line for id in ids for line in (f"told:{id}", id)]


@pytest.mark.usefixtures("most_ahead")
def test_children_are_replaced_after_exactly_so_many(live_queue: Queue, log: Log) -> None:
    add(live_queue, 100)
    handle: Any = lambda job: log.write(str(os.getpid()))  # noqa: E731
    assert worker_with(live_queue, handle, recycle_after=30).run(until_empty=True)
    assert list(Counter(log.lines()).values()) == [30, 30, 30, 10]


def test_a_child_that_never_lives_costs_a_lapse(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.executors.processes.live", lambda *_: os._exit(3))
    live_queue.add(b"", id="a", max_lapses=2)
    assert worker_with(live_queue, lambda job: None).run(until_empty=True)
    assert shown(live_queue).error == "its process exited with 3"
    assert shown(live_queue).lapses == 3


def test_a_child_begins_nothing_whose_lease_is_over() -> None:
    ours, theirs = socket.socketpair()
    put, take = socket.socketpair()
    ran: list[RunningJob] = []
    handlers = Handlers("process")
    handlers.add(ran.append, None, None)
    channel = Channel(theirs, take, Board(1), 0)
    for lapses_at, expected in ((time.monotonic() - 1, 0), (time.monotonic() + 60, 1)):
        given = messages.Jobs(1, Origin("q"), [Lease("a", b"", "t")], lapses_at)
        child_module._run(given, child_module._ControlStub(given, channel), handlers)
        assert len(ran) == expected
        heard = messages.Line(ours, messages.read_from_child).read()
        assert isinstance(heard, messages.Answers)
        assert (heard.jobs[0].answer == GIVEN_BACK) == (not expected)
    for one in (ours, put):
        one.close()


@pytest.mark.usefixtures("most_ahead")
def test_who_is_given_many_hears_that_it_should_leave(live_queue: Queue, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"

    def handle(job: RunningJob) -> None:
        if int(job.id) >= 100:
            wait_until(fewer.exists, "to be fewer")

    add(live_queue, 300)
    worker = worker_with(live_queue, handle, concurrency=3)
    with at_work(worker):
        executor = executor_of(worker)
        wait_until(lambda: executor.stuck_for() > 0.1, "all to take their time")
        worker._shared.resize(1)  # type: ignore[union-attr]
        fewer.touch()
        wait_until(lambda: is_done(live_queue), "all to be done")
        wait_until(lambda: len(executor._there) == 1, "two to have left")


# ----------------------------------------------------------------------- tickets


def test_a_ticket_is_taken_by_one_side() -> None:
    put, take = socket.socketpair()
    ours = messages.Tickets(put, take.dup())
    taken: list[int] = []

    def be_child() -> None:
        try:
            while True:
                taken.append(messages.take(take))
        except EOFError:
            pass

    thread = threading.Thread(target=be_child)
    thread.start()
    back, given = 0, 0
    for number in range(2000):
        ours.give(range(given, given + 5))
        given += 5
        if number % 3 == 0:
            back += ours.take_back(5)
    wait_until(lambda: len(taken) + back == given, "all to be taken")
    ours.close()
    thread.join(DEADLINE)
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)
    take.close()


def test_nothing_is_taken_back_where_nothing_is_left() -> None:
    put, take = socket.socketpair()
    ours = messages.Tickets(put, take.dup())
    assert ours.take_back(5) == 0
    ours.give([1, 2, 3])
    assert messages.take(take) == 1
    assert ours.take_back(5) == 2
    ours.close()
    with pytest.raises(EOFError):
        messages.take(take)
    assert ours.take_back(5) == 0
    take.close()
