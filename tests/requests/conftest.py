"""What the tests of requests have beside a queue: a second worker, an async shell, raw keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from conftest import Clock
from engine_support import Behind
from holdfast import Queue, Server
from support import TestServer


@pytest.fixture
def behind(client: redis.Redis, queue: Queue) -> Behind:
    """Redis-py on the keys of the test's queue."""
    return Behind(client, queue)


@pytest.fixture(scope="session")
def other_server(test_server: TestServer) -> Iterator[Server]:
    server = Server(test_server.queue_url)
    yield server
    server.close()


@pytest.fixture
def other(other_server: Server, queue: Queue, clock: Clock) -> Queue:
    """The same queue in the hands of another worker: a holder of its own."""
    return Queue(queue.name, other_server, clock=clock)
