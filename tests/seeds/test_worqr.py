"""worqr on Holdfast: what its queues do can be done here."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from functools import partial

import pytest

from conftest import Clock
from engine_support import Behind, ids, take
from holdfast import Extended, JobExists, LeaseLost, NewJob, Queue, Server
from seeds.crowd import Work, race, until
from seeds.looks import shown
from support import DEADLINE

BOOKKEEPING = {"meta", "calls", "wake"}


# -------------------------------------------------------------------------- adding, looking


def test_04_one_or_many_are_added_in_one_call_and_announced(queue: Queue) -> None:
    """They are leased in the order in which they were given, and the event says how many."""
    with queue.events(idle=DEADLINE) as events:
        queue.add("t1")
        queue.add_many(["t2", "t3", "t4"])
        assert [(event.kind, event.count) for event in itertools.islice(events, 2)] == [
            ("added", 1),
            ("added", 3),
        ]
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"t1", b"t2", b"t3", b"t4"]


def test_05_a_payload_has_no_envelope(queue: Queue, behind: Behind) -> None:
    """What is stored is what was given; an empty payload is a job, and not the same as none."""
    receipts = queue.add_many(["t1", ""])
    stored = behind("HGETALL", "jobs")
    assert stored == {receipts[0].id.encode(): b"t1", receipts[1].id.encode(): b""}
    take(queue)
    assert take(queue).data == b""
    assert queue.lease(30) is None


def test_06_equal_payloads_are_different_jobs(queue: Queue) -> None:
    """Each is leased and completed for itself."""
    queue.add_many(["same"] * 3)
    one, *others = queue.lease_many(9, 30)
    assert queue.complete(one)
    assert len({one.id, *ids(others)}) == 3
    assert queue.extend_many(others, 30) == [Extended.HELD] * 2


def test_07_a_job_is_unique_when_its_payload_makes_its_id(queue: Queue) -> None:
    """While one waits or runs a second is refused; afterwards, or without the id, it is not."""

    def add_unique(payload: bytes) -> None:
        queue.add(payload, id=hashlib.sha256(payload).hexdigest(), on_conflict="raise")

    queue.add(b"t1")
    add_unique(b"t1")
    with pytest.raises(JobExists):
        add_unique(b"t1")
    plain, unique = queue.lease_many(2, 30)
    queue.complete(plain)
    with pytest.raises(JobExists):
        add_unique(b"t1")
    queue.complete(unique)
    add_unique(b"t1")


def test_08_what_waits_can_be_counted_and_looked_at(queue: Queue) -> None:
    """Next first, all of it or a part, and nothing is taken."""
    assert queue.peek() == []
    queue.add_many(["t1", "t2", "t3"])
    assert len(queue) == queue.counts().ready == 3
    assert [job.data for job in queue.peek()] == [b"t1"]
    assert [job.data for job in queue.peek(100)] == [b"t1", b"t2", b"t3"]
    assert [job.data for job in queue.peek(2, first=1)] == [b"t2", b"t3"]
    assert len(queue) == 3


def test_09_a_queue_can_be_deleted_and_is_there_again_when_something_is_added(
    queue: Queue,
) -> None:
    """An event tells of it."""
    queue.add_many(["t1", "t2"])
    with queue.events(idle=DEADLINE) as events:
        queue.delete()
        assert next(events).kind == "deleted"
    assert len(queue) == 0
    queue.add("t3")
    assert take(queue).data == b"t3"


def test_10_every_job_with_a_payload_can_be_cancelled(queue: Queue, other: Queue) -> None:
    """Those that wait are gone; who runs one is told by an event, and when it extends."""
    queue.add_many(["no", "yes", "no", "no "])
    running = take(other)
    queue.add("no", delay=60)
    with queue.events(idle=DEADLINE) as events:
        assert queue.cancel_matching("no") == 3
        told = list(itertools.islice(events, 2))
    assert {event.kind for event in told} == {"cancelling", "cancelled"}
    assert [event.ids for event in told if event.kind == "cancelling"] == [[running.id]]
    assert other.extend(running, 30) is Extended.CANCELLED
    assert not other.complete(running)
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"yes", b"no "]
    assert queue.counts().delayed == 0


def test_11_what_runs_can_be_found_by_its_payload(queue: Queue) -> None:
    """And by whom."""
    queue.add_many(["t1", "t2", "t1"])
    one, _, three = queue.lease_many(3, 30)
    running = [job for job in queue.peek(1000, state="leased") if job.data == b"t1"]
    assert {(job.id, job.token) for job in running} == {
        (one.id, one.token),
        (three.id, three.token),
    }


# --------------------------------------------------------------------------------- running


def test_12_a_lease_has_an_id_and_the_payload_or_there_is_none(
    queue: Queue, behind: Behind
) -> None:
    """An empty queue gives None, and asking leaves nothing behind."""
    assert queue.lease(30) is None
    assert queue.lease_many(5, 30) == []
    assert behind.everything().keys() <= BOOKKEEPING
    queue.add("t1", id="a")
    lease = take(queue)
    assert (lease.id, lease.data) == ("a", b"t1")


def test_13_a_job_is_given_to_one_worker_at_a_time(live_queue: Queue) -> None:
    """However many ask at once."""
    live_queue.add_many(range(200))
    work = Work(live_queue, 200)
    race(*[work.work] * 4)
    assert sorted(lease.json() for lease in work.leased) == list(range(200))


def test_14_no_history_is_kept_of_a_finished_job(queue: Queue, behind: Behind) -> None:
    """It was announced, and is gone."""
    queue.add("t1", id="a")
    lease = take(queue)
    with queue.events(idle=DEADLINE) as events:
        assert queue.complete(lease, "result")
        event = next(events)
    assert (event.kind, event.ids) == ("completed", ["a"])
    assert behind.everything().keys() <= BOOKKEEPING


def test_15_a_job_that_is_stopped_goes_back_to_its_queue(
    queue: Queue, server: Server, clock: Clock
) -> None:
    """To the front, where it came from; a queue may want it at the back."""
    back = Queue(f"{queue.name} back", server, requeue="back", clock=clock)
    for each, order in ((queue, "abc"), (back, "bca")):
        each.add_many([NewJob(b"", id=id) for id in "abc"])
        lease = take(each)
        each.release(lease)
        assert each.counts().leased == 0
        with pytest.raises(LeaseLost):
            each.release(lease)
        assert ids(each.lease_many(9, 30)) == list(order)


def test_22_all_that_a_failed_worker_holds_goes_back(queue: Queue, other: Queue) -> None:
    """Only what it holds, to where it was, and sleepers are told that there is work."""
    other.register()
    queue.add_many([NewJob(b"", id=id) for id in "abcd"])
    lost = [take(other), take(other)]
    mine = take(queue)
    with queue.events(idle=DEADLINE) as events:
        assert queue.fail_worker(other.holder) == 2
        assert (event := next(events)).kind == "reclaimed"
    assert sorted(event.ids) == ["a", "b"]
    assert queue.workers() == []
    assert [job.id for job in queue.peek(9)] == ["a", "b", "d"]
    assert other.extend_many(lost, 30) == [Extended.LOST] * 2
    assert queue.complete(mine)


def test_24_every_transition_is_whole(live_queue: Queue) -> None:
    """Whatever many peers do at once, an audit at any moment finds nothing; no server part runs."""
    live_queue.add_many([NewJob(b"", id=f"{n}", max_failures=None) for n in range(30)])
    done = threading.Event()

    def act(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(150):
            lease = live_queue.lease(0.002 if choose.random() < 0.2 else 60)
            if lease is None:
                continue
            what = choose.randrange(6)
            if what == 0:
                live_queue.complete(lease, add=[NewJob(b"", id=f"{lease.id}+", max_lapses=None)])
            elif what == 1:
                live_queue.cancel(lease.id)
            elif what == 2:
                live_queue.release_many([lease], lapsed="stopped")
            elif what == 3:
                live_queue.add(b"new", id=lease.id, on_conflict="update")
            live_queue.release_many([lease])
        done.set()

    *_, audits = race(*(partial(act, seed) for seed in range(3)), until(done, live_queue.audit))
    assert audits
    assert not any(audits)


def test_28_who_is_told_of_work_may_come_too_late(queue: Queue, other: Queue) -> None:
    """The event is a hint; only the lease says whether there is a job."""
    with queue.events(idle=DEADLINE) as one, other.events(idle=DEADLINE) as two:
        queue.add("t1", id="a")
        assert next(one).kind == next(two).kind == "added"
        leases = race(partial(queue.lease, 30), partial(other.lease, 30))
    assert sum(lease is not None for lease in leases) == 1
    assert shown(queue, "a").state == "leased"
