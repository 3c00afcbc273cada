"""A full server takes no results: they wait in the worker, and everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import redis

from engine_support import own_server
from holdfast import NewJob, Queue, RunningJob, Server
from holdfast.worker import outcomes
from support import TestServer, wait_until
from worker.support import Heard, Kind, as_handler, both_kinds, shown, worker_of, working

MB = 1024 * 1024
RESULT = b"r" * MB


@pytest.fixture(scope="module")
def small_server() -> Iterator[TestServer]:
    with own_server("--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def client(small_server: TestServer) -> Iterator[redis.Redis]:
    with small_server.client() as client:
        client.config_set("maxmemory", 0)
        yield client
        client.config_set("maxmemory", 0)


@pytest.fixture
def queue(small_server: TestServer, client: redis.Redis, queue_name: str) -> Iterator[Queue]:
    server = Server(small_server.queue_url)
    queue = Queue(queue_name, server)
    yield queue
    client.config_set("maxmemory", 0)
    assert queue.audit() == []
    queue.delete()
    server.close()


def results(queue: Queue, ids: list[str]) -> list[bytes | None]:
    outcomes = [queue.result(id) for id in ids]
    return [outcome.result if outcome else None for outcome in outcomes]


def results_for(queue: Queue, count: int) -> list[str]:
    ids = [str(n) for n in range(count)]
    queue.add_many(NewJob(b"", id=id, result_for=36000, max_failures=0) for id in ids)
    return ids


def test_results_stay_within_the_servers_memory_and_all_are_stored_when_there_is_room(
    queue: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "MOST_REFUSED_BYTES", 400 * MB)
    ids = results_for(queue, 300)
    heard = Heard()
    client.config_resetstat()
    client.config_set("maxmemory", 20 * MB)
    with working(queue, lambda job: RESULT, hooks=[heard], concurrency=4):
        wait_until(lambda: len(heard.ids("started")) == 300, "all to run")
        wait_until(lambda: queue.counts().waiting == 0, "none to wait")
        assert 0 < queue.counts().ended < 30
        [held] = queue.peek(1, state="leased")
        wait_until(lambda: (shown(queue, held.id).at or 0) > (held.at or 0), "it to be extended")
        assert client.info("memory")["used_memory_peak"] < 30 * MB
        client.config_set("maxmemory", 0)
        wait_until(lambda: queue.counts().ended == 300, "all results")
    assert results(queue, ids) == [RESULT] * 300
    # The worker held what was refused: none ran a second time.
    assert sorted(heard.ids("started")) == sorted(heard.ids("done")) == sorted(ids)


@both_kinds
def test_a_result_that_is_refused_holds_up_neither_its_place_nor_other_jobs(
    queue: Queue, client: redis.Redis, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    ran: list[str] = []

    def handle(job: RunningJob) -> bytes | None:
        ran.append(job.id)
        return b"result" if job.id.isdigit() else None

    ids = results_for(queue, 20)
    queue.add_many([NewJob(b"", id=f"plain {n}") for n in range(20)])
    client.config_set("maxmemory", 1)
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        working(queue, as_handler(kind, handle), concurrency=1, hooks=[heard]),
    ):
        wait_until(lambda: len(heard.ids("done")) == 20, "all without results")
        wait_until(lambda: queue.counts().leased == 20, "all with results to be held")
        assert queue.counts().ended == 0
        client.config_set("maxmemory", 0)
        wait_until(lambda: len(heard.ids("done")) == 40, "all with results")
    assert results(queue, ids) == [b"result"] * 20
    assert len(ran) == 40
    assert caplog.text.count("the server is full") == 1


def test_follow_ups_wait_with_the_results(queue: Queue, client: redis.Redis) -> None:
    def handle(job: RunningJob) -> None:
        if job.id == "first":
            job.add(b"", id="second")

    heard = Heard()
    queue.add(b"", id="first")
    queue.add(b"", id="plain")
    client.config_set("maxmemory", 1)
    with working(queue, handle, hooks=[heard], concurrency=1):
        heard.wait_for("done", "plain")
        assert heard.of("first") == ["started"]
        client.config_set("maxmemory", 0)
        heard.wait_for("done", "second")
    assert heard.of("first") == ["started", "done"]


def test_what_waits_is_bounded_and_the_rest_is_given_back_at_no_cost(
    queue: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "MOST_REFUSED", 3)
    heard = Heard()
    results_for(queue, 5)
    client.config_set("maxmemory", 1)
    with working(queue, lambda job: b"result", hooks=[heard], concurrency=1):
        wait_until(lambda: queue.counts().delayed == 2, "two to be given back")
        assert queue.counts().leased == 3
        client.config_set("maxmemory", 0)
        wait_until(lambda: queue.counts().ended == 3, "three to be stored")
    [one, other] = queue.peek(2, state="delayed")
    assert (one.failures, one.lapses) == (other.failures, other.lapses) == (0, 0)


def test_a_worker_that_leaves_gives_back_what_was_refused(
    queue: Queue, client: redis.Redis
) -> None:
    results_for(queue, 5)
    client.config_set("maxmemory", 1)
    heard = Heard()
    worker = worker_of(queue, lambda job: b"result", hooks=[heard], lease=60)
    worker.start()
    wait_until(lambda: len(heard.ids("started")) == 5, "all to run")
    assert not worker.stop(0.1)
    assert (queue.counts().ready, queue.counts().leased) == (5, 0)
