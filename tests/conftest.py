"""One server per run, a fresh queue per test, and an audit after each."""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import redis

# Before anybody imports them, to see why one of theirs failed; tests import this once more.
HELPERS = {"faults", "worker.support", "spark.pipeline.support"}
pytest.register_assert_rewrite(*HELPERS - sys.modules.keys())

from cluster.nodes import Nodes, closing, url_of
from engine_support import Behind, load_library
from holdfast import Queue, Server
from holdfast.engine.keys import SLOTS, slot_of
from proxy import Proxy
from support import KINDS, Clock, Kind, TestServer

__all__ = ["Clock"]

_numbers = itertools.count()

# How long an example takes, or to make some, is said by the machine, and not by the product.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_configure() -> None:
    # What a shell runs in the background ignores Ctrl-C, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
        if server_kind == "nodes":
            nodes = Nodes(Path(directory), replicas=0)
            with closing(nodes):
                first, *others = nodes.nodes
                first.queue_url = url_of(others)
                yield first
            return
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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue_name(server_kind: Kind) -> str:
    """A name that has everything in it that a name may have."""
    while True:
        name = f"q:{next(_numbers)} {{ü}}\n\0"
        # Of three nodes, only the first is looked at behind the queue's back.
        if server_kind != "nodes" or slot_of(name) < SLOTS // 3:
            return name


@pytest.fixture
def queue(server: Server, queue_name: str, clock: Clock) -> Iterator[Queue]:
    """A fresh queue with a clock that stands still."""
    queue = Queue(queue_name, server, clock=clock)
    before = settings_of(server)
    yield queue
    assert queue.audit() == []
    assert settings_of(server) == before, "the test changed the client that all tests share"


def settings_of(server: Server) -> tuple[object, ...]:
    return server._listens, server._patience, server._reply_within


@pytest.fixture
def live_queue(server: Server, queue_name: str) -> Iterator[Queue]:
    """A fresh queue on the server's own clock."""
    queue = Queue(queue_name, server)
    yield queue
    assert queue.audit() == []


# ------------------------------------------------- more than one client, more than one view


@pytest.fixture
def behind(client: redis.Redis, queue: Queue) -> Behind:
    """Redis-py on the keys of the test's queue. Scripts are loaded, so calls can be counted."""
    load_library(client)
    return Behind(client, queue)


@pytest.fixture
def spoiled(behind: Behind) -> Iterator[Behind]:
    """A look behind a queue that the test breaks: it is removed before the audit."""
    yield behind
    behind.client.unlink(*behind.keys.values())


@pytest.fixture(scope="session")
def other_server(test_server: TestServer) -> Iterator[Server]:
    server = Server(test_server.queue_url)
    yield server
    server.close()


@pytest.fixture
def other(other_server: Server, queue: Queue, clock: Clock) -> Queue:
    """The same queue in the hands of another worker: a holder of its own."""
    return Queue(queue.name, other_server, clock=clock)


@pytest.fixture(scope="session")
def one_proxy(test_server: TestServer) -> Iterator[Proxy]:
    with Proxy(test_server.socket) as proxy:
        yield proxy


@pytest.fixture
def proxy(one_proxy: Proxy, client: redis.Redis) -> Iterator[Proxy]:
    """A good connection until the test plans something else. Scripts are loaded."""
    load_library(client)
    one_proxy.plan()
    yield one_proxy
    one_proxy.plan()
    one_proxy.cut_all()
