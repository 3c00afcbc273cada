"""A proxy before the server of this run, a gate for handlers, and calls that are not long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("worker.support")

from proxy import Proxy  # noqa: E402
from support import TestServer  # noqa: E402
from worker.support import gate  # noqa: E402

__all__ = ["gate"]


@pytest.fixture
def proxy(test_server: TestServer) -> Iterator[Proxy]:
    """A good connection, until a test plans something else."""
    with Proxy(test_server.socket) as proxy:
        yield proxy
