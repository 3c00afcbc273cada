"""What the tests of the seeds have beside a queue: workers, and one that dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import Clock
from holdfast import Queue, Server
from proxy import Proxy
from seeds.staff import Held, Hire, Staff
from worker.support import unhurried

__all__ = ["unhurried"]


@pytest.fixture
def doomed(proxy: Proxy, queue: Queue, clock: Clock) -> Iterator[Queue]:
    """The same queue in a process that dies with its connection: it never asks again."""
    server = Server(proxy.url, patience=0)
    doomed = Queue(queue.name, server, clock=clock)
    doomed.counts()  # Connected: what comes next is the call.
    yield doomed
    server.close()


@pytest.fixture
def hire(caplog: pytest.LogCaptureFixture) -> Iterator[Hire]:
    """Workers of the test's own, stopped at its end; none of them may have been surprised."""
    staff = Staff()
    yield staff.hire
    staff.dismiss()
    for phase in ("call", "teardown"):
        assert [r for r in caplog.get_records(phase) if "unexpected" in r.getMessage()] == []


@pytest.fixture
def held() -> Iterator[Held]:
    """A handler that does not return before it is let go."""
    held = Held()
    yield held
    held.let_go()
