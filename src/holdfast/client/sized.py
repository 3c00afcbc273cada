"""The length of a queue: `len(queue)`. Not for asyncio, since it makes a call to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.job import Counts


class Sized:
    """A queue for threads has a length, and is truthy even when it is empty."""

    if TYPE_CHECKING:

        def counts(self) -> Counts:
            """Count the jobs of each state, at one moment."""

    def __len__(self) -> int:
        """Return how many jobs wait: ready, parked and delayed."""
        return self.counts().waiting

    def __bool__(self) -> bool:
        """Return True, even if the queue is empty."""
        return True
