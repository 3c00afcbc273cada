"""Who waits for a request learns its end, soon or late, and across a restart of the server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from engine_support import own_server, take
from holdfast import JobNotFound, Lease, Queue, WrongState
from holdfast.engine import calls
from request_support import counters, fill, work_off
from support import DEADLINE, wait_until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def listeners(client: redis.Redis, queue: Queue) -> int:
    [(_, count)] = client.pubsub_numsub(queue._packer.events)
    return int(count)


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_whoever_waits_learns_how_it_ended(
    queue: Queue, client: redis.Redis, threads: ThreadPoolExecutor, how: str
) -> None:
    request = fill(queue.request("r"), 2)
    waiting = [threads.submit(queue.request("r").wait, DEADLINE) for _ in range(3)]
    wait_until(lambda: listeners(client, queue) == 3, "those who wait")
    first, second = queue.lease_many(2, 60)
    queue.complete(first)
    assert not any(future.done() for future in waiting)
    if how == "cancelled":
        request.cancel()
    if how == "failed":
        queue.fail(second, error="why")
    else:
        queue.complete(second)
    assert {future.result(DEADLINE).state for future in waiting} == {how}


def test_waiting_ends_when_it_is_sealed_with_nothing_left(
    queue: Queue, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    request = fill(queue.request("r"), 0, seal=False)
    waiting = threads.submit(request.wait)
    wait_until(lambda: listeners(client, queue) == 1, "who waits")
    request.seal()
    assert waiting.result(DEADLINE).state == "completed"


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_who_waits_for_too_long_is_told_how_far_it_is(queue: Queue, timeout: float) -> None:
    request = fill(queue.request("r"), 2)
    queue.complete(take(queue))
    status = request.wait(timeout)
    assert (status.state, counters(status)) == ("sealed", {"total": 2, "done": 1, "parked": 1})


def test_a_late_wait_still_learns_the_outcome(queue: Queue) -> None:
    request = fill(queue.request("r"), 1)
    work_off(queue)
    for _ in range(2):
        assert request.wait().state == "completed"
    assert queue.request("r").wait(0).state == "completed"


def test_waiting_for_what_is_not_there_is_refused(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        queue.request("nobody").wait(DEADLINE)


def test_waiting_goes_on_while_a_part_is_revived(
    queue: Queue, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    request = fill(queue.request("r"), 1)
    queue.fail(take(queue), error="why")
    queue.revive("r/0")
    waiting = threads.submit(request.wait, DEADLINE)
    wait_until(lambda: listeners(client, queue) == 1, "who waits")
    work_off(queue)
    assert waiting.result(DEADLINE).state == "completed"


def test_a_worker_that_waits_is_woken_by_parts_and_by_free_places(
    queue: Queue, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    request = fill(queue.request("r", limit=1), 0, seal=False)
    leases: list[Lease] = []
    for free in (
        lambda: request.add_many([b""] * 5),
        lambda: queue.complete(leases[-1]),
        lambda: queue.release(leases[-1]),
        lambda: queue.fail(leases[-1], error="why"),
        lambda: queue.fail_worker(queue.holder),
        lambda: request.set_limit(2),
    ):
        # Longer than a test takes: what is not woken is not in time.
        token = queue.server.incarnation.next_token()
        sleep = calls.lease(token, 3_600_000, 1, wait=2 * DEADLINE)
        waiting = threads.submit(queue._run, sleep)
        wait_until(lambda: client.info("clients")["blocked_clients"], "the sleeper")
        free()
        [lease] = waiting.result(DEADLINE).leases
        leases.append(lease)


def test_waiting_survives_a_restart_of_the_server() -> None:
    with (
        own_server("--appendonly", "yes", "--appendfsync", "always") as server,
        Queue("q", server.url) as queue,
        Queue("q", server.url) as worker,
        ThreadPoolExecutor(1) as threads,
    ):
        with server.client() as client:
            request = fill(queue.request("r", limit=1), 2)
            worker.complete(take(worker, 600), b"before")
            held = take(worker, 600)
            waiting = threads.submit(request.wait, DEADLINE)
            wait_until(lambda: listeners(client, queue) == 1, "who waits")
        server.kill()
        server.start()
        assert not waiting.done()
        assert counters(worker.request("r").status()) == {"total": 2, "done": 1, "running": 1}
        with pytest.raises(WrongState):
            worker.request("r").open()
        assert worker.complete(held, b"after")
        assert waiting.result(DEADLINE).state == "completed"
        assert [part.result for part in request.results()] == [b"before", b"after"]
        assert queue.audit() == []
