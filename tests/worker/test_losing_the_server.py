"""Bad connections and lost servers: the worker goes on, and each job is done once in the end."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from engine_support import own_server
from holdfast import NewJob, Queue, RunningJob
from proxy import DRIP, HALF_OPEN, HOLD, PASS, TRICKLE, Proxy, Step, cut_reply, cut_request
from support import DEADLINE, command_on, kill_connections, wait_until
from worker.support import Heard, Kind, as_handler, both_kinds, is_done, working

JOBS = 60


class Ledger:
    """An effect outside of the queue, guarded by what a completed job leaves: its result."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def __call__(self, job: RunningJob) -> str:
        self.runs[job.id] += 1
        time.sleep(0.002)  # It takes some time, so that something can happen meanwhile.
        return job.token


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    """Do something again and again while the block lasts."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.01):
            act()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def fill(queue: Queue) -> list[str]:
    ids = [str(n) for n in range(JOBS)]
    queue.add_many(NewJob(b"", id=id, result_for=600, max_failures=0) for id in ids)
    return ids


def all_are_done(queue: Queue, ids: list[str], heard: Heard) -> None:
    """Each was completed, none failed, and it was told of none twice that it was done."""
    wait_until(lambda: is_done(queue), "all to be done")
    outcomes = [queue.result(id) for id in ids]
    assert [outcome and outcome.kind for outcome in outcomes] == ["completed"] * len(ids)
    assert max(Counter(heard.ids("done")).values()) == 1
    assert queue.counts().failed == 0
    assert queue.audit() == []


@both_kinds
def test_connections_that_are_killed_again_and_again(
    live_queue: Queue, client: redis.Redis, kind: Kind
) -> None:
    ledger, heard = Ledger(), Heard()
    ids = fill(live_queue)
    with (
        beside(lambda: kill_connections(client)),
        working(live_queue, as_handler(kind, ledger), concurrency=2, hooks=[heard]),
    ):
        wait_until(lambda: len(heard.ids("done")) == JOBS, "all to be told")
    all_are_done(live_queue, ids, heard)
    assert ledger.runs == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_is_started_again(how: str) -> None:
    with (
        own_server("--appendonly", "yes", "--appendfsync", "always") as server,
        Queue("q", server.url) as queue,
    ):
        ledger, heard = Ledger(), Heard()
        ids = fill(queue)
        with working(queue, ledger, concurrency=1, ahead=0, hooks=[heard]) as worker:
            wait_until(lambda: len(heard.ids("done")) >= JOBS // 4, "some to be done")
            if how == "kill":
                server.kill()
            else:
                server.stop()
            server.start()
            wait_until(lambda: is_done(queue), "all to be done")
            assert worker.stop()
        all_are_done(queue, ids, heard)
        assert max(ledger.runs.values()) == 1


def test_a_server_that_lost_everything_is_worked_on_anew() -> None:
    with own_server() as server, Queue("q", server.url) as queue:
        heard = Heard()
        queue.add(b"", id="a")
        with working(queue, lambda job: None, hooks=[heard]):
            heard.wait_for("done")
            server.kill()
            server.start()
            queue.add(b"", id="b")
            heard.wait_for("done", "b")
        assert queue.audit() == []


def test_a_server_that_stands_still_for_a_while(live_queue: Queue, client: redis.Redis) -> None:
    ledger, heard = Ledger(), Heard()
    ids = fill(live_queue)
    with working(live_queue, ledger, concurrency=2, hooks=[heard]):
        for _ in range(3):
            command_on(client, "CLIENT", "PAUSE", 300, "ALL")
            client.ping()
        wait_until(lambda: len(heard.ids("done")) == JOBS, "all to be told")
    all_are_done(live_queue, ids, heard)
    assert ledger.runs == dict.fromkeys(ids, 1)


PLANS: dict[str, list[Step]] = {
    "cut before the server has it": [PASS, PASS, cut_request(0.5)],
    "cut before the client has the reply": [PASS, PASS, cut_reply(0.5)],
    "both": [PASS, cut_reply(), cut_request(), PASS],
    "dripping": [DRIP, TRICKLE, PASS, PASS, PASS],
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_bad_connection(live_queue: Queue, proxy: Proxy, plan: str) -> None:
    ledger, heard = Ledger(), Heard()
    ids = fill(live_queue)
    far = Queue(live_queue.name, proxy.url)
    proxy.plan(itertools.islice(itertools.cycle(PLANS[plan]), 60))
    with working(far, ledger, concurrency=2, hooks=[heard]):
        wait_until(lambda: len(heard.ids("done")) == JOBS, "all to be told")
    far.close()
    assert proxy.made
    all_are_done(live_queue, ids, heard)
    assert ledger.runs == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("step", [HALF_OPEN, HOLD], ids=["half open", "held"])
def test_a_connection_that_does_not_answer_is_given_up_in_time(
    live_queue: Queue, proxy: Proxy, step: Step
) -> None:
    """The leases that are held meanwhile are extended by another connection."""
    heard, gate = Heard(), threading.Event()
    ids = fill(live_queue)
    far = Queue(live_queue.name, proxy.url)

    def handle(job: RunningJob) -> None:
        if job.id == "0":
            assert gate.wait(DEADLINE)
            assert job.lapses == 0

    with working(far, handle, concurrency=2, lease=6, hooks=[heard]):
        wait_until(lambda: len(heard.ids("done")) == JOBS - 1, "the others")
        proxy.plan([step])
        wait_until(lambda: proxy.made, "a request that is not answered")
        extended = live_queue.show("0")
        assert extended is not None
        wait_until(
            lambda: (again := live_queue.show("0")) and (again.at or 0) > (extended.at or 0),
            "its lease to be extended",
        )
        gate.set()
        heard.wait_for("done", "0")
    far.close()
    all_are_done(live_queue, ids, heard)
    assert heard.ids("lost") == []


def test_a_handler_that_blocks_keeps_its_lease(live_queue: Queue) -> None:
    """Also from a worker that waits for it to lapse."""
    runs: list[int] = []
    heard = Heard()

    def block(job: RunningJob) -> None:
        runs.append(job.lapses)
        much_later = job.lapses_at + 3
        wait_until(lambda: job.lapses_at > much_later, "its lease to be extended")

    live_queue.add(b"", id="a")
    with (
        working(live_queue, block, lease=2, hooks=[heard]),
        working(live_queue, block, lease=2, hooks=[heard]),
    ):
        heard.wait_for("done")
    assert runs == [0]
    assert heard.of() == ["started", "done"]


def test_a_worker_hears_of_a_job_without_asking(live_queue: Queue, client: redis.Redis) -> None:
    """It sleeps, and is woken: also after its ear was cut off."""
    heard = Heard()

    def listens() -> bool:
        return bool(client.info("clients")["blocked_clients"])

    with working(live_queue, lambda job: None, hooks=[heard]):
        for n in range(3):
            wait_until(listens, "it to listen")
            kill_connections(client)
            live_queue.add(b"", id=str(n))
            heard.wait_for("done", str(n))


def test_a_server_that_refuses_for_a_while_is_asked_again_until_it_does_not() -> None:
    with own_server() as server, server.client() as client, Queue("q", server.url) as queue:
        heard = Heard()

        def refusals() -> int:
            return int(command_on(client, "INFO", "stats")["total_error_replies"])

        with working(queue, lambda job: None, hooks=[heard]):
            queue.add(b"", id="a")
            heard.wait_for("done")
            client.config_set("min-replicas-to-write", 1)
            before = refusals()
            wait_until(lambda: refusals() >= before + 3, "some refusals")
            client.config_set("min-replicas-to-write", 0)
            queue.add(b"", id="b")
            heard.wait_for("done", "b")
