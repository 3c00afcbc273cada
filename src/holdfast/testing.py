"""For tests of programs that use Holdfast: a clock to move, and a worker that runs inline.

Everything is real, including the server, but tests do not wait. `pytest_holdfast` has fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.client.aio.queue import AsyncQueue
from holdfast.client.aio.sharded import AsyncShardedQueue
from holdfast.client.sync.queue import Queue
from holdfast.client.sync.sharded import ShardedQueue
from holdfast.job import Duration
from holdfast.worker.inline import run_until_empty, run_until_empty_async

__all__ = ["Clock", "moved", "run_until_empty", "run_until_empty_async"]

Q = TypeVar("Q", Queue, AsyncQueue)


class Clock:
    """A clock that stands still until a test moves it: `Queue("emails", clock=clock)`.

    It begins at midnight UTC of this day, so that periodic jobs come when a test expects them, or
    at the given instant, in milliseconds.
    """

    def __init__(self, ms: int | None = None) -> None:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self.ms = round(today.timestamp() * 1000) if ms is None else ms

    def __call__(self) -> int:
        """Return the time in milliseconds, as a queue expects it."""
        return self.ms

    def __repr__(self) -> str:
        return f"Clock({self.now().isoformat()})"

    def advance(self, seconds: Duration) -> None:
        """Move the clock forward by some seconds; a negative number sets it back."""
        passed = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        self.ms += round(passed * 1000)

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.ms / 1000, UTC)


@contextmanager
def moved(queue: Q, url: str, clock: Callable[[], int] | None = None) -> Iterator[Q]:
    """Move a queue of the program to another server while the block lasts; it begins empty there.

    It stays the same object, with its handlers and schedules, so code that has it need not change.
    """
    before = dict(vars(queue))
    handlers, schedules = queue.handlers, queue.schedules
    said: Any = {"defaults": queue.defaults, "requeue": queue.requeue, "clock": clock}
    there = Queue(queue.name, url)
    if isinstance(queue, ShardedQueue | AsyncShardedQueue):
        said["shards"] = queue.sharding.count
        there = ShardedQueue(queue.name, url, shards=queue.sharding.count)
    there.delete()
    queue.__init__(queue.name, url, **said)  # type: ignore[misc]
    queue.handlers, queue.schedules = handlers, schedules
    try:
        yield queue
    finally:
        if isinstance(queue, Queue):
            queue.close()
        vars(queue).update(before)
        there.delete()
        there.close()
