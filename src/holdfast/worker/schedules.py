"""Makes the ticks of a queue's schedules while a worker runs."""

from __future__ import annotations

import logging
import time
from typing import Final

from holdfast.client.schedules import Ticked
from holdfast.client.sync.queue import Queue
from holdfast.errors import HoldfastError, ServerUnavailable

log = logging.getLogger("holdfast")

LOOK_SECONDS: Final = 60.0
"""The longest time between two checks: the server's clock may be set."""
MOVED_SECONDS: Final = 1.0
"""The same for a queue whose clock a test moves."""
REFUSED_SECONDS: Final = 5.0
"""The pause after a refused tick, for example because the server is full."""


class Ticker:
    """Makes the ticks of schedules in a control loop."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._longest = MOVED_SECONDS if queue.clock else LOOK_SECONDS
        self._look_at: dict[str, float] = {}
        self._in_trouble: set[str] = set()

    def next_at(self) -> float:
        """Return when the next tick is due, on the monotonic clock."""
        times = (self._look_at.get(name, 0.0) for name in list(self._queue.schedules))
        return min(times, default=float("inf"))

    def tick(self) -> None:
        """Make the ticks that are due. A refused tick does not stop the worker."""
        for name, schedule in list(self._queue.schedules.items()):
            if time.monotonic() < self._look_at.get(name, 0.0):
                continue
            try:
                ticked = self._queue._make_ticks(schedule)
            except ServerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001  # A user's time zone class may raise anything.
                self._complain(name, error)
                ticked = Ticked([], REFUSED_SECONDS)
            else:
                self._in_trouble.discard(name)
            again_in = self._longest if ticked.again_in is None else ticked.again_in
            self._look_at[name] = time.monotonic() + min(again_in, self._longest)

    def _complain(self, name: str, error: Exception) -> None:
        """Log the error once, not on every retry."""
        if name not in self._in_trouble:
            self._in_trouble.add(name)
            unexpected = None if isinstance(error, HoldfastError) else error
            log.warning(
                "%s: its ticks cannot be made; trying again: %s", name, error, exc_info=unexpected
            )
