"""One worker, several queues: by weight, in strict order, dropped and taken up while it runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from engine_support import own_server
from holdfast import Queue, RunningJob, Worker
from holdfast.worker.loop import ControlLoop
from proxy import Kind as StepKind
from proxy import Proxy, Step
from support import DEADLINE, wait_until
from worker.support import (
    Gate,
    Heard,
    Kind,
    Queues,
    as_handler,
    at_work,
    both_kinds,
    control_of,
    is_done,
    shown,
    work_off,
    worker_of,
    working,
)


@pytest.fixture
def queues(live_queue: Queue) -> Iterator[list[Queue]]:
    """Three queues of one server."""
    others = [Queue(f"{live_queue.name}{n}", live_queue.server) for n in (2, 3)]
    yield [live_queue, *others]
    for other in others:
        assert other.audit() == []
        other.delete()


def test_all_queues_are_worked_on(queues: list[Queue]) -> None:
    seen: Counter[str] = Counter()
    for queue in queues:
        queue.add_many([b""] * 30)
    assert work_off(queues, lambda job: seen.update([job.queue]))
    assert seen == {queue.name: 30 for queue in queues}


@both_kinds
def test_until_empty_waits_for_what_one_queue_adds_to_another(
    queues: list[Queue], kind: Kind
) -> None:
    seen: list[int] = []
    idle: list[ControlLoop] = []
    worker = Worker(queues)

    def handle(job: RunningJob) -> None:
        # The others have nothing, and know it.
        idle[:] = [one for one in worker._controls.values() if one.queue.name != job.queue]
        wait_until(lambda: not any(one._share.wants_more for one in idle), "the others to be idle")
        seen.append(int(job.data))
        if seen[-1] > 0:
            queues[seen[-1] % 3].add(b"%d" % (seen[-1] - 1))

    worker.handler(as_handler(kind, handle))
    queues[0].add(b"5")
    assert worker.run(until_empty=True)
    assert seen == [5, 4, 3, 2, 1, 0]


def order_of_runs(queues: Queues, jobs: int, **options: Any) -> list[str]:
    """Let each have so many jobs when the first begins, and return whose they were."""
    order: list[str] = []
    gate = Gate()

    def handle(job: RunningJob) -> None:
        if job.id == "first":
            gate(job)
        else:
            order.append(job.queue)

    several: list[Queue] = list(queues)  # type: ignore[arg-type]
    several[-1].add(b"", id="first")
    with working(queues, handle, concurrency=1, ahead=0, **options) as worker:
        gate.wait()
        for queue in several:
            queue.add_many([b""] * jobs)
        shares = [control_of(worker, queue.name)._share for queue in several]
        wait_until(lambda: all(share.wants_more for share in shares), "all to have heard of it")
        gate.open.set()
        wait_until(lambda: all(is_done(queue) for queue in several), "all")
    return order


@pytest.mark.usefixtures("unhurried")
def test_while_all_have_work_their_runs_follow_their_weights(queues: list[Queue]) -> None:
    order = order_of_runs(dict(zip(queues, (1, 2, 5), strict=True)), 50)
    runs = Counter(order[:80])
    for queue, share in zip(queues, (10, 20, 50), strict=True):
        assert abs(runs[queue.name] - share) <= 2


def test_a_queue_that_has_nothing_leaves_its_turns_to_the_others(queues: list[Queue]) -> None:
    first, second, _ = queues
    seen: list[str] = []
    second.add_many([b""] * 50)
    weights = dict(zip(queues, (100, 1, 100), strict=True))
    assert work_off(weights, lambda job: seen.append(job.queue), concurrency=1, ahead=0)
    assert seen == [second.name] * 50
    assert is_done(first)


@pytest.mark.usefixtures("unhurried")
def test_in_strict_order_a_queue_waits_for_those_before_it(queues: list[Queue]) -> None:
    order = order_of_runs(queues, 30, strict=True)
    assert order == [queue.name for queue in queues for _ in range(30)]


@pytest.mark.usefixtures("unhurried")
def test_what_comes_in_goes_first_in_strict_order(queues: list[Queue], gate: Gate) -> None:
    urgent, bulk, _ = queues
    order: list[str] = []

    def handle(job: RunningJob) -> None:
        order.append(job.id)
        if job.id == "first":
            gate(job)

    bulk.add(b"", id="first")
    for id in ("second", "third"):
        bulk.add(b"", id=id)
    with working([urgent, bulk], handle, strict=True, concurrency=1, ahead=0) as worker:
        gate.wait()
        urgent.add(b"", id="urgent")
        share = control_of(worker, urgent.name)._share
        wait_until(lambda: share.wants_more, "it to be heard")
        gate.open.set()
        wait_until(lambda: is_done(urgent) and is_done(bulk), "all")
    assert order == ["first", "urgent", "second", "third"]


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("strict", [True, False])
def test_a_queue_that_is_answered_late_at_the_start_loses_nothing_of_its_order_or_weight(
    queues: list[Queue],
    proxy: Proxy,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    strict: bool,
) -> None:
    monkeypatch.setattr("holdfast.worker.slots.FIRST_WORD_SECONDS", 2 * DEADLINE)
    monkeypatch.setattr("holdfast.worker.worker.check_servers", lambda queues: None)
    _, second, first = queues
    answer = threading.Event()
    proxy.plan([Step(StepKind.PASS, after=lambda: answer.wait(DEADLINE))])
    late = Queue(first.name, proxy.url)
    for queue in (first, second):
        queue.add_many([b""] * 10)
    weights = {late: 3, second: 1}
    with working(weights, gate, strict=strict, concurrency=4, ahead=0) as worker:
        early = control_of(worker, second.name)
        wait_until(lambda: early._share.wants_more and early._waiter._sleeps, "it to wait")
        assert gate.jobs == []
        answer.set()
        gate.wait(4)
        runs = Counter(job.queue for job in gate.jobs)
        gate.open.set()
        wait_until(lambda: is_done(first) and is_done(second), "all")
    assert runs == ({first.name: 4} if strict else {first.name: 3, second.name: 1})
    late.close()


# ------------------------------------------------------------- drop and take up


def test_a_queue_that_is_dropped_is_left_alone(queues: list[Queue]) -> None:
    kept, dropped, _ = queues
    heard = Heard()
    with working([kept, dropped], lambda job: None, hooks=[heard]) as worker:
        dropped.add(b"", id="before")
        heard.wait_for("done", "before")
        worker.drop(dropped.name)
        dropped.add(b"", id="after")
        kept.add(b"", id="kept")
        heard.wait_for("done", "kept")
        assert worker.stop()
    assert shown(dropped, "after").state == "ready"
    assert not any(info.alive for info in dropped.workers())


def test_what_runs_is_finished_before_its_queue_is_dropped(queues: list[Queue], gate: Gate) -> None:
    heard = Heard()
    queues[1].add(b"", id="a")
    with working(queues, gate, hooks=[heard]) as worker:
        gate.wait()
        dropping = threading.Thread(target=worker.drop, args=[queues[1].name])
        dropping.start()
        wait_until(lambda: queues[1].name not in repr(worker), "it to be dropped")
        assert dropping.is_alive()
        gate.open.set()
        dropping.join(DEADLINE)
        assert not dropping.is_alive()
    assert heard.of() == ["started", "done"]


def test_what_runs_for_longer_than_the_grace_is_given_back(queues: list[Queue], gate: Gate) -> None:
    dropped, kept, _ = queues
    heard = Heard()
    dropped.add(b"", id="a")
    with working([dropped, kept], gate, concurrency=2, hooks=[heard]) as worker:
        gate.wait()
        worker.drop(dropped.name, grace=0)
        job = shown(dropped)
        assert (job.state, job.failures, job.lapses) == ("ready", 0, 0)
        assert gate.jobs[0].cancelled
        kept.add(b"", id="b")
        gate.wait(2)
        gate.open.set()
        heard.wait_for("done", "b")
    assert heard.of("a") == ["started", "released"]


def test_a_handler_that_outlives_its_queue_does_not_keep_its_place(
    queues: list[Queue], gate: Gate
) -> None:
    dropped, kept, _ = queues
    dropped.add(b"", id="a")
    with working([dropped, kept], gate, concurrency=1, ahead=0) as worker:
        gate.wait()
        worker.drop(dropped.name, grace=0)
        kept.add(b"", id="b")
        gate.open.set()
        wait_until(lambda: is_done(kept), "the other")


@pytest.mark.usefixtures("unhurried")
def test_what_has_not_begun_of_another_queue_is_not_given_back(
    queues: list[Queue], gate: Gate
) -> None:
    dropped, kept, _ = queues
    heard = Heard()

    def handle(job: RunningJob) -> None:
        if job.id == "long":
            gate(job)

    with working([dropped, kept], handle, concurrency=1, ahead=60, hooks=[heard]) as worker:
        kept.add(b"", id="short")
        heard.wait_for("done", "short")
        dropped.add(b"", id="long")
        gate.wait()
        kept.add_many([b""] * 20)
        wait_until(lambda: kept.counts().leased == 20, "them to wait for the thread")
        worker.drop(dropped.name, grace=0)
        gate.open.set()
        wait_until(lambda: is_done(kept), "the others")
    assert heard.ids("released") == ["long"]
    assert heard.unbegun == []


def test_a_queue_can_be_taken_up_while_the_worker_runs(queues: list[Queue]) -> None:
    heard = Heard()
    queues[1].add(b"", id="a")
    with working(queues[0], lambda job: None, hooks=[heard]) as worker:
        worker.take_up(queues[1], weight=3)
        heard.wait_for("done")
        queues[0].add(b"", id="b")
        heard.wait_for("done", "b")
        worker.drop(queues[1].name)
        worker.take_up(queues[1])
        queues[1].add(b"", id="c")
        heard.wait_for("done", "c")


def test_a_queue_can_be_dropped_and_taken_up_before_the_worker_runs(queues: list[Queue]) -> None:
    seen: list[str] = []
    worker = worker_of(queues[:2], lambda job: seen.append(job.queue))
    worker.drop(queues[0].name)
    worker.take_up(queues[2])
    for queue in queues:
        queue.add(b"")
    assert worker.run(until_empty=True)
    assert sorted(seen) == sorted(queue.name for queue in queues[1:])


def test_a_queue_that_is_taken_up_is_worked_off_too(queues: list[Queue], gate: Gate) -> None:
    worker = worker_of(queues[0], gate)
    queues[0].add(b"")
    queues[1].add(b"")
    ended: list[bool] = []
    running = threading.Thread(target=lambda: ended.append(worker.run(until_empty=True)))
    running.start()
    gate.wait()
    worker.take_up(queues[1])
    gate.wait(2)
    gate.open.set()
    running.join(DEADLINE)
    assert ended == [True]


# ------------------------------------------------------------- a server that is lost


def test_a_queue_on_a_server_that_is_down_does_not_stop_the_others(live_queue: Queue) -> None:
    heard = Heard()
    with own_server() as server, Queue("q", server.url) as lost:
        server.kill()
        worker = worker_of([lost, live_queue], lambda job: None, concurrency=1, hooks=[heard])
        with at_work(worker):
            for n in range(20):
                live_queue.add(b"", id=str(n))
                heard.wait_for("done", str(n))
            server.start()
            lost.add(b"", id="a")
            heard.wait_for("done")
        assert lost.audit() == []


def test_a_server_that_goes_down_does_not_stop_the_others(live_queue: Queue) -> None:
    heard = Heard()
    with own_server() as server, Queue("q", server.url) as lost:
        with working([lost, live_queue], lambda job: None, concurrency=2, hooks=[heard]):
            lost.add(b"", id="a")
            heard.wait_for("done")
            server.kill()
            for n in range(20):
                live_queue.add(b"", id=str(n))
                heard.wait_for("done", str(n))
            server.start()
            lost.add(b"", id="b")
            heard.wait_for("done", "b")
        assert lost.audit() == []


@pytest.mark.parametrize(("how", "patience"), [("kill", 0.01), ("freeze", 2 * DEADLINE)])
def test_a_queue_that_is_not_answered_holds_no_places(
    live_queue: Queue, how: str, patience: float
) -> None:
    """Whether it gives up at once, or goes on asking."""
    heard = Heard()
    with own_server() as server, Queue("q", server.url) as lost:
        with working([lost, live_queue], lambda job: None, concurrency=1, hooks=[heard]) as worker:
            lost.add(b"", id="a")
            heard.wait_for("done")
            control = control_of(worker, lost.name)
            control.queue.server._patience = patience
            server.kill() if how == "kill" else server.freeze()
            wait_until(lambda: control._trouble or control._share.asking, "it to ask for work")
            for n in range(5):
                live_queue.add(b"", id=str(n))
                heard.wait_for("done", str(n))
            server.start() if how == "kill" else server.thaw()
            lost.add(b"", id="b")
            heard.wait_for("done", "b")
        assert lost.audit() == []


def test_a_queue_that_is_dropped_without_its_server_leaves_its_places_to_the_others(
    live_queue: Queue, gate: Gate
) -> None:
    heard = Heard()
    options: Any = {"concurrency": 1, "lease": 1, "hooks": [heard]}
    with own_server() as server, Queue("q", server.url) as lost:
        lost.add(b"", id="a")
        with working([lost, live_queue], gate, **options) as worker:
            gate.wait()
            control = control_of(worker, lost.name)
            control.queue.server._patience = 0.01
            server.freeze()
            wait_until(lambda: not control.queue.server.session._idle, "it to ask")
            gate.open.set()
            wait_until(lambda: gate.jobs[0].answer, "the run to be over")
            worker.drop(lost.name, grace=0)
            live_queue.add(b"", id="b")
            heard.wait_for("done", "b")
        server.thaw()


def test_a_worker_may_be_left_without_any_queue(live_queue: Queue) -> None:
    worker = Worker(live_queue)
    worker.handler(lambda job: None)
    with worker:
        worker.drop(live_queue.name)
        live_queue.add(b"", id="a")
        worker.take_up(live_queue)
        wait_until(lambda: is_done(live_queue), "it to be done")
