"""Fixtures for pytest: a private server, a fresh queue on it, and a clock to move.

A module of its own, beside the package: pytest imports it in every project of an environment that
has Holdfast installed, so it imports nothing until somebody asks for a fixture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from holdfast import AsyncQueue, Queue, Server
    from holdfast.testing import Clock

    Q = TypeVar("Q", Queue, AsyncQueue)

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def holdfast_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a private server for this run of tests, and return its URL."""
    from holdfast.server.embedded import Embedded  # noqa: PLC0415  # Nobody else pays for it.

    embedded = Embedded(tmp_path_factory.mktemp("holdfast"))
    embedded.ensure()
    yield f"embedded://{quote(str(embedded.directory))}"
    embedded.leave()


@pytest.fixture(scope="session")
def holdfast_server(holdfast_url: str) -> Iterator[Server]:
    """Return connections to that server, for queues to share."""
    from holdfast import Server  # noqa: PLC0415

    server = Server(holdfast_url)
    yield server
    server.close()


@pytest.fixture
def holdfast_clock() -> Clock:
    """Return the time of this test's queues. It stands still: `holdfast_clock.advance(60)`."""
    from holdfast.testing import Clock  # noqa: PLC0415

    return Clock()


@pytest.fixture
def holdfast_queue(holdfast_server: Server, holdfast_clock: Clock) -> Iterator[Queue]:
    """Return a fresh queue, by the clock of this test."""
    from holdfast import Queue  # noqa: PLC0415

    queue = Queue(f"test {next(_numbers)}", holdfast_server, clock=holdfast_clock)
    yield queue
    queue.delete()


@pytest.fixture
def holdfast_aqueue(holdfast_queue: Queue, holdfast_url: str, holdfast_clock: Clock) -> AsyncQueue:
    """Return the same queue for asyncio. Close it before the loop ends: `async with …`."""
    from holdfast import AsyncQueue  # noqa: PLC0415

    return AsyncQueue(holdfast_queue.name, holdfast_url, clock=holdfast_clock)


@pytest.fixture
def holdfast_use(holdfast_url: str, holdfast_clock: Clock) -> Iterator[Callable[[Q], Q]]:
    """Let queues of the program be on the private server for this test: `holdfast_use(app.queue)`.

    They begin empty there, and go by the clock of this test.
    """
    from holdfast.testing import moved  # noqa: PLC0415

    with ExitStack() as stack:

        def use(queue: Q) -> Q:
            return stack.enter_context(moved(queue, holdfast_url, holdfast_clock))

        yield use
