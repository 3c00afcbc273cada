"""A full server takes no more work, and can be drained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from engine_support import Behind, own_server, take
from holdfast import Extended, Lease, NewJob, Queue, QueueFull, Server
from support import Kind, TestServer

KB = 1024
MB = 1024 * KB
RESULT = b"r" * MB


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
    assert queue.complete(first)
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
    full.client.config_set("maxmemory", 0)
    assert queue.complete(lease, b"result")
    assert full("HGET", "results", "a") == b"result"


SETTLES: dict[str, Callable[[Queue, list[Lease]], object]] = {
    "complete": lambda queue, leases: queue.complete(leases[0], b"result"),
    "complete by force": lambda queue, leases: queue.complete("0", b"result", force=True),
    "complete many": lambda queue, leases: queue.complete_many([(leases[0], b"r"), leases[1]]),
    "lease and complete": lambda queue, leases: queue.lease_many(
        1, 60, complete=[leases[1], (leases[0], b"result")]
    ),
    "set a result": lambda queue, leases: queue.set_result("0", b"result"),
}


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
def test_a_full_server_takes_no_result_and_nothing_of_the_call_that_brings_it(
    full: Behind, settle: Callable[[Queue, list[Lease]], object]
) -> None:
    queue = full.queue
    queue.add_many([NewJob(b"x", id=str(n), result_for=3600) for n in range(3)])
    leases = queue.lease_many(2, 60)
    full.client.config_set("maxmemory", 1)
    before = full.everything()
    with pytest.raises(QueueFull, match="out of memory"):
        settle(queue, leases)
    assert full.everything() == before
    assert queue.complete_many(leases) == [True, True]
    assert full("HLEN", "results") == 0


def test_results_stay_within_the_servers_memory(full: Behind) -> None:
    queue, client = full.queue, full.client
    queue.add_many([NewJob(b"x", id=str(n), result_for=3600) for n in range(300)])
    leases = queue.lease_many(300, 600)
    client.config_set("maxmemory", 20 * MB)
    refused: list[Lease] = []
    for lease in leases:
        try:
            assert queue.complete(lease, RESULT)
        except QueueFull:
            refused.append(lease)
        assert int(client.info("memory")["used_memory"]) < 30 * MB
    assert 250 < len(refused) < 300
    assert queue.extend_many(refused, 600) == [Extended.HELD] * len(refused)
    with pytest.raises(QueueFull):
        queue.complete_many((lease, RESULT) for lease in refused)
    assert int(client.info("memory")["used_memory"]) < 30 * MB
    client.config_set("maxmemory", 0)
    assert queue.complete_many((lease, RESULT) for lease in refused) == [True] * len(refused)
    assert full("HLEN", "results") == queue.counts().ended == 300
    for lease in leases:
        outcome = queue.result(lease.id)
        assert outcome
        assert outcome.result == RESULT


def test_a_full_server_can_be_emptied_at_once(full: Behind) -> None:
    full.queue.add_many([b"x"] * 10)
    full.client.config_set("maxmemory", 1)
    full.queue.delete()
    assert full.everything() == {}
