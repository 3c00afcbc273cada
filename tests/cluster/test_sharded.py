"""One name over many queues: what each shard has, what all of them say together."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import pytest

from cluster.nodes import Nodes
from conftest import Clock
from engine_support import own_server
from faults.shells import Shell, open_sharded
from holdfast import (
    AsyncShardedQueue,
    CodecError,
    InvalidArgument,
    JobExists,
    JobNotFound,
    NewJob,
    Queue,
    Row,
    RunningJob,
    Server,
    ServerUnavailable,
    ShardedQueue,
    Worker,
)
from holdfast.client.inputs import KEEP_MS
from holdfast.client.sharding import Sharding
from holdfast.engine import write_calls
from holdfast.engine.keys import slot_of
from holdfast.testing import moved, run_until_empty
from support import DEADLINE, TestServer, command_on, documented_user, wait_until, with_login
from worker.support import at_work

ASLEEP = 2 * DEADLINE
SHARDS = 4


@pytest.fixture
def queue(test_server: TestServer, name: str, shell: Shell, clock: Clock) -> Iterator[ShardedQueue]:
    """A fresh one in either shell, on a server by itself, with a clock that stands still."""
    with open_sharded(shell, name, test_server.url, shards=SHARDS, clock=clock) as queue:
        yield queue
        assert queue.audit() == []


def ids_of(queue: ShardedQueue, number: int, count: int = 1) -> list[str]:
    """Return ids that are of one shard."""
    ids = (f"id-{n}" for n in range(10_000))
    return [id for id in ids if queue.sharding.number_of(id) == number][:count]


# -------------------------------------------------------------------------- what is where


def test_a_job_is_in_the_shard_that_the_crc_of_its_id_says(queue: ShardedQueue) -> None:
    for number in range(20):
        id = f"job-{number}"
        queue.add(b"x", id=id)
        shard = Queue(f"{queue.name}/{SHARDS}/{crc32(id.encode()) % SHARDS}", queue_url(queue))
        assert shard.show(id)
        shard.close()
    assert queue.counts().ready == 20


def queue_url(queue: ShardedQueue) -> str:
    return str(queue.server.address)


def test_where_a_job_is_never_changes() -> None:
    """Written down here: a release that said otherwise would lose sight of all jobs."""
    sharding = Sharding("events", 16)
    where = {id: sharding.number_of(id) for id in ("a", "job-1", "ü", "r/7", "r", "r/end/1", "/1")}
    assert where == {"a": 3, "job-1": 15, "ü": 5, "r/7": 13, "r": 13, "r/end/1": 13, "/1": 0}
    assert sharding.names[3] == "events/16/3"
    assert sharding.number_of_request("r") == 13


def test_the_shards_of_a_name_are_in_slots_of_their_own() -> None:
    for name in ("events", "emails", "a", "ü"):
        for shards in (2, 3, 16, 100):
            assert len({slot_of(one) for one in Sharding(name, shards).names}) == shards


def test_ids_that_are_made_are_spread_evenly(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 1000)
    server = Server(queue_url(queue))
    counts = [Queue(shard.name, server).counts().ready for shard in queue.shards]
    server.close()
    assert sum(counts) == 1000
    assert min(counts) > 150


# ------------------------------------------------------------------------------- adding


def test_many_are_added_and_their_receipts_are_in_their_order(queue: ShardedQueue) -> None:
    ids = [f"job-{number}" for number in range(50)]
    queue.add(b"old", id="job-7")
    receipts = queue.add_many([NewJob(id, id=id) for id in ids])
    assert [receipt.id for receipt in receipts] == ids
    assert [receipt.id for receipt in receipts if not receipt] == ["job-7"]
    assert queue.counts().ready == 50
    assert queue.data("job-8") == b"job-8"


def test_an_error_carries_the_receipts_of_what_was_added(queue: ShardedQueue) -> None:
    taken = ids_of(queue, 2)[0]
    queue.add(b"x", id=taken)
    jobs = [NewJob(b"x", id=id) for number in (1, 2) for id in ids_of(queue, number, 3)]
    with pytest.raises(JobExists) as caught:
        queue.add_many(jobs, on_conflict="raise")
    assert [receipt.id for receipt in caught.value.receipts] == ids_of(queue, 1, 3)
    assert queue.counts().ready == 4


def test_a_job_that_cannot_be_added_comes_with_the_receipts_of_those_before(
    queue: ShardedQueue,
) -> None:
    with pytest.raises(CodecError) as caught:
        queue.add_many([b"x"] * SHARDS * 1000 + [b"y", math.nan])
    assert len(caught.value.receipts) == SHARDS * 1000 == queue.counts().ready


def test_jobs_are_not_all_in_memory_before_the_first_is_added(queue: ShardedQueue) -> None:
    megabyte = b"x" * 1024 * 1024
    added: list[int] = []

    def jobs() -> Iterator[bytes]:
        yield from [megabyte] * 8 * SHARDS
        with ShardedQueue(queue.name, queue_url(queue), shards=SHARDS) as other:
            yield megabyte
            added.append(other.counts().ready)

    queue.add_many(jobs())
    assert added == [8 * SHARDS]


def test_a_follow_up_is_in_the_shard_of_the_job_that_it_follows(queue: ShardedQueue) -> None:
    first, second = ids_of(queue, 3, 2)
    queue.add(b"x", id=first)
    (lease,) = queue.lease_many(1, 30)
    assert queue.complete(lease, add=[b"made", NewJob(b"named", id=second)])
    (made,) = [job for job in queue.peek(10) if job.data == b"made"]
    assert queue.sharding.number_of(made.id) == 3
    assert queue.data(second) == b"named"


def test_a_follow_up_with_an_id_of_another_shard_is_refused_before_anything_changes(
    queue: ShardedQueue,
) -> None:
    queue.add(b"x", id=ids_of(queue, 3)[0])
    (lease,) = queue.lease_many(1, 30)
    with pytest.raises(InvalidArgument, match="add it by itself"):
        queue.complete(lease, add=[NewJob(b"x", id=ids_of(queue, 1)[0])])
    assert queue.complete(lease)


def test_a_group_is_whole_in_one_shard(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 20, group="tenant", group_limit=2)
    queue.add(b"x", id="tenant/7", group="tenant")
    assert len(queue.lease_many(100, 30)) == 2
    queue.set_group_limit("tenant", 5)
    assert len(queue.lease_many(100, 30)) == 3
    (group,) = queue.groups()
    assert (group.name, group.jobs, group.limit) == ("tenant", 21, 5)
    other = queue.sharding.number_of_request("tenant") + 1
    with pytest.raises(InvalidArgument, match="'tenant/7'"):
        queue.add(b"x", id=ids_of(queue, other % SHARDS)[0], group="tenant")


# ------------------------------------------------------------------------------- leasing


def test_no_shard_is_starved_by_another_that_always_has_work(queue: ShardedQueue) -> None:
    rich, poor = ids_of(queue, 0, 100), ids_of(queue, 2, 1)
    queue.add_many([NewJob(b"x", id=id, priority=99) for id in rich])
    queue.add(b"x", id=poor[0], priority=0)
    leased = []
    for _ in range(SHARDS):
        lease = queue.lease(30)
        assert lease
        leased.append(lease.id)
    assert poor[0] in leased


def test_those_who_lease_once_do_not_all_turn_to_the_same_shard(
    test_server: TestServer, name: str
) -> None:
    server = Server(test_server.url)
    ShardedQueue(name, server, shards=SHARDS).add_many([b"x"] * 1000)
    once = [ShardedQueue(name, server, shards=SHARDS).lease(30) for _ in range(40)]
    sharding = Sharding(name, SHARDS)
    assert len({sharding.number_of(lease.id) for lease in once if lease}) > 1
    server.close()


def test_many_are_leased_from_all_shards(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 100)
    leases = queue.lease_many(100, 30)
    assert len({lease.id for lease in leases}) == 100
    assert queue.lease(30) is None


def test_what_is_done_is_completed_on_the_way_whatever_its_shard(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 40, result_for=60)
    leases = queue.lease_many(20, 30)
    queue.complete(leases[3])
    done: list[Any] = [(lease, lease.id) for lease in leases]
    more = queue.lease_many(1, 30, complete=done)
    assert len(more) == 1
    assert more.completed == [number != 3 for number in range(20)]
    outcome = queue.result(leases[4].id)
    assert outcome
    assert outcome.result == leases[4].id.encode()


@pytest.mark.parametrize("number", range(SHARDS))
def test_who_waits_is_woken_by_any_shard(
    test_server: TestServer, name: str, shell: Shell, threads: ThreadPoolExecutor, number: int
) -> None:
    with (
        open_sharded(shell, name, test_server.url, shards=SHARDS) as queue,
        ShardedQueue(name, test_server.url, shards=SHARDS) as other,
    ):
        waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
        (id,) = ids_of(other, number)
        other.add(b"x", id=id)
        lease = waiting.result(DEADLINE)
        assert lease
        assert lease.id == id


def test_who_waits_in_vain_is_told_in_time(
    test_server: TestServer, name: str, shell: Shell
) -> None:
    with open_sharded(shell, name, test_server.url, shards=SHARDS) as queue:
        assert queue.lease(30, wait=0.1) is None
        assert queue.lease_many(5, 30, wait=0.1) == []


def test_a_delayed_job_is_leased_when_it_is_due(
    test_server: TestServer, name: str, shell: Shell
) -> None:
    with open_sharded(shell, name, test_server.url, shards=SHARDS) as queue:
        queue.add(b"x", delay=0.2)
        assert queue.lease(30, wait=ASLEEP)


def test_what_others_do_keeps_nobody_from_what_is_due(
    test_server: TestServer, name: str, shell: Shell, threads: ThreadPoolExecutor
) -> None:
    with (
        open_sharded(shell, name, test_server.url, shards=SHARDS) as queue,
        ShardedQueue(name, test_server.url, shards=SHARDS) as other,
    ):
        other.add(b"x", id="a", result_for=60)
        other.complete_many(other.lease_many(1, 30))
        waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
        other.add(b"x", delay=0.2)
        deadline = time.monotonic() + DEADLINE
        while not waiting.done() and time.monotonic() < deadline:
            other.set_result("a", b"so far")
        told = waiting.done()
        assert waiting.result(DEADLINE)
        assert told


def test_a_user_who_may_not_listen_asks_from_time_to_time(
    test_server: TestServer, shell: Shell, name: str, threads: ThreadPoolExecutor
) -> None:
    user = [rule for rule in documented_user(f"{name}*") if rule != "+subscribe"]
    with test_server.client() as client:
        command_on(client, "ACL", "SETUSER", *user)
    url = with_login(test_server.url, f"{user[0]}:secret")
    with open_sharded(shell, name, url, shards=SHARDS) as queue:
        waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
        with ShardedQueue(name, test_server.url, shards=SHARDS) as other:
            other.add(b"x")
        assert waiting.result(DEADLINE)


# ------------------------------------------------------------------- settling, by lease or id


def test_leases_are_settled_where_they_are(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 20, max_failures=0)
    a, b, c, d, *rest = queue.lease_many(20, 30)
    assert all(queue.extend_many([a, b, c, d, *rest], 60))
    queue.extend(a, 60)
    queue.retry(a, error="wrong")
    queue.fail(b, error="wrong")
    queue.release(c)
    assert queue.complete(d)
    assert queue.complete_many([d, *rest[:3]]) == [False, True, True, True]
    assert queue.release_many([c, *rest[3:6]]) == [False, True, True, True]
    assert sorted(job.id for job in queue.failed()) == sorted([a.id, b.id])
    assert queue.revive(a.id)
    assert queue.cancel(b.id)
    assert not queue.cancel(b.id)
    counts = queue.counts()
    assert (counts.ready, counts.leased, counts.failed) == (5, 10, 0)


def test_jobs_are_found_by_their_ids(queue: ShardedQueue) -> None:
    queue.add(b"x", id="a", result_for=60)
    assert queue.data("a") == b"x"
    assert queue.show("b") is None
    assert "ready" in queue.explain("a")
    assert queue.explain("b").startswith("no job has this id: it was never added")
    queue.request("r").open()
    assert queue.explain("r").startswith("no job has this id, but a request has")
    queue.set_result("a", b"so far")
    assert queue.complete("a", b"result", force=True)
    outcome = queue.result("a")
    assert outcome
    assert outcome.result == b"result"
    with pytest.raises(JobNotFound):
        queue.result("b")


def test_a_result_is_waited_for(
    test_server: TestServer, name: str, shell: Shell, threads: ThreadPoolExecutor
) -> None:
    with (
        open_sharded(shell, name, test_server.url, shards=SHARDS) as queue,
        ShardedQueue(name, test_server.url, shards=SHARDS) as other,
    ):
        queue.add(b"x", id="a", result_for=60)
        waiting = threads.submit(lambda: queue.result("a", wait=ASLEEP))
        (lease,) = other.lease_many(1, 30)
        other.complete(lease, b"result")
        assert waiting.result(DEADLINE)


# ------------------------------------------------------------------------------ requests


def test_a_request_is_whole_in_one_shard(queue: ShardedQueue) -> None:
    for id in ("report", "a/5", "x/end/3/y"):
        request = queue.request(id, limit=2)
        request.open()
        request.add_many([b"x"] * 5)
        request.seal()
        leases = queue.lease_many(100, 30)
        assert len(leases) == 2, "the limit holds over all shards"
        while leases:
            assert {lease.request for lease in leases} == {id}
            leases = queue.lease_many(100, 30, complete=[(lease, b"r") for lease in leases])
        assert request.status().state == "completed"
        assert queue.show(f"{id}/3") is not None
        assert queue.data(f"{id}/3") is None
    assert [status.id for status in queue.requests()] == ["a/5", "report", "x/end/3/y"]


def test_the_follow_up_of_a_request_is_found_by_its_id(queue: ShardedQueue) -> None:
    request = queue.request("r", follow_up=b"next")
    request.open()
    request.seal()
    assert queue.data("r/end/1") == b"next"


def test_a_plain_job_cannot_take_the_id_of_a_part(queue: ShardedQueue) -> None:
    request = queue.request("r")
    request.open()
    queue.add(b"x", id="r/0")
    with pytest.raises(JobExists):
        request.add(b"x")
    request.cancel()


# ---------------------------------------------------------------------------- all of them


def test_counts_are_summed_and_what_is_done_is_done_to_all(
    queue: ShardedQueue, clock: Clock
) -> None:
    queue.add_many([b"same"] * 10)
    queue.add_many([NewJob(b"x", delay=10)] * 10)
    queue.lease_many(4, 5)
    queue.pause()
    assert queue.counts().paused
    assert queue.lease(30) is None
    queue.resume()
    counts = queue.counts()
    assert (counts.ready, counts.delayed, counts.leased, counts.paused) == (6, 10, 4, False)
    clock.advance(20)
    tidied = queue.tidy(force=True)
    assert (tidied.promoted, tidied.reclaimed) == (10, 4)
    assert queue.cancel_matching(b"same") == 10
    assert queue.counts().ready == 10
    queue.delete()
    assert queue.counts().ready == 0


def test_totals_are_summed_over_all_shards(queue: ShardedQueue) -> None:
    queue.add_many([b"x"] * 20)
    queue.complete_many(queue.lease_many(15, 30))
    totals = queue.totals()
    assert (totals.added, totals.leased, totals.completed, totals.failed) == (20, 15, 15, 0)


def test_what_is_staged_in_a_shard_gets_ids_of_it(test_server: TestServer, name: str) -> None:
    with ShardedQueue(name, test_server.url, shards=SHARDS) as queue:
        shard, (fits,) = queue.shards[2], ids_of(queue, 2)
        write = shard.write()
        rows = [b"x", Row(b"x"), Row(b"x", id=fits), *[b"x"] * 20]
        staged = write.stage(rows, partition=0, attempt=0)
        assert queue.counts().staged == 1
        assert write.commit([staged]).rows == 23
        assert shard.counts().ready == 23
        leases = queue.lease_many(100, 30)
        assert {queue.sharding.number_of(lease.id) for lease in leases} == {2}
        assert queue.complete_many(leases) == [True] * 23
        (elsewhere,) = ids_of(queue, 1)
        with pytest.raises(InvalidArgument, match="shard"):
            write.stage([Row(b"x", id=elsewhere)], partition=1, attempt=0)
        assert queue.audit() == []


def test_what_is_committed_is_published_in_all_shards(queue: ShardedQueue) -> None:
    with ShardedQueue(queue.name, queue_url(queue), shards=SHARDS) as sharded:
        for shard in sharded.shards:
            commit_only(shard, b"x", b"y")
    assert queue.counts().ready == 0
    assert queue.publish() == 2 * SHARDS
    assert queue.publish() == 0
    assert queue.counts().ready == 2 * SHARDS


def commit_only(shard: Queue, *rows: bytes) -> None:
    """Commit, and die before the rows become jobs."""
    write = shard.write("w")
    staged = write.stage(rows, partition=0, attempt=0)
    shard._run(write_calls.adopt("w", "", 0, 0, [("w/0.0", staged.chunks)], keep_for_ms=KEEP_MS))
    assert shard._run(write_calls.commit("w", "", 0, 1, keep_for_ms=KEEP_MS, how=b""))


def test_what_is_of_one_shard_says_that_it_is_to_be_named(queue: ShardedQueue) -> None:
    for ask in (
        lambda: queue.write("w"),
        lambda: queue.reader("r"),
        lambda: queue.last_batch("w"),
    ):
        with pytest.raises(InvalidArgument, match=r"use queue\.shards\[0\]"):
            ask()


def test_jobs_are_looked_at_over_all_shards(queue: ShardedQueue) -> None:
    queue.add_many([NewJob(b"x", id=f"r{n}", priority=n) for n in range(20)])
    queue.add_many([NewJob(b"x", id=f"d{n}", delay=100 - n) for n in range(20)])
    assert [job.id for job in queue.peek(5)] == ["r19", "r18", "r17", "r16", "r15"]
    assert [job.id for job in queue.peek(3, first=5)] == ["r14", "r13", "r12"]
    assert [job.id for job in queue.peek(3, state="delayed")] == ["d19", "d18", "d17"]
    with pytest.raises(InvalidArgument, match="shards"):
        queue.peek(1, first=1000)


def test_what_is_broken_says_in_which_shard(queue: ShardedQueue, test_server: TestServer) -> None:
    (id,) = ids_of(queue, 1)
    queue.add(b"x", id=id)
    with test_server.client() as client:
        command_on(client, "HDEL", f"hf:{{{queue.name}/{SHARDS}/1}}:jobs", id)
    (problem,) = queue.audit()
    assert problem.id == id
    assert problem.what.startswith(f"{queue.name}/{SHARDS}/1: ")
    assert [mended.id for mended in queue.repair()] == [id]


def test_a_worker_is_one_in_all_shards(queue: ShardedQueue) -> None:
    queue.register(note="hello")
    (worker,) = queue.workers()
    assert worker.holder == queue.holder
    queue.add_many([b"x"] * 10)
    queue.lease_many(10, 30)
    assert queue.fail_worker(worker) == 10


def test_events_of_all_shards_are_heard(test_server: TestServer, name: str) -> None:
    with (
        ShardedQueue(name, test_server.url, shards=SHARDS) as queue,
        queue.events(idle=DEADLINE) as events,
    ):
        wanted = {ids_of(queue, number)[0] for number in range(SHARDS)}
        for id in wanted:
            queue.add(b"x", id=id)
        assert {next(events).ids[0] for _ in wanted} == wanted


# ------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("kind", [ShardedQueue, AsyncShardedQueue])
def test_what_cannot_be_is_refused(kind: type[Any], test_server: TestServer) -> None:
    for shards in (0, 257, 1.5, "4", None, True):
        with pytest.raises(InvalidArgument, match="shards"):
            kind("q", test_server.url, shards=shards)
    for name in ("", "}q", 5, "x" * 512):
        with pytest.raises(InvalidArgument, match="queue name"):
            kind(name, test_server.url, shards=4)


def test_bad_arguments_are_refused_as_by_a_queue(queue: Any) -> None:
    calls: list[Any] = [
        lambda: queue.add(b"x", id=""),
        lambda: queue.add(b"x", id="\ud800"),
        lambda: queue.cancel(""),
        lambda: queue.lease_many(0, 30),
        lambda: queue.lease(0),
        lambda: queue.lease(30, wait=-1),
        lambda: queue.complete("a"),
        lambda: queue.complete_many(["a"]),
        lambda: queue.lease_many(1, 30, complete=["a"]),
        lambda: queue.extend(None, 30),
        lambda: queue.add_many("abc"),
        lambda: queue.peek(0),
        lambda: queue.request(""),
        lambda: queue.set_group_limit("", 1),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert queue.counts().ready == 0


def test_with_another_number_of_shards_it_is_another_queue(
    queue: ShardedQueue, test_server: TestServer
) -> None:
    """So nobody looks for a job in the wrong place: the two are worked off side by side."""
    queue.add(b"x", id="a")
    with ShardedQueue(queue.name, test_server.url, shards=SHARDS + 1) as other:
        assert other.show("a") is None
        assert other.add(b"x", id="a")
        assert len(other) == 1
        other.delete()


# -------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("kind", [ShardedQueue, AsyncShardedQueue])
def test_a_worker_works_on_all_shards(test_server: TestServer, name: str, kind: type[Any]) -> None:
    ran: Counter[str] = Counter()
    worker = Worker(kind(name, test_server.url, shards=SHARDS))

    @worker.handler(queue=name)
    def note(job: RunningJob) -> None:
        ran[job.queue] += 1
        if job.data == b"first":
            job.add(b"second")

    with ShardedQueue(name, test_server.url, shards=SHARDS) as queue:
        queue.add_many([b"first"] * 100)
        with at_work(worker):
            wait_until(lambda: ran[name] == 200, "all runs")
            wait_until(queue.workers, "it to be listed")
            (info,) = queue.workers()
            assert info.about["queues"] == [name]
            worker.drop(name)
            queue.add(b"x", id="left")
            worker.take_up(kind(name, test_server.url, shards=SHARDS))
            wait_until(lambda: ran[name] == 201, "the one that was left")
        assert queue.audit() == []
        assert queue.counts().ready == 0


def test_children_of_a_worker_add_to_their_shard(test_server: TestServer, name: str) -> None:
    worker = Worker(
        ShardedQueue(name, test_server.url, shards=SHARDS), executor="process", concurrency=2
    )

    @worker.handler(queue=name)
    def follow(job: RunningJob) -> str:
        if job.data == b"first":
            job.add(b"second", result_for=60)
        return job.queue

    with ShardedQueue(name, test_server.url, shards=SHARDS) as queue:
        queue.add_many([b"first"] * 20)
        worker.run(until_empty=True)
        ended = queue.peek(100, state="ended")
        assert len(ended) == 20
        for job in ended:
            outcome = queue.result(job.id)
            assert outcome
            assert outcome.result == name.encode()
        assert queue.audit() == []


# ---------------------------------------------------------------------------- on a cluster


def test_the_nodes_of_a_cluster_share_a_sharded_queue(
    cluster: Nodes, name: str, shell: Shell
) -> None:
    with open_sharded(shell, name, cluster.url, shards=16) as queue:
        queue.add_many([b"x"] * 300, result_for=60)
        owners = {cluster.primary_of(shard.name) for shard in queue.shards}
        assert len(owners) == 3
        cluster.move(queue.shards[0].name, cluster.elsewhere(queue.shards[0].name))
        leases = queue.lease_many(300, 30)
        assert len(leases) == 300
        assert all(queue.complete_many(leases))
        assert queue.counts().ended == 300
        assert queue.audit() == []


def test_who_waits_on_a_cluster_is_woken_by_any_node(
    cluster: Nodes, name: str, shell: Shell, threads: ThreadPoolExecutor
) -> None:
    with (
        open_sharded(shell, name, cluster.url, shards=16) as queue,
        ShardedQueue(name, cluster.url, shards=16) as other,
    ):
        for number in (0, 5, 11):
            waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
            (id,) = ids_of(other, number)
            other.add(b"x", id=id)
            lease = waiting.result(DEADLINE)
            assert lease
            assert lease.id == id


@pytest.fixture
def partial_cluster(cluster: Nodes) -> Iterator[Nodes]:
    """A cluster whose nodes go on when others are lost, as is recommended to users."""
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    yield cluster
    cluster.heal()
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "yes")


def test_a_lost_node_stops_nobody_but_its_shards(partial_cluster: Nodes, name: str) -> None:
    cluster = partial_cluster
    with ShardedQueue(name, Server(cluster.url, patience=0), shards=16) as queue:
        queue.add_many([b"x"] * 100)
        lost = cluster.primary_of(queue.shards[0].name)
        cluster.replica_of(queue.shards[0].name).kill()
        lost.kill()
        alive = [shard for shard in queue.shards if cluster.primary_of(shard.name) is not lost]
        assert alive
        ready = sum(shard.counts().ready for shard in alive)
        assert 0 < ready < 100
        with pytest.raises(ServerUnavailable):
            queue.counts()
        leases = queue.lease_many(100, 30)
        assert len(leases) == ready


def test_what_is_leased_does_not_lapse_while_a_lost_node_is_waited_for(
    partial_cluster: Nodes, name: str
) -> None:
    cluster = partial_cluster
    with ShardedQueue(name, Server(cluster.url, patience=1), shards=32) as queue:
        queue.add_many([b"x"] * 200)
        lost = cluster.primary_of(queue.shards[0].name)
        cluster.replica_of(queue.shards[0].name).kill()
        lost.kill()
        leases = queue.lease_many(200, 6)  # All shards of a lost node take longer.
        assert leases
        alive = [shard for shard in queue.shards if cluster.primary_of(shard.name) is not lost]
        for shard in alive:
            shard.tidy(force=True)
        assert all(queue.extend_many(leases, 30))


def test_an_error_carries_what_was_completed_before_the_waiting(name: str) -> None:
    with own_server() as server:
        queue = ShardedQueue(name, Server(server.url, patience=0), shards=SHARDS)
        queue.add(b"x")
        leases = queue.lease_many(1, 30)
        with queue.events() as events, ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(queue.lease_many, 1, 30, wait=ASLEEP, complete=leases)
            next(event for event in events if event.kind == "completed")
            wait_until(lambda: listeners(server) == 2 * SHARDS, "who waits")
            server.kill()
            with pytest.raises(ServerUnavailable) as caught:
                waiting.result(DEADLINE)
            queue.close()
        assert caught.value.answers == [True]


def listeners(server: TestServer) -> int:
    with server.client() as client:
        return sum(count for _, count in client.pubsub_numsub(*client.pubsub_channels()))


def test_what_was_leased_goes_back_when_something_else_could_not_be_completed(
    partial_cluster: Nodes, name: str
) -> None:
    cluster = partial_cluster
    with ShardedQueue(name, Server(cluster.url, patience=0), shards=16) as queue:
        lost = cluster.primary_of(queue.shards[0].name)
        mine = next(s for s in queue.shards if cluster.primary_of(s.name) is not lost)
        queue.shards[0].add(b"x")
        (held,) = queue.lease_many(1, 30)
        mine.add(b"x")
        cluster.replica_of(queue.shards[0].name).kill()
        lost.kill()
        with pytest.raises(ServerUnavailable) as caught:
            queue.lease_many(5, 30, complete=[held])
        assert caught.value.answers == []
        assert mine.counts().ready == 1


def test_what_was_leased_goes_back_when_nobody_waits_for_the_rest(
    cluster: Nodes, name: str
) -> None:
    async def act() -> None:
        async with AsyncShardedQueue(name, cluster.url, shards=16) as queue:
            for shard in queue.shards:
                await shard.add_many([b"x"] * 5)
            (asked,) = await queue.lease_many(1, 30)
            await queue.release(asked)
            swift = queue.shards[(queue.sharding.number_of(asked.id) + 1) % 16]  # The next is this.
            primaries = [cluster.primary_of(shard.name) for shard in queue.shards]
            slow = next(one for one in primaries if one is not cluster.primary_of(swift.name))
            slow.freeze()
            task = asyncio.create_task(queue.lease_many(100, 30))
            while not (await swift.counts()).leased:
                pass
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            slow.thaw()

    asyncio.run(act())
    with ShardedQueue(name, cluster.url, shards=16) as queue:
        wait_until(lambda: queue.counts().ready == 80, "all to be back")


def test_both_shells_are_one_thing(test_server: TestServer, name: str) -> None:
    async def act() -> int:
        async with AsyncShardedQueue(name, test_server.url, shards=SHARDS) as queue:
            await queue.add_many([b"x"] * 10)
            async with queue.request("r") as request:
                await request.add(b"x")
            return (await queue.counts()).waiting

    assert asyncio.run(act()) == 11
    with ShardedQueue(name, test_server.url, shards=SHARDS) as queue:
        assert len(queue) == 11
        queue.delete()


# ------------------------------------------------------------------- schedules and handlers


def test_the_ticks_of_a_schedule_are_in_the_shard_of_its_name(
    queue: ShardedQueue, clock: Clock
) -> None:
    for number in range(6):
        queue.every("1m", f"of {number}", name=f"s{number}")
    queue.tick()
    clock.advance(60)
    queue.tick()
    jobs = queue.peek(100, state="delayed") + queue.peek(100)
    assert {job.data for job in jobs} == {b"of %d" % number for number in range(6)}
    for job in jobs:
        assert queue.sharding.number_of(job.id) == crc32(job.id.split("@")[0].encode()) % SHARDS
        assert queue.show(job.id)
    assert queue.tick() == []


def test_a_schedule_of_a_group_in_another_shard_is_refused_at_once(queue: ShardedQueue) -> None:
    names = [f"s{number}" for number in range(50)]
    mine = queue.sharding.number_of_request("tenant")
    other = next(name for name in names if queue.sharding.number_of_request(name) != mine)
    with pytest.raises(InvalidArgument, match="in another"):
        queue.every("1m", b"x", name=other, group="tenant")
    assert queue.schedules == {}


def test_a_worker_makes_the_ticks_and_runs_the_handlers_of_a_sharded_queue(
    test_server: TestServer, name: str
) -> None:
    with ShardedQueue(name, test_server.url, shards=SHARDS) as queue:
        ran: list[str] = []

        @queue.handler
        def greet(to: str) -> None:
            ran.append(to)

        worker = Worker(queue)
        queue.every(1, NewJob({"to": "tick"}, handler="greet"), name="often")
        with at_work(worker):
            greet.add(to="ann")
            wait_until(lambda: "ann" in ran and "tick" in ran, "both")
        assert queue.audit() == []


def test_a_sharded_queue_is_moved_for_a_test(test_server: TestServer, name: str) -> None:
    queue = ShardedQueue(name, "redis://127.0.0.1:1", shards=SHARDS)
    ran: list[str] = []

    @queue.handler
    def note(what: str) -> None:
        ran.append(what)

    with moved(queue, test_server.url):
        note.add(what="a")
        queue.add_many([NewJob({"what": "b"}, handler="note")] * 10)
        run_until_empty(queue)
    assert sorted(ran) == ["a", *"b" * 10]
