"""How many jobs a worker should hold: what can begin at once, and a little ahead of short ones.

Pure. A call costs as much as many short jobs, so they are leased many at a time; a job that takes
longer is leased when there is somebody to run it, and never waits here behind another.
"""

from __future__ import annotations

from typing import Final

MOST_AHEAD: Final = 500
"""More would keep the server from others: a call leases half of it, in a millisecond or two."""

MOST_PATIENCE: Final = 0.002
"""What is finished is settled within so many seconds."""

_FORGETTING: Final = 0.1
"""How much one short run counts against what is believed."""


class Pace:
    """Learns how long runs take: a long one is believed at once, short ones little by little."""

    def __init__(self, concurrency: int, ahead: float, most_at_once: int = 1) -> None:
        self.most_at_once = most_at_once
        """Jobs that one call of a handler runs."""
        self._ahead = ahead
        self._seconds: float | None = None
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Let so many run at a time from now on."""
        self._concurrency = concurrency
        self.least = concurrency * self.most_at_once

    def saw(self, seconds: float) -> None:
        """Learn of a run."""
        known = self._seconds
        if known is None or seconds > known:
            self._seconds = seconds
        else:
            self._seconds = known + (seconds - known) * _FORGETTING

    def places(self) -> int:
        """Return how many jobs to hold: `ahead` seconds of work, at least one for each to run."""
        if not self._ahead or self._seconds is None:
            return self.least
        worth = self._ahead / max(self._seconds, 1e-6) - 1
        return self.least + max(0, min(MOST_AHEAD, int(self._concurrency * worth)))

    def worth(self, waiting: int) -> float:
        """Return for how many seconds nobody need ask for more, where so many jobs wait here."""
        if not self._seconds:
            return 0.0
        return min(MOST_PATIENCE, waiting * self._seconds / self._concurrency / 2)

    def per_call(self) -> int:
        """Return how many jobs to lease in one call: half, so that others run while it is asked."""
        return max(self.least, self.places() // 2)

    def worth_another(self) -> int:
        """Return how many free places are worth a call while another is under way; 0 for none."""
        places = self.places()
        return places // 2 if places > self.least else 0


def extend_every(lease_seconds: float, held: int) -> float:
    """Return how often to extend: each time tells also who was cancelled, so once a second.

    Of thousands less often, but always with two more chances before the lease is over.
    """
    return min(lease_seconds / 3, max(1.0, held / 1000))


def unknown_after(times: int) -> float:
    """Return how long a job waits, in seconds, whose handler is not here for the n-th time."""
    return min(30.0 * 2.0 ** min(times, 10), 900.0)
