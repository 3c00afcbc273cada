"""An idle worker sends its next lease call together with the pop that waits for work."""

from __future__ import annotations

import pytest
import redis

from engine_support import own_server
from holdfast import Queue, Worker
from holdfast.worker import leases
from proxy import HOLD, Proxy, Step, cut_reply, cut_request
from support import command_on, wait_until
from worker.support import Heard, control_of, is_done, shown, worker_of, working


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker sends nothing but lease calls."""
    monkeypatch.setattr("holdfast.worker.loop.REGISTER_SECONDS", 3600.0)


def waits(worker: Worker) -> list[bool]:
    """Return, for each queue, whether a lease call waits for work."""
    return [control._held.waiting is not None for control in worker._controls.values()]


@pytest.mark.parametrize("options", [{"concurrency": 1, "ahead": 0}, {"concurrency": 1}, {}])
def test_a_lease_call_waits_behind_the_pop(live_queue: Queue, options: dict[str, int]) -> None:
    heard = Heard()
    with working(live_queue, lambda job: None, hooks=[heard], **options) as worker:
        for n in range(10):
            wait_until(lambda: waits(worker) == [True], "it to wait")
            live_queue.add(b"", id=str(n))
            heard.wait_for("done", str(n))


def test_the_call_that_waits_asks_for_no_more_than_can_run_at_once(live_queue: Queue) -> None:
    """A worker that is frozen while it waits gets them, and they wait for their leases to lapse."""
    with working(live_queue, lambda job: None, concurrency=2) as worker:
        control = control_of(worker, live_queue.name)

        def leases_ahead() -> bool:
            live_queue.add_many([b""] * 100)
            wait_until(lambda: is_done(live_queue), "short runs")
            return control._shared.pace.per_call > 2

        wait_until(leases_ahead, "it to lease more than can run at once")
        wait_until(lambda: waits(worker) == [True], "it to wait")
        waiting = control._held.waiting
        assert waiting is None or waiting.most == 2


def test_a_job_is_leased_and_settled_by_two_calls(
    live_queue: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that waited, and the one that settles it and asks for more."""
    monkeypatch.setattr("holdfast.worker.loop.REGISTER_SECONDS", 3600.0)
    heard = Heard()

    def calls() -> int:
        return int(command_on(client, "INFO", "commandstats")["cmdstat_fcall"]["calls"])

    with working(live_queue, lambda job: None, concurrency=1, ahead=0, hooks=[heard]) as worker:
        for n in range(20):
            wait_until(lambda: waits(worker) == [True], "it to wait")
            before = calls()
            live_queue.add(b"", id=str(n))
            heard.wait_for("done", str(n))
            wait_until(lambda: waits(worker) == [True], "it to wait again")
            if (
                calls() - before == 3
            ):  # One call adds. A wait may end meanwhile: then there are more.
                return
    raise AssertionError("it took more calls")


def test_several_queues_only_listen_as_a_call_keeps_slots(live_queue: Queue) -> None:
    second = Queue(f"{live_queue.name} second", live_queue.server)
    heard = Heard()
    with working(live_queue, lambda job: None, hooks=[heard]) as worker:
        wait_until(lambda: waits(worker) == [True], "one to wait")
        worker.take_up(second)
        wait_until(lambda: waits(worker) == [False, False], "none to wait")
        live_queue.add(b"", id="a")
        second.add(b"", id="b")
        heard.wait_for("done", "a")
        heard.wait_for("done", "b")
        assert waits(worker) == [False, False]
        worker.drop(second.name)
        wait_until(lambda: waits(worker) == [True], "the one that is left to wait")


def test_no_call_waits_where_a_lease_is_short(live_queue: Queue) -> None:
    """The time of a lease counts from when its call was sent."""
    with working(live_queue, lambda job: None, lease=2) as worker:
        listener = control_of(worker, live_queue.name)._listener
        wait_until(lambda: listener.listening, "it to listen")
        assert waits(worker) == [False]


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("step", [cut_reply(), cut_reply(0.5), cut_request()])
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_call_whose_answer_is_lost_is_asked_again(
    live_queue: Queue, proxy: Proxy, step: Step, concurrency: int
) -> None:
    heard = Heard()
    far = Queue(live_queue.name, proxy.url)
    with working(far, lambda job: None, concurrency=concurrency, hooks=[heard]):
        live_queue.add(b"", id="first")
        heard.wait_for("done", "first")
        for n in range(3):
            proxy.plan([step])
            wait_until(lambda: proxy.requests, "the next call to be sent")
            live_queue.add(b"", id=str(n))
            heard.wait_for("done", str(n))
    far.close()
    assert is_done(live_queue)
    assert heard.ids("started") == heard.ids("done") == ["first", "0", "1", "2"]


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("concurrency", [1, 16])
def test_what_is_granted_to_a_worker_that_stops_is_given_back_at_once(
    live_queue: Queue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.3)  # So the next call is one that waits, too.
    heard = Heard()
    far = Queue(live_queue.name, proxy.url)
    worker = worker_of(far, lambda job: None, concurrency=concurrency, hooks=[heard])
    worker.start()
    live_queue.add(b"", id="first")
    heard.wait_for("done", "first")
    wait_until(lambda: waits(worker) == [True], "it to wait")
    proxy.plan([HOLD])
    wait_until(lambda: proxy.requests, "the next call to be sent")
    live_queue.add(b"", id="a")
    wait_until(lambda: live_queue.counts().leased == 1, "it to be granted")
    assert worker.stop()
    far.close()
    job = shown(live_queue)
    assert (job.state, job.lapses, heard.of()) == ("ready", 0, [])
    assert heard.unbegun == ["a"]


@pytest.mark.usefixtures("unregistered")
def test_an_answer_that_never_comes_is_not_waited_for(
    live_queue: Queue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop.LATE_SECONDS", 0.1)
    heard = Heard()
    lapses: list[int] = []
    far = Queue(live_queue.name, proxy.url)
    with working(far, lambda job: lapses.append(job.lapses), hooks=[heard]) as worker:
        live_queue.add(b"", id="first")
        heard.wait_for("done", "first")
        wait_until(lambda: waits(worker) == [True], "it to wait")
        proxy.plan([HOLD])
        wait_until(lambda: proxy.requests, "the next call to be sent")
        live_queue.add(b"", id="a")
        heard.wait_for("done")
    far.close()
    assert lapses == [0, 0]


def test_a_server_that_lets_nobody_wait_is_not_asked_without_end() -> None:
    with (
        own_server("--rename-command", "BLPOP", "") as server,
        server.client() as client,
        Queue("q", server.url) as queue,
    ):
        heard = Heard()

        def calls() -> int:
            return int(command_on(client, "INFO", "commandstats")["cmdstat_fcall"]["calls"])

        with working(queue, lambda job: None, hooks=[heard]) as worker:
            queue.add(b"", id="a")
            heard.wait_for("done")
            held = control_of(worker, "q")._held
            before = calls()
            asked_at = held.asked_at
            wait_until(lambda: held.asked_at > asked_at + 2, "it to ask again and again")
            assert calls() - before < 100
