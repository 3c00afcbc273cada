"""What the tests of the seeds have beside a queue: a worker that dies with its connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import Clock
from holdfast import Queue, Server
from proxy import Proxy


@pytest.fixture
def doomed(proxy: Proxy, queue: Queue, clock: Clock) -> Iterator[Queue]:
    """The same queue in a process that dies with its connection: it never asks again."""
    server = Server(proxy.url, patience=0)
    doomed = Queue(queue.name, server, clock=clock)
    doomed.counts()  # Connected: what comes next is the call.
    yield doomed
    server.close()
