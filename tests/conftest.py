"""One server per run, a fresh queue per test, and an audit after each."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from holdfast import Queue, Server
from support import KINDS, Kind, TestServer

_numbers = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    parser.addoption("--server-kind", choices=list(KINDS), default="plain", help=what)


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """The kind of server that this run is given."""
    kind: Kind = request.config.getoption("--server-kind")
    return kind


@pytest.fixture(scope="session")
def test_server(server_kind: Kind) -> Iterator[TestServer]:
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        server = TestServer(Path(directory), kind=server_kind)
        yield server
        server.stop()


@pytest.fixture(scope="session")
def server(test_server: TestServer) -> Iterator[Server]:
    server = Server(test_server.queue_url)
    yield server
    server.close()


@pytest.fixture(scope="session")
def client(test_server: TestServer) -> Iterator[redis.Redis]:
    """Redis-py on the same server, to look behind the queue's back."""
    with test_server.client() as client:
        yield client


class Clock:
    """A time that tests set: milliseconds."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue_name() -> str:
    """A name that has everything in it that a name may have."""
    return f"q:{next(_numbers)} {{ü}}\n\0"


@pytest.fixture
def queue(server: Server, queue_name: str, clock: Clock) -> Iterator[Queue]:
    """A fresh queue with a clock that stands still."""
    queue = Queue(queue_name, server, clock=clock)
    yield queue
    assert queue.audit() == []


@pytest.fixture
def live_queue(server: Server, queue_name: str) -> Iterator[Queue]:
    """A fresh queue on the server's own clock."""
    queue = Queue(queue_name, server)
    yield queue
    assert queue.audit() == []
