"""A request or group that is not there raises an error of its own, which is a JobNotFound too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from conftest import Clock
from holdfast import (
    AsyncQueue,
    GroupNotFound,
    HoldfastError,
    JobNotFound,
    Queue,
    RequestNotFound,
    Server,
    ShardedQueue,
)
from support import TestServer

ASKED: list[Callable[[Queue], object]] = [
    lambda queue: queue.request("r").status(),
    lambda queue: queue.request("r").wait(1),
    lambda queue: queue.request("r").add(b""),
    lambda queue: queue.request("r").add_many([b""]),
    lambda queue: queue.request("r").seal(),
    lambda queue: queue.request("r").cancel(),
    lambda queue: list(queue.request("r").results()),
]


def caught(ask: Callable[[], object]) -> type[HoldfastError]:
    with pytest.raises(JobNotFound) as raised:
        ask()
    return type(raised.value)


@pytest.mark.parametrize("ask", ASKED)
def test_a_request_that_is_not_there_is_no_missing_job(
    queue: Queue, ask: Callable[[Queue], object]
) -> None:
    assert caught(lambda: ask(queue)) is RequestNotFound


def test_a_limit_of_a_request_or_a_group_that_is_not_there(queue: Queue) -> None:
    assert caught(lambda: queue.request("r").set_limit(1)) is RequestNotFound
    assert caught(lambda: queue.request("r").set_priority(1)) is RequestNotFound
    assert caught(lambda: queue.set_group_limit("g", 1)) is GroupNotFound


def test_a_job_that_is_not_there_is_one(queue: Queue) -> None:
    assert caught(lambda: queue.result("a")) is JobNotFound
    assert caught(lambda: queue.set_result("a", b"")) is JobNotFound


def test_a_sharded_queue_and_coroutines_tell_the_same(
    server: Server, test_server: TestServer, queue: Queue, clock: Clock
) -> None:
    sharded = ShardedQueue("not found", server, shards=3, clock=clock)
    assert caught(lambda: sharded.request("r").status()) is RequestNotFound
    assert caught(lambda: sharded.set_group_limit("g", 1)) is GroupNotFound

    async def ask() -> None:
        async with AsyncQueue(queue.name, test_server.queue_url, clock=clock) as aqueue:
            with pytest.raises(RequestNotFound):
                await aqueue.request("r").status()
            with pytest.raises(GroupNotFound):
                await aqueue.set_group_limit("g", 1)

    asyncio.run(ask())
