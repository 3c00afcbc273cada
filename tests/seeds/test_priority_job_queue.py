"""The priority queue of tokens and streams on Holdfast: what it does and what it planned.

Its sub-requests are our parts, its tokens our limit; its bugs are not ours.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.crc import key_slot

from conftest import Clock
from engine_support import Behind, command_calls, engine_calls, ids, own_server, take
from holdfast import (
    Extended,
    JobNotFound,
    NewJob,
    Queue,
    RequestStatus,
    ServerUnavailable,
    WrongState,
)
from holdfast.engine.keys import queue_keys
from proxy import Kind, Proxy, cut_reply, cut_request
from request_support import counters, endings, fill, hearing, order, work_off
from seeds.crowd import Work, race, running
from support import DEADLINE, TestServer, command_on, wait_until

BOOKKEEPING = {"meta", "calls", "wake"}
CUTS = [cut_request(), cut_request(0.5), cut_reply(), cut_reply(0.5)]

HOLDING = """
import threading
queue.lease_many(2, 3600)
threading.Event().wait()
"""


def status_of(queue: Queue, id: str = "r") -> RequestStatus:
    return queue.request(id).status()


# -------------------------------------------------------------------------- what it does


def test_01_there_are_a_hundred_priorities(queue: Queue) -> None:
    """Each goes before all that are lower, whoever came first; here the higher number is first."""
    for priority in sorted(range(100), key=lambda priority: priority * 37 % 100):
        fill(queue.request(f"{priority}", priority=priority), 1)
    assert ids(queue.lease_many(1000, 30)) == [f"{priority}/0" for priority in range(99, -1, -1)]


def test_02_parts_are_put_in_place_in_their_order_before_anybody_may_run_them(
    queue: Queue,
) -> None:
    """As many as were given, nobody has one; a limit of 0 holds them until it is raised."""
    request = fill(queue.request("r", limit=0), 4)
    assert counters(request.status()) == {"total": 4, "parked": 4}
    assert queue.counts().leased == 0
    assert queue.lease(30) is None
    request.set_limit(4)
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"0", b"1", b"2", b"3"]


def test_03_no_more_workers_than_the_limit_says_run_parts_of_a_request(live_queue: Queue) -> None:
    """Whatever they do at once, and however often they ask for more than there is."""
    fill(live_queue.request("r", limit=3), 60)
    most: list[int] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            leases = live_queue.lease_many(2, 60)
            most.append(status_of(live_queue).running)
            live_queue.complete_many(leases)
            if status_of(live_queue).ended:
                done.set()

    race(*[work] * 5)
    assert max(most) <= 3
    assert status_of(live_queue).done == 60


def test_04_a_worker_waits_for_the_best_there_is_and_gives_its_place_back(
    live_queue: Queue, client: redis.Redis
) -> None:
    """It sleeps until something comes; of what is there it gets the highest priority."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: live_queue.lease(60, wait=DEADLINE))
        wait_until(lambda: client.info("clients")["blocked_clients"], "the sleeper")
        fill(live_queue.request("low", priority=10, limit=1), 2)
        lease = waiting.result(DEADLINE)
    assert lease
    assert lease.id == "low/0"
    fill(live_queue.request("high", priority=90, limit=1), 2)
    assert take(live_queue).id == "high/0"
    assert live_queue.lease(60) is None
    live_queue.complete(lease)
    assert take(live_queue).id == "low/1"


def test_05_a_part_is_given_to_one_worker(live_queue: Queue) -> None:
    """However many ask at once."""
    fill(live_queue.request("r"), 200)
    work = Work(live_queue, 200)
    race(*[work.work] * 4)
    assert sorted(int(lease.data) for lease in work.leased) == list(range(200))


def test_06_a_part_that_is_done_is_counted_and_the_last_ends_the_request(
    queue: Queue, behind: Behind
) -> None:
    """Of the parts nothing is left, and the ending is told."""
    request = fill(queue.request("r"), 3)
    queue.complete(take(queue))
    assert counters(request.status()) == {"total": 3, "done": 1, "parked": 2}
    with hearing(queue) as heard:
        work_off(queue)
    assert endings(heard) == ["r"]
    assert request.status().state == "completed"
    assert behind.everything().keys() - BOOKKEEPING == {"requests", "terms"}


def test_07_equal_requests_are_served_in_turns(queue: Queue) -> None:
    """A, B, A, B …, also where a worker asks for many; a higher priority goes before them."""
    fill(queue.request("A"), 8)
    fill(queue.request("B"), 8)
    assert order(queue, 4) == "ABAB"
    assert [id[0] for id in ids(queue.lease_many(4, 60))] == ["A", "B", "A", "B"]
    fill(queue.request("C", priority=51), 2)
    assert order(queue, 6) == "CCABAB"


def test_08_requests_wait_for_workers_that_come_later(queue: Queue, other: Queue) -> None:
    """Nobody listened when they came."""
    for n in range(3):
        fill(queue.request(f"{n}"), 2)
    queue.close()
    assert sorted(work_off(other)) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]


def test_09_the_end_is_told_once_and_only_when_all_is_done(queue: Queue) -> None:
    fill(queue.request("r"), 3)
    leases = queue.lease_many(3, 60)
    with hearing(queue) as heard:
        queue.complete_many(leases[1:])
    assert endings(heard) == []
    with hearing(queue) as heard:
        queue.complete(leases[0])
        queue.complete_many(leases)
        queue.request("r").seal()
        queue.tidy()
    assert endings(heard) == ["r"]


def test_10_a_queue_of_requests_is_one_slot_of_a_cluster() -> None:
    """So that one call does all, and parts are there with the place to run them."""
    assert len({key_slot(key) for key in queue_keys("{a}b")}) == 1
    with own_server(kind="cluster") as server, Queue("{a}b", server.queue_url) as queue:
        fill(queue.request("{c}d", limit=1), 2)
        assert work_off(queue) == ["{c}d/0", "{c}d/1"]
        assert status_of(queue, "{c}d").state == "completed"
        assert queue.audit() == []


def test_11_a_request_that_is_over_or_empty_keeps_nobody_busy(queue: Queue) -> None:
    """Whoever asks gets what else there is, in one call."""
    fill(queue.request("over", priority=90), 1)
    fill(queue.request("empty", priority=90), 1, seal=False)
    work_off(queue)
    queue.add(b"", id="plain")
    assert ids(queue.lease_many(9, 30)) == ["plain"]
    assert queue.lease(30) is None


def test_14_it_can_be_told_what_runs_and_by_whom(queue: Queue, other: Queue) -> None:
    fill(queue.request("r"), 3)
    mine, its = take(queue), take(other)
    running = {job.id: (job.token, job.facts.request) for job in queue.peek(9, state="leased")}
    assert running == {"r/0": (mine.token, "r"), "r/1": (its.token, "r")}
    assert mine.holder == queue.holder != its.holder == other.holder
    assert f"leased under {its.token}" in queue.explain("r/1")


# ------------------------------------------------------------------------ what it planned


def test_12_what_a_dead_worker_had_is_given_to_the_next_who_asks(
    queue: Queue, other: Queue, clock: Clock
) -> None:
    """Its parts, at their places, and their room under the limit; nobody has to watch over it."""
    fill(queue.request("r", limit=2), 3)
    dead = other.lease_many(2, 30)
    clock.advance(30)
    assert queue.lease(30) is None  # After a silence, the living may say so first.
    clock.advance(5)
    leases = queue.lease_many(9, 30)
    assert ids(leases) == ids(dead)
    assert [lease.lapses for lease in leases] == [1, 1]


def test_12_a_worker_that_is_alive_keeps_its_part(queue: Queue, other: Queue, clock: Clock) -> None:
    """As long as it extends its lease: the ping."""
    fill(queue.request("r"), 1)
    lease = take(other)
    for _ in range(20):
        clock.advance(4)
        assert other.extend(lease, 30) is Extended.HELD
        assert queue.lease(30) is None
    assert other.complete(lease)


def test_12_who_knows_that_a_worker_is_dead_takes_its_parts_at_once(
    queue: Queue, other: Queue
) -> None:
    fill(queue.request("r", limit=2), 3)
    mine, its = take(queue), take(other)
    assert queue.fail_worker(its) == 1
    assert take(queue).id == its.id
    assert queue.complete(mine)


def test_13_parts_can_come_while_others_run(queue: Queue) -> None:
    """Begin, add, finalize: not over before it is said that no more come, and then at once."""
    request = queue.request("r")
    request.open()
    for n in range(3):
        request.add(b"%d" % n)
        assert work_off(queue) == [f"r/{n}"]
        assert (request.status().state, request.status().done) == ("open", n + 1)
    with hearing(queue) as heard:
        request.seal()
    assert endings(heard) == ["r"]
    assert request.status().state == "completed"


def test_13_what_is_sealed_ends_with_its_last_part(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    first, last = queue.lease_many(2, 60)
    queue.complete(first)
    assert request.status().state == "sealed"
    queue.complete(last)
    assert request.status().state == "completed"


# --------------------------------------------------------------------- what went wrong there


def test_bug_e1_a_worker_that_dies_takes_no_place_along(
    live_queue: Queue, test_server: TestServer
) -> None:
    """There: its token was lost, and with a limit of 1 the request was stuck for ever."""
    request = fill(live_queue.request("r", limit=2), 4)
    with running(HOLDING, test_server.url, live_queue):
        wait_until(lambda: request.status().running == 2, "the worker")
        holder = live_queue.peek(1, state="leased")[0].token
    assert holder
    assert live_queue.lease(30) is None
    assert live_queue.fail_worker(holder.rpartition(".")[0]) == 2
    assert (request.status().running, request.status().limit) == (0, 2)
    assert work_off(live_queue) == ["r/0", "r/1", "r/2", "r/3"]


def test_bug_e2_a_lease_that_is_cut_off_takes_no_place_along(
    queue: Queue, doomed: Queue, proxy: Proxy, clock: Clock
) -> None:
    """There: any error while it read cost a token."""
    fill(queue.request("r", limit=1), 4)
    for n, cut in enumerate(CUTS):
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            doomed.lease(30)
        assert status_of(queue).running == (1 if cut.kind is Kind.CUT_REPLY else 0)
        clock.advance(30)
        queue.tidy(force=True)
        assert status_of(queue).running == 0
        lease = take(queue)
        assert lease.id == f"r/{n}"
        queue.complete(lease)
    assert status_of(queue).state == "completed"


def test_bug_e2_asking_in_vain_takes_no_place_along(queue: Queue) -> None:
    """There: a token was dropped when all parts were taken, though some came back."""
    fill(queue.request("r", limit=3), 3)
    leases = queue.lease_many(3, 60)
    for _ in range(10):
        assert queue.lease(60) is None
    queue.release_many(leases)
    assert len(queue.lease_many(9, 60)) == 3


def test_bug_e3_a_part_is_done_once(queue: Queue) -> None:
    """There: done twice, it counted twice, and the request ended with parts that nobody had run."""
    request = fill(queue.request("r"), 3)
    lease = take(queue)
    assert [queue.complete(lease) for _ in range(3)] == [True, False, False]
    assert queue.complete_many([lease, lease]) == [False, False]
    assert queue.lease_many(1, 60, complete=[lease]).completed == [False]
    assert not queue.complete("r/0", force=True)
    assert counters(request.status()) == {"total": 3, "done": 1, "running": 1, "parked": 1}


def test_bug_e4_what_comes_after_the_end_leaves_nothing_behind(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: a counter of minus one, for ever."""
    fill(queue.request("r", keep_for=10), 1)
    lease = take(queue)
    queue.complete(lease)
    assert not queue.complete(lease)
    assert not queue.complete("nobody/0", force=True)
    assert status_of(queue).done == 1
    clock.advance(10)
    queue.tidy()
    assert not queue.complete(lease)
    assert not queue.cancel("r/0")
    assert behind.everything().keys() <= BOOKKEEPING


def test_bug_e5_a_request_that_is_there_is_not_touched_by_another_of_its_id(queue: Queue) -> None:
    """There: its parts were dropped and its counter was set, and then came the error."""
    fill(queue.request("r", limit=1), 3)
    held = take(queue)
    with pytest.raises(WrongState):
        fill(queue.request("r", limit=9), 5)
    assert counters(status_of(queue)) == {"total": 3, "running": 1, "parked": 2}
    assert queue.complete(held)
    assert work_off(queue) == ["r/1", "r/2"]


def test_bug_e5_a_producer_that_begins_again_doubles_nothing(queue: Queue) -> None:
    fill(queue.request("r"), 3, seal=False)
    held = take(queue)
    fill(queue.request("r"), 5)
    assert queue.complete(held)
    assert work_off(queue) == ["r/1", "r/2", "r/3", "r/4"]
    assert status_of(queue).state == "completed"


def test_bug_e6_a_request_without_parts_ends_and_is_forgotten(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: it never ended, nobody was told, and its keys stayed."""
    with hearing(queue) as heard:
        fill(queue.request("r", keep_for=10), 0)
    assert endings(heard) == ["r"]
    clock.advance(10)
    queue.tidy()
    assert behind.everything().keys() <= BOOKKEEPING


def test_bug_e7_parts_that_are_stored_are_run_though_their_producer_died(
    queue: Queue, doomed: Queue, proxy: Proxy
) -> None:
    """There: it died before it had put the tokens in place, and nobody ever ran them."""
    for n, cut in enumerate(CUTS):
        request = doomed.request(f"{n}", limit=2)
        request.open()
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            request.add_many([b"0", b"1", b"2"])
        stored = 3 if cut.kind is Kind.CUT_REPLY else 0
        assert counters(status_of(queue, f"{n}")) == ({"total": 3, "parked": 3} if stored else {})
        assert work_off(queue) == [f"{n}/{part}" for part in range(stored)]
        assert fill(queue.request(f"{n}"), 3).status().total == 3
        assert work_off(queue) == [f"{n}/{part}" for part in range(stored, 3)]
        assert status_of(queue, f"{n}").state == "completed"


def test_bug_e7_a_request_whose_producer_died_can_fail_in_time(queue: Queue, clock: Clock) -> None:
    fill(queue.request("r", open_for=60), 2, seal=False)
    clock.advance(60)
    queue.tidy()
    assert (status_of(queue).state, status_of(queue).reason) == ("failed", "open for too long")


def test_bug_e8_a_part_is_done_and_its_place_is_free_in_one_call(
    queue: Queue, doomed: Queue, proxy: Proxy
) -> None:
    """There: a worker that died between the two took a place along."""
    fill(queue.request("r", limit=1), len(CUTS) + 1)
    for cut in CUTS:
        lease = take(doomed, 3600)
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            doomed.complete(lease)
        status = status_of(queue)
        done = cut.kind is Kind.CUT_REPLY
        assert status.running == (0 if done else 1)
        assert queue.complete(lease) is not done
        assert status_of(queue).running == 0
    assert take(queue).id == f"r/{len(CUTS)}"
    assert status_of(queue).done == len(CUTS)


def test_bug_e8_the_places_of_a_request_that_is_over_bother_nobody(queue: Queue) -> None:
    """There: tokens of finished requests lay around until somebody picked them up."""
    fill(queue.request("r", priority=99, limit=5), 1)
    work_off(queue)
    queue.add(b"", id="plain")
    assert ids(queue.lease_many(1, 30)) == ["plain"]


def test_bug_e9_who_comes_late_learns_the_end_and_the_results(queue: Queue, other: Queue) -> None:
    """There: who did not listen at that moment never learnt of it."""
    fill(queue.request("r"), 2)
    for lease in queue.lease_many(2, 60):
        queue.complete(lease, b"result of " + lease.data)
    late = other.request("r")
    assert late.wait(0).state == "completed"
    assert [part.result for part in late.results()] == [b"result of 0", b"result of 1"]
    with pytest.raises(JobNotFound):
        other.request("nobody").wait(0)


def test_bug_e9_who_was_cut_off_while_it_waited_learns_the_end(
    queue: Queue, client: redis.Redis
) -> None:
    def listeners() -> int:
        [(_, count)] = client.pubsub_numsub(queue._packer.events)
        return int(count)

    fill(queue.request("r"), 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.request("r").wait, DEADLINE)
        wait_until(lambda: listeners() == 1, "who waits")
        command_on(client, "CLIENT", "KILL", "TYPE", "pubsub")
        work_off(queue)
        assert waiting.result(DEADLINE).state == "completed"


def test_bug_e10_nothing_is_kept_of_parts_that_are_done(queue: Queue, behind: Behind) -> None:
    """There: they stayed in memory until the last of their request was done."""
    fill(queue.request("r"), 500, seal=False)
    queue.complete_many(queue.lease_many(499, 60))
    kept = behind.everything()
    assert {name: len(kept[name][1]) for name in ("jobs", "facts")} == {"jobs": 1, "facts": 1}
    assert not kept.keys() & {"holds", "leased", "results", "ended", "workers"}


def test_bug_e11_no_request_starves_its_equals_and_all_can_be_changed(queue: Queue) -> None:
    """There: strict order, and neither priority nor limit could be changed; nothing cancelled."""
    big = fill(queue.request("big"), 1000)
    fill(queue.request("small"), 3)
    assert order(queue, 6) == "bsbsbs"
    low = fill(queue.request("low", priority=1), 3)
    low.set_priority(99)
    assert order(queue, 3) == "lll"
    big.set_limit(3)
    assert queue.lease(60) is None
    big.set_limit(5)
    assert len(queue.lease_many(9, 60)) == 2
    assert big.cancel()
    assert queue.counts().parked == 0


def test_bug_e11_a_high_limit_costs_no_more_than_a_low_one(queue: Queue, behind: Behind) -> None:
    """There: as many pushes as the limit says."""
    called = command_calls(behind.client, "zadd") + command_calls(behind.client, "hset")
    fill(queue.request("r", limit=2**31), 1)
    added = command_calls(behind.client, "zadd") + command_calls(behind.client, "hset") - called
    assert added < 50
    assert take(queue).id == "r/0"


@pytest.mark.parametrize("id", ["{a}", "}{", "a}:{b", "{", "sub:{r}", "\n\0"])
def test_bug_e12_an_id_may_have_braces(queue: Queue, behind: Behind, id: str) -> None:
    """There: names of keys were made of it, and it moved them to another slot."""
    before = set(behind.client.scan_iter(count=1000))
    fill(queue.request(id, limit=1, follow_up=b""), 2)
    assert work_off(queue) == [f"{id}/0", f"{id}/1", f"{id}/end/1"]
    assert status_of(queue, id).state == "completed"
    assert set(behind.client.scan_iter(count=1000)) - before <= {*behind.keys.values()}


def test_bug_e13_a_part_that_kills_its_workers_does_not_go_round_for_ever(
    queue: Queue, clock: Clock
) -> None:
    """There: no limit of tries, no sign of life, and workers that left after a second."""
    request = fill(queue.request("r", limit=1), 2)
    runs = 0
    while take(queue, 1).id == "r/0":
        runs += 1
        clock.advance(1)
        queue.tidy(force=True)
    assert runs == 4  # Three lapses are forgiven.
    assert counters(request.status()) == {"total": 2, "failed": 1, "running": 1}
    assert [job.error for job in queue.failed()] == ["the lease lapsed"]


def test_bug_e13_a_worker_can_wait_for_as_long_as_it_likes(
    live_queue: Queue, client: redis.Redis
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: live_queue.lease(60, wait=2 * DEADLINE))
        asked = engine_calls(client)
        wait_until(lambda: engine_calls(client) > asked + 1, "an idle second")
        assert not waiting.done()
        fill(live_queue.request("r"), 1)
        lease = waiting.result(DEADLINE)
    assert lease
    assert lease.id == "r/0"


def test_bug_e13_follow_ups_are_added_with_the_end(queue: Queue) -> None:
    """There: whoever missed the one message could not go on."""
    fill(queue.request("r", follow_up=NewJob(b"merge", priority=99)), 1)
    [follow_up] = queue.lease_many(9, 60, complete=[take(queue)])
    assert (follow_up.id, follow_up.data) == ("r/end/1", b"merge")
