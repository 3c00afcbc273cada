"""Sentinels say who is primary: it is asked for, checked, and asked for again when it is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from cluster.nodes import closing, wait_for_replicas
from cluster.watched import NAME, Watched, follow, role
from engine_support import take
from faults.shells import Shell, open_queue
from holdfast import Queue, RunningJob, ServerRefused, ServerUnavailable, Worker
from support import DEADLINE, command_on, wait_until
from worker.support import at_work

ASLEEP = 2 * DEADLINE


@pytest.fixture
def queue(watched: Watched, slow_shell: Shell, name: str) -> Iterator[Queue]:
    """A fresh queue in either shell, on the watched pair."""
    with open_queue(slow_shell, name, watched.url) as queue:
        yield queue
        assert queue.audit() == []


def fail_over(watched: Watched) -> None:
    """Let the replica take over, in good order."""
    before = watched.primary()
    wait_for_replicas(before)  # The Sentinel does not.
    watched.ask("FAILOVER", NAME)
    watched.wait_for_another(before)


def test_a_queue_is_on_the_primary(watched: Watched, queue: Queue) -> None:
    queue.add(b"x", id="a")
    with watched.primary().client() as client:
        assert command_on(client, "HEXISTS", f"hf:{{{queue.name}}}:jobs", "a")


def test_a_replica_that_takes_over_is_found(watched: Watched, queue: Queue) -> None:
    queue.add_many([b"x", b"y"])
    lease = take(queue)
    fail_over(watched)
    assert queue.complete(lease)
    assert queue.counts().ready == 1


def test_a_primary_that_is_killed_is_replaced_and_calls_wait_for_that(
    watched: Watched, queue: Queue
) -> None:
    queue.add(b"x")
    wait_for_replicas(watched.primary())
    watched.primary().kill()
    assert queue.add(b"y")
    assert queue.counts().ready == 2


@pytest.mark.parametrize("library", ["there", "new"])
def test_one_that_became_a_replica_unnoticed_is_left(
    slow_shell: Shell, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """It says READONLY, before any Sentinel was asked again; a new library is loaded first."""
    monkeypatch.setattr("holdfast.connection.topology.CONFIRM_SECONDS", 3600)
    watched = Watched(tmp_path)
    with closing(watched), open_queue(slow_shell, name, watched.url) as queue:
        queue.add(b"x", delay=3600)
        before, after = watched.primary(), watched.replica()
        if library == "new":
            with before.client() as other:
                command_on(other, "FUNCTION", "FLUSH")
        with after.client() as other:
            # The other way round, by hand: the connections stay.
            command_on(other, "REPLICAOF", "NO", "ONE")
        follow(before, after)
        watched.watch(after)
        assert queue.add(b"y", id="b")
        with after.client() as other:
            assert command_on(other, "HEXISTS", f"hf:{{{name}}}:jobs", "b")


def test_one_that_was_replaced_and_lives_is_left_within_moments(
    watched: Watched, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take calls, and lose them, until the Sentinel tells it that it is a replica."""
    monkeypatch.setattr("holdfast.connection.topology.CONFIRM_SECONDS", 0.01)  # Over by then.
    queue.add(b"x", delay=3600)
    before = watched.primary()
    fail_over(watched)

    def is_primary_again() -> bool:
        with before.client() as client:
            command_on(client, "REPLICAOF", "NO", "ONE")  # Should it know already.
        return role(before) == b"master"

    wait_until(is_primary_again, "the old one to take calls")
    queue.add(b"y", id="b")
    with watched.primary().client() as client:
        assert command_on(client, "HEXISTS", f"hf:{{{queue.name}}}:jobs", "b")


def test_without_a_sentinel_the_primary_that_is_known_goes_on(
    slow_shell: Shell, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connection.topology.CONFIRM_SECONDS", 0.01)
    watched = Watched(tmp_path)
    with closing(watched), open_queue(slow_shell, name, watched.url) as queue:
        queue.add(b"x")
        watched.stop_sentinel()
        assert queue.add(b"y")
        assert queue.counts().ready == 2


def test_a_sentinel_that_does_not_answer_keeps_nobody_from_the_primary(
    slow_shell: Shell, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for longer than what another one said before is relied on."""
    for module in ("topology", "conversation"):
        monkeypatch.setattr(f"holdfast.connection.{module}.FIND_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.connection.topology.CONFIRM_SECONDS", 0.2)
    watched = Watched(tmp_path)
    with closing(watched), open_queue(slow_shell, name, watched.url, patience=DEADLINE) as queue:
        queue.add(b"x")
        watched.freeze_sentinel()
        time.sleep(0.2)  # Now it has to be asked.
        assert queue.add(b"y")
        assert queue.counts().ready == 2


def test_who_waits_for_work_is_not_left_behind(
    watched: Watched, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
    fail_over(watched)
    with Queue(queue.name, watched.url) as other:
        other.add(b"x", id="a")
    lease = waiting.result(DEADLINE)
    assert lease
    assert lease.id == "a"


def test_who_waits_for_a_result_is_not_left_behind(
    watched: Watched, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    queue.add(b"x", id="a", result_for=60)
    waiting = threads.submit(lambda: queue.result("a", wait=ASLEEP))
    fail_over(watched)
    with Queue(queue.name, watched.url) as other:
        other.complete(take(other), b"result")
    outcome = waiting.result(DEADLINE)
    assert outcome
    assert outcome.result == b"result"


def test_a_worker_goes_on_with_the_next_primary(watched: Watched, name: str) -> None:
    ran: list[str] = []
    with Queue(name, watched.url) as queue:
        worker = Worker(queue)

        @worker.handler
        def note(job: RunningJob) -> None:
            ran.append(job.id)

        with at_work(worker):
            queue.add(b"x", id="before")
            wait_until(lambda: ran == ["before"], "the first run")
            wait_until(lambda: not queue.counts().leased, "its end")
            wait_for_replicas(watched.primary())  # Else it runs once more.
            watched.primary().kill()
            queue.add(b"x", id="after")
            wait_until(lambda: ran == ["before", "after"], "the second run")
        assert queue.audit() == []


def test_a_name_that_no_sentinel_knows_is_refused(watched: Watched, shell: Shell) -> None:
    url = watched.url.replace(NAME, "another")
    with (
        open_queue(shell, "q", url) as queue,
        pytest.raises(ServerRefused, match="knows no primary 'another'"),
    ):
        queue.counts()


def test_a_server_that_is_no_sentinel_is_refused(watched: Watched, shell: Shell) -> None:
    url = f"redis+sentinel://127.0.0.1:{watched.primary().port}/{NAME}"
    with (
        open_queue(shell, "q", url) as queue,
        pytest.raises(ServerRefused, match="is not a Sentinel"),
    ):
        queue.counts()


def test_without_any_sentinel_it_is_unavailable(shell: Shell) -> None:
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:2/{NAME}"
    with (
        open_queue(shell, "q", url, patience=0.1) as queue,
        pytest.raises(ServerUnavailable, match="Nothing was changed"),
    ):
        queue.add(b"x")


def test_the_sentinel_has_logins_of_its_own(watched: Watched, shell: Shell, name: str) -> None:
    with redis.Redis(port=watched.port) as sentinel:
        command_on(sentinel, "ACL", "SETUSER", "asker", "on", ">seen", "+sentinel", "+auth")
    for server in watched.servers:
        with server.client() as client:
            command_on(client, "ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all")
    url = watched.url.replace("//", "//worker:secret@")
    with open_queue(shell, name, f"{url}?sentinel_user=asker&sentinel_password=seen") as queue:
        assert queue.add(b"x")
    with (
        open_queue(shell, name, f"{url}?sentinel_user=asker&sentinel_password=wrong") as queue,
        pytest.raises(ServerRefused, match="user and password"),
    ):
        queue.add(b"x")
