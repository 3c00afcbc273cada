"""Who waits for a request learns its end, soon or late, and across a restart of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis

from conftest import Clock
from engine_support import own_server, take
from holdfast import JobNotFound, Lease, Queue, Request, RequestStatus, WrongState
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


@pytest.mark.parametrize("look", [Request.status, partial(Request.wait, timeout=0)])
@pytest.mark.parametrize("parts", [0, 3])
def test_a_request_that_is_open_for_too_long_ends_when_its_status_is_read_without_a_worker(
    queue: Queue, clock: Clock, look: Callable[[Request], RequestStatus], parts: int
) -> None:
    request = fill(queue.request("r", open_for=60, follow_up=b"then"), parts, seal=False)
    clock.advance(59.999)
    assert look(request).state == "open"
    clock.advance(0.001)
    status = look(request)
    assert (status.state, status.reason) == ("failed", "open for too long")
    assert (status.cancelled, status.endings) == (parts, 1)
    assert queue.audit() == []
    assert work_off(queue) == ["r/end/1"]


@pytest.mark.parametrize("parts", [3, 3500])
def test_who_waits_for_a_request_that_nobody_seals_learns_its_end_without_a_worker(
    queue: Queue, clock: Clock, client: redis.Redis, threads: ThreadPoolExecutor, parts: int
) -> None:
    fill(queue.request("r", open_for=60), parts, seal=False)
    waiting = [threads.submit(queue.request("r").wait, DEADLINE) for _ in range(2)]
    wait_until(lambda: listeners(client, queue) == 2, "those who wait")
    clock.advance(60)
    assert {future.result(DEADLINE).state for future in waiting} == {"failed"}


def test_an_overdue_request_stops_and_its_running_part_is_waited_for(
    queue: Queue, clock: Clock
) -> None:
    request = fill(queue.request("r", open_for=60), 3, seal=False)
    running = take(queue, 600)
    clock.advance(60)
    status = request.wait(0)
    assert (status.state, counters(status)) == (
        "stopping",
        {"total": 3, "cancelled": 2, "running": 1},
    )
    assert not queue.complete(running)
    assert request.wait().state == "failed"


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
        token = queue.server.session.next_token()
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


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_who_waits_learns_the_outcome_of_a_request_that_is_not_to_be_kept(
    queue: Queue, clock: Clock, how: str
) -> None:
    """Whatever others call in the seconds after the end, also where no event is heard."""
    request = fill(queue.request("r", keep_for=0), 1)
    if how == "cancelled":
        request.cancel()
    else:
        lease = take(queue)
        if how == "failed":
            queue.fail(lease, error="why")
            queue.complete_many(queue.lease_many(1, 60, failed=True))
        else:
            queue.complete(lease)
    for _ in range(9):
        assert request.wait(0).state == how
        queue.tidy()
        queue.lease(1)
        clock.advance(1)
    clock.advance(1)
    queue.tidy()
    with pytest.raises(JobNotFound):
        request.wait(0)
