"""Who is next: the higher priority; of equals, each request in its turn and jobs as they came."""

from __future__ import annotations

import pytest
import redis

from conftest import Clock
from engine_support import command_calls, ids, take
from holdfast import NewJob, Queue
from request_support import fill, order, work_off


def letters(queue: Queue, count: int) -> str:
    """Lease in one call; return what they are of, a letter each."""
    return "".join(id[0] for id in ids(queue.lease_many(count, 60)))


def test_a_higher_priority_goes_first_at_the_next_lease(queue: Queue) -> None:
    fill(queue.request("low", priority=20), 3)
    assert order(queue, 1) == "l"
    fill(queue.request("high", priority=80), 2)
    queue.add(b"", id="plain")
    assert order(queue, 9) == "hhpll"


def test_priorities_hold_within_one_call_too(queue: Queue) -> None:
    fill(queue.request("low", priority=20), 3)
    fill(queue.request("high", priority=80), 2)
    queue.add(b"", id="plain")
    queue.add(b"", id="urgent", priority=99)
    queue.add(b"", id="never mind", priority=0)
    assert letters(queue, 20) == "uhhplllnm"[:8]


@pytest.mark.parametrize("at_once", [True, False])
def test_equal_requests_take_exact_turns(queue: Queue, at_once: bool) -> None:
    fill(queue.request("A"), 10)
    fill(queue.request("B"), 10)
    assert (letters if at_once else order)(queue, 7) == "ABABABA"
    assert (letters if at_once else order)(queue, 4) == "BABA"
    # The next call goes on where this one ended.
    assert (order if at_once else letters)(queue, 7) == "BABABAB"


FIVE = "ABCDE"


@pytest.mark.parametrize(
    ("count", "given"),
    [
        (1, "A"),
        (7, "ABCDEAB"),
        (8, "AABBCCDD"),
        (11, "AABBCCDDEEA"),
        (12, "AAABBBCCCDDD"),
        (15, "AAABBBCCCDDDEEE"),
        (16, "AAAABBBBCCCCDDDD"),
        (100, "AAAABBBBCCCCDDDDEEEE" * 5),
    ],
)
def test_a_call_for_many_takes_up_to_four_parts_at_a_time_but_no_more_than_a_quarter(
    queue: Queue, count: int, given: str
) -> None:
    for id in FIVE:
        fill(queue.request(id), 30)
    leases = queue.lease_many(count, 60)
    assert "".join(lease.id[0] for lease in leases) == given
    # The parts of each come in their order, and the next call goes on where this one ended.
    for id in FIVE:
        of_one = [lease.id for lease in leases if lease.id[0] == id]
        assert of_one == [f"{id}/{n}" for n in range(len(of_one))]
    following = FIVE[(FIVE.index(given[-1]) + 1) % 5]
    assert order(queue, 1) == following


def test_a_call_for_one_takes_one_part_after_a_call_for_many_too(queue: Queue) -> None:
    for id in "AB":
        fill(queue.request(id), 30)
    assert letters(queue, 20) == "AAAABBBBAAAABBBBAAAA"
    assert order(queue, 6) == "BABABA"


def test_several_parts_at_a_time_pass_no_limit(queue: Queue) -> None:
    a = fill(queue.request("A", limit=3), 9)
    fill(queue.request("B", limit=5), 9)
    fill(queue.request("C"), 9)
    assert letters(queue, 40) == "AAABBBBCCCCBCCCCC"
    a.set_limit(5)
    assert letters(queue, 40) == "AA"


def test_several_parts_at_a_time_come_after_no_lower_priority(queue: Queue) -> None:
    fill(queue.request("A", priority=60), 5)
    fill(queue.request("B", priority=60), 2)
    fill(queue.request("C", priority=40), 5)
    queue.add_many([NewJob(b"", id="x", priority=60), NewJob(b"", id="y")])
    assert letters(queue, 40) == "AAAABBxAyCCCCC"


def test_plain_jobs_that_are_there_come_between_several_parts_at_a_time(queue: Queue) -> None:
    fill(queue.request("A"), 9)
    queue.add_many([NewJob(b"", id=id) for id in "xyz"])
    assert letters(queue, 16) == "AAAAxyzAAAAA"


def test_a_group_gives_several_jobs_at_a_time_too_but_only_of_one_priority(queue: Queue) -> None:
    fill(queue.request("A"), 6)
    queue.add_many(NewJob(b"", id=f"g{n}", group="g") for n in range(6))
    queue.add_many(NewJob(b"", id=f"h{n}", group="h", priority=90 - n // 2) for n in range(4))
    fill(queue.request("B", priority=89), 2)
    given = ids(queue.lease_many(40, 60))
    assert "".join(id[0] for id in given) == "hhBBhhAAAAggggAAgg"
    assert [id for id in given if id[0] in "gh"] == [
        *(f"h{n}" for n in range(4)),
        *(f"g{n}" for n in range(6)),
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_three_requests_take_exact_turns_and_their_parts_come_in_order(
    queue: Queue, at_once: bool
) -> None:
    for id in "ABC":
        fill(queue.request(id), 4)
    counts = (7, 5) if at_once else (1,) * 12
    leases = [lease for count in counts for lease in queue.lease_many(count, 60)]
    assert ids(leases) == [f"{id}/{n}" for n in range(4) for id in "ABC"]


def test_turns_do_not_depend_on_who_asks_for_how_many(queue: Queue, other: Queue) -> None:
    for id in "ABC":
        fill(queue.request(id), 30)
    asked = [1, 4, 2, 7, 1, 1, 7, 3, 5, 6, 7, 4, 7, 2, 7, 7, 1, 7, 7, 4]
    given = "".join(letters((queue, other)[n % 2], count) for n, count in enumerate(asked))
    assert given == "ABC" * 30


def test_a_request_that_comes_later_gets_its_turn_behind_its_equals(queue: Queue) -> None:
    fill(queue.request("A"), 6)
    fill(queue.request("B"), 6)
    assert order(queue, 3) == "ABA"
    fill(queue.request("C"), 6)
    assert order(queue, 6) == "BACBAC"


def test_a_turn_is_not_lost_by_being_empty_for_a_while(queue: Queue) -> None:
    empty = fill(queue.request("A"), 1, seal=False)
    fill(queue.request("B"), 6)
    assert order(queue, 3) == "ABB"
    empty.add(b"")
    empty.add(b"")
    assert order(queue, 4) == "BABA"


def test_a_shorter_request_does_not_stop_the_turns_of_the_others(queue: Queue) -> None:
    fill(queue.request("A"), 1)
    fill(queue.request("B"), 4)
    fill(queue.request("C"), 2)
    assert letters(queue, 7) == "ABCBCBB"


@pytest.mark.parametrize("at_once", [True, False])
def test_plain_jobs_stand_between_as_they_came(queue: Queue, at_once: bool) -> None:
    """A request is in line with them: it gave a part, so it is behind those who are there."""
    queue.add(b"", id="1")
    fill(queue.request("A"), 3)
    queue.add(b"", id="2")
    fill(queue.request("B"), 3)
    queue.add(b"", id="3")
    give = letters if at_once else order
    assert give(queue, 7) + give(queue, 2) == "1A2B3ABAB"


def test_a_plain_job_that_comes_while_requests_take_turns_has_its_turn(queue: Queue) -> None:
    fill(queue.request("A"), 10)
    fill(queue.request("B"), 10)
    assert order(queue, 3) == "ABA"
    queue.add_many([NewJob(b"", id="x"), NewJob(b"", id="y")])
    assert order(queue, 5) == "BAxyB"


def test_plain_jobs_are_first_come_first_served_beside_requests(queue: Queue) -> None:
    fill(queue.request("A"), 5)
    for n in range(20):
        queue.add(b"", id=f"{n}")
    leased = [lease.id for _ in range(5) for lease in queue.lease_many(5, 60)]
    assert [id for id in leased if "/" not in id] == [f"{n}" for n in range(20)]
    assert [id for id in leased if "/" in id] == [f"A/{n}" for n in range(5)]


def test_a_full_request_takes_its_turn_when_it_has_a_place_again(queue: Queue) -> None:
    fill(queue.request("A", limit=1), 3)
    fill(queue.request("B"), 9)
    first = take(queue)
    assert order(queue, 3) == "BBB"
    queue.complete(first)
    assert order(queue, 4) == "BABB"


def test_another_priority_is_effective_at_once(queue: Queue) -> None:
    a, b = fill(queue.request("A"), 9), fill(queue.request("B"), 9)
    assert order(queue, 2) == "AB"
    b.set_priority(51)
    assert b.status().priority == 51
    assert order(queue, 2) == "BB"
    a.set_priority(99)
    assert order(queue, 2) == "AA"
    b.set_priority(99)
    assert letters(queue, 4) in ("ABAB", "BABA")
    a.set_priority(0)
    queue.add(b"", id="plain", priority=1)
    b.set_priority(0)
    assert order(queue, 1) == "p"


def test_a_priority_that_is_changed_while_it_is_full_holds_afterwards(queue: Queue) -> None:
    a = fill(queue.request("A", limit=1), 2)
    held = take(queue)
    fill(queue.request("B", priority=60), 1)
    a.set_priority(70)
    queue.complete(held)
    assert order(queue, 2) == "AB"


def test_a_priority_that_is_changed_before_there_are_parts_holds(queue: Queue) -> None:
    a = queue.request("A")
    a.open()
    a.set_priority(60)
    fill(queue.request("B"), 1)
    fill(a, 1)
    assert order(queue, 2) == "AB"


def test_the_priority_of_a_part_does_not_raise_its_request(queue: Queue) -> None:
    fill(queue.request("A"), 2)
    low = queue.request("low", priority=10)
    low.open()
    low.add(b"", priority=99)
    assert order(queue, 3) == "AAl"


def test_a_part_that_comes_back_has_its_place_in_the_request(queue: Queue, clock: Clock) -> None:
    """Released or lapsed at its place, retried behind the others."""
    fill(queue.request("r", limit=1), 4)
    queue.release(take(queue))
    assert take(queue, 30).id == "r/0"
    clock.advance(30)
    queue.tidy(force=True)
    queue.retry(take(queue), error="why", after=0)
    assert work_off(queue) == ["r/1", "r/2", "r/3", "r/0"]


def test_a_queue_may_put_parts_that_come_back_to_the_back(queue: Queue, clock: Clock) -> None:
    back = Queue(queue.name, queue.server, requeue="back", clock=clock)
    fill(queue.request("r", limit=1), 3)
    back.release(take(back))
    assert work_off(queue) == ["r/1", "r/2", "r/0"]


def test_groups_take_turns_with_requests_and_with_each_other(queue: Queue) -> None:
    fill(queue.request("A"), 3)
    queue.add_many([NewJob(b"", id=f"g{n}", group="g") for n in range(3)])
    queue.add_many([NewJob(b"", id=f"h{n}", group="h") for n in range(3)])
    assert letters(queue, 4) == "AghA"
    assert order(queue, 5) == "ghAgh"


@pytest.mark.parametrize("at_once", [True, False])
def test_jobs_of_a_group_have_priorities_of_their_own(queue: Queue, at_once: bool) -> None:
    """Beside jobs of no group and parts of requests."""
    queue.add(b"", id="low", group="g", priority=10)
    queue.add(b"", id="high", group="g", priority=90)
    queue.add(b"", id="middle", group="g")
    fill(queue.request("A", priority=70), 1)
    queue.add(b"", id="plain", priority=20)
    assert (letters if at_once else order)(queue, 9) == "hAmpl"
    queue.add(b"", id="x", group="g", priority=30)
    queue.add(b"", id="y", priority=40)
    queue.add(b"", id="x2", group="g", priority=50)
    assert order(queue, 9) == "xyx"


def test_who_gave_nothing_as_it_did_not_fit_has_its_turn_still(queue: Queue) -> None:
    big = b"x" * (5 * 1024 * 1024)
    for id in "ABC":
        with queue.request(id) as request:
            request.add_many([big] * 2)
    assert [letters(queue, count) for count in (2, 3, 9, 2, 1, 9)] == [*"ABCABC"]


def test_starving_is_a_choice(queue: Queue) -> None:
    """Of unequal priorities the higher goes first; a limit leaves workers to the others."""
    fill(queue.request("high", priority=99, limit=2), 100)
    fill(queue.request("low", priority=1), 3)
    assert letters(queue, 5) == "hhlll"


def test_however_many_requests_a_call_meets_they_are_read_and_written_at_once(
    queue: Queue, client: redis.Redis
) -> None:
    def commands_for(requests: int) -> dict[str, int]:
        queue.delete()
        for number in range(requests):
            fill(queue.request(f"r{number}"), 8)
        done = queue.lease_many(4 * requests, 60)  # The last of each, so turns are taken away.
        before = {name: command_calls(client, name) for name in names}
        assert len(queue.lease_many(4 * requests, 60, complete=done)) == 4 * requests
        return {name: command_calls(client, name) - before[name] for name in names}

    names = ("hget", "hmget", "hset", "hdel", "zadd", "zrem", "zrange")
    few, many = commands_for(20), commands_for(60)
    assert many.pop("zrange") - few.pop("zrange") == 40  # The next part of each is looked up.
    assert many == few


def test_a_call_for_many_looks_up_no_more_requests_than_it_needs(
    queue: Queue, client: redis.Redis
) -> None:
    for number in range(60):
        fill(queue.request(f"r{number}"), 5)
    queue.lease(60)
    before = {name: command_calls(client, name) for name in ("zrange", "hget")}
    assert len(queue.lease_many(100, 60)) == 100
    made = {name: command_calls(client, name) - count for name, count in before.items()}
    # The ready jobs, the turns, and the parts of 25 requests; the caller.
    assert made["zrange"] == 2 + 25
    assert made["hget"] == 1
