"""redis-work-queue on Holdfast: what it does can be done here, and its bugs are not ours."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

import pytest
from redis.crc import key_slot

from conftest import Clock
from engine_support import Behind, command_calls, engine_calls, ids, take
from holdfast import (
    InvalidArgument,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    Server,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.engine.keys import queue_keys
from proxy import Kind, Proxy, Step, cut_reply, cut_request
from seeds.crowd import Work, race, until
from seeds.looks import outcome_of, shown
from support import DEADLINE, wait_until

BOOKKEEPING = {"meta", "calls", "wake"}
"""What a queue without jobs may have: a few bytes, however many jobs it had."""

CUTS = [*map(cut_request, (0, 0.1, 0.5, 0.9, -1)), cut_reply(0), cut_reply(0.5)]
"""Where a process can die between sending a call and hearing the answer."""


def lapse(queue: Queue, clock: Clock, seconds: float = 1) -> None:
    """Lease whatever is ready, and let all of it lapse."""
    queue.lease_many(1000, seconds)
    clock.advance(seconds)


# ----------------------------------------------------------------------- types and adding


def test_02_a_job_without_an_id_gets_one_and_text_becomes_utf8(queue: Queue) -> None:
    """An id is the caller's, or made and told; str payloads are stored as UTF-8."""
    made, again, named = queue.add("grüß"), queue.add("grüß"), queue.add(b"x", id="mine")
    assert len({made.id, again.id, named.id}) == 3
    assert named.id == "mine"
    assert queue.data(made.id) == "grüß".encode()


def test_03_anything_else_becomes_compact_json(queue: Queue) -> None:
    """Lists and dicts need no helper: they are written as JSON without spaces."""
    queue.add([1, 2, {"a": None}])
    lease = take(queue)
    assert lease.data == b'[1,2,{"a":null}]'
    assert lease.json() == [1, 2, {"a": None}]
    queue.add(json="[1,2,3]")
    assert take(queue).json() == "[1,2,3]"


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", bytes(range(256)) * 500])
def test_07_a_payload_is_any_bytes(queue: Queue, payload: bytes) -> None:
    """What was added is what is leased, byte by byte."""
    queue.add(payload)
    assert take(queue).data == payload


def test_08_nothing_remains_of_completed_jobs(queue: Queue, behind: Behind) -> None:
    """After the last job only bounded bookkeeping is left, and after delete not even that."""
    queue.add_many(range(300), priority=70, max_lapses=5)
    assert all(queue.complete_many(queue.lease_many(300, 30)))
    assert behind.everything().keys() <= BOOKKEEPING
    queue.delete()
    assert behind.everything() == {}


def test_10_an_id_without_a_payload_is_no_job(queue: Queue, behind: Behind) -> None:
    """It is passed over, and removed where it is met."""
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    behind("HDEL", "jobs", "a", "c")
    assert shown(queue, "b").state == "ready"
    assert ids(queue.lease_many(9, 30)) == ["b"]
    assert queue.counts().ready == 0


def test_11_a_payload_that_no_set_has_is_still_a_job(queue: Queue, behind: Behind) -> None:
    """It is there, nobody else can take its id, and repair brings it back."""
    queue.add(b"x", id="lost")
    behind("ZREM", "ready", "lost")
    assert not queue.add(b"y", id="lost")
    assert [done.id for done in queue.repair()] == ["lost"]
    assert take(queue).data == b"x"


def test_12_an_id_that_is_there_is_left_alone(queue: Queue) -> None:
    """Waiting or leased: the receipt is false, the first payload stays, nothing is queued twice."""
    assert queue.add(b"first", id="a")
    assert not queue.add(b"second", id="a")
    lease = take(queue)
    third = queue.add(b"third", id="a")
    assert (third.created, third.state) == (False, "leased")
    assert lease.data == queue.data("a") == b"first"
    assert (queue.counts().ready, queue.counts().leased) == (0, 1)


def test_15_no_worker_sees_an_id_before_its_payload(live_queue: Queue) -> None:
    """Workers that wait for jobs get each one whole, the moment it is added."""
    names = [f"job-{n}" for n in range(150)]
    work = Work(live_queue, len(names))

    def produce() -> None:
        for name in names:
            live_queue.add(name, id=name)

    race(work.work, work.work, produce)
    assert all(lease.data == lease.id.encode() for lease in work.leased)
    assert sorted(work.completed) == sorted(names)


def test_16_first_in_first_out(queue: Queue) -> None:
    """Jobs are leased in the order in which they were added."""
    for id in "zac":
        queue.add(b"", id=id)
    assert [take(queue).id for _ in range(3)] == ["z", "a", "c"]


# -------------------------------------------------------------------------------- leasing


@pytest.mark.parametrize("seconds", [2, 0.5, timedelta(milliseconds=1500)])
def test_18_a_lease_is_for_as_long_as_was_asked(
    queue: Queue, clock: Clock, seconds: float | timedelta
) -> None:
    """In whole seconds, in parts of one, or as a timedelta; with or without waiting."""
    queue.add(b"", id="a")
    lease = queue.lease(seconds, wait=1)
    assert lease is not None
    told = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    assert shown(queue, "a").at == clock.ms / 1000 + told


def test_19_a_lease_moves_a_job_and_brings_its_payload(queue: Queue) -> None:
    """One less waits, one more is leased; the holder is known by the token."""
    queue.add_many([NewJob(b"1", id="a"), b"2"])
    lease = take(queue)
    assert (lease.id, lease.data, lease.holder) == ("a", b"1", queue.holder)
    assert (queue.counts().ready, queue.counts().leased) == (1, 1)


def test_20_an_empty_queue_is_left_at_once_or_waited_for(queue: Queue, behind: Behind) -> None:
    """Not at all, for a given time, or for ever."""
    asked = command_calls(behind.client, "blpop")
    assert queue.lease(30) is None
    assert command_calls(behind.client, "blpop") == asked

    begun = time.monotonic()
    assert queue.lease(30, wait=0.1) is None
    assert time.monotonic() - begun >= 0.1

    def add_when_somebody_waits() -> None:
        clients = behind.client
        wait_until(lambda: clients.info("clients")["blocked_clients"], "a sleeper")
        queue.add(b"x")

    lease, _ = race(lambda: queue.lease(30, wait=float("inf")), add_when_somebody_waits)
    assert lease is not None


def test_22_what_is_not_completed_in_time_goes_to_another_worker(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """The same id and the same payload, without anybody cleaning."""
    queue.add(b"x", id="a")
    first = take(queue, 5)
    assert other.lease(5) is None
    clock.advance(5)
    second = take(other, 5)
    assert (second.id, second.data) == (first.id, first.data)
    assert second.holder == other.holder != first.holder


def test_23_two_may_run_a_job_whose_lease_was_too_short(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """Nobody stops the first, but it can find out, and only the second can complete."""
    queue.add(b"x")
    slow = take(queue, 1)
    clock.advance(1)
    quick = take(other, 1)
    assert slow.id == quick.id
    assert not queue.complete(slow)
    assert other.complete(quick)


def test_24_to_abandon_a_job_is_to_lease_the_next_one(queue: Queue, clock: Clock) -> None:
    """Nothing has to be called; the job comes back when its lease has lapsed."""
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    assert take(queue, 1).id == "a"
    assert queue.complete(take(queue, 1))
    assert queue.lease(1) is None
    clock.advance(1)
    assert take(queue).id == "a"


# ----------------------------------------------------------------------------- completing


def test_25_of_many_who_complete_exactly_one_is_told_so(queue: Queue, other: Queue) -> None:
    """With the same lease, or by force and without one."""
    for _ in range(25):
        queue.add(b"", id="a")
        lease = take(queue)
        assert (
            race(
                partial(queue.complete, lease),
                partial(other.complete, lease),
                partial(other.complete, "a", force=True),
            ).count(True)
            == 1
        )
    assert queue.counts().leased == 0


def test_26_a_completed_job_is_never_given_out_again(queue: Queue, clock: Clock) -> None:
    """Whatever is lapsed, tidied or repaired afterwards."""
    queue.add(b"", id="a")
    lease = take(queue, 1)
    clock.advance(1)
    queue.tidy()
    assert queue.complete(lease)
    clock.advance(1)
    queue.tidy(force=True)
    assert queue.repair() == []
    assert queue.lease(30) is None


def test_27_complete_first_and_run_after_runs_at_most_once(live_queue: Queue) -> None:
    """However often a job was leased: the run belongs to the one whose complete was True."""
    live_queue.add_many(range(60), max_lapses=None)
    work = Work(live_queue, 60, seconds=0.001)
    race(*[work.work] * 4)
    assert len(work.completed) == len(set(work.completed)) == 60
    assert len(work.leased) >= 60
    assert live_queue.lease(1) is None


def test_28_a_job_can_be_completed_without_a_lease(queue: Queue) -> None:
    """By anybody, by its id: also one that waits."""
    queue.add(b"", id="a")
    assert queue.complete("a", force=True)
    assert not queue.complete("a", force=True)
    assert queue.lease(30) is None


def test_29_a_completed_id_can_be_added_again(queue: Queue) -> None:
    """It is a new job, with its own payload."""
    queue.add(b"first", id="a")
    queue.complete(take(queue))
    assert queue.add(b"second", id="a")
    assert take(queue).data == b"second"


# ------------------------------------------------------------------------------- cleaning


def test_30_a_light_clean_takes_back_what_lapsed(
    queue: Queue, clock: Clock, server: Server
) -> None:
    """To the back where the queue says so, else to the place it had; living leases are left."""
    back = Queue(f"{queue.name} back", server, requeue="back", clock=clock)
    for each, order in ((queue, "abc"), (back, "bca")):
        each.add_many([NewJob(b"", id="alive", priority=99)])
        take(each, 60)
        each.add_many([NewJob(b"", id=id) for id in "abc"])
        take(each, 1)
        clock.advance(1)
        assert each.tidy().reclaimed == 1
        assert ids(each.lease_many(9, 30)) == list(order)
        assert each.audit() == []


DAMAGES: dict[str, Callable[[Queue, Behind], object]] = {
    "a producer that stored only the payload": lambda _, b: b("HSET", "jobs", "a", b"x"),
    "an id that vanished": lambda q, b: (q.add(b"x", id="a"), b("ZREM", "ready", "a")),
    "an id taken out and put nowhere": lambda q, b: (
        q.add(b"x", id="a"),
        take(q),
        b("ZREM", "leased", "a"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_31_a_deep_clean_finds_what_no_set_has(queue: Queue, behind: Behind, damage: str) -> None:
    """Whoever broke it, a payload is a job and becomes ready again; nothing else is touched."""
    queue.add(b"y", id="well")
    held = take(queue)
    DAMAGES[damage](queue, behind)
    assert queue.audit() != []
    assert [done.id for done in queue.repair()] == ["a"]
    assert take(queue).data == b"x"
    assert queue.complete(held)


def test_32_one_process_can_keep_many_queues_tidy(live_queue: Queue, server: Server) -> None:
    """At any interval, without leasing anything itself."""
    queues = [live_queue, *(Queue(f"{live_queue.name} {n}", server) for n in range(2))]
    for queue in queues:
        queue.add(b"")
        take(queue, 0.02)
    with ExitStack() as stack:
        for queue in queues:
            stack.enter_context(queue.keep_tidy(every=0.02))
        wait_until(lambda: all(queue.counts().ready == 1 for queue in queues), "three reclaims")
    assert all(queue.audit() == [] for queue in queues)


def test_35_every_lease_can_be_taken_back_by_force(queue: Queue, clock: Clock) -> None:
    """Whatever is in flight, however long its leases are."""
    queue.add_many([b""] * 5)
    held = queue.lease_many(5, 3600)
    clock.advance(0.001)
    assert queue.tidy(held_longer_than=0).reclaimed == 5
    assert queue.counts().ready == 5
    assert queue.extend_many(held, 30) == [0] * 5


def test_36_cleaning_disturbs_nobody(live_queue: Queue) -> None:
    """Producers, workers, and cleaners of both kinds, all at once: every job ends once."""
    work = Work(live_queue, 200)

    def produce() -> None:
        for n in range(200):
            live_queue.add(b"", id=f"{n}")

    *_, repairs = race(
        produce,
        work.work,
        work.work,
        until(work.done, lambda: live_queue.tidy(force=True)),
        until(work.done, live_queue.repair),
    )
    assert Counter(work.completed) == {f"{n}": 1 for n in range(200)}
    assert len(work.leased) == 200
    assert repairs is not None
    assert not any(repairs)


# ------------------------------------------------------------------------------- counting


def test_37_the_length_is_what_waits_and_abandoned_jobs_count_as_leased(
    queue: Queue, clock: Clock
) -> None:
    """Until they are taken back, which the next lease or tidy does."""
    queue.add_many([b""] * 5)
    queue.lease_many(2, 1)
    clock.advance(1)
    assert (len(queue), queue.counts().ready, queue.counts().leased) == (3, 3, 2)
    queue.tidy()
    assert (len(queue), queue.counts().leased) == (5, 0)


def test_39_a_result_or_a_final_error_is_stored_with_the_job(queue: Queue) -> None:
    """No key of your own is needed; what cannot be retried is completed, or failed."""
    for id in ("good", "bad", "worse"):
        queue.add(b"", id=id, result_for=60)
    good, bad, worse = queue.lease_many(3, 30)
    queue.complete(good, {"total": 42})
    queue.complete(bad, {"error": "no such customer"})
    queue.fail(worse, error="no such country")
    assert outcome_of(queue, "good").json() == {"total": 42}
    assert outcome_of(queue, "bad").json() == {"error": "no such customer"}
    assert outcome_of(queue, "worse").error == "no such country"
    assert queue.lease(30) is None


# ----------------------------------------------------------------------------- their bugs


def test_bug_a1_a_producer_that_dies_leaves_a_job_or_none(
    queue: Queue, doomed: Queue, proxy: Proxy
) -> None:
    """There: payload stored, id not pushed, and every later add said that the job is there."""
    for n, cut in enumerate(CUTS):
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            doomed.add(b"x", id=f"{n}")
        added = cut.kind is Kind.CUT_REPLY
        assert queue.add(b"x", id=f"{n}").created is not added
        assert ids(queue.lease_many(9, 30)) == [f"{n}"]


def test_bug_a2_no_cleaner_takes_back_what_is_just_being_leased(live_queue: Queue) -> None:
    """There: a clean between the pop and the lease queued the job a second time."""
    live_queue.add_many(range(200))
    work = Work(live_queue, 200)
    cleaner = until(work.done, lambda: live_queue.tidy(force=True).reclaimed)
    _, _, *reclaimed = race(work.work, work.work, cleaner, cleaner)
    assert len(work.leased) == len({lease.id for lease in work.leased}) == 200
    assert not any(sum(each) for each in reclaimed if each)


def test_bug_a3_two_cleaners_at_once_do_not_double_a_job(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: both saw the lapsed lease and both pushed the id."""
    queue.add_many([b""] * 20, max_lapses=None)
    for _ in range(25):
        lapse(queue, clock)
        tidied = race(queue.tidy, other.tidy, lambda: other.tidy(force=True))
        assert sum(each.reclaimed for each in tidied) == 20
        assert (queue.counts().ready, queue.counts().leased) == (20, 0)
    assert all(lease.lapses == 25 for lease in queue.lease_many(1000, 30))


def test_bug_a4_a_clean_beside_a_complete_leaves_no_ghost(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: completed between the look and the push, the id came back without a payload."""
    for n in range(40):
        queue.add(b"", id=f"{n}")
        lease = take(queue, 1)
        clock.advance(1)
        completed, _ = race(partial(queue.complete, lease), other.tidy)
        assert completed is True
        assert (queue.counts().ready, queue.counts().leased) == (0, 0)


def test_bug_a5_a_late_complete_leaves_no_ghost(queue: Queue, clock: Clock) -> None:
    """There: the id stayed in the list, was counted, and hid the jobs behind it."""
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    late = take(queue, 1)
    clock.advance(1)
    queue.tidy()
    assert queue.complete(late)
    assert len(queue) == 1
    assert take(queue).id == "b"


def test_bug_a5_a_late_complete_and_the_next_lease_do_not_both_have_the_job(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """The same as a race: one of the two gets it."""
    for n in range(40):
        queue.add(b"", id=f"{n}")
        late = take(queue, 1)
        clock.advance(1)
        completed, lease = race(partial(queue.complete, late), partial(other.lease, 30))
        assert completed is not isinstance(lease, Lease)
        if isinstance(lease, Lease):
            assert other.complete(lease)
        assert (queue.counts().ready, queue.counts().leased) == (0, 0)


def test_bug_a6_only_the_last_holder_can_settle_and_holders_can_extend(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: whoever had been there could complete, and a lease could not be made longer."""
    queue.add(b"", id="a", result_for=60)
    stale = take(queue, 1)
    clock.advance(1)
    lease = take(other, 1)
    assert not queue.complete(stale, b"stale")
    for settle in (queue.release, lambda lease: queue.retry(lease, error="stale")):
        with pytest.raises(LeaseLost):
            settle(stale)
    for _ in range(5):
        clock.advance(0.9)
        assert other.extend(lease, 1)
    assert other.complete(lease, b"fresh")
    assert outcome_of(queue, "a").result == b"fresh"


def test_bug_a7_a_poison_job_does_not_go_round_for_ever(queue: Queue, clock: Clock) -> None:
    """There: no way to give back, no delay, no count, no end."""
    queue.add(b"", id="a", max_failures=2, max_lapses=1)
    queue.release(take(queue), after=2)
    assert queue.lease(1) is None
    clock.advance(2)
    lapse(queue, clock)
    for failures in range(3):
        lease = take(queue)
        assert (lease.lapses, lease.failures) == (1, failures)
        queue.retry(lease, error="again", after=0)
    assert queue.lease(30) is None
    assert [job.id for job in queue.failed()] == ["a"]


def test_bug_a8_a_clean_gives_back_just_the_jobs_that_lapsed(queue: Queue, clock: Clock) -> None:
    """There: one client dropped them, another pushed an id that nobody had added."""
    names = [f"{n}" for n in range(10)]
    queue.add_many([NewJob(b"", id=name) for name in names])
    lapse(queue, clock)
    assert queue.tidy().reclaimed == 10
    assert [job.id for job in queue.peek(100)] == names


def test_bug_a9_a_complete_that_is_cut_off_is_done_wholly_or_not_at_all(
    queue: Queue, doomed: Queue, proxy: Proxy
) -> None:
    """There: payload gone and id left, or the other way round."""
    for n, cut in enumerate(CUTS):
        queue.add(b"x", id=f"{n}", result_for=60)
        lease = take(doomed, 3600)
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            doomed.complete(lease, b"done", add=[NewJob(b"y", id=f"after {n}")])
        done = cut.kind is Kind.CUT_REPLY
        outcome = queue.result(f"{n}")
        assert (outcome is not None) is done
        assert (queue.show(f"after {n}") is not None) is done
        assert queue.audit() == []
        assert not done or queue.cancel(f"after {n}")


def test_bug_a10_cleaning_costs_a_call_per_thousand_and_never_lists_the_keys(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: a round trip per id, KEYS over the whole server, and a search per complete."""
    queue.add_many([b""] * 1000)
    lapse(queue, clock)
    called = engine_calls(behind.client)
    listed = command_calls(behind.client, "keys") + command_calls(behind.client, "scan")
    assert queue.tidy().reclaimed == 1000
    assert engine_calls(behind.client) <= called + 2
    assert all(queue.complete_many(queue.lease_many(1000, 30)))
    assert engine_calls(behind.client) <= called + 4
    queue.repair()
    assert command_calls(behind.client, "keys") + command_calls(behind.client, "scan") == listed
    assert command_calls(behind.client, "lrem") == 0


def test_bug_a10_a_name_is_no_pattern(server: Server, clock: Clock) -> None:
    """There: a queue whose name has a star cleaned up the others."""
    names = ["a10*", "a10?", "a10[xy]", "a10x", "a10xy"]
    queues = [Queue(name, server, clock=clock) for name in names]
    for queue in queues:
        queue.delete()
        queue.add(queue.name, id="a")
    queues[0].repair()
    queues[0].cancel_matching(b"a10x")
    queues[0].delete()
    for queue in queues[1:]:
        assert take(queue).data == queue.name.encode()
        assert queue.audit() == []
        queue.delete()


def test_bug_a11_a_deep_clean_of_a_busy_queue_doubles_nothing(live_queue: Queue) -> None:
    """There: it compared with an old list, and pushed what others had pushed meanwhile."""
    live_queue.add_many([NewJob(b"", id=f"old {n}") for n in range(150)])
    work = Work(live_queue, 300)

    def produce() -> None:
        for n in range(150):
            live_queue.add(b"", id=f"new {n}")

    repair = until(work.done, live_queue.repair)
    _, _, _, *repairs = race(work.work, work.work, produce, repair, repair)
    assert not any(done for each in repairs if each for done in each)
    assert len(work.leased) == len(set(work.completed)) == 300


def test_bug_a11_a_deep_clean_removes_ghosts_and_doubles(queue: Queue, behind: Behind) -> None:
    """There: an id without payload stayed, and so did an id that was in both lists."""
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    lease = take(queue)
    behind("ZADD", "ready", 1, "ghost", 2, lease.id)
    assert {done.id for done in queue.repair()} == {"ghost", lease.id}
    assert queue.repair() == []
    assert ids(queue.lease_many(9, 30)) == ["b"]
    assert queue.complete(lease)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "30", None, True])
def test_bug_a12_a_time_that_is_none_is_refused_before_anything_moves(
    queue: Queue, seconds: float
) -> None:
    """There: the job was moved first, and then the server refused the time."""
    queue.add(b"")
    with pytest.raises(InvalidArgument):
        queue.lease(seconds)
    assert (queue.counts().ready, queue.counts().leased) == (1, 0)


def test_bug_a12_a_part_of_a_second_is_not_for_ever(queue: Queue, clock: Clock) -> None:
    """There: half a second was cut to zero, and zero meant for ever, or an error."""
    assert queue.lease(0.5, wait=0.02) is None
    queue.add(b"")
    take(queue, 0.5)
    clock.advance(0.5)
    assert take(queue).lapses == 1


def test_bug_a13_a_number_is_a_number_and_nothing_is_printed(
    queue: Queue, capfd: pytest.CaptureFixture[str]
) -> None:
    """There: the payload 5 became five zero bytes, and the library printed."""
    queue.add(5)
    lease = take(queue)
    assert (lease.data, lease.json()) == (b"5", 5)
    queue.complete(lease)
    queue.tidy()
    queue.repair()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["plain", "with {braces}", "{}", "{a}b", "a}b{c", "ü:*\n\0"])
def test_bug_a14_the_keys_of_a_queue_are_in_one_slot(name: str) -> None:
    """There: in a cluster a queue worked only if its name had braces in the right places."""
    assert len({key_slot(key) for key in queue_keys(name)}) == 1


def test_bug_a15_what_a_newer_release_stored_is_left_alone(queue: Queue, behind: Behind) -> None:
    """There: two releases used other keys, and the one took the other's leases for lapsed."""
    queue.add(b"", id="a")
    take(queue, 1)
    layout = behind("HGET", "meta", "layout")
    behind("HSET", "meta", "layout", 99)
    before = behind.everything()
    for call in (lambda: queue.tidy(force=True), lambda: queue.lease(1), lambda: queue.add(b"")):
        with pytest.raises(UnsupportedServer):
            call()
    assert behind.everything() == before
    behind("HSET", "meta", "layout", layout)


def test_bug_a16_a_worker_that_dies_while_it_waits_keeps_no_job(
    queue: Queue, clock: Clock, doomed: Queue, proxy: Proxy
) -> None:
    """There: moved for it, without a lease, until somebody cleaned."""
    given = Step(Kind.CUT_REPLY, during=lambda: queue.add(b"x", id="a"))
    proxy.plan([Step(Kind.PASS), given])
    with pytest.raises(ServerUnavailable):
        doomed.lease(2, wait=DEADLINE)
    assert queue.counts().leased == 1
    clock.advance(2)
    lease = take(queue)
    assert (lease.id, lease.lapses) == ("a", 1)


def test_bug_a17_a_job_that_comes_back_has_its_place(queue: Queue, clock: Clock) -> None:
    """There: behind all others. And jobs could not be leased many at a time."""
    queue.add_many([NewJob(b"", id=id) for id in "abcd"])
    assert ids(queue.lease_many(2, 1)) == ["a", "b"]
    clock.advance(1)
    assert ids(queue.lease_many(9, 30)) == ["a", "b", "c", "d"]


def test_bug_a17_counts_are_of_one_moment(live_queue: Queue) -> None:
    """There: two questions, so that a job in between was counted twice or not at all."""
    live_queue.add_many([b""] * 10)
    done = threading.Event()

    def move() -> None:
        for _ in range(150):
            live_queue.release_many(live_queue.lease_many(5, 60))
        done.set()

    _, counts = race(move, until(done, live_queue.counts))
    assert counts is not None
    assert {each.ready + each.leased for each in counts} == {10}
