"""Fixtures for pytest: a private server, a fresh queue on it, and a clock to move.

pytest imports this module in every project of an environment that has Holdfast installed. So it
is outside the package, and imports nothing until a test uses a fixture.
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
    from holdfast.server.embedded import Embedded  # noqa: PLC0415  # Other tests do not pay for it.

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
    """Return the clock of this test's queues. Move it with `holdfast_clock.advance(60)`."""
    from holdfast.testing import Clock  # noqa: PLC0415

    return Clock()


@pytest.fixture
def holdfast_queue(holdfast_server: Server, holdfast_clock: Clock) -> Iterator[Queue]:
    """Return a fresh queue that uses the clock of this test."""
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
    """Move queues of the program to the private server for this test: `holdfast_use(app.queue)`.

    They begin empty there, and use the clock of this test.
    """
    from holdfast.testing import moved  # noqa: PLC0415

    with ExitStack() as stack:

        def use(queue: Q) -> Q:
            return stack.enter_context(moved(queue, holdfast_url, holdfast_clock))

        yield use
