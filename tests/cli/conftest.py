"""A queue, and the command line on its server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.support import Commands
from holdfast import Queue, Server
from holdfast.escaping import loggers
from support import TestServer


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Commands set levels of the log, as elsewhere they have the process for themselves."""
    levels = {log: log.level for log in loggers()}
    yield
    for log, level in levels.items():
        log.setLevel(level)


@pytest.fixture
def hf(test_server: TestServer, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The command line, in this process."""
    monkeypatch.setenv("HOLDFAST_URL", test_server.queue_url)
    return Commands()


@pytest.fixture
def queue_name(request: pytest.FixtureRequest) -> str:
    """A name that needs no care in a shell; `test_escapes` has the others."""
    return f"q-{request.node.name}"


@pytest.fixture
def queue(server: Server, queue_name: str) -> Iterator[Queue]:
    """A fresh queue on the server's own clock."""
    queue = Queue(queue_name, server)
    yield queue
    assert queue.audit() == []
    queue.delete()
