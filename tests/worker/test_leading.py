"""Where one thread runs all handlers, it also leases and settles; a handler that keeps it for long
holds up nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast import Queue, RunningJob, Worker
from support import DEADLINE, wait_until
from worker.support import Gate, Heard, at_work, is_done, shown, worker_of, working


class Told(Heard):
    """Notes the thread in which each thing is told: all but `started` are told by the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[tuple[str, str], int] = {}

    def _note(self, what: str, job: RunningJob, *reasons: str) -> None:
        self.threads[what, job.id] = threading.get_ident()
        super()._note(what, job, *reasons)

    def in_one_thread(self, id: str) -> bool:
        self.wait_for("done", id)
        return self.threads["started", id] == self.threads["done", id]


@pytest.fixture
def told() -> Told:
    return Told()


def let_it_lead(queue: Queue, told: Told) -> None:
    """Add jobs until one is settled by the thread that ran it."""
    ids = (f"short {n}" for n in range(1_000_000))

    def is_led() -> bool:
        queue.add(b"", id=(id := next(ids)))
        return told.in_one_thread(id)

    wait_until(is_led, "the thread of the handlers to lead")


class Slow:
    """A handler that waits at a gate for the jobs that are to be slow."""

    def __init__(self) -> None:
        self.gate = Gate()

    def __call__(self, job: RunningJob) -> None:
        if job.id.startswith("slow"):
            self.gate(job)


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.gate.open.set()


@pytest.mark.parametrize("ahead", [0, 0.02])
def test_the_only_thread_leases_and_settles_what_it_runs(
    live_queue: Queue, told: Told, ahead: float
) -> None:
    with working(live_queue, lambda job: None, concurrency=1, ahead=ahead, hooks=[told]):
        let_it_lead(live_queue, told)


def test_several_threads_do_not(live_queue: Queue, told: Told) -> None:
    with working(live_queue, lambda job: None, concurrency=2, hooks=[told]):
        live_queue.add_many([b""] * 100)
        wait_until(lambda: is_done(live_queue), "all")
        wait_until(lambda: len(told.ids("done")) == 100, "all to be told")
    assert not any(told.in_one_thread(id) for id in told.ids("done"))


def test_a_handler_that_takes_long_is_told_that_its_job_is_cancelled(
    live_queue: Queue, told: Told, slow: Slow
) -> None:
    with working(live_queue, slow, concurrency=1, hooks=[told]):
        let_it_lead(live_queue, told)
        live_queue.add(b"", id="slow")
        slow.gate.wait()
        assert live_queue.cancel("slow")
        told.wait_for("cancelled", "slow")
        assert slow.gate.jobs[0].cancelled
        slow.gate.open.set()
        live_queue.add(b"", id="next")
        told.wait_for("done", "next")


def test_a_handler_that_takes_longer_than_its_lease_keeps_it(
    live_queue: Queue, told: Told, slow: Slow
) -> None:
    with working(live_queue, slow, concurrency=1, lease=1, hooks=[told]):
        let_it_lead(live_queue, told)
        live_queue.add(b"", id="slow")
        slow.gate.wait()
        lapses_at = slow.gate.jobs[0].lapses_at
        wait_until(lambda: slow.gate.jobs[0].lapses_at > lapses_at + 1, "it to be extended")
        assert live_queue.tidy(force=True).reclaimed == 0
        assert not slow.gate.jobs[0].cancelled
        slow.gate.open.set()
        told.wait_for("done", "slow")


def test_handlers_that_take_long_together_hold_up_nothing(live_queue: Queue, told: Told) -> None:
    """None is long, but many are leased ahead before it is known that they are not short."""
    begun = threading.Event()

    def handle(job: RunningJob) -> None:
        if job.data == b"long":
            begun.set()
            time.sleep(0.005)

    with working(live_queue, handle, concurrency=1, hooks=[told]):
        let_it_lead(live_queue, told)
        live_queue.add_many([b""] * 2000 + [b"long"] * 1000)
        assert begun.wait(DEADLINE)
        before = len(told.ids("done"))
        wait_until(
            lambda: not all(told.in_one_thread(id) for id in told.ids("done")[before:]),
            "the loop's own thread to lead",
        )


def test_a_worker_leaves_though_a_handler_never_returns(
    live_queue: Queue, told: Told, slow: Slow
) -> None:
    worker = worker_of(live_queue, slow, concurrency=1, hooks=[told])
    worker.start()
    let_it_lead(live_queue, told)
    live_queue.add(b"", id="slow")
    slow.gate.wait()
    assert not worker.stop(0.1)
    job = shown(live_queue, "slow")
    assert (job.state, job.lapses) == ("ready", 0)
    assert slow.gate.jobs[0].cancelled


def test_all_handlers_run_in_one_thread_also_after_a_long_one(
    live_queue: Queue, told: Told, slow: Slow
) -> None:
    """What a handler keeps for its thread, such as a connection to a database, stays good."""
    with working(live_queue, slow, concurrency=1, hooks=[told]):
        let_it_lead(live_queue, told)
        live_queue.add(b"", id="slow")
        slow.gate.wait()
        assert live_queue.cancel("slow")
        told.wait_for("cancelled", "slow")  # By another thread.
        slow.gate.open.set()
        let_it_lead(live_queue, told)
    ran_in = {thread for (what, _), thread in told.threads.items() if what == "started"}
    assert len(ran_in) == 1
    assert told.threads["cancelled", "slow"] not in ran_in


def test_a_second_queue_is_worked_on_by_its_own_loop(live_queue: Queue, told: Told) -> None:
    second = Queue(f"{live_queue.name} second", live_queue.server)
    with working(live_queue, lambda job: None, concurrency=1, hooks=[told]) as worker:
        let_it_lead(live_queue, told)
        worker.take_up(second)
        for n in range(3):
            for one in (live_queue, second):
                one.add(b"", id=f"{one.name} {n}")
                told.wait_for("done", f"{one.name} {n}")
        last = f"{second.name} 2"
        assert not told.in_one_thread(last)
        worker.drop(second.name)
        let_it_lead(live_queue, told)


def test_until_empty_ends_where_the_thread_of_the_handlers_leads(
    live_queue: Queue, told: Told
) -> None:
    worker = worker_of(live_queue, lambda job: None, concurrency=1, hooks=[told])
    live_queue.add_many([b""] * 1000)
    assert worker.run(until_empty=True)
    assert is_done(live_queue)
    assert (
        told.threads["started", told.ids("done")[-1]] == told.threads["done", told.ids("done")[-1]]
    )


def test_coroutines_and_plain_functions_share_the_one_slot(live_queue: Queue, told: Told) -> None:
    at_once = most = 0
    worker = Worker(live_queue, concurrency=1, hooks=[told])

    def enter() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)

    def leave() -> None:
        nonlocal at_once
        at_once -= 1

    @worker.handler("plain")
    def plain(job: RunningJob) -> None:
        enter()
        time.sleep(0.001)
        leave()

    @worker.handler("coroutine")
    async def coroutine(job: RunningJob) -> None:
        enter()
        leave()

    with at_work(worker):
        for n in range(50):
            live_queue.add(b"", id=str(n), handler=("plain", "coroutine")[n % 2])
        wait_until(lambda: len(told.ids("done")) == 50, "all")
    assert most == 1


FORKING = """
import os, sys
from holdfast import Queue, Worker

url, name, concurrency, how = sys.argv[1:]
queue = Queue(bytes.fromhex(name).decode(), url)
worker = Worker(queue, concurrency=int(concurrency))

@worker.handler
def handle(job):
    child = os.fork()
    if child == 0:
        if how == "returns":
            return "child"
        if how == "exits":
            sys.exit(7)
        raise ValueError
    _, status = os.waitpid(child, 0)
    return f"parent, and the child ended with {os.waitstatus_to_exitcode(status)}"

worker.run(until_empty=True)
"""


@pytest.mark.parametrize("concurrency", ["1", "2"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("exits", 7), ("raises", 1)])
def test_a_process_that_a_handler_forks_does_not_work_on(
    live_queue: Queue, concurrency: str, how: str, code: int
) -> None:
    ids = [f"{n}" for n in range(3)]
    for id in ids:
        live_queue.add(b"", id=id, result_for=60)
    url, name = str(live_queue.server.address), live_queue.name.encode().hex()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, url, name, concurrency, how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=DEADLINE,
        check=True,
    )
    for id in ids:
        outcome = live_queue.result(id)
        assert outcome is not None
        assert outcome.result == f"parent, and the child ended with {code}".encode()
    assert live_queue.totals().leased == len(ids)
