"""Drivers and readers that die between any two calls: nothing is lost, nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from conftest import Clock
from engine_support import ends_within
from holdfast import Lease, Queue, Row, Staged, WrongState

ROWS = 2300
PARTS = 5


def staged(queue: Queue) -> list[Staged]:
    """Two tasks that count, one that ran twice, and parts of a request."""
    request = queue.request("r")
    request.open()
    write = queue.write("w")
    rows = [Row(b"%d" % n, id=f"{n}") for n in range(ROWS)]
    write.stage(rows[:1500], partition=0, attempt=0)
    parts = [Row(b"", request="r") for _ in range(PARTS)]
    return [
        write.stage(rows[:1500], partition=0, attempt=1),
        write.stage([*rows[1500:], *parts], partition=1, attempt=2),
    ]


def run_all(queue: Queue) -> list[str]:
    done: list[str] = []
    while leases := queue.lease_many(1000, 60):
        assert queue.complete_many(leases) == [True] * len(leases)
        done += [lease.id for lease in leases]
    return sorted(done)


ALL = sorted([*(f"{n}" for n in range(ROWS)), *(f"r/{n}" for n in range(PARTS))])


def every_death(queue: Queue, play: Callable[[int], bool]) -> int:
    """Play with one call more each time, until death comes too late; return how many that was."""
    for most in count():
        over = play(most)
        assert queue.audit() == []
        queue.delete()
        if over:
            return most
    raise AssertionError


@pytest.mark.parametrize("writer", [{}, {"writer": "s", "batch": 3}])
def test_a_driver_that_dies_at_any_call_leaves_all_rows_or_none(
    queue: Queue, other: Queue, clock: Clock, writer: dict[str, Any]
) -> None:
    outcomes = []

    def play(most: int) -> bool:
        winners = staged(queue)
        over = ends_within(queue, most, lambda: queue.write("w").commit(winners, **writer))
        done = run_all(other)
        assert done in ([], ALL)
        outcomes.append(len(done))
        clock.advance(86400 * 2)
        other.tidy(force=True)
        assert other.counts().staged == 0
        return over

    deaths = every_death(queue, play)
    assert deaths >= 6
    assert outcomes == sorted(outcomes), "once it is committed it is committed"
    assert {outcomes[0], outcomes[-1]} == {0, len(ALL)}


def test_a_driver_that_is_followed_commits_every_row_once(queue: Queue, other: Queue) -> None:
    def play(most: int) -> bool:
        winners = staged(queue)
        write = queue.write("w")
        over = ends_within(queue, most, lambda: write.commit(winners, writer="s", batch=3))
        # Another driver takes over, and its tasks run anew.
        again = other.write("w2").stage([b"again"], partition=0, attempt=0)
        before = other.last_batch("s")
        assert other.write("w").commit(winners, writer="s", batch=3).new == (before is None)
        assert not other.write("w2").commit([again], writer="s", batch=3)
        assert run_all(other) == ALL
        return over

    every_death(queue, play)


@pytest.mark.parametrize("how", ["settle", "lapse"])
def test_a_reader_that_dies_at_any_call_loses_no_job_and_reads_the_same_again(
    queue: Queue, other: Queue, clock: Clock, how: str
) -> None:
    def play(most: int) -> bool:
        queue.add_many([Row(b"%d" % n, id=f"{n}", max_lapses=0) for n in range(ROWS)])
        reader = queue.reader("r")
        reader.open()
        seen: dict[int, list[Lease]] = {}

        def life() -> None:
            claim = reader.claim(0, 1800)
            for chunk in range(len(claim.chunks)):
                seen[chunk] = reader.read(0, chunk)
            reader.settle(1)

        over = ends_within(queue, most, life)
        newer = other.reader("r")
        opened = newer.open()
        if how == "lapse":
            clock.advance(3600)
            other.tidy(force=True)
            assert other.counts().claims == 0
        elif opened.settled == 0:
            assert newer.claim(0, 1800).jobs == 1800
            for chunk, leases in seen.items():
                with suppress(WrongState):  # It is settled.
                    assert newer.read(0, chunk) == leases
            newer.settle(1)
        settled = ROWS - other.counts().ready
        assert settled in (0, 1000, 1800)
        assert len(run_all(other)) == ROWS - settled
        assert other.counts().leased == 0
        return over

    assert every_death(queue, play) >= 6
