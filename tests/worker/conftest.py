"""A proxy before the server of this run, a gate for handlers, and calls that are not long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxy import Proxy
from support import TestServer
from worker.families import pids
from worker.support import gate, unextended, unhurried

__all__ = ["gate", "pids", "unextended", "unhurried"]


@pytest.fixture
def proxy(test_server: TestServer) -> Iterator[Proxy]:
    """A good connection, until a test plans something else."""
    with Proxy(test_server.socket) as proxy:
        yield proxy
