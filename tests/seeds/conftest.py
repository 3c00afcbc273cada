"""What the tests of the seeds have beside a queue: a second client, bad connections, raw keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from conftest import Clock
from engine_support import Behind
from holdfast import Queue, Server
from holdfast.engine.calls import SCRIPTS
from proxy import Proxy
from support import TestServer


@pytest.fixture
def behind(client: redis.Redis, queue: Queue) -> Behind:
    """Redis-py on the keys of the test's queue. Scripts are loaded, so calls can be counted."""
    for script in SCRIPTS:
        client.script_load(script.text)
    return Behind(client, queue)


@pytest.fixture
def spoiled(behind: Behind) -> Iterator[Behind]:
    """A look behind a queue that the test breaks: it is removed before the audit."""
    yield behind
    behind.client.unlink(*behind.keys.values())


@pytest.fixture(scope="session")
def other_server(test_server: TestServer) -> Iterator[Server]:
    server = Server(test_server.url)
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
def proxy(one_proxy: Proxy, behind: Behind) -> Iterator[Proxy]:
    """A connection on which things go wrong when the test says so."""
    one_proxy.plan()
    yield one_proxy
    one_proxy.plan()
    one_proxy.cut_all()


@pytest.fixture
def doomed(proxy: Proxy, queue: Queue, clock: Clock) -> Iterator[Queue]:
    """The same queue in a process that dies with its connection: it never asks again."""
    server = Server(proxy.url, patience=0)
    doomed = Queue(queue.name, server, clock=clock)
    doomed.counts()  # Connected: what comes next is the call.
    yield doomed
    server.close()
