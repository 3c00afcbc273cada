"""How long to wait before a job is tried again. Pure: failures in, milliseconds out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.job import Facts


@dataclass(frozen=True, slots=True)
class Handling:
    """How often a failure handler may try, and how long it waits in between."""

    max_failures: int = 100
    """-1 is any number of times."""
    min_backoff_ms: int = 10_000
    max_backoff_ms: int = 900_000


DEFAULT_HANDLING: Final = Handling()

_MOST_DOUBLINGS: Final = 60


def retry_ms(
    facts: Facts,
    spread: Callable[[float, float], float] = random.uniform,
    handling: Handling = DEFAULT_HANDLING,
) -> int:
    """Return how long a job waits after the run that just failed.

    `min(max_backoff, min_backoff · 2^failures)`, and up to a quarter more so that jobs that failed
    together do not come back together; at the longest wait up to a fifth less. Where its failure
    handler failed, that says how long (`handling`).
    """
    if facts.failed_at is not None:
        return _wait(facts.handlings, handling.min_backoff_ms, handling.max_backoff_ms, spread)
    return _wait(facts.failures, facts.min_backoff_ms, facts.max_backoff_ms, spread)


def _wait(times: int, least: int, most: int, spread: Callable[[float, float], float]) -> int:
    wait = min(most, least * 2 ** min(times, _MOST_DOUBLINGS))
    longest = min(most, wait * 1.25)
    return min(most, round(spread(min(wait, longest * 0.8), longest)))
