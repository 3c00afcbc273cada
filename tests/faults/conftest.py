"""A stage for every call, and clients that do not wait long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.shells import Shell
from faults.theatre import QUICKLY, Played, Theatre, open_theatre
from proxy import Proxy
from support import TestServer, await_replies_for


@pytest.fixture(scope="session")
def played() -> Played:
    return {}


@pytest.fixture
def theatre(
    test_server: TestServer, proxy: Proxy, shell: Shell, queue_name: str, played: Played
) -> Iterator[Theatre]:
    with open_theatre(test_server, proxy, shell, queue_name, played) as theatre:
        yield theatre


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take a reply for lost after a moment."""
    await_replies_for(QUICKLY, monkeypatch)
