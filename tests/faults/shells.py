"""Both shells behind one face, so that one test is the test of both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, cast

from holdfast import (
    AsyncQueue,
    AsyncReader,
    AsyncRequest,
    AsyncServer,
    AsyncShardedQueue,
    AsyncWrite,
    Queue,
    Server,
    ShardedQueue,
)
from holdfast.client.inputs import Requeue
from holdfast.connection.server import PATIENCE_SECONDS

Shell: TypeAlias = Literal["Queue", "AsyncQueue"]
SHELLS: tuple[Shell, ...] = ("Queue", "AsyncQueue")


class _Blocking:
    """An `AsyncQueue` whose methods are waited for, and those of its requests too."""

    def __init__(
        self, thing: AsyncQueue | AsyncRequest | AsyncWrite | AsyncReader, runner: asyncio.Runner
    ) -> None:
        self._thing = thing
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if name in ("request", "write", "reader"):
            return lambda *args, **options: _Blocking(found(*args, **options), self._runner)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._runner.run(found(*args, **options))


@contextmanager
def open_queue(
    shell: Shell,
    name: str,
    url: str,
    *,
    patience: float = PATIENCE_SECONDS,
    requeue: Requeue = "rank",
    clock: Callable[[], int] | None = None,
) -> Iterator[Queue]:
    """A queue of either kind, with a server object of its own, closed at the end."""
    if shell == "Queue":
        with Queue(name, Server(url, patience=patience), requeue=requeue, clock=clock) as queue:
            yield queue
        return
    with asyncio.Runner() as runner:
        server = AsyncServer(url, patience=patience)
        blocking = _Blocking(AsyncQueue(name, server, requeue=requeue, clock=clock), runner)
        try:
            # It has the methods of a Queue, which a test of the shells' parity makes sure of.
            yield cast("Queue", blocking)
        finally:
            blocking.close()


@contextmanager
def open_sharded(
    shell: Shell, name: str, url: str, *, shards: int, clock: Callable[[], int] | None = None
) -> Iterator[ShardedQueue]:
    """A sharded queue of either kind, closed at the end."""
    if shell == "Queue":
        with ShardedQueue(name, url, shards=shards, clock=clock) as queue:
            yield queue
        return
    with asyncio.Runner() as runner:
        blocking = _Blocking(AsyncShardedQueue(name, url, shards=shards, clock=clock), runner)
        try:
            yield cast("ShardedQueue", blocking)
        finally:
            blocking.close()
