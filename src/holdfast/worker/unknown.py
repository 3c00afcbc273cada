"""Jobs whose handler is not here: one line in the log per name and minute, however many there are.

Whoever adds jobs makes up the names, so there may be any number of those, too.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Final

from holdfast import arguments

log = logging.getLogger("holdfast")

LOG_EVERY_SECONDS: Final = 60.0
"""How often a name is logged."""
MOST_NAMES: Final = 100
"""Names that are logged on their own; the others share one line."""


@dataclass(slots=True)
class _Seen:
    log_at: float = 0.0
    count: int = 0
    """Jobs since the last line."""


class Unknown:
    """Logs which handlers are missing. The control loops of a worker share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str | None] | None, _Seen] = {}

    def tell(self, queue: str, name: str | None, id: str, seconds: float) -> None:
        """Log that a job was given back for so many seconds, unless its name was just logged."""
        now = time.monotonic()
        with self._lock:
            key = self._key(queue, name, now)
            seen = self._seen.setdefault(key, _Seen())
            seen.count += 1
            if now < seen.log_at:
                return
            more, seen.count, seen.log_at = seen.count - 1, 0, now + LOG_EVERY_SECONDS
        log.warning(
            "%s: no handler for %s%s here; given back for %d s%s",
            id,
            "jobs without a name" if name is None else arguments.shown(name),
            " and many other names" if key is None else "",
            seconds,
            f", as were {more} more jobs since the last such line" if more else "",
        )

    def _key(self, queue: str, name: str | None, now: float) -> tuple[str, str | None] | None:
        """Return what a name is counted under: itself, or all that there is no room for."""
        key = queue, name
        if key not in self._seen and len(self._seen) >= MOST_NAMES:
            self._seen = {k: seen for k, seen in self._seen.items() if now < seen.log_at}
            if len(self._seen) >= MOST_NAMES:
                return None
        return key
