"""queasy on Holdfast: what it does can be done here, and its bugs are not ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from redis.crc import key_slot

from conftest import Clock
from engine_support import Behind, command_calls, ids, take
from holdfast import Extended, Lease, LeaseLost, NewJob, Queue, Server, Update
from holdfast.keys import queue_keys
from seeds.crowd import race
from seeds.looks import outcome_of, shown
from support import DEADLINE, wait_until


def run_until_failed(queue: Queue, clock: Clock, settle: Callable[[Lease], object]) -> int:
    """Lease and settle until nothing comes any more; return how often it ran."""
    for runs in range(100):
        lease = queue.lease(1)
        if lease is None:
            return runs
        settle(lease)
        clock.advance(1)
    raise AssertionError("it goes on for ever")


# ------------------------------------------------------------------------- adding, updating


def test_01_a_queue_has_defaults_for_its_jobs_and_is_one_slot(
    queue: Queue, server: Server, clock: Clock
) -> None:
    """Every job has them that does not say otherwise."""
    strict = Queue(queue.name, server, defaults={"max_failures": 1, "priority": 60}, clock=clock)
    strict.add_many([NewJob(b"", id="a"), NewJob(b"", id="b", max_failures=5)])
    assert [job.facts.max_failures for job in queue.peek(9)] == [1, 5]
    assert [job.priority for job in queue.peek(9)] == [60, 60]
    assert len({key_slot(key) for key in queue_keys(queue.name)}) == 1


@pytest.mark.parametrize("data", [None, True, 0, -1.5, "text", [], {"a": [{"b": None}]}])
def test_02_a_job_is_any_json_value_and_its_id_is_returned(queue: Queue, data: object) -> None:
    """A new id, or the one that was given. A str is kept as it is, all else as JSON."""
    made, named = queue.add(data), queue.add(data, id="mine")
    assert named.id == "mine" != made.id
    for lease in queue.lease_many(2, 30):
        assert (lease.data.decode() if isinstance(data, str) else lease.json()) == data


def test_03_a_job_has_limits_of_its_own(queue: Queue) -> None:
    """Where it says nothing: due at once, 10 failures, 3 lapses, from 2 to 300 seconds."""
    queue.add(b"", id="plain")
    queue.add(b"", id="own", max_failures=1, max_lapses=0, min_backoff=5, max_backoff=60)
    plain, own = (lease.facts for lease in queue.lease_many(2, 30))
    assert (plain.max_failures, plain.max_lapses) == (10, 3)
    assert (plain.min_backoff_ms, plain.max_backoff_ms) == (2_000, 300_000)
    assert (own.max_failures, own.max_lapses) == (1, 0)
    assert (own.min_backoff_ms, own.max_backoff_ms) == (5_000, 60_000)


def test_04_a_job_is_not_run_before_its_time(queue: Queue, clock: Clock) -> None:
    """A time of the wall clock, as a datetime or a number."""
    at = clock.ms / 1000 + 2
    queue.add(b"", id="a", at=datetime.fromtimestamp(at, UTC))
    queue.add(b"", id="b", at=at)
    assert shown(queue, "a").at == shown(queue, "b").at == at
    clock.advance(1.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert ids(queue.lease_many(9, 30)) == ["a", "b"]


@pytest.mark.parametrize(
    ("due", "new", "kept"),
    [
        (True, 10, 10),
        (True, 30, 30),
        (False, 10, 20),
        (False, 30, 20),
        ("later", 10, 20),
        ("later", 30, 30),
        ("earlier", 10, 10),
        ("earlier", 30, 20),
    ],
)
def test_05_the_time_of_a_waiting_job_is_updated_as_told(
    queue: Queue, clock: Clock, due: bool, new: float, kept: float
) -> None:
    """Always, never, or only to a later or an earlier one. An id that is new is always added."""
    update = Update(due=due)
    assert queue.add(b"old", id="a", delay=20, on_conflict=update).created
    changed = queue.add(b"new", id="a", delay=new, on_conflict=update)
    assert (changed.created, changed.updated) == (False, True)
    assert shown(queue, "a").at == clock.ms / 1000 + kept
    assert len(queue) == 1


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("counts", [True, False, None])
@pytest.mark.parametrize("limits", [True, False])
def test_05_payload_limits_and_counts_are_updated_as_told(
    queue: Queue, data: bool, counts: bool | None, limits: bool
) -> None:
    """Each for itself; counts begin anew where the payload is new, unless told otherwise."""
    queue.add(b"old", id="a", max_failures=5)
    queue.retry(take(queue), error="why", after=0)
    queue.add(b"new", id="a", max_failures=7, on_conflict=Update(data, True, limits, counts))
    job = shown(queue, "a")
    assert job.data == (b"new" if data else b"old")
    assert job.facts.max_failures == (7 if limits else 5)
    assert job.failures == (0 if (data if counts is None else counts) else 1)


def test_06_a_job_that_waits_can_be_cancelled(queue: Queue) -> None:
    """Also one that waits for another run of its id. Unknown or running: False, and no change."""
    for id, delay in (("running", 0), ("ready", 0), ("delayed", 60)):
        queue.add(b"", id=id, delay=delay)
    lease = take(queue)
    queue.add(b"again", id="running", on_conflict="update")
    cancel = partial(queue.cancel, running=False)
    assert [cancel(id) for id in ("ready", "delayed", "running")] == [True, True, True]
    assert [cancel(id) for id in ("ready", "delayed", "running", "?")] == [False] * 4
    assert queue.complete(lease)
    assert queue.lease(30) is None


# --------------------------------------------------------------------------------- settling


def test_08_a_run_ends_well_or_is_tried_again_or_fails(queue: Queue, clock: Clock) -> None:
    """Completed; retried after a backoff, or at the very time the handler asks for; failed."""
    queue.add_many([NewJob(b"", id=id) for id in ("good", "bad", "asked", "hopeless")])
    good, bad, asked, hopeless = queue.lease_many(4, 30)
    queue.complete(good)
    queue.retry(bad, error=ValueError("oops"))
    queue.retry(asked, error="not now", after=0.5)
    queue.fail(hopeless, error="never")
    assert queue.show("good") is None
    assert shown(queue, "bad").state == "delayed"
    assert shown(queue, "bad").error == "ValueError: oops"
    assert shown(queue, "asked").at == clock.ms / 1000 + 0.5
    assert [job.id for job in queue.failed()] == ["hopeless"]


def test_09_a_handler_is_told_about_its_job(queue: Queue, clock: Clock) -> None:
    """Its options, and how often it failed or did not answer."""
    queue.add({"a": 1}, id="a", handler="send", timeout=9)
    queue.retry(take(queue), error="why", after=0)
    take(queue, 1)
    clock.advance(1)
    lease = take(queue)
    assert (lease.id, lease.json(), lease.failures, lease.lapses) == ("a", {"a": 1}, 1, 1)
    assert (lease.facts.handler, lease.facts.timeout_ms) == ("send", 9000)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_10_a_job_runs_once_more_than_it_may_fail(queue: Queue, clock: Clock, most: int) -> None:
    """With no failure allowed it runs once."""
    queue.add(b"", id="a", max_failures=most)
    retry = partial(queue.retry, error="why", after=0)
    assert run_until_failed(queue, clock, retry) == most + 1
    assert queue.failed()[0].failures == most + 1


def test_11_the_wait_doubles_up_to_a_limit(queue: Queue, clock: Clock) -> None:
    """And varies by up to a quarter, so that what failed together does not come back together."""
    queue.add(b"", id="a", min_backoff=1, max_backoff=6)
    for least, most in ((1, 1.25), (2, 2.5), (4, 5), (4.8, 6), (4.8, 6)):
        queue.retry(take(queue), error="why")
        at = shown(queue, "a").at
        assert at is not None
        wait = at - clock.ms / 1000
        assert least <= round(wait, 3) <= most
        clock.advance(wait)


def test_12_a_failure_handler_has_all_the_time_it_needs(queue: Queue, clock: Clock) -> None:
    """It gets payload and error, and is asked again after ten seconds and more."""
    queue.add({"a": 1}, id="a")
    queue.fail(take(queue), error="never")
    lease = queue.lease(30, failed=True)
    assert lease is not None
    assert (lease.json(), lease.error, lease.failed) == ({"a": 1}, "never", True)
    queue.retry(lease, error="the handler has a bug")
    assert queue.lease(30, failed=True) is None
    clock.advance(13)
    lease = queue.lease(30, failed=True)
    assert lease is not None
    assert queue.complete(lease)
    assert queue.show("a") is None


# ------------------------------------------------------------------------- leasing, singletons


def test_15_many_are_leased_at_once_in_the_order_they_are_due(queue: Queue, clock: Clock) -> None:
    """No more than asked for, and none before its time."""
    for id, delay in (("third", 3), ("first", 1), ("fourth", 4), ("second", 2)):
        queue.add(b"", id=id, delay=delay)
    clock.advance(3)
    assert ids(queue.lease_many(2, 30)) == ["first", "second"]
    assert ids(queue.lease_many(9, 30)) == ["third"]
    assert (queue.counts().leased, queue.counts().delayed) == (3, 1)


def test_16_two_runs_of_one_id_never_overlap(queue: Queue, clock: Clock) -> None:
    """What is added while it runs waits until the run is over, and then for its time."""
    queue.add(b"first", id="a")
    lease = take(queue)
    kept = queue.add(b"second", id="a", delay=2, on_conflict="update")
    assert (kept.created, kept.updated, kept.state) == (False, True, "leased")
    clock.advance(3)
    assert queue.lease(30) is None
    queue.add(b"third", id="a", delay=2, on_conflict="update")
    assert queue.complete(lease)
    assert queue.lease(30) is None
    clock.advance(2)
    assert take(queue).data == b"third"


def test_17_a_retry_meets_what_waits_for_its_id(queue: Queue, clock: Clock) -> None:
    """The one job that is left has the new payload, and what the update does not touch."""
    queue.add(b"old", id="a", max_failures=5)
    lease = take(queue)
    queue.add(b"new", id="a", on_conflict=Update(due=False, limits=False, counts=False))
    queue.retry(lease, error="why", after=2)
    assert queue.lease(30) is None
    clock.advance(2)
    again = take(queue)
    assert (again.data, again.failures, again.facts.max_failures) == (b"new", 1, 5)
    assert queue.complete(again)
    assert queue.lease(30) is None


def test_18_a_heartbeat_tells_when_the_lease_is_lost(queue: Queue, clock: Clock) -> None:
    """So that the run can be stopped."""
    queue.add(b"")
    lease = take(queue, 1)
    for _ in range(3):
        clock.advance(0.9)
        assert queue.extend(lease, 1) is Extended.HELD
    clock.advance(1)
    queue.tidy()
    with pytest.raises(LeaseLost):
        queue.extend(lease, 1)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_19_a_job_that_does_not_answer_comes_back_first_and_fails_in_the_end(
    queue: Queue, clock: Clock, most: int
) -> None:
    """Each time a lapse is counted, and it is ready at once, before those that came later."""
    queue.add(b"", id="a", max_lapses=most)
    for _ in range(most):
        assert take(queue, 1).id == "a"
        clock.advance(1)
        queue.add(b"", id="later", on_conflict="ignore")
    assert take(queue, 1).lapses == most
    clock.advance(1)
    assert queue.tidy().reclaimed == 1
    assert [(job.id, job.error) for job in queue.failed()] == [("a", "the lease lapsed")]
    assert outcome_of(queue, "a").kind == "failed"


def test_21_a_finished_job_lets_the_next_run_begin(queue: Queue, behind: Behind) -> None:
    """Its lease and payload are gone, and what waited for it is ready."""
    queue.add(b"first", id="a")
    lease = take(queue)
    queue.add(b"second", id="a", on_conflict="update")
    assert queue.complete(lease)
    assert (queue.counts().leased, queue.counts().ready) == (0, 1)
    assert queue.complete(take(queue))
    assert behind.everything().keys() <= {"meta", "calls", "wake"}


def test_31_a_job_can_add_itself_for_the_next_time(queue: Queue, clock: Clock) -> None:
    """While it runs, with its own id: a job that comes every few seconds."""
    queue.add(b"", id="every 3 s")
    for _ in range(3):
        lease = take(queue)
        queue.add(b"", id="every 3 s", delay=3, on_conflict="update")
        queue.complete(lease)
        assert queue.lease(30) is None
        clock.advance(3)
    assert len(queue) == 1


# ------------------------------------------------------------------------------- their bugs


def test_bug_d1_a_job_without_a_time_is_not_run_twice_at_once(live_queue: Queue) -> None:
    """There: minus zero was not less than zero, so what should wait was given out."""
    running = 0
    for _ in range(40):
        live_queue.add(b"", id="a", on_conflict="update")
        lease = take(live_queue)
        _, *others = race(
            partial(live_queue.add, b"", id="a", on_conflict="update"),
            partial(live_queue.lease, 30),
            partial(live_queue.lease, 30),
        )
        running += sum(other is not None for other in others)
        assert live_queue.complete(lease)
    assert running == 0


@pytest.mark.parametrize("due", [True, False, "later", "earlier"])
@pytest.mark.parametrize("delay", [None, 2])
def test_bug_d2_what_waits_for_a_run_is_free_when_it_is_over(
    queue: Queue, clock: Clock, due: bool, delay: float | None
) -> None:
    """There: with some of the flags it waited for ever."""
    queue.add(b"first", id="a")
    lease = take(queue)
    queue.add(b"second", id="a", delay=delay, on_conflict=Update(due=due))
    assert queue.complete(lease)
    clock.advance(2)
    assert take(queue).data == b"second"


@pytest.mark.parametrize("settle", ["complete", "retry", "fail", "release"])
def test_bug_d3_a_zombie_settles_nothing(
    queue: Queue, clock: Clock, other: Queue, settle: str
) -> None:
    """There: its finish deleted what the new holder was running, and a third run began."""
    queue.add(b"", id="a")
    zombie = take(queue, 1)
    clock.advance(1)
    lease = take(other)
    settles: dict[str, Callable[[], object]] = {
        "complete": lambda: queue.complete(zombie),
        "retry": lambda: queue.retry(zombie, error="late"),
        "fail": lambda: queue.fail(zombie, error="late"),
        "release": lambda: queue.release(zombie),
    }
    if settle == "complete":
        assert settles[settle]() is False
    else:
        with pytest.raises(LeaseLost):
            settles[settle]()
    assert queue.lease(30) is None
    assert other.extend(lease, 30) is Extended.HELD
    other.retry(lease, error="why", after=0)
    assert take(queue).failures == 1


@pytest.mark.parametrize("missing", ["holds", "facts", "jobs"])
def test_bug_d4_a_record_that_is_missing_stops_nobody(
    queue: Queue, clock: Clock, behind: Behind, missing: str
) -> None:
    """There: the sweep raised on it, and so did every dequeue and heartbeat from then on."""
    queue.add_many([NewJob(b"", id=id, max_failures=5) for id in ("broken", "b", "c")])
    take(queue, 1)
    held = take(queue, 10)
    behind("HDEL", missing, "broken")
    clock.advance(1)
    rest = sorted(ids(queue.lease_many(9, 30)))
    assert rest == (["c"] if missing == "jobs" else ["broken", "c"])
    assert queue.extend(held, 30)
    assert queue.complete(held)


def test_bug_d5_a_missing_payload_in_the_middle_of_a_batch_strands_no_other(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: the batch was cut short by an error, and what it had moved was never swept."""
    queue.add_many([NewJob(b"", id=id) for id in "abcde"])
    behind("HDEL", "jobs", "c")
    assert ids(queue.lease_many(5, 1)) == ["a", "b", "d", "e"]
    clock.advance(1)
    assert ids(queue.lease_many(5, 1)) == ["a", "b", "d", "e"]


def test_bug_d6_a_worker_that_asks_for_more_is_still_told_what_it_lost(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: asking made it alive again, and nobody told it that its jobs were gone."""
    queue.add_many([NewJob(b"", id=id) for id in "ab"])
    lost = take(queue, 1)
    clock.advance(1)
    assert take(other, 30).id == "a"
    fresh = take(queue, 30)
    assert queue.extend_many([lost, fresh], 30) == [Extended.LOST, Extended.HELD]


def test_bug_d10_times_and_flags_arrive_as_they_were_given(queue: Queue, clock: Clock) -> None:
    """There: the time was not stored, an argument was off by one, and 'false' was true."""
    queue.add(b"old", id="a", delay=7.5)
    queue.add(b"new", id="a", delay=1, on_conflict=Update(data=False, due=False))
    job = shown(queue, "a")
    assert (job.data, job.at) == (b"old", clock.ms / 1000 + 7.5)
    queue.add(b"", id="a", on_conflict=Update(data=False))
    queue.retry(take(queue), error="why", after=0.123)
    job = shown(queue, "a")
    assert (job.data, job.at, job.failures) == (b"old", clock.ms / 1000 + 0.123, 1)


def test_bug_d11_the_first_failure_waits_for_a_handler_whoever_has_one(
    queue: Queue, other: Queue
) -> None:
    """There: a client that knew of no failure handler dropped the job."""
    queue.add(b"x", id="a", max_failures=0)
    queue.retry(take(queue), error="why")
    lease = other.lease(30, failed=True)
    assert lease is not None
    assert (lease.id, lease.data, lease.error) == ("a", b"x", "why")


def test_bug_d12_a_lost_lease_is_noticed_and_ids_may_have_colons(
    queue: Queue, clock: Clock, other: Queue
) -> None:
    """There: the heartbeat answered the same either way, and `a:b` was an id or id and worker."""
    names = ["a", "a:b", "a:b:c", f"a:{other.holder}", "a.1", "a 1 2"]
    queue.add_many([NewJob(name, id=name) for name in names])
    held = queue.lease_many(9, 1)
    assert [lease.data.decode() for lease in held] == names
    clock.advance(1)
    taken = other.lease_many(3, 30)
    queue.tidy()
    assert queue.extend_many(held, 30) == [Extended.LOST] * 6
    assert other.extend_many(taken, 30) == [Extended.HELD] * 3
    assert queue.complete_many(held) == [False] * 3 + [True] * 3


def test_bug_d13_times_are_the_servers_and_a_handler_may_come_back_sooner(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There: client clocks decided, and the time a handler asked for could only be later."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    live_queue.add(b"", min_backoff=60)
    live_queue.retry(take(live_queue), error="why", after=0.01)
    assert live_queue.lease(30, wait=DEADLINE) is not None


def test_bug_d13_jobs_that_failed_together_do_not_come_back_together(queue: Queue) -> None:
    """There: all at the same moment."""
    queue.add_many([b""] * 20)
    for lease in queue.lease_many(20, 30):
        queue.retry(lease, error="why")
    assert len({job.at for job in queue.peek(20, state="delayed")}) > 5


def test_bug_d13_jobs_due_at_the_same_time_come_in_the_order_they_were_added(
    queue: Queue, clock: Clock
) -> None:
    """There: by id."""
    for id in "zac":
        queue.add(b"", id=id, at=clock.ms / 1000 + 1)
    clock.advance(1)
    assert ids(queue.lease_many(9, 30)) == ["z", "a", "c"]


def test_bug_d14_many_lapses_are_taken_back_a_thousand_at_a_time(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: one dead client per call, however many jobs it had, in one long script."""
    queue.add_many([b""] * 2500)
    while queue.lease_many(1000, 1):
        pass
    clock.advance(1)
    called = command_calls(behind.client, "evalsha")
    assert len(queue.lease_many(10, 30)) == 10
    assert queue.counts().ready == 990
    assert queue.tidy().reclaimed == 1500
    assert command_calls(behind.client, "evalsha") == called + 4
    assert queue.counts().ready == 2490


def test_bug_d14_a_waiting_worker_is_woken_and_does_not_ask_all_the_time(
    queue: Queue, behind: Behind
) -> None:
    """There: ten questions a second from everybody."""
    client, asked = behind.client, command_calls(behind.client, "evalsha")

    def add() -> None:
        wait_until(lambda: client.info("clients")["blocked_clients"], "a sleeper")
        queue.add(b"x")

    lease, _ = race(partial(queue.lease, 30, wait=DEADLINE), add)
    assert lease is not None
    assert command_calls(client, "evalsha") <= asked + 4
