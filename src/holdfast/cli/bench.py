"""`holdfast bench`: measure a server's speed in a few seconds.

It measures the user's own server with one client. Many clients are faster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

import click

from holdfast.cli.options import duration, examples, json_option, opened, url_option
from holdfast.cli.text import CLEAR_LINE, can_draw, draw, emit, progress_bar, table
from holdfast.client.sync.queue import Queue
from holdfast.codec import new_id

PAYLOAD: Final = b"x" * 100
BULK: Final = 1000
BATCH: Final = 100
MOST_JOBS: Final = 500_000


@dataclass(frozen=True)
class Measured:
    """The speed and latency of one kind of call."""

    what: str
    jobs_per_second: float | None
    median_ms: float
    p99_ms: float
    calls: int


@click.command(epilog=examples("bench", "bench --url redis://localhost:6379 --seconds 10 --json"))
@url_option
@click.option(
    "--seconds",
    type=duration,
    metavar="DURATION",
    default=6.0,
    help="About how long to measure; 6s by default.",
)
@json_option
def bench(url: str | None, seconds: float, as_json: bool) -> None:
    """Measure a server's speed, in a few seconds.

    Uses one client and 100-byte payloads, in a queue that is deleted at the end.
    """
    if not 0.4 <= seconds <= 600:
        raise click.BadParameter("should be between 0.4 s and 10 min", param_hint="--seconds")
    queue = Queue(f"holdfast bench {new_id()}", opened(url))
    each = seconds / len(_STEPS)
    found: list[Measured] = []
    live = can_draw(sys.stderr)
    try:
        queue.add(PAYLOAD)  # Load the scripts before measuring.
        queue.lease_many(1, 60, complete=queue.lease_many(1, 60))
        for number, (what, step, jobs) in enumerate(_STEPS):
            if live:
                bar = progress_bar(number, len(_STEPS), 20)
                draw(f"{CLEAR_LINE}{bar} {what}", err=True)
            found.append(_measure(what, lambda step=step: step(queue), jobs, each))  # type: ignore[misc]
    finally:
        if live:
            draw(CLEAR_LINE, err=True)
        queue.delete()
    if as_json:
        emit([asdict(measured) for measured in found])
        return
    table(
        ("", "jobs/s", "median ms", "p99 ms", "calls"),
        [
            (
                measured.what,
                "" if measured.jobs_per_second is None else f"{measured.jobs_per_second:,.0f}",
                f"{measured.median_ms:.2f}",
                f"{measured.p99_ms:.2f}",
                f"{measured.calls:,}",
            )
            for measured in found
        ],
        right=("jobs/s", "median ms", "p99 ms", "calls"),
    )


def _measure(what: str, step: Callable[[], int], jobs: bool, seconds: float) -> Measured:
    """Time repeated calls of `step`, which returns how many jobs it moved: 0 when none are left."""
    took: list[float] = []
    moved = 0
    begun = time.perf_counter()
    while (before := time.perf_counter()) - begun < seconds or not took:
        some = step()
        took.append(time.perf_counter() - before)
        moved += some
        if not some or moved >= MOST_JOBS:
            break
    total = time.perf_counter() - begun
    took.sort()
    return Measured(
        what,
        moved / total if jobs else None,
        took[len(took) // 2] * 1000,
        took[len(took) * 99 // 100] * 1000,
        len(took),
    )


def _look(queue: Queue) -> int:
    queue.counts()
    return 1


def _add_one(queue: Queue) -> int:
    queue.add(PAYLOAD)
    return 1


def _add_bulk(queue: Queue) -> int:
    return len(queue.add_many([PAYLOAD] * BULK))


def _work(queue: Queue) -> int:
    leases = queue.lease_many(BATCH, 60)
    return sum(queue.complete_many(leases))


_STEPS: Final[tuple[tuple[str, Callable[[Queue], int], bool], ...]] = (
    ("a look (counts), one round trip", _look, False),
    ("add, one by one", _add_one, True),
    (f"add, {BULK} at a time", _add_bulk, True),
    (f"lease and complete, {BATCH} at a time", _work, True),
)
