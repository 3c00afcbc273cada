"""A full server takes no more work, and can be drained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from engine_support import Behind, own_server, take
from holdfast import NewJob, Queue, QueueFull, Server
from support import Kind, TestServer

KB = 1024


@pytest.fixture(scope="module")
def small_server(server_kind: Kind) -> Iterator[TestServer]:
    with own_server("--maxmemory-policy", "noeviction", kind=server_kind) as server:
        yield server


@pytest.fixture
def full(small_server: TestServer, queue_name: str) -> Iterator[Behind]:
    """A queue on a server that the test may fill."""
    with small_server.client() as client:
        client.config_set("maxmemory", 0)
        server = Server(small_server.queue_url)
        behind = Behind(client, Queue(queue_name, server))
        yield behind
        client.config_set("maxmemory", 0)
        assert behind.queue.audit() == []
        behind.queue.delete()
        server.close()


def leave_room(client: redis.Redis, bytes: int) -> None:
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + bytes)


def fill(queue: Queue) -> int:
    """Add until the server takes no more; return how many it took."""
    for added in range(1000):
        try:
            queue.add(b"x" * 100 * KB)
        except QueueFull:
            return added
    raise AssertionError("the server never was full")


def test_a_full_server_refuses_to_add_until_it_is_drained(full: Behind) -> None:
    queue = full.queue
    leave_room(full.client, 3000 * KB)
    added = fill(queue)
    assert added == queue.counts().ready > 0
    before = full.everything()
    with pytest.raises(QueueFull, match="out of memory"):
        queue.add_many([b"", b"x" * 100 * KB])
    assert full.everything() == before
    while lease := queue.lease(30):
        assert queue.complete(lease)
    assert queue.add(b"x" * 100 * KB)
    assert fill(queue) > 0


def test_what_frees_or_moves_work_runs_on_a_full_server(full: Behind) -> None:
    queue = full.queue
    queue.add_many([NewJob(b"x", id=str(n), result_for=60) for n in range(6)])
    queue.add(b"x", id="delayed", delay=0.001)
    full.client.config_set("maxmemory", 1)
    with pytest.raises(QueueFull):
        queue.add(b"x")
    first, second, third = queue.lease_many(3, 60)
    queue.extend(first, 60)
    queue.release(second, after=60)
    queue.release(third, lapsed="crashed")
    assert queue.complete(first, b"result")
    done = queue.lease_many(2, 60)
    assert queue.lease_many(9, 60, complete=done).completed == [True, True]
    queue.tidy()
    queue.pause()
    queue.resume()
    assert queue.counts().ended == 3
    assert queue.audit() == []


def test_a_complete_with_follow_ups_is_refused_whole_on_a_full_server(full: Behind) -> None:
    queue = full.queue
    queue.add(b"x", id="a", result_for=60)
    lease = take(queue, 60)
    full.client.config_set("maxmemory", 1)
    before = full.everything()
    with pytest.raises(QueueFull):
        queue.complete(lease, b"result", add=[b"follow-up"])
    assert full.everything() == before
    assert queue.complete(lease, b"result")
    assert full("HGET", "results", "a") == b"result"


def test_a_full_server_can_be_emptied_at_once(full: Behind) -> None:
    full.queue.add_many([b"x"] * 10)
    full.client.config_set("maxmemory", 1)
    full.queue.delete()
    assert full.everything() == {}
