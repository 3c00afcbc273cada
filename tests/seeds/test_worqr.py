"""worqr on Holdfast: what its queues do can be done here."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
import redis

from conftest import Clock
from engine_support import Behind, command_calls, engine_calls, ids, take
from holdfast import (
    Extended,
    Fail,
    HoldfastError,
    JobExists,
    JobOptions,
    LeaseLost,
    NewJob,
    Queue,
    Release,
    Retry,
    RunningJob,
    Server,
    Worker,
)
from seeds.crowd import Work, race, running, until
from seeds.looks import held_for, outcome_of, shown, sleepers
from seeds.staff import Heard, Held, Hire, wait_until_gone
from support import DEADLINE, TestServer, wait_until, with_login

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
    assert queue.name in queue.server.queues()
    queue.delete()
    assert queue.name not in queue.server.queues()


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


def test_10_workers_are_told_of_the_jobs_they_run_that_were_cancelled(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """Each of its own, and nothing of others."""
    live_queue.add_many([NewJob("no", id="a"), NewJob("yes", id="b"), NewJob("no", id="c")])
    for _ in range(2):
        hire(live_queue, held, concurrency=2)
    held.has(3)
    assert live_queue.cancel_matching("no") == 2

    def told() -> list[str]:
        return sorted(job.id for job in held.jobs if job.cancelled)

    wait_until(lambda: told() == ["a", "c"], "the handlers to be told")
    held.let_go()
    wait_until_gone(live_queue, "a", "b", "c")
    assert len(held.jobs) == 3


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


# -------------------------------------------------------------------------------- workers


def test_16_a_worker_registers_itself_and_is_alive_as_long_as_it_works(
    live_queue: Queue, hire: Hire, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so again before its time is over, and when it leaves that it is gone."""
    monkeypatch.setattr("holdfast.worker.loop.REGISTER_SECONDS", 0.1)
    worker = hire(live_queue, held)
    wait_until(live_queue.workers, "the worker")
    (first,) = live_queue.workers()
    assert first.alive
    assert first.about["pid"] == os.getpid()
    later = first.alive_until + 0.5
    wait_until(lambda: live_queue.workers()[0].alive_until > later, "several heartbeats")
    assert [one.holder for one in live_queue.workers()] == [first.holder]
    worker.stop()
    wait_until(lambda: not any(one.alive for one in live_queue.workers()), "it to be gone")


def test_16_a_job_stays_its_workers_as_long_as_the_handler_runs(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """Its lease is extended, however often that takes."""
    for _ in range(2):
        hire(live_queue, held, lease=2)
    live_queue.add(b"", id="a")
    (job,) = held.has(1)
    wait_until(lambda: held_for(live_queue, "a") > 4.4, "three leases")
    assert (shown(live_queue, "a").token, shown(live_queue, "a").lapses) == (job.token, 0)
    held.let_go()
    wait_until_gone(live_queue, "a")
    assert len(held.jobs) == 1


def test_17_a_worker_that_was_failed_is_told_and_begins_anew(
    live_queue: Queue, hire: Hire, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are lost, it registers again, and what it leases from then on is its own."""
    monkeypatch.setattr("holdfast.worker.loop.REGISTER_SECONDS", 0.2)
    heard = Heard()
    hire(live_queue, held, concurrency=3, hooks=[heard])
    live_queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="b", delay=60)])
    (lost,) = held.has(1)
    assert live_queue.fail_worker(lost.lease) == 1
    wait_until(lambda: lost.cancelled, "the handler to be told")
    assert heard.has("lost") == [lost.token]
    wait_until(live_queue.workers, "it to be back")
    _, again = held.has(2)
    assert (again.id, again.lapses, again.cancelled) == ("a", 1, False)
    held.let_go()
    assert heard.has("done") == [again.token]
    assert shown(live_queue, "b").state == "delayed"


def test_21_a_worker_can_stop_its_work_on_one_of_its_queues(
    live_queue: Queue, server: Server, hire: Hire, held: Held
) -> None:
    """What it runs of it goes back to where it was, at no cost; the other queue goes on."""
    two = Queue(f"{live_queue.name} two", server)
    live_queue.add(b"", id="mine")
    mine = take(live_queue)
    worker = hire([live_queue, two], held, concurrency=4)
    live_queue.add_many([NewJob(b"", id=id) for id in "ab"])
    two.add(b"", id="c")
    held.has(3)
    worker.drop(live_queue.name, grace=0)
    live_queue.add(b"", id="d")
    assert [(job.id, job.lapses) for job in live_queue.peek(9)] == [("a", 0), ("b", 0), ("d", 0)]
    two.add(b"", id="e")
    held.has(4)
    assert [job.id for job in held.jobs if job.queue == two.name] == ["c", "e"]
    assert shown(live_queue, "d").state == "ready"
    assert live_queue.extend(mine, 30) is Extended.HELD
    held.let_go()
    wait_until_gone(two, "c", "e")
    assert two.audit() == []


def test_22_what_a_failed_worker_runs_goes_to_its_peers(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """All of it, and nothing of what they run themselves."""
    hire(live_queue, held, concurrency=2, ahead=0)
    live_queue.add_many([NewJob(b"", id=id) for id in "ab"])
    failed = tuple(held.has(2))
    peers = Held()
    hire(live_queue, peers, concurrency=3)
    live_queue.add(b"", id="c")
    peers.has(1)
    assert live_queue.fail_worker(failed[0].lease) == 2
    assert sorted((job.id, job.lapses) for job in peers.has(3)) == [("a", 1), ("b", 1), ("c", 0)]
    peers.let_go()
    wait_until_gone(live_queue, "a", "b", "c")
    assert (len(held.jobs), len(peers.jobs)) == (2, 3)


HANGS = """
import time
from holdfast import Worker
worker = Worker(queue, lease=2, concurrency=2)
worker.handler(lambda job: time.sleep(60))
worker.run()
"""


def test_23_peers_find_out_who_died(live_queue: Queue, hire: Hire, test_server: TestServer) -> None:
    """No server part does: they ask for work, and are given what nobody extended."""
    live_queue.add_many([NewJob(b"", id=id) for id in "ab"])
    ran: list[RunningJob] = []
    with running(HANGS, test_server.url, live_queue):
        wait_until(lambda: live_queue.counts().leased == 2, "both to run")
        hire(live_queue, ran.append)
        live_queue.add(b"", id="c")
        wait_until(lambda: [job.id for job in ran] == ["c"], "what nobody has")
    wait_until_gone(live_queue, "a", "b")
    assert sorted((job.id, job.lapses) for job in ran) == [("a", 1), ("b", 1), ("c", 0)]


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


SOON: JobOptions = {"max_failures": 2, "min_backoff": 0, "max_backoff": 0.05}


def test_24_whatever_handlers_do_every_transition_is_whole(live_queue: Queue, hire: Hire) -> None:
    """An audit at any moment finds nothing, and in the end everything has ended."""
    choose = random.Random(24)
    ways: list[Callable[[], None]] = [lambda: None] * 3

    def raises(error: Exception) -> None:
        raise error

    ways += [partial(raises, error) for error in (Fail(), Retry(after=0.01), Release(), OSError())]

    def handle(job: RunningJob) -> None:
        if job.json():
            job.add(job.json() - 1, **SOON)
        choose.choice(ways)()

    def handle_failed(job: RunningJob) -> None:
        live_queue.cancel(job.id)  # Also a failure handler's lease ends as cancelled.

    for worker in [hire(live_queue, handle, concurrency=3, ahead=0.1) for _ in range(3)]:
        worker.drop(live_queue.name)
        worker.failure_handler(handle_failed)
        worker.take_up(live_queue)
    live_queue.add_many([2] * 60, **SOON)
    done = threading.Event()

    def wait() -> None:
        wait_until(lambda: sum(counts(live_queue)) == 0, "everything to be over")
        done.set()

    _, audits = race(wait, until(done, live_queue.audit))
    assert audits
    assert not any(audits)


def counts(queue: Queue) -> tuple[int, int, int]:
    counted = queue.counts()
    return counted.waiting, counted.leased, counted.failed


def test_28_who_is_told_of_work_may_come_too_late(queue: Queue, other: Queue) -> None:
    """The event is a hint; only the lease says whether there is a job."""
    with queue.events(idle=DEADLINE) as one, other.events(idle=DEADLINE) as two:
        queue.add("t1", id="a")
        assert next(one).kind == next(two).kind == "added"
        leases = race(partial(queue.lease, 30), partial(other.lease, 30))
    assert sum(lease is not None for lease in leases) == 1
    assert shown(queue, "a").state == "leased"


def test_28_many_workers_are_told_and_one_runs_the_job(live_queue: Queue, hire: Hire) -> None:
    """Who comes too late waits for the next."""
    ran: list[str] = []
    for _ in range(3):
        hire(live_queue, lambda job: ran.append(job.id))
    for n in range(30):
        live_queue.add(b"", id=f"{n}")
        wait_until(lambda: len(ran) > n, "the job")  # noqa: B023
    wait_until(lambda: counts(live_queue) == (0, 0, 0), "them to be settled")
    assert ran == [f"{n}" for n in range(30)]


# ------------------------------------------------------------------------------- their bugs


def test_bug_c1_a_worker_that_failed_costs_the_others_nothing(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """There: the running tasks of every worker went back, and were run twice."""
    ears = [Heard(), Heard()]
    for heard in ears:
        hire(live_queue, held, concurrency=1, ahead=0, hooks=[heard])
    live_queue.add_many([NewJob(b"", id=id, max_lapses=0) for id in "ab"])
    failed, healthy = held.has(2)
    assert live_queue.fail_worker(failed.lease) == 1
    held.let_go()
    wait_until_gone(live_queue, healthy.id)
    assert [one.token for one in held.jobs] == [failed.token, healthy.token]
    wait_until(lambda: any(ear.tokens["done"] for ear in ears), "it to be told")
    assert sorted(ear.tokens["done"] for ear in ears) == [[], [healthy.token]]
    assert [(job.id, job.error) for job in live_queue.failed()] == [
        (failed.id, "its worker failed")
    ]


def test_bug_c2_a_job_that_begins_while_workers_are_failed_is_not_lost(
    live_queue: Queue, hire: Hire
) -> None:
    """There: it was forgotten with what was read a moment before, and nobody ran it again."""
    ran: set[str] = set()
    go = threading.Event()

    def handle(job: RunningJob) -> None:
        assert go.wait(DEADLINE)
        ran.add(job.id)

    for _ in range(3):
        hire(live_queue, handle, concurrency=2)
    wait_until(lambda: len(live_queue.workers()) == 3, "the workers")
    holders = [worker.holder for worker in live_queue.workers()]
    jobs = live_queue.add_many([NewJob(b"", id=f"{n}", max_lapses=None) for n in range(300)])
    fail = itertools.cycle([partial(live_queue.fail_worker, holder) for holder in holders])
    wait_until(next(fail), "one to be failed while it runs something")
    go.set()
    wait_until(lambda: next(fail)() == 0 and counts(live_queue) == (0, 0, 0), "all to be over")
    assert ran == {job.id for job in jobs}


def test_bug_c3_what_a_worker_gives_back_is_the_next_to_run(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """There: to the back, though the front was promised."""
    live_queue.add_many([NewJob(b"", id=id) for id in "abcd"])
    worker = hire(live_queue, held, concurrency=2, ahead=0)
    held.has(2)
    assert not worker.stop(grace=0)
    assert [(job.id, job.failures, job.lapses) for job in live_queue.peek(9)] == [
        (id, 0, 0) for id in "abcd"
    ]


@pytest.mark.parametrize("how", ["stop", "drop", "fail"])
def test_bug_c4_what_comes_back_wakes_who_sleeps(
    queue: Queue, behind: Behind, hire: Hire, held: Held, how: str
) -> None:
    """There: it slept until somebody added something."""
    worker = hire(queue, held, concurrency=1, ahead=0)
    queue.add(b"", id="a")
    (job,) = held.has(1)
    behind("DEL", "wake")
    if how == "fail":
        queue.fail_worker(job.lease)
    elif how == "stop":
        worker.stop(grace=0)
    else:
        worker.drop(queue.name, grace=0)
    assert behind("LLEN", "wake") == 1


def test_bug_c5_of_many_that_add_the_same_at_once_one_does(live_queue: Queue) -> None:
    """There: each was told that it had, and all or only one of them was stored."""
    add = partial(live_queue.add, b"", id="digest", on_conflict="raise")

    def created() -> bool:
        try:
            return bool(add())
        except JobExists:
            return False

    for _ in range(10):
        assert sorted(race(*[created] * 4)) == [False, False, False, True]
        assert live_queue.add(b"unrelated")
        assert live_queue.complete("digest", force=True)
    assert len(live_queue) == 10


def test_bug_c6_an_id_is_free_when_its_job_is_gone_and_only_then(
    queue: Queue, server: Server, clock: Clock
) -> None:
    """There: cancelling and deleting kept it for ever, and others freed or took it."""
    add = partial(queue.add, b"same", id="digest")
    assert add()
    assert Queue(f"{queue.name} two", server, clock=clock).add(b"same", id="digest")
    queue.add(b"same")
    twin = queue.peek(2)[1]
    assert queue.complete(twin.id, force=True)
    assert not add()
    assert queue.cancel("digest")
    assert add()
    queue.delete()
    assert add()


def test_bug_c7_a_worker_that_comes_too_late_changes_nothing_and_knows(
    live_queue: Queue, hire: Hire, held: Held
) -> None:
    """There: its finish was taken, announced, and freed what was not its own."""
    heard = Heard()
    hire(live_queue, held, concurrency=1, ahead=0, hooks=[heard])
    live_queue.add(b"", id="a", result_for=60)
    (late,) = held.has(1)
    live_queue.fail_worker(late.lease)
    new = take(live_queue)
    held.let_go()
    assert heard.has("lost") == [late.token]
    assert live_queue.complete(new, "the winner's")
    assert outcome_of(live_queue, "a").result == b"the winner's"
    assert heard.tokens["done"] == []


def test_bug_c8_an_idle_worker_leaves_nothing_behind(
    queue: Queue, behind: Behind, hire: Hire
) -> None:
    """There: asking wrote something down, to be undone by a second call."""
    asked = engine_calls(behind.client)
    worker = hire(queue, print)
    wait_until(lambda: engine_calls(behind.client) > asked + 4, "it to ask")
    worker.stop()
    assert behind.everything().keys() <= BOOKKEEPING | {"workers"}


def test_bug_c9_a_worker_that_misses_the_wake_finds_the_job(
    queue: Queue, behind: Behind, hire: Hire, test_server: TestServer
) -> None:
    """There: the message was all there was."""
    ran: list[str] = []
    asleep = partial(sleepers, behind.client)
    wait_until(lambda: asleep() == 0, "the sleepers of others")

    def steal() -> object:
        with test_server.client() as thief:
            return thief.blpop([behind.keys["wake"]], timeout=DEADLINE)

    def work() -> None:
        wait_until(lambda: asleep() == 1, "the thief")
        hire(queue, lambda job: ran.append(job.id))
        wait_until(lambda: asleep() == 2, "the worker to sleep")
        queue.add(b"", id="a")

    stolen, _ = race(steal, work)
    assert stolen is not None
    wait_until(lambda: ran == ["a"], "the job")


def test_bug_c9_a_worker_of_many_queues_misses_no_wake_by_itself(
    live_queue: Queue, server: Server, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it does not listen while it has no place: here it never asks just to be sure."""
    monkeypatch.setattr("holdfast.worker.loop.ControlLoop._asks_at", lambda self: float("inf"))
    queues = [Queue(f"{live_queue.name} {n}", server) for n in range(4)]
    ran: list[str] = []
    hire(queues, lambda job: ran.append(job.id), concurrency=2)
    for n in range(1, 40):
        for queue in queues:
            queue.add(b"")
        wait_until(lambda: len(ran) == 4 * n, "all of them")  # noqa: B023


def test_bug_c10_workers_never_list_the_keys_of_the_server(
    live_queue: Queue, client: redis.Redis, hire: Hire, held: Held
) -> None:
    """There: every peer did, every ten seconds, for every worker."""
    before = [command_calls(client, command) for command in ("keys", "scan")]
    workers = [hire(live_queue, held) for _ in range(2)]
    live_queue.add_many([b""] * 5)
    (job, *_) = held.has(5)
    live_queue.fail_worker(job.lease)
    live_queue.workers()
    held.let_go()
    for worker in workers:
        worker.stop()
    assert [command_calls(client, command) for command in ("keys", "scan")] == before


def test_bug_c11_the_name_of_a_queue_may_begin_like_another(
    live_queue: Queue, server: Server, hire: Hire
) -> None:
    """There: a colon or an underscore led to another queue, or to none."""
    names = [f"{live_queue.name}{rest}" for rest in (":a", ":a:b", "_a", "_a_b", ":")]
    queues = [Queue(name, server) for name in names]
    ran: list[tuple[str, bytes]] = []
    hire(queues, lambda job: ran.append((job.queue, job.data)))
    for queue in queues:
        queue.add(queue.name, id="same")
    wait_until(lambda: len(ran) == 5, "all of them")
    assert sorted(ran) == sorted((name, name.encode()) for name in names)
    for queue in queues:
        wait_until_gone(queue, "same")


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("holdfast")]


def connections(client: redis.Redis) -> int:
    connected: int = client.info("clients")["connected_clients"]
    return connected


def test_bug_c12_nothing_goes_on_when_a_worker_is_stopped(
    live_queue: Queue, client: redis.Redis, hire: Hire
) -> None:
    """There: timers went on for ever, and a worker that was failed failed itself every second."""
    wait_until(lambda: threads() == [], "the threads of others")
    connected = connections(client)
    ran: list[str] = []
    worker = hire(live_queue, lambda job: ran.append(job.id))
    live_queue.add(b"")
    wait_until(lambda: ran, "the job")
    assert threads()
    assert worker.stop()
    assert worker.stop()
    wait_until(lambda: threads() == [], "its threads to end")
    wait_until(lambda: connections(client) <= connected, "its connections to be closed")
    live_queue.add(b"", id="after")
    assert shown(live_queue, "after").state == "ready"
    worker.start()
    wait_until_gone(live_queue, "after")


def test_bug_c12_a_worker_that_cannot_work_says_so(test_server: TestServer) -> None:
    """There: starting never failed, whatever the server said."""
    wait_until(lambda: threads() == [], "the threads of others")
    worker = Worker(Queue("q", with_login(test_server.url, "nobody:secret")))
    worker.handler(print)
    with pytest.raises(HoldfastError):
        worker.start()
    assert threads() == []


def test_bug_c12_an_option_may_be_zero(live_queue: Queue, hire: Hire, held: Held) -> None:
    """There: zero meant the default."""
    worker = hire(live_queue, held, grace=0, ahead=0, concurrency=1)
    live_queue.add_many([NewJob(b"", id=id) for id in "ab"])
    held.has(1)
    assert shown(live_queue, "b").state == "ready"
    assert not worker.stop()
    assert shown(live_queue, "a").state == "ready"


@pytest.mark.parametrize("error", [None, OSError(), Retry(after=0), Fail(), Release()])
def test_bug_c13_a_cancelled_job_is_not_put_back(
    live_queue: Queue, hire: Hire, error: Exception | None
) -> None:
    """There: the handler that stopped it gave it back, and every worker acted on every other's."""
    ran: list[str] = []

    def obey(job: RunningJob) -> None:
        ran.append(job.id)
        if job.id == "a":
            wait_until(lambda: job.cancelled, "to be told")
            if error:
                raise error

    hire(live_queue, obey, concurrency=1)
    live_queue.add(b"", id="a", result_for=60)
    wait_until(lambda: ran, "the run")
    assert live_queue.cancel("a")
    live_queue.add(b"", id="next")
    wait_until_gone(live_queue, "next")
    assert ran == ["a", "next"]
    assert outcome_of(live_queue, "a").kind == "cancelled"


def test_bug_c14_who_did_not_listen_can_still_read_the_result(
    live_queue: Queue, hire: Hire
) -> None:
    """There: a result went to those who happened to listen."""
    hire(live_queue, lambda job: {"twice": 2 * job.json()})
    id = live_queue.add(21, result_for=60, delay=0.01, priority=70).id
    outcome = live_queue.result(id, wait=DEADLINE)
    assert outcome is not None
    assert outcome.json() == {"twice": 42}
    assert outcome_of(live_queue, id) == outcome
