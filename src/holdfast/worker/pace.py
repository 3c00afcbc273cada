"""Decides how many jobs a worker holds: those it can run now, plus some ahead if jobs are short.

Pure. A call costs as much as many short jobs, so short jobs are leased many at a time. A longer job
is leased only when it can start, so it never waits in this worker behind another.
"""

from __future__ import annotations

from typing import Final

MOST_AHEAD: Final = 500
"""A call leases half of this, which occupies the server for a millisecond or two. With more, other
clients would wait."""

MOST_PATIENCE: Final = 0.002
"""The longest that a finished job waits to be settled, in seconds."""

_FORGETTING: Final = 0.1
"""The weight of a new, shorter run in the estimate."""


class Pace:
    """Estimates how long runs take: a longer run counts at once, shorter runs little by little."""

    def __init__(self, concurrency: int, ahead: float, most_at_once: int = 1) -> None:
        self.most_at_once = most_at_once
        """Jobs that one call of a handler runs."""
        self._ahead = ahead
        self._seconds: float | None = None
        self.resize(concurrency)

    def resize(self, concurrency: int) -> None:
        """Change how many run at a time."""
        self._concurrency = concurrency
        self.least = concurrency * self.most_at_once

    def saw(self, seconds: float) -> None:
        """Update the estimate with the duration of a run."""
        known = self._seconds
        if known is None or seconds > known:
            self._seconds = seconds
        else:
            self._seconds = known + (seconds - known) * _FORGETTING

    def slots(self) -> int:
        """Return how many jobs to hold: `ahead` seconds of work, at least what can run at once."""
        if not self._ahead or self._seconds is None:
            return self.least
        worth = self._ahead / max(self._seconds, 1e-6) - 1
        return self.least + max(0, min(MOST_AHEAD, int(self._concurrency * worth)))

    def worth(self, waiting: int) -> float:
        """Return for how many seconds no lease call is needed while `waiting` jobs wait here."""
        if not self._seconds:
            return 0.0
        return min(MOST_PATIENCE, waiting * self._seconds / self._concurrency / 2)

    def per_call(self) -> int:
        """Return how many jobs to lease per call: half, so that the other half runs meanwhile."""
        return max(self.least, self.slots() // 2)

    def worth_another(self) -> int:
        """Return how many free slots justify a second call while one is pending; 0 for never."""
        slots = self.slots()
        return slots // 2 if slots > self.least else 0


def extend_every(lease_seconds: float, held: int) -> float:
    """Return the seconds between extensions: 1, since an extension also reports cancelled jobs.

    With thousands of jobs it is longer, but two more extensions always fit into the lease.
    """
    return min(lease_seconds / 3, max(1.0, held / 1000))


def unknown_after(times: int) -> float:
    """Return the delay, in seconds, of a job whose handler was missing `times` times before."""
    return min(30.0 * 2.0 ** min(times, 10), 900.0)
