"""A primary of a cluster dies and a replica takes over: what waits, what is lost, what is not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cluster.nodes import Node, Nodes, as_it_was, wait_for_replicas
from engine_support import own_server, take
from faults.shells import Shell, open_queue
from holdfast import LeaseLost, Queue, RunningJob, ServerUnavailable, Worker
from support import DEADLINE, command_on, kill_connections, wait_until
from worker.support import at_work


@contextmanager
def cut_off(cluster: Nodes, queue: str) -> Iterator[Node]:
    """Have a replica hear nothing from its primary, which goes on."""
    replica = cluster.replica_of(queue)
    replica.freeze()
    # What is on its way it would still get.
    cluster.primary_of(queue).ask("CLIENT", "KILL", "TYPE", "replica")
    try:
        yield replica
    finally:
        replica.thaw()


def test_calls_wait_for_the_replica_that_takes_over(cluster: Nodes, queue: Queue) -> None:
    queue.add_many([b"x", b"y"])
    lease = take(queue)
    primary = cluster.primary_of(queue.name)
    primary.kill()
    assert queue.complete(lease)
    assert queue.add(b"z")
    assert queue.counts().ready == 2
    cluster.wait_for_another(queue.name, than=primary)


def test_who_is_asked_first_may_be_the_one_who_died(
    cluster: Nodes, slow_shell: Shell, name: str
) -> None:
    """The others were learned from it."""
    node = cluster.primary_of(name)
    with open_queue(slow_shell, name, f"redis+cluster://127.0.0.1:{node.port}") as queue:
        queue.add(b"x")
        node.kill()
        assert queue.add(b"y")


def test_a_primary_that_stands_still_is_left_for_the_one_who_takes_over(
    cluster: Nodes, name: str
) -> None:
    ran: list[str] = []
    primary = cluster.primary_of(name)
    with Queue(name, cluster.url) as queue:
        worker = Worker(queue, lease=3)

        @worker.handler
        def note(job: RunningJob) -> None:
            ran.append(job.id)

        with at_work(worker):
            queue.add(b"x", id="before")
            wait_until(lambda: ran == ["before"], "the first run")
            wait_until(lambda: not queue.counts().leased, "its end")
            wait_for_replicas(primary)  # Else it runs once more.
            primary.freeze()
            cluster.wait_for_another(name, primary)
            with Queue(name, cluster.url) as other:
                other.add(b"x", id="after")
            wait_until(lambda: ran == ["before", "after"], "the second run")
            primary.thaw()
            other.add(b"x", id="later")
            wait_until(lambda: ran == ["before", "after", "later"], "the third run")
            other.close()
        assert queue.audit() == []


# -------------------------------------------------------------------------- what is lost


@pytest.fixture
def other_queue(cluster: Nodes, slow_shell: Shell, name: str) -> Iterator[Queue]:
    with open_queue(slow_shell, name, cluster.url) as queue:
        yield queue


def test_what_the_replica_had_not_heard_is_lost_and_nothing_else(
    cluster: Nodes, other_queue: Queue
) -> None:
    queue = other_queue
    queue.add_many([b"x"] * 3, result_for=60)
    held, done = queue.lease_many(2, 30)
    queue.counts()
    name, primary = queue.name, cluster.primary_of(queue.name)
    wait_for_replicas(primary)
    with cut_off(cluster, name):
        assert queue.add(b"lost", id="lost")
        assert queue.complete(done, b"too late")
        unknown = take(queue)
        primary.kill()
    cluster.wait_for_another(name, primary)
    # What was added in the gap is not there; what was completed in it is leased as before.
    assert queue.show("lost") is None
    assert [queue.data(lease.id) for lease in (held, done, unknown)] == [b"x"] * 3
    assert queue.counts().leased == 2
    # A lease that was given out in the gap counts for nothing on this side of it.
    assert not queue.complete(unknown, b"never")
    with pytest.raises(LeaseLost):
        queue.extend(unknown, 30)
    # Those from before it count as before.
    assert queue.complete(held)
    again = take(queue)
    assert again.id == unknown.id
    assert again.token != unknown.token
    assert queue.complete(again)
    assert queue.audit() == []
    # The other side of the cut is in order, too, as it was left.
    with as_it_was(primary) as url, Queue(name, url) as old:
        assert old.audit() == []
        assert old.show("lost")
        outcome = old.result(done.id)
        assert outcome
        assert outcome.result == b"too late"
        assert old.counts().leased == 2


# ------------------------------------------------------------ replicas that are waited for


def test_what_no_replica_has_is_not_acknowledged(
    cluster: Nodes, slow_shell: Shell, name: str
) -> None:
    url = f"{cluster.url}?replicas=1"
    with open_queue(slow_shell, name, url) as queue:
        queue.add(b"x", id="before")
        with (
            cut_off(cluster, name),
            open_queue(slow_shell, name, url, patience=2) as impatient,
            pytest.raises(ServerUnavailable, match=r"only 0 replicas have the change, not 1.*unkn"),
        ):
            impatient.add(b"x", id="gap")
        assert queue.add(b"x", id="after")
        # It was there all the time, and reading waits for nobody.
        assert queue.counts().ready == 3


def test_a_call_is_made_again_until_a_replica_has_it(
    cluster: Nodes, slow_shell: Shell, name: str, threads: ThreadPoolExecutor
) -> None:
    with open_queue(slow_shell, name, f"{cluster.url}?replicas=1") as queue:
        queue.add(b"x")
        primary, replica = cluster.primary_of(name), cluster.replica_of(name)
        with primary.client() as client:
            replica.freeze()  # Its connection is there, it only does not say what it has.
            begun = function_calls(primary)
            adding = threads.submit(lambda: queue.add(b"x", id="a"))
            wait_until(lambda: function_calls(primary) > begun, "the call")
            # On a new connection nothing was changed: it must not be waited for nothing.
            for _ in range(2):
                begun = function_calls(primary)
                kill_connections(client)
                wait_until(lambda: function_calls(primary) > begun, "the call again")  # noqa: B023
            assert not adding.done()
            replica.thaw()
        assert adding.result(DEADLINE)
        assert queue.counts().ready == 2


def function_calls(node: Node) -> int:
    return int(node.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"])


def test_what_a_replica_has_survives_the_primary(
    cluster: Nodes, slow_shell: Shell, name: str
) -> None:
    with open_queue(slow_shell, name, f"{cluster.url}?replicas=1") as queue:
        queue.add_many([b"x"] * 100, result_for=60)
        done = [lease.id for lease in queue.lease_many(50, 30) if queue.complete(lease)]
        lease = take(queue)
        cluster.primary_of(name).kill()
        with Queue(name, cluster.url) as other:
            assert other.counts().ready == 49
            assert [bool(other.result(id)) for id in done] == [True] * 50
            assert other.complete(lease)
            assert other.audit() == []


def test_a_user_who_may_not_wait_for_replicas_is_refused_before_anything_changes(
    cluster: Nodes, slow_shell: Shell, name: str
) -> None:
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-wait")
    url = cluster.url.replace("//", "//limited:secret@") + "?replicas=1"
    with (
        open_queue(slow_shell, name, url) as queue,
        pytest.raises(Exception, match="may not wait for replicas"),
    ):
        queue.add(b"x")
    with Queue(name, cluster.url) as queue:
        assert queue.counts().ready == 0
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "limited")


def test_replicas_are_waited_for_on_a_server_by_itself(slow_shell: Shell) -> None:
    at_once = ("--repl-diskless-sync-delay", "0")
    with own_server(*at_once, tcp=True) as primary, own_server(tcp=True) as replica:
        with replica.client() as client:
            command_on(client, "REPLICAOF", "127.0.0.1", primary.port)
        with open_queue(slow_shell, "q", f"{primary.url}?replicas=1") as queue:
            assert queue.add(b"x", id="a")
            with replica.client() as client:
                assert command_on(client, "HEXISTS", "hf:{q}:jobs", "a")
        with (
            open_queue(slow_shell, "q", f"{primary.url}?replicas=2", patience=0.1) as queue,
            pytest.raises(ServerUnavailable, match=r"only [01] replicas have the change, not 2"),
        ):
            queue.add(b"x")
