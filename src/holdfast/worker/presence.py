"""A control loop in the directory of workers of its queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.worker.queues import called
from holdfast.worker.reporting import fitting

if TYPE_CHECKING:
    from holdfast.client.sync.queue import Queue
    from holdfast.worker.leases import Held
    from holdfast.worker.shared import Shared

REGISTER_SECONDS: Final = 5.0
MOST_SHOWN: Final = 20
"""Running jobs."""


class Presence:
    """Says who is here, and on what."""

    def __init__(self, queue: Queue, held: Held, shared: Shared) -> None:
        self._queue = queue
        self._held = held
        self._shared = shared
        self.tell_at = time.monotonic()
        """When it is to be told again."""

    def tell(self, alive_for: float = 3 * REGISTER_SECONDS) -> None:
        """Say that we are here, for so many seconds."""
        self.tell_at = time.monotonic() + REGISTER_SECONDS
        running = [job.describe() for job in self._held.running()[:MOST_SHOWN]]
        handlers = self._shared.handlers.about(called(self._queue))
        about = {**self._shared.about, **handlers, "running": running}
        notes = about.pop("notes", None)
        if isinstance(notes, dict) and notes:
            about["notes"] = [list(note) for note in reversed(list(notes.items()))]
        about = fitting(about)
        self._queue.register(alive_for=alive_for, **about)

    def leave(self) -> None:
        """Say that we are gone."""
        self.tell(alive_for=0.001)
