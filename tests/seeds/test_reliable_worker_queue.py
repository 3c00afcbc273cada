"""reliable-worker-queue on Holdfast: what it does can be done here, and its bugs are not ours."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from functools import partial

import pytest

from conftest import Clock
from engine_support import Behind, ids, refused, take
from holdfast import (
    AsyncQueue,
    InvalidArgument,
    JobNotFound,
    JobOptions,
    Lease,
    NewJob,
    Queue,
    Server,
    ServerUnavailable,
)
from proxy import Kind, Proxy, cut_reply, cut_request
from seeds.crowd import race, running, until
from seeds.looks import outcome_of
from support import DEADLINE, TestServer, wait_until

KEPT: JobOptions = {"result_for": math.inf, "keep": True, "max_lapses": None}
"""What this seed does with every job: values and results stay, and it is tried for ever."""


@pytest.fixture
def kept(server: Server, queue: Queue, clock: Clock) -> Queue:
    """The test's queue with this seed's rules."""
    return Queue(queue.name, server, defaults=KEPT, requeue="back", clock=clock)


# ------------------------------------------------------------------------- adding, leasing


def test_02_a_job_gets_an_id_and_the_producer_is_told(kept: Queue) -> None:
    """The payload is stored under a new id, which the receipt has."""
    one, two = kept.add("Job 1"), kept.add("Job 1")
    assert one.id != two.id
    assert kept.data(one.id) == kept.data(two.id) == b"Job 1"


def test_03_the_oldest_job_is_leased_or_there_is_none(kept: Queue) -> None:
    """First in, first out, without waiting; an empty queue gives None."""
    added = [kept.add(f"Job {n}").id for n in range(3)]
    assert [take(kept).id for _ in range(3)] == added
    assert kept.lease(30) is None


def test_04_a_job_is_always_somewhere(live_queue: Queue) -> None:
    """While jobs are leased and given back, every look finds all of them."""
    live_queue.add_many([b""] * 7)
    done = threading.Event()

    def move() -> None:
        for _ in range(150):
            live_queue.release(take(live_queue, 60))
        done.set()

    _, found = race(move, until(done, live_queue.counts))
    assert found is not None
    assert {counts.ready + counts.leased for counts in found} == {7}


def test_05_the_payload_can_be_read_at_any_time(kept: Queue) -> None:
    """While the job waits, while it runs, and after it was completed; None for no job."""
    id = kept.add("Job 1").id
    assert kept.data(id) == b"Job 1"
    lease = take(kept)
    assert kept.data(id) == b"Job 1"
    kept.complete(lease, "done")
    assert kept.data(id) == b"Job 1"
    assert kept.data("no such job") is None


def test_06_a_result_can_be_recorded_by_anybody_and_the_last_one_stays(
    kept: Queue, clock: Clock, other: Queue
) -> None:
    """As often as you like, also when the lease has lapsed and the job went back."""
    id = kept.add("Job 1").id
    kept.lease(1)
    clock.advance(1)
    kept.tidy()
    assert other.complete(id, "first", force=True)
    for result in ("second", "second", "third"):
        kept.set_result(id, result)
    assert outcome_of(other, id).result == b"third"
    assert len(kept) == 0


def test_07_a_job_is_over_when_its_result_is_recorded(kept: Queue) -> None:
    """Not before; and from that moment it is no longer among those that run."""
    id = kept.add("Job 1").id
    lease = take(kept)
    assert kept.result(id) is None
    kept.complete(lease, "done")
    assert outcome_of(kept, id).result == b"done"
    assert (kept.counts().leased, kept.counts().ready, kept.data(id)) == (0, 0, b"Job 1")


# --------------------------------------------------------------------------------- tidying


def test_08_tidying_puts_stale_jobs_to_the_back_and_leaves_the_others(
    kept: Queue, clock: Clock
) -> None:
    """What has a result is not run again; what is not yet stale goes on."""
    kept.add_many([NewJob(b"", id=id) for id in ("stale", "done", "fresh", "waiting")])
    _, done = kept.lease_many(2, 2)
    kept.complete(done, "result")
    take(kept, 10)
    clock.advance(2)
    assert kept.tidy().reclaimed == 1
    assert ids(kept.lease_many(9, 30)) == ["waiting", "stale"]
    assert kept.counts().leased == 3


def test_09_what_is_stale_is_decided_when_it_is_tidied(kept: Queue, clock: Clock) -> None:
    """By how long a job is held, whatever its lease says: the time can be changed later."""
    kept.add_many([NewJob(b"", id=id) for id in "ab"])
    kept.lease(3600)
    clock.advance(3)
    kept.lease(3600)
    clock.advance(2)
    assert kept.tidy(held_longer_than=30).reclaimed == 0
    assert kept.tidy(held_longer_than=4).reclaimed == 1
    assert take(kept).id == "a"


async def wait_until_none_is_leased(aqueue: AsyncQueue) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await aqueue.counts()).leased:  # noqa: ASYNC110 - it is not in this process
            await asyncio.sleep(0.005)


def test_10_tidying_goes_on_in_the_background_and_can_be_stopped_and_started(
    queue: Queue, clock: Clock, test_server: TestServer
) -> None:
    """On an event loop: not before the interval is over; twice at once does no harm."""
    queue.add(b"", max_lapses=None)

    async def keep() -> None:
        async with AsyncQueue(queue.name, test_server.url, clock=clock) as aqueue:
            for _ in range(2):
                await aqueue.lease(1)
                clock.advance(1)
                async with aqueue.keep_tidy(every=3600):
                    assert (await aqueue.counts()).leased == 1
                async with aqueue.keep_tidy(every=0.01), aqueue.keep_tidy(every=0.01):
                    await wait_until_none_is_leased(aqueue)
                assert (await aqueue.counts()).ready == 1
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(keep())


def test_11_every_job_gets_a_result_as_long_as_some_worker_succeeds(live_queue: Queue) -> None:
    """One worker forgets the jobs that it leases, sixty times; the other is good."""
    names = [receipt.id for receipt in live_queue.add_many(range(40), **KEPT)]

    def bad() -> None:
        for _ in range(60):
            live_queue.lease(0.01)

    def good() -> None:
        while live_queue.counts().ended < len(names):
            if lease := live_queue.lease(10, wait=DEADLINE):
                live_queue.complete(lease, {"job": lease.json()})

    race(bad, good)
    assert [outcome_of(live_queue, id).json() for id in names] == [{"job": n} for n in range(40)]


TIDYING = """
while True:
    queue.tidy(force=True)
"""


def test_12_processes_that_tidy_at_once_put_a_job_back_once(
    live_queue: Queue, test_server: TestServer
) -> None:
    """Each stale job has one lapse more, and is in the queue once."""
    live_queue.add_many([b""] * 200, max_lapses=None)
    with running(TIDYING, test_server.url, live_queue, times=2):
        for _ in range(3):
            leased = live_queue.lease_many(200, 0.02)
            assert len(leased) == 200
            wait_until(lambda: live_queue.counts().ready == 200, "the tidiers")
    assert {lease.lapses for lease in live_queue.lease_many(999, 60)} == {3}


def test_13_a_worker_that_got_nothing_records_nothing(kept: Queue) -> None:
    """There is no job None, and nothing can be stored for it."""
    nothing = kept.lease(30)
    with pytest.raises(InvalidArgument):
        kept.complete(nothing, "Good Worker:None")  # type: ignore[arg-type]
    with pytest.raises(JobNotFound):
        kept.set_result("None", "Good Worker:None")


def test_14_results_can_be_read_later(kept: Queue, clock: Clock) -> None:
    """By the producer, however much later."""
    id = kept.add("Job 1").id
    kept.complete(take(kept), "done")
    clock.advance(10 * 365 * 24 * 3600)
    kept.tidy()
    assert outcome_of(kept, id).result == b"done"


# ------------------------------------------------------------------------------ their bugs


def test_bug_b1_a_lease_that_is_refused_takes_nothing(queue: Queue, spoiled: Behind) -> None:
    """There: the id was popped, then the next command raised, and the job was lost."""
    queue.add_many([NewJob(b"", id=id) for id in "abc"])
    spoiled("SET", "leased", "something else")
    for _ in range(5):
        assert refused(lambda: queue.lease(30))
    spoiled("UNLINK", "leased")
    assert ids(queue.lease_many(9, 30)) == ["a", "b", "c"]


LEASING = """
while True:
    leases = queue.lease_many(3, 3600)
    queue.release_many(leases)
"""


def test_bug_b2_a_worker_killed_at_any_moment_loses_no_job(
    live_queue: Queue, test_server: TestServer
) -> None:
    """There: killed between two commands, it took the job along. And one repair of that drains."""
    live_queue.add_many([NewJob(b"", id=f"{n}") for n in range(30)])
    with (
        running(LEASING, test_server.url, live_queue, times=4) as workers,
        live_queue.events(idle=DEADLINE) as events,
    ):
        for worker in workers:
            leased = [next(events) for _ in range(50)]
            worker.kill()
            worker.wait()
            assert any(event.kind == "leased" for event in leased)
    counts = live_queue.counts()
    assert counts.ready + counts.leased == 30
    assert live_queue.audit() == []

    def are_all_back() -> bool:
        live_queue.tidy(held_longer_than=0)
        return live_queue.counts().leased == 0

    wait_until(are_all_back, "all to be taken back")
    assert sorted(ids(live_queue.lease_many(99, 60)), key=int) == [f"{n}" for n in range(30)]


def test_bug_b3_no_job_slips_through_between_two_looks_at_the_clock(live_queue: Queue) -> None:
    """There: what became stale between them was removed, and not put back."""
    live_queue.add_many([b""] * 120, max_lapses=None)
    for ms in range(60, 0, -1):
        live_queue.lease_many(2, ms / 1000)
    done = threading.Event()

    def watch() -> set[int]:
        found = set()
        while not done.is_set():
            counts = live_queue.counts()
            found.add(counts.ready + counts.leased)
            if counts.ready == 120:
                done.set()
        return found

    found, *_ = race(watch, *[until(done, live_queue.tidy)] * 2)
    assert found == {120}


def test_bug_b4_a_tidy_that_is_cut_off_takes_back_all_or_nothing(
    queue: Queue, clock: Clock, doomed: Queue, proxy: Proxy
) -> None:
    """There: removed in one transaction, put back in another, and lost in between."""
    queue.add_many([b""] * 20, max_lapses=None)
    for cut in (*map(cut_request, (0, 0.5, -1)), cut_reply(0)):
        queue.lease_many(20, 1)
        clock.advance(1)
        proxy.plan([cut])
        with pytest.raises(ServerUnavailable):
            doomed.tidy()
        back = 20 if cut.kind is Kind.CUT_REPLY else 0
        assert (queue.counts().ready, queue.counts().leased) == (back, 20 - back)
        queue.tidy()
        assert queue.counts().ready == 20


def test_bug_b5_a_late_result_takes_back_the_job_that_waits_again(
    kept: Queue, clock: Clock
) -> None:
    """There: the copy stayed, and what was finished was run once more."""
    id = kept.add("Job 1").id
    late = take(kept, 1)
    clock.advance(1)
    kept.tidy()
    assert kept.complete(late, "late")
    assert kept.lease(30) is None
    assert outcome_of(kept, id).result == b"late"


def test_bug_b5_a_result_recorded_while_others_tidy_is_kept(
    kept: Queue, clock: Clock, other: Queue
) -> None:
    """There: recorded between the look and the push, the job was run once more."""
    for n in range(40):
        kept.add(b"", id=f"{n}")
        lease = take(kept, 1)
        clock.advance(1)
        recorded, *_ = race(partial(kept.complete, lease, f"{n}"), other.tidy, kept.tidy)
        assert recorded is True
        assert (kept.counts().ready, kept.counts().leased) == (0, 0)
        assert outcome_of(kept, f"{n}").result == b"%d" % n


def test_bug_b6_what_is_kept_for_a_time_is_forgotten_after_it(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    """There: values and results grew for ever; here it is nothing, a time, or for ever."""
    for seconds in (0, 3):
        queue.add_many(range(50), result_for=seconds, keep=True)
        done = [(lease, b"result") for lease in queue.lease_many(99, 30)]
        assert all(queue.complete_many(done))
    assert queue.counts().ended == 50
    clock.advance(3)
    assert queue.tidy().pruned == 50
    assert behind.everything().keys() <= {"meta", "calls", "wake"}


def test_bug_b7_a_producer_can_wait_for_the_result_of_its_job(live_queue: Queue) -> None:
    """There: it was not even told the id."""

    def produce() -> bytes | None:
        receipt = live_queue.add("question", result_for=60)
        outcome = live_queue.result(receipt.id, wait=DEADLINE)
        return outcome.result if outcome else None

    def answer() -> None:
        lease = live_queue.lease(30, wait=DEADLINE)
        assert lease is not None
        live_queue.complete(lease, "answer")

    results = race(produce, produce, produce, answer, answer, answer)
    assert results[:3] == [b"answer"] * 3


def test_bug_b8_many_queues_share_a_server(queue: Queue, server: Server, clock: Clock) -> None:
    """There: fixed names, so one queue for everybody."""
    others = [Queue(f"{queue.name}{n}", server, clock=clock) for n in range(3)]
    for each in (queue, *others):
        each.add(each.name, id="a")
    for each in (queue, *others):
        assert take(each).data == each.name.encode()
        assert each.lease(30) is None
    others[0].delete()
    assert all(each.counts().leased == 1 for each in (queue, *others[1:]))


def test_bug_b8_the_clock_of_a_client_does_not_matter(
    live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There: a worker whose clock was behind had its jobs taken away at once."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    live_queue.add(b"", delay=0.03)
    lease = live_queue.lease(30, wait=DEADLINE)
    assert lease is not None
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    live_queue.tidy(held_longer_than=60)
    assert live_queue.extend(lease, 30)


def test_bug_b8_every_lease_has_its_own_time(queue: Queue, clock: Clock) -> None:
    """There: one stale time for all, no way to say that one is alive, and no end of attempts."""
    queue.add_many([NewJob(b"", id=id, max_lapses=0) for id in ("short", "long", "extended")])
    take(queue, 1)
    take(queue, 4)
    extended = take(queue, 1)
    queue.extend(extended, 4)
    clock.advance(2)
    queue.tidy()
    assert [job.id for job in queue.failed()] == ["short"]
    assert {job.id for job in queue.peek(9, state="leased")} == {"long", "extended"}


def test_bug_b9_tidying_in_the_background_goes_on_after_an_error(
    live_queue: Queue, behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    """There: the first error ended it without a word, and it blocked the event loop."""
    live = Behind(behind.client, live_queue)
    live_queue.add(b"", max_lapses=None)
    take(live_queue, 0.02)
    id, lapses_at = live("ZRANGE", "leased", 0, -1, "WITHSCORES")[0]
    live("UNLINK", "leased")
    live("SET", "leased", "something else")
    caplog.set_level(logging.ERROR, "holdfast")
    with live_queue.keep_tidy(every=0.01):
        wait_until(lambda: len(caplog.records) > 1, "two errors")
        live("UNLINK", "leased")
        live("ZADD", "leased", lapses_at, id)
        wait_until(lambda: live_queue.counts().ready == 1, "a tidy")
    assert all(record.getMessage().startswith("could not tidy ") for record in caplog.records)


def test_bug_b10_a_worker_can_wait_for_work(live_queue: Queue) -> None:
    """There: it had to ask again and again."""
    work, _ = race(
        partial(live_queue.lease, 30, wait=DEADLINE), partial(live_queue.add, b"x", delay=0.05)
    )
    assert isinstance(work, Lease)
    assert work.data == b"x"


def test_bug_b11_no_result_yet_is_not_the_same_as_no_such_job(kept: Queue) -> None:
    """There: both were None."""
    id = kept.add("Job 1").id
    assert kept.result(id) is None
    assert kept.result(id, wait=0.01) is None
    with pytest.raises(JobNotFound):
        kept.result("no such job")
    assert kept.show("no such job") is None
