"""How many jobs to hold: what can begin at once, and a little more of those that are short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.worker.slots import MOST_AHEAD, MOST_PATIENCE, Pace, extend_every


def pace(*seconds: float, concurrency: int = 4, ahead: float = 0.02, most_at_once: int = 1) -> Pace:
    made = Pace(concurrency, ahead, most_at_once)
    for run in seconds:
        made.saw(run)
    made.update()
    return made


def test_what_is_not_known_yet_is_leased_when_it_can_begin() -> None:
    assert pace().slots == 4
    assert pace(most_at_once=10).slots == 40


def test_short_jobs_are_leased_ahead() -> None:
    assert pace(0.001).slots == 4 + 4 * 19
    assert pace(0.0001).slots == 4 + MOST_AHEAD
    assert pace(0.0).slots == 4 + MOST_AHEAD


def test_long_jobs_are_leased_when_they_can_begin() -> None:
    assert pace(0.02).slots == 4
    assert pace(60).slots == 4


def test_a_long_run_is_believed_at_once_and_forgotten_slowly() -> None:
    learning = pace(*[0.0001] * 100)
    assert learning.slots > 200
    learning.saw(1.0)
    learning.update()
    assert learning.slots == 4
    learning.saw(0.0001)
    learning.update()
    assert learning.slots == 4
    for _ in range(200):
        learning.saw(0.0001)
    learning.update()
    assert learning.slots > 200


def test_a_call_leases_half_of_what_is_held_but_as_many_as_can_begin() -> None:
    assert pace(0.0).per_call == (4 + MOST_AHEAD) // 2
    assert pace(60).per_call == 4
    assert pace(0.0, most_at_once=100).per_call == (400 + MOST_AHEAD) // 2
    assert pace(0.0, most_at_once=200).per_call == 800


def test_the_next_call_waits_a_little_while_there_is_enough_to_do() -> None:
    assert pace(0.001).worth(4) == 0.001 * 4 / 4 / 2
    assert pace(0.001).worth(1000) == MOST_PATIENCE
    assert pace(60).worth(1) == MOST_PATIENCE
    assert pace(0.001).worth(0) == 0
    assert pace().worth(1000) == 0


def test_nothing_is_leased_ahead_where_nobody_wants_it() -> None:
    assert pace(0.0001, ahead=0).slots == 4


@given(
    st.integers(1, 10_000),
    st.floats(0, 3600),
    st.integers(1, 1000),
    st.lists(st.floats(0, 1e9), max_size=20),
)
def test_there_is_always_a_place_for_each_and_never_too_many(
    concurrency: int, ahead: float, most_at_once: int, seconds: list[float]
) -> None:
    learning = pace(*seconds, concurrency=concurrency, ahead=ahead, most_at_once=most_at_once)
    least = concurrency * most_at_once
    assert least <= learning.slots <= least + MOST_AHEAD


@pytest.mark.parametrize(
    ("lease", "held", "seconds"),
    [(15, 1, 1), (15, 1000, 1), (15, 3000, 3), (15, 100_000, 5), (1, 1, 1 / 3), (3600, 1, 1)],
)
def test_leases_are_extended_every_second_and_in_time(
    lease: float, held: int, seconds: float
) -> None:
    assert extend_every(lease, held) == pytest.approx(seconds)
