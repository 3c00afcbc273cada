"""Waiting for work: who sleeps is woken, and who does not want to sleep is not kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from conftest import Clock
from engine_support import Behind, command_calls, take
from holdfast import Lease, Leases, Queue
from holdfast.engine import calls
from support import DEADLINE, TestServer, wait_until

# Longer than a test takes: a sleeper that nobody wakes makes the test fail.
ASLEEP = 2 * DEADLINE

ADDING = """
import sys
from holdfast import Queue
Queue(sys.argv[1], sys.argv[2]).add(b"from another process")
"""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def behind(behind: Behind) -> Iterator[Behind]:
    yield behind
    # Rouse whoever a failed test has left asleep.
    behind("RPUSH", "wake", *(["1"] * 16))
    wait_until(lambda: sleepers(behind.client) == 0, "the sleepers")
    behind("UNLINK", "wake")


def sleepers(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def sleep(threads: ThreadPoolExecutor, queue: Queue, count: int = 1) -> Future[Leases]:
    """Sleep until a wake, and no less, and then lease: one step of `lease(wait=…)`."""
    return threads.submit(
        lambda: (
            queue._run(
                calls.lease(queue.server.session.next_token(), 60_000, count, wait=ASLEEP)
            ).leases
        )
    )


def after(clock: Clock, seconds: float, then: Callable[..., object]) -> None:
    clock.advance(seconds)
    then(force=True)


WAKERS: dict[str, Callable[[Queue, Lease, Clock], object]] = {
    "add": lambda queue, lease, clock: queue.add(b""),
    "add_many": lambda queue, lease, clock: queue.add_many([b"", b""]),
    "release": lambda queue, lease, clock: queue.release(lease),
    "follow-up": lambda queue, lease, clock: queue.complete(lease, add=[b""]),
    "promote": lambda queue, lease, clock: after(clock, 5, queue.tidy),
    "reclaim": lambda queue, lease, clock: after(clock, 60, queue.tidy),
}


@pytest.mark.parametrize("kind", WAKERS)
def test_a_sleeper_is_woken(
    queue: Queue, clock: Clock, behind: Behind, threads: ThreadPoolExecutor, kind: str
) -> None:
    queue.add(b"", id="held")
    lease = take(queue, 60)
    if kind == "promote":
        queue.add(b"", delay=5)
    behind("UNLINK", "wake")
    sleeping = sleep(threads, queue)
    wait_until(lambda: sleepers(behind.client) == 1, "a sleeper")
    WAKERS[kind](queue, lease, clock)
    assert len(sleeping.result(DEADLINE)) == 1


def test_a_sleeper_is_woken_when_the_queue_is_resumed(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    queue.pause()
    queue.add(b"")
    sleeping = sleep(threads, queue)
    wait_until(lambda: sleepers(behind.client) == 1, "a sleeper")
    queue.resume()
    assert len(sleeping.result(DEADLINE)) == 1


def test_one_add_many_wakes_all_the_sleepers_it_has_work_for(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    sleeping = [sleep(threads, queue) for _ in range(10)]
    wait_until(lambda: sleepers(behind.client) == 10, "ten sleepers")
    queue.add_many([b""] * 10)
    leases = [lease for future in sleeping for lease in future.result(DEADLINE)]
    assert len({lease.id for lease in leases}) == 10


def test_one_add_many_wakes_no_more_sleepers_than_it_has_work_for(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    sleeping = [sleep(threads, queue) for _ in range(4)]
    wait_until(lambda: sleepers(behind.client) == 4, "four sleepers")
    queue.add_many([b""] * 2)
    wait_until(lambda: sum(future.done() for future in sleeping) == 2, "two of them")
    assert queue.counts().leased == 2
    assert sleepers(behind.client) == 2
    queue.add_many([b""] * 2)
    assert sum(len(future.result(DEADLINE)) for future in sleeping) == 4


def test_a_wake_that_came_before_the_sleep_is_not_missed(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    queue.add(b"")
    assert len(sleep(threads, queue).result(DEADLINE)) == 1


@pytest.mark.parametrize("wait", [None, 0])
def test_who_does_not_wait_is_answered_at_once(
    queue: Queue, behind: Behind, wait: float | None
) -> None:
    asked = command_calls(behind.client, "blpop")
    assert queue.lease(30, wait=wait) is None
    assert queue.lease_many(5, 30, wait=wait) == []
    assert command_calls(behind.client, "blpop") == asked


def test_who_waits_for_what_is_there_does_not_sleep(queue: Queue, behind: Behind) -> None:
    queue.add(b"x")
    asked = command_calls(behind.client, "blpop")
    lease = queue.lease(30, wait=DEADLINE)
    assert lease is not None
    assert lease.data == b"x"
    assert command_calls(behind.client, "blpop") == asked


def test_waiting_ends_with_nothing_when_nothing_comes(queue: Queue) -> None:
    assert queue.lease(30, wait=0.01) is None
    assert queue.lease_many(5, 30, wait=0.01) == []


def test_a_delayed_job_is_leased_when_it_is_due_without_any_wake(
    live_queue: Queue, client: redis.Redis
) -> None:
    live_queue.add(b"x", delay=0.05)
    Behind(client, live_queue)("UNLINK", "wake")
    lease = live_queue.lease(30, wait=DEADLINE)
    assert lease is not None
    assert lease.data == b"x"


def test_a_lapsed_job_is_leased_without_any_wake(live_queue: Queue, client: redis.Redis) -> None:
    live_queue.add(b"x")
    take(live_queue, 0.05)
    Behind(client, live_queue)("UNLINK", "wake")
    lease = live_queue.lease(30, wait=DEADLINE)
    assert lease is not None
    assert lease.lapses == 1


def test_a_sleeping_client_notices_a_job_of_another_process(
    live_queue: Queue,
    client: redis.Redis,
    test_server: TestServer,
    threads: ThreadPoolExecutor,
) -> None:
    name = live_queue.name.strip("\0")
    waiting = threads.submit(Queue(name, live_queue.server).lease, 30, wait=DEADLINE)
    wait_until(lambda: sleepers(client) == 1, "a sleeper")
    subprocess.run([sys.executable, "-c", ADDING, name, test_server.url], check=True)
    lease = waiting.result(DEADLINE)
    assert lease is not None
    assert lease.data == b"from another process"


def test_what_is_done_is_completed_once_however_long_the_wait(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    queue.add(b"1")
    done = take(queue)
    behind("UNLINK", "wake")
    waiting = threads.submit(queue.lease_many, 1, 60, wait=DEADLINE, complete=[done])
    wait_until(lambda: sleepers(behind.client) == 1, "a sleeper")
    assert queue.counts().leased == 0
    queue.add(b"2")
    leases = waiting.result(DEADLINE)
    assert ([lease.data for lease in leases], leases.completed) == ([b"2"], [True])


def test_waiting_can_go_on_for_ever(
    queue: Queue, behind: Behind, threads: ThreadPoolExecutor
) -> None:
    waiting = threads.submit(queue.lease, 60, wait=float("inf"))
    wait_until(lambda: sleepers(behind.client) == 1, "a sleeper")
    queue.add(b"x")
    lease = waiting.result(DEADLINE)
    assert lease is not None
    assert lease.data == b"x"
