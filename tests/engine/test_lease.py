from __future__ import annotations

import pytest

from conftest import Clock
from engine_support import Behind, engine_calls, ids, take
from holdfast import Lease, NewJob, Queue
from holdfast.engine import calls

MIB = 1024 * 1024


def ask_again(queue: Queue) -> float:
    """Lease, and return in how many seconds it is worth asking again."""
    return queue._run(calls.lease("test.1", 30_000, 1)).ask_again


# ---------------------------------------------------------------------- order


def test_there_is_nothing_to_lease_in_an_empty_queue(queue: Queue) -> None:
    assert queue.lease(30) is None
    assert queue.lease_many(1000, 30) == []


def test_jobs_of_one_priority_are_leased_in_the_order_they_were_added(queue: Queue) -> None:
    queue.add_many([NewJob(b"", id=id) for id in "zac"])
    queue.add(b"", id="b")
    assert ids(take(queue) for _ in range(4)) == ["z", "a", "c", "b"]


def test_a_higher_priority_is_leased_sooner(queue: Queue) -> None:
    for priority in (0, 50, 99, 1, 98, 50):
        queue.add(b"%d" % priority, priority=priority)
    assert [int(lease.data) for lease in queue.lease_many(9, 30)] == [99, 98, 50, 50, 1, 0]


def test_delayed_jobs_become_ready_in_the_order_they_are_due(queue: Queue, clock: Clock) -> None:
    for id, delay in {"third": 3, "first": 1, "second": 2}.items():
        queue.add(b"", id=id, delay=delay)
    clock.advance(3)
    queue.add(b"", id="added meanwhile")
    assert ids(queue.lease_many(9, 30)) == ["added meanwhile", "first", "second", "third"]


def test_a_delayed_job_has_its_priority_when_it_is_due(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.add(b"", id="low", priority=10)
    queue.add(b"", id="high", priority=90, delay=1, max_lapses=7)
    queue.add(b"", id="lowest", priority=0, delay=1)
    clock.advance(1)
    leases = queue.lease_many(9, 30)
    assert ids(leases) == ["high", "low", "lowest"]
    assert leases[0].facts.max_lapses == 7
    assert "priority" not in behind.facts("high")


# ------------------------------------------------------------------- the lease


def test_a_leased_job_is_given_to_nobody_else_until_its_lease_lapses(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"", id="a")
    first = take(queue, 2)
    assert queue.counts().leased == 1
    clock.advance(1.999)
    assert queue.lease(2) is None
    clock.advance(0.001)
    second = take(queue, 2)
    assert (second.id, second.lapses) == (first.id, 1)
    assert second.token != first.token


def test_every_lease_call_has_a_token_of_its_own_that_names_the_holder(queue: Queue) -> None:
    queue.add_many([b""] * 3)
    one, two = queue.lease_many(2, 30)
    three = take(queue)
    assert one.token == two.token != three.token
    holders = {lease.token.partition(".")[0] for lease in (one, two, three)}
    assert holders == {queue.server.session.holder}


def test_a_lease_brings_what_the_job_says_about_itself(queue: Queue) -> None:
    queue.add(b"x", id="a", handler="send", timeout=2, max_failures=None, priority=70)
    queue.add(b"y", id="b")
    told, plain = queue.lease_many(2, 30)
    assert (told.facts.handler, told.facts.timeout_ms, told.facts.max_failures) == (
        "send",
        2000,
        -1,
    )
    assert (told.failures, told.lapses) == (0, 0)
    assert plain == Lease("b", b"y", plain.token)


def test_a_lease_can_be_as_long_as_time(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    lease = take(queue, (2**53 - 1) // 1000)
    clock.advance(10**9)
    queue.tidy(force=True)
    assert queue.complete(lease)


def test_the_shortest_lease_is_a_millisecond(queue: Queue, clock: Clock) -> None:
    queue.add(b"")
    take(queue, 1e-9)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).lapses == 1


def test_many_are_leased_in_one_call_and_no_more_than_asked_for(
    queue: Queue, behind: Behind
) -> None:
    queue.add_many(b"%d" % n for n in range(1001))
    made = engine_calls(behind.client)
    leases = queue.lease_many(1000, 30)
    assert engine_calls(behind.client) == made + 1
    assert [lease.data for lease in leases] == [b"%d" % n for n in range(1000)]
    assert (queue.counts().ready, queue.counts().leased) == (1, 1000)


# ------------------------------------------------------------- 8 MB at the most


def test_a_call_grants_at_most_8_mib_and_loses_nothing(queue: Queue) -> None:
    queue.add_many([bytes([n]) * MIB for n in range(20)])
    granted = []
    while leases := queue.lease_many(100, 30):
        granted.append(leases)
    assert [len(leases) for leases in granted] == [8, 8, 4]
    assert [lease.data[:1] for leases in granted for lease in leases] == [
        bytes([n]) for n in range(20)
    ]
    assert all(lease.lapses == 0 for leases in granted for lease in leases)


def test_the_bound_counts_bytes_not_jobs(queue: Queue) -> None:
    queue.add(b"x" * (8 * MIB - 3))
    queue.add_many([b"1", b"2", b"3", b"4"])
    assert [len(lease.data) for lease in queue.lease_many(9, 30)] == [8 * MIB - 3, 1, 1, 1]
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"4"]


def test_the_largest_payload_is_leased_alone(queue: Queue) -> None:
    payload = bytes(range(256)) * (8 * MIB // 256)
    queue.add_many([b"small", payload, b"small"])
    assert [lease.data for lease in queue.lease_many(3, 30)] == [b"small"]
    assert [lease.data for lease in queue.lease_many(3, 30)] == [payload]
    assert [lease.data for lease in queue.lease_many(3, 30)] == [b"small"]


# ------------------------------------------------------- settling in the same call


def test_what_is_done_is_completed_in_the_call_that_leases_more(
    queue: Queue, behind: Behind
) -> None:
    queue.add_many([NewJob(b"", id=id, result_for=60) for id in "abcd"])
    done = queue.lease_many(2, 30)
    made = engine_calls(behind.client)
    more = queue.lease_many(2, 30, complete=[(done[0], b"result"), done[1]])
    assert engine_calls(behind.client) == made + 1
    assert more.completed == [True, True]
    assert ids(more) == ["c", "d"]
    assert behind("HGETALL", "results") == {b"a": b"result"}


def test_a_lost_lease_is_not_completed_on_the_way(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    lost = take(queue, 1)
    clock.advance(1)
    kept = take(queue, 1)
    leases = queue.lease_many(1, 30, complete=[lost, kept, kept])
    assert leases.completed == [False, True, False]
    assert leases == []


def test_a_job_completed_late_is_not_leased_by_the_same_call(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a")
    late = take(queue, 1)
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    leases = queue.lease_many(1, 30, complete=[late])
    assert (leases, leases.completed) == ([], [True])


def test_what_is_done_is_completed_also_when_nothing_is_granted(queue: Queue) -> None:
    queue.add_many([b"", b""])
    done = take(queue)
    queue.pause()
    leases = queue.lease_many(1, 30, complete=[done])
    assert (leases, leases.completed) == ([], [True])
    assert queue.counts().leased == 0


# ------------------------------------------------------------- when to ask again


def test_where_nothing_will_come_up_it_is_worth_asking_in_a_second(queue: Queue) -> None:
    assert ask_again(queue) == 1


def test_it_is_worth_asking_when_the_next_job_is_due(queue: Queue) -> None:
    queue.add(b"", delay=5)
    assert ask_again(queue) == 1
    queue.add(b"", delay=0.25)
    assert ask_again(queue) == 0.25


def test_it_is_worth_asking_when_the_next_lease_lapses(queue: Queue) -> None:
    queue.add_many([b"", b""])
    take(queue, 60)
    take(queue, 0.5)
    assert ask_again(queue) == 0.5


def test_it_is_not_worth_asking_before_holders_had_their_time_to_extend(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"")
    take(queue, 1)
    clock.advance(60)
    assert ask_again(queue) == 1
    clock.advance(4.9)
    assert ask_again(queue) == pytest.approx(0.1)


def test_after_a_grant_it_is_worth_asking_at_once(queue: Queue) -> None:
    queue.add(b"")
    assert ask_again(queue) == 0
