"""Who gets a place: by weight, by strict order, and never more than there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.worker import slots as places_module
from holdfast.worker.slots import Share, Slots
from worker.support import NEVER


@pytest.fixture(autouse=True, scope="module")
def _time_is_set_by_hand() -> Iterator[None]:
    """However long a test takes, nobody waits for too long before it says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places_module, "LEND_SECONDS", NEVER)
        patch.setattr(places_module, "FIRST_WORD_SECONDS", NEVER)
        yield


class Roused:
    """Counts how often each share was roused."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def join(self, slots: Slots, name: str, weight: int = 1) -> Share:
        share = slots.join(weight, lambda: self.times.update([name]))
        share.has_answered = True
        return share


def shares(slots: Slots, *weights: int) -> list[Share]:
    """Let some join, whose servers have answered."""
    joined = [slots.join(weight, lambda: None) for weight in weights]
    for share in joined:
        share.has_answered = True
    return joined


def take(share: Share, most: int = 1000) -> int:
    asking = share.ask(most)
    return asking.count if asking else 0


def test_the_only_one_who_is_hungry_gets_all() -> None:
    slots = Slots(10, strict=False)
    first, second = shares(slots, 1, 5)
    first.want_more()
    assert (take(first), take(second), slots.free) == (10, 0, 0)


def test_what_is_given_is_taken_once() -> None:
    slots = Slots(3, strict=False)
    [share] = shares(slots, 1)
    share.want_more()
    assert take(share) == 3
    assert take(share) == 0
    share.free(2)
    assert take(share) == 2


def test_what_is_not_taken_stays_given() -> None:
    slots = Slots(5, strict=False)
    [share] = shares(slots, 1)
    share.want_more()
    assert (take(share, 3), share.given) == (3, 2)
    assert (take(share, 3), share.given) == (2, 0)


def test_nobody_gets_anything_while_nobody_is_hungry() -> None:
    slots = Slots(3, strict=False)
    one, other = shares(slots, 1, 1)
    slots.add(2)
    assert (take(one), take(other), slots.free) == (0, 0, 5)


def test_those_who_are_hungry_share_by_their_weights() -> None:
    slots = Slots(0, strict=False)
    three = shares(slots, 1, 2, 7)
    for share in three:
        share.want_more()
    slots.add(100)
    assert [take(share) for share in three] == [10, 20, 70]


def test_turns_are_spread_evenly_also_one_by_one() -> None:
    slots = Slots(0, strict=False)
    a, b = shares(slots, 3, 1)
    a.want_more()
    b.want_more()
    order = ""
    for _ in range(12):
        slots.add(1)
        order += "a" * take(a) + "b" * take(b)
    assert sorted(order) == sorted("a" * 9 + "b" * 3)
    assert "bb" not in order
    assert "aaaa" not in order


def test_who_had_enough_leaves_the_rest_to_others() -> None:
    slots = Slots(8, strict=False)
    a, b = shares(slots, 1, 1)
    a.want_more()
    assert take(a) == 8
    b.want_more()
    a.wants_more = False
    a.free(5)
    assert (take(a), take(b)) == (0, 5)


def test_in_strict_order_the_first_who_is_hungry_gets_all() -> None:
    slots = Slots(0, strict=True)
    a, b, c = shares(slots, 1, 100, 1)
    b.want_more()
    c.want_more()
    slots.add(4)
    assert (take(a), take(b), take(c)) == (0, 4, 0)
    a.want_more()
    slots.add(2)
    assert (take(a), take(b), take(c)) == (2, 0, 0)
    a.wants_more = False
    b.wants_more = False
    slots.add(3)
    assert (take(a), take(b), take(c)) == (0, 0, 3)


def test_more_places_are_given_out_and_fewer_vanish_as_they_become_free() -> None:
    slots = Slots(4, strict=False)
    [share] = shares(slots, 1)
    share.want_more()
    assert take(share) == 4
    slots.resize(6)
    assert take(share) == 2
    slots.resize(3)
    share.free(3)
    assert take(share) == 0
    share.free(2)
    assert take(share) == 2
    slots.resize(3)
    assert take(share) == 0


def test_who_leaves_gives_back_what_was_not_taken() -> None:
    slots = Slots(0, strict=False)
    a, b = shares(slots, 1, 1)
    a.want_more()
    b.want_more()
    slots.add(6)
    a.leave()
    assert take(b) == 6
    slots.add(2)
    assert (take(a), take(b)) == (0, 2)
    a.leave()
    a.want_more()
    slots.add(2)
    assert (take(a), take(b)) == (0, 2)


def test_who_comes_later_has_a_share_too() -> None:
    slots = Slots(4, strict=False)
    [a] = shares(slots, 1)
    a.want_more()
    assert take(a) == 4
    b = slots.join(1, lambda: None)
    b.want_more()
    a.free(4)
    assert (take(a), take(b)) == (2, 2)


def test_who_rests_gives_back_what_was_not_taken() -> None:
    slots = Slots(0, strict=False)
    a, b = shares(slots, 1, 1)
    a.want_more()
    b.want_more()
    slots.add(6)
    a.rest()
    assert (take(a), take(b)) == (0, 6)
    slots.add(1)
    assert (take(a), take(b)) == (0, 1)
    a.want_more()
    slots.add(2)
    assert (take(a), take(b)) == (1, 1)


def test_the_places_of_one_who_is_not_answered_are_lent_to_others() -> None:
    slots = Slots(4, strict=False)
    a, b = shares(slots, 1, 1)
    a.want_more()
    first, second = a.ask(3), a.ask()
    assert first
    assert second
    b.want_more()
    slots.lend()
    assert take(b) == 0
    first.since -= NEVER
    slots.lend()
    assert take(b) == 3
    second.since -= NEVER
    slots.lend()
    assert take(b) == 1
    slots.lend()
    assert (take(a), take(b)) == (0, 0)
    a.answered(first)
    a.answered(second, used=1)
    assert (take(a), take(b), slots.free) == (0, 0, 0)
    b.free(4)
    a.free(1)
    assert (take(a), take(b), slots.free) == (0, 4, 0)


def test_the_places_of_one_who_was_answered_are_not_lent() -> None:
    slots = Slots(4, strict=False)
    a, b = shares(slots, 1, 1)
    a.want_more()
    asking = a.ask()
    assert asking
    asking.since -= NEVER
    a.answered(asking, used=4)
    b.want_more()
    slots.lend()
    assert take(b) == 0


def test_a_call_that_waits_for_work_keeps_slots_that_nobody_is_lent() -> None:
    slots = Slots(4, strict=False)
    [a] = shares(slots, 1)
    asking = a.reserve(10, spare=1)
    assert asking
    assert (asking.count, slots.free) == (3, 1)
    a.want_more()
    assert take(a) == 1
    assert not slots.are_wanted()  # They are not taken.
    slots.lend()
    assert take(a) == 0
    a.answered(asking, used=1)
    assert take(a) == 2
    assert slots.are_wanted()


def test_no_call_waits_in_the_last_slot_if_that_is_spared() -> None:
    slots = Slots(1, strict=False)
    [a] = shares(slots, 1)
    assert a.reserve(1, spare=1) is None
    assert slots.free == 1
    assert a.reserve(1, spare=0)
    assert slots.free == 0


def test_those_who_got_something_are_roused_and_nobody_else() -> None:
    slots, roused = Slots(2, strict=False), Roused()
    a, b = roused.join(slots, "a"), roused.join(slots, "b")
    assert roused.times == {}
    a.want_more()
    assert roused.times == {"a": 1}
    b.want_more()
    assert roused.times == {"a": 1}
    take(a)
    a.wants_more = False
    a.free(2)
    assert roused.times == {"a": 1, "b": 1}
    assert take(b) == 2


# ------------------------------------------------------------------ the first word


@pytest.mark.parametrize("strict", [True, False])
def test_nothing_is_given_before_all_have_said_whether_they_have_work(strict: bool) -> None:
    slots = Slots(12, strict=strict)
    a, b, c = (slots.join(weight, lambda: None) for weight in (3, 2, 1))
    c.want_more()
    assert c.given == 0
    b.want_more()
    assert (b.given, c.given) == (0, 0)
    a.want_more()
    assert [take(share) for share in (a, b, c)] == ([12, 0, 0] if strict else [6, 4, 2])


def test_who_does_not_answer_is_not_waited_for_long() -> None:
    slots = Slots(4, strict=True)
    _lost, b = (slots.join(1, lambda: None) for _ in range(2))
    b.want_more()
    slots.lend()
    assert b.given == 0
    b.waits_until -= NEVER
    slots.lend()
    assert take(b) == 4


def test_who_leaves_is_not_waited_for() -> None:
    slots = Slots(4, strict=True)
    a, b = (slots.join(1, lambda: None) for _ in range(2))
    b.want_more()
    a.leave()
    assert take(b) == 4


def test_who_comes_back_waits_for_others_that_were_lost_too() -> None:
    """Those that were never lost go on meanwhile."""
    slots = Slots(0, strict=True)
    a, b, c = shares(slots, 1, 1, 1)
    for share in (a, b):
        share.rest()
    b.want_more()
    c.want_more()
    slots.add(2)
    assert (take(b), take(c)) == (0, 2)
    a.want_more()
    slots.add(2)
    assert (take(a), take(b), take(c)) == (2, 0, 0)


def test_who_comes_back_makes_others_that_were_lost_try_again() -> None:
    slots, roused = Slots(2, strict=False), Roused()
    a, b = roused.join(slots, "a"), roused.join(slots, "b")
    a.rest()
    b.rest()
    b.want_more()
    assert roused.times == {"a": 1}
    a.want_more()
    assert roused.times == {"a": 2, "b": 1}


def test_who_joins_waits_for_nobody_that_has_spoken() -> None:
    slots = Slots(2, strict=False)
    [a] = shares(slots, 1)
    b = slots.join(1, lambda: None)
    a.want_more()
    assert a.given == 2
    b.want_more()
    slots.add(2)
    assert b.given == 1


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from("hetfrl"), st.integers(0, 3), st.integers(0, 12))),
)
def test_there_are_never_more_places_taken_than_there_are(
    strict: bool, weights: list[int], steps: list[tuple[str, int, int]]
) -> None:
    total = most = 10
    slots = Slots(total, strict=strict)
    joined = [slots.join(weight, lambda: None) for weight in weights]
    taken = [0] * len(joined)
    for step, who, number in steps:
        at = who % len(joined)
        match step:
            case "h":
                joined[at].want_more()
            case "e":
                joined[at].wants_more = False
            case "t":
                taken[at] += take(joined[at])
            case "f":
                freed = min(number, taken[at])
                taken[at] -= freed
                joined[at].free(freed)
            case "r":
                total = number
                slots.resize(total)
                most = max(total, sum(taken) + sum(share.given for share in joined))
            case "l":
                joined[at].leave()
        given_out = sum(taken) + sum(share.given for share in joined)
        assert given_out + slots.free == total
        assert given_out <= most
