"""A server in trouble: the error has a type and says what to do, and nothing is half-written.

What is refused here is refused whole; when the trouble is over, the same object goes on. See
also tests/engine/test_full.py and tests/queue/test_server.py.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis

from engine_support import Behind, is_loading, let_go, own_server, slow_server
from faults.shells import Shell, open_queue
from faults.theatre import QUICKLY, both_shells
from holdfast import (
    HoldfastError,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    QueueFull,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.connection import protocol
from holdfast.connection.protocol import RETRIABLE
from holdfast.connection.retries import ROUTED, Tries
from proxy import Proxy, cut_reply
from support import (
    DEADLINE,
    SLOTS,
    TestServer,
    await_replies_for,
    command_on,
    kill_connections,
    wait_until,
    with_login,
)

BRIEFLY = 0.1
"""Seconds of patience of those who are to see an error."""

TWICE = 2.0
"""Seconds of patience of those who are to see one error after another in the same call."""

SLACK = 8.0
"""Seconds that a slow machine may take, and less than a patient client waits for one reply."""

SECRET = "hunter2-secret"


@contextmanager
def own_queue(
    shell: Shell, server: TestServer, *, url: str = "", patience: float = BRIEFLY
) -> Iterator[Queue]:
    """A queue that is in order when the test is over."""
    with open_queue(shell, "q", url or server.url, patience=patience) as queue:
        yield queue
        assert queue.audit() == []


def take(queue: Queue) -> Lease:
    lease = queue.lease(600)
    assert lease is not None
    return lease


def told(ask: Callable[[], object]) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        ask()
    return raised.value


def must_be_refused(ask: Callable[[], object], word: str, advice: str) -> None:
    error = told(ask)
    assert isinstance(error, ServerRefused), repr(error)
    assert error.word == word
    assert advice in str(error)


def note_refusals(monkeypatch: pytest.MonkeyPatch, note: Callable[[str], object]) -> None:
    """Call this with the word of each refusal that a client meets, before it goes on."""
    after_refusal, after_no_entry = Tries.after_refusal, Tries.after_no_entry

    def refused(tries: Tries, before: object, reply: Any, *node: Any) -> float:
        note(protocol.word_of(reply))
        return after_refusal(tries, before, reply, *node)

    def not_let_in(tries: Tries, error: ServerRefused, *node: Any) -> float:
        note(error.word)
        return after_no_entry(tries, error, *node)

    monkeypatch.setattr(Tries, "after_refusal", refused)
    monkeypatch.setattr(Tries, "after_no_entry", not_let_in)


def changes(queue: Queue, lease: Lease) -> dict[str, Callable[[], object]]:
    """All that would change a queue in which this lease is held."""
    return {
        "add": lambda: queue.add("x", id="new"),
        "lease": lambda: queue.lease(30),
        "wait": lambda: queue.lease(30, wait=0.01),
        "complete": lambda: queue.complete(lease, "result"),
        "follow-up": lambda: queue.complete(lease, add=[NewJob("x", id="follow-up")]),
        "release": lambda: queue.release(lease),
        "extend": lambda: queue.extend(lease, 600),
        "tidy": lambda: queue.tidy(force=True),
        "pause": queue.pause,
        "delete": queue.delete,
    }


def everything_is_refused(
    queue: Queue, client: redis.Redis, lease: Lease, word: str, advice: str
) -> None:
    """Every change is refused with this word, and what is stored stays what it was."""
    behind = Behind(client, queue)
    before = behind.everything()
    for ask in changes(queue, lease).values():
        must_be_refused(ask, word, advice)
    assert behind.everything() == before


def goes_on(queue: Queue, lease: Lease) -> None:
    """The object to which everything was refused has lost nothing, and carries on."""
    queue.extend(lease, 600)
    assert queue.add("x", id="new")
    assert queue.complete(lease, "result", add=[NewJob("x", id="follow-up")])
    leases = queue.lease_many(9, 600)
    assert {"new", "follow-up"} < {lease.id for lease in leases}
    assert {lease.lapses for lease in leases} == {0}
    assert all(queue.release_many(leases))


# ------------------------------------------------------------------------ out of memory


@both_shells
def test_a_full_server_that_lost_its_scripts_is_given_them_and_can_be_drained(shell: Shell) -> None:
    with own_server() as server, server.client() as client, own_queue(shell, server) as queue:
        queue.add_many([NewJob("x", id=str(n)) for n in range(4)])

        def flushed() -> Queue:
            client.script_flush()
            return queue

        client.config_set("maxmemory", 1)
        before = Behind(client, queue).everything()
        full = told(lambda: flushed().add("x"))
        assert isinstance(full, QueueFull)
        assert "finish jobs or raise its maxmemory" in str(full)
        assert Behind(client, queue).everything() == before

        leases = flushed().lease_many(3, 600)
        flushed().extend(leases[0], 600)
        flushed().release(leases[1])
        refused = told(lambda: flushed().complete(leases[0], add=["follow-up"]))
        assert isinstance(refused, QueueFull)
        assert flushed().complete(leases[0])
        done = flushed().lease_many(3, 600, complete=[leases[2]])
        assert flushed().complete_many(done) == [True, True]
        assert flushed().audit() == []
        client.config_set("maxmemory", 0)
        assert queue.add("x")
        assert queue.counts().ready == 1


@both_shells
def test_add_many_says_what_a_server_took_before_it_was_full(shell: Shell) -> None:
    with own_server() as server, server.client() as client, own_queue(shell, server) as queue:
        queue.counts()
        room = int(client.info("memory")["used_memory"]) + 12_000_000
        client.config_set("maxmemory", room)
        jobs = [NewJob(b"x" * 4000, id=str(n)) for n in range(6000)]
        full = told(lambda: queue.add_many(jobs))
        assert isinstance(full, QueueFull)
        taken = [receipt.id for receipt in full.receipts]
        assert len(taken) in range(1000, 6000, 1000)
        assert taken == [job.id for job in jobs[: len(taken)]]
        assert queue.counts().ready == len(taken)
        while leases := queue.lease_many(1000, 600):
            assert all(queue.complete_many(leases))
        assert queue.add_many(jobs[len(taken) :][:1000])


# ---------------------------------------------------------------------------- a replica


@contextmanager
def primary_and_replica() -> Iterator[tuple[TestServer, TestServer]]:
    hasty = ("--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0")
    with own_server(*hasty, tcp=True) as primary, own_server(*hasty, tcp=True) as replica:
        replicate(primary, replica)
        yield primary, replica


def replicate(primary: TestServer, replica: TestServer) -> None:
    """Make one server the replica of the other, and wait until it follows."""
    with replica.client() as client:
        command_on(client, "REPLICAOF", "127.0.0.1", primary.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica")


def catch_up(primary: redis.Redis, replica: redis.Redis) -> None:
    def offset(client: redis.Redis) -> object:
        return client.info("replication")["master_repl_offset"]

    wait_until(lambda: offset(primary) == offset(replica), "the replica to catch up")


@both_shells
def test_a_replica_shows_what_its_primary_has_and_changes_nothing(shell: Shell) -> None:
    with (
        primary_and_replica() as (primary, replica),
        primary.client() as there,
        replica.client() as here,
        own_queue(shell, primary) as queue,
        own_queue(shell, replica) as shown,
    ):
        queue.add_many(["x", "y"])
        lease = take(queue)
        catch_up(there, here)
        assert shown.counts() == queue.counts()
        everything_is_refused(shown, here, lease, "READONLY", "connect to its primary")
        assert Behind(here, shown).everything() == Behind(there, queue).everything()
        goes_on(queue, lease)


class Failover:
    """A primary and a replica behind one address, which is that of the primary."""

    def __init__(self, address: Path, primary: TestServer, replica: TestServer) -> None:
        self.url = f"unix://{address}"
        self.primary = primary
        self.replica = replica
        self._address = address
        address.symlink_to(primary.socket)

    def happen(self) -> None:
        """Let the replica take over, with all that the primary has, and have its address."""
        with self.primary.client() as old, self.replica.client() as new:
            catch_up(old, new)
            command_on(new, "REPLICAOF", "NO", "ONE")
        replicate(self.replica, self.primary)
        self._address.unlink()
        self._address.symlink_to(self.replica.socket)


@pytest.fixture
def failover() -> Iterator[Failover]:
    with primary_and_replica() as (primary, replica):
        yield Failover(primary.directory / "address", primary, replica)


@both_shells
def test_a_client_of_a_primary_that_became_a_replica_is_told_once_and_goes_on_with_the_new_one(
    failover: Failover, shell: Shell
) -> None:
    with own_queue(shell, failover.primary, url=failover.url) as queue:
        queue.add_many(["x", "y"])
        lease = take(queue)
        failover.happen()
        must_be_refused(lambda: queue.add("x", id="a"), "READONLY", "connect to its primary")
        assert queue.add("x", id="a")
        assert queue.complete(lease)
        assert queue.counts().ready == 2
        with failover.primary.client() as old, failover.replica.client() as new:
            catch_up(new, old)
            assert Behind(old, queue).everything() == Behind(new, queue).everything()


def test_a_sleeper_at_a_primary_that_became_a_replica_gets_its_job_from_the_new_one(
    failover: Failover,
) -> None:
    with (
        own_queue("Queue", failover.primary, url=failover.url, patience=DEADLINE) as queue,
        failover.primary.client() as client,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(queue.lease, 600, wait=DEADLINE)
        wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "a sleeper")
        failover.happen()
        with own_queue("Queue", failover.replica) as other:
            other.add("x", id="a")
        lease = waiting.result(DEADLINE)
        assert lease is not None
        assert (lease.id, lease.lapses) == ("a", 0)
        assert queue.complete(lease)


@both_shells
def test_a_replica_that_lost_its_primary_is_waited_for(shell: Shell) -> None:
    with (
        own_server("--replica-serve-stale-data", "no") as server,
        server.client() as client,
        own_queue(shell, server) as queue,
    ):
        queue.add("x")
        command_on(client, "REPLICAOF", "127.0.0.1", "1")
        must_be_refused(queue.counts, "MASTERDOWN", "try again when the replica has one")
        command_on(client, "REPLICAOF", "NO", "ONE")
        assert queue.counts().ready == 1


@both_shells
def test_a_primary_with_too_few_replicas_changes_nothing(shell: Shell) -> None:
    with own_server() as server, server.client() as client, own_queue(shell, server) as queue:
        queue.add_many(["x", "y"])
        lease = take(queue)
        client.config_set("min-replicas-to-write", 1)
        everything_is_refused(queue, client, lease, "NOREPLICAS", "min-replicas-to-write")
        assert queue.counts().ready == 1
        client.config_set("min-replicas-to-write", 0)
        goes_on(queue, lease)


# -------------------------------------------------------------------------- still loading


@both_shells
def test_a_server_that_loads_longer_than_we_are_patient_says_so(shell: Shell) -> None:
    with slow_server() as server, own_queue(shell, server) as queue:
        for ask in (lambda: queue.add("x", id="a"), lambda: queue.lease(30), queue.counts):
            must_be_refused(ask, "LOADING", "try again in a moment")
        let_go(server)
        wait_until(lambda: not is_loading(server), "the data")
        assert queue.counts().ready == 1
        assert queue.add("x", id="a")
        assert [lease.id for lease in queue.lease_many(9, 600)] == ["before", "a"]


@both_shells
def test_a_call_made_while_the_server_loads_is_answered_when_it_has_loaded(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[str] = []

    def go_on_after_three(word: str) -> None:
        met.append(word)
        if met.count("LOADING") == 3:
            let_go(server)

    with slow_server() as server, own_queue(shell, server, patience=DEADLINE) as queue:
        note_refusals(monkeypatch, go_on_after_three)
        assert queue.add("x", id="a")
        assert met.count("LOADING") >= 3
        assert [lease.id for lease in queue.lease_many(9, 600)] == ["before", "a"]


# ------------------------------------------------------------------------- its disk is full


def appended(server: TestServer) -> int:
    """Return how many bytes its file for appending has."""
    (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    return file.stat().st_size


def has_appended_all(client: redis.Redis) -> bool:
    told = client.info("persistence")
    return not (told["aof_buffer_length"] or told["aof_pending_bio_fsync"])


@contextmanager
def full_disk(server: TestServer) -> Iterator[None]:
    """Let the server write ten bytes more, so that the next write is torn."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("the file size of another process is limited on Linux only")
    with server.client() as client:
        wait_until(lambda: has_appended_all(client), "what was put off while the disk was slow")
    pid, kind = server.process.pid, resource.RLIMIT_FSIZE
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (appended(server) + 10, before[1]))
    try:
        yield
    finally:
        if server.process.poll() is None:
            resource.prlimit(pid, kind, before)


@both_shells
def test_a_server_whose_disk_is_full_refuses_until_there_is_room_and_then_has_it_all(
    shell: Shell,
) -> None:
    """With everysec it answers first: what it took when it did not know yet is not lost either."""
    durable = ("--appendonly", "yes", "--appendfsync", "everysec")
    with (
        own_server(*durable) as server,
        server.client() as client,
        own_queue(shell, server) as queue,
    ):
        queue.add_many([NewJob("x", id="x"), NewJob("y", id="y")])
        lease = take(queue)

        def writes() -> bool:
            return bool(client.info("persistence")["aof_last_write_status"] == "ok")

        with full_disk(server):
            assert queue.add("x", id="before it knew")
            wait_until(lambda: not writes(), "a full disk")
            everything_is_refused(queue, client, lease, "MISCONF", "free space")
            assert queue.counts().ready == 2
        wait_until(writes, "room on the disk")
        assert queue.add("x", id="after")
        stored = Behind(client, queue).everything()
        server.kill()
        server.start()
        assert Behind(client, queue).everything() == stored
        queue.close()  # To find out that its connection is lost takes patience.
        goes_on(queue, lease)


@both_shells
def test_a_server_that_must_write_before_it_answers_ends_on_a_full_disk_and_loses_nothing(
    shell: Shell,
) -> None:
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with own_server(*durable) as server, own_queue(shell, server) as queue:
        queue.add_many([NewJob("x", id="x"), NewJob("y", id="y")])
        lease = take(queue)
        with full_disk(server):
            error = told(lambda: queue.add("z", id="z"))
            assert server.process.wait(DEADLINE) != 0
        assert isinstance(error, ServerUnavailable)
        assert "try again, with the same id" in str(error)
        server.start()
        assert queue.add("z", id="z")
        assert queue.complete(lease)
        assert [lease.id for lease in queue.lease_many(9, 600)] == ["y", "z"]


@both_shells
def test_a_server_that_cannot_save_refuses_until_it_can(shell: Shell) -> None:
    with (
        own_server("--save", "3600 1000000") as server,
        server.client() as client,
        own_queue(shell, server) as queue,
    ):
        queue.add_many(["x", "y"])
        lease = take(queue)
        saved = server.directory / "dump.rdb"
        saved.mkdir()  # A file cannot be put in its place, whoever one is.

        def saves(status: str) -> bool:
            if client.info("persistence")["rdb_bgsave_in_progress"] == 0:
                client.bgsave()
            return bool(client.info("persistence")["rdb_last_bgsave_status"] == status)

        wait_until(lambda: saves("err"), "a save that fails")
        everything_is_refused(queue, client, lease, "MISCONF", "repair its persistence")
        assert queue.counts().ready == 1
        saved.rmdir()
        wait_until(lambda: saves("ok"), "a save")
        goes_on(queue, lease)


# --------------------------------------------------------------------- who may do what


def say_everything(error: BaseException) -> str:
    """Return all that an error and what led to it say."""
    before = error.__cause__ or error.__context__
    return f"{error!r} {error} {say_everything(before) if before else ''}"


@both_shells
def test_who_loses_a_reply_and_then_the_password_is_told_that_the_outcome_is_unknown(
    shell: Shell,
) -> None:
    with own_server() as server, server.client() as client, Proxy(server.socket) as proxy:

        def let_in(password: str) -> None:
            command_on(client, "ACL", "SETUSER", "me", "resetpass", f">{password}")

        command_on(client, "ACL", "SETUSER", "me", "on", "~*", "&*", "+@all")
        let_in(SECRET)
        url = with_login(proxy.url, f"me:{SECRET}")
        with own_queue(shell, server, url=url, patience=TWICE) as queue:
            queue.add("x", id="x")
            proxy.plan([replace(cut_reply(), after=lambda: let_in("another"))])
            error = told(lambda: queue.add("y", id="y"))
            assert isinstance(error, ServerUnavailable)
            assert "check the URL" in str(error)
            assert "try again, with the same id" in str(error)
            assert SECRET not in say_everything(error)
            refused = told(lambda: queue.add("z", id="z"))
            assert isinstance(refused, ServerRefused)
            assert refused.word == "WRONGPASS"
            assert SECRET not in say_everything(refused)
            let_in(SECRET)
            assert not queue.add("y", id="y")
            assert [lease.id for lease in queue.lease_many(9, 600)] == ["x", "y"]


@both_shells
def test_a_user_who_is_removed_is_told_so_and_goes_on_when_back(shell: Shell) -> None:
    def put_back() -> None:
        command_on(client, "ACL", "SETUSER", "me", "on", f">{SECRET}", "~*", "&*", "+@all")

    with own_server() as server, server.client() as client:
        put_back()
        url = with_login(server.url, f"me:{SECRET}")
        with own_queue(shell, server, url=url, patience=TWICE) as queue:
            queue.add_many(["x", "y"])
            lease = take(queue)
            command_on(client, "ACL", "DELUSER", "me")
            before = Behind(client, queue).everything()
            # Its connection is closed. Whether that was before the request, nobody knows.
            error = told(lambda: queue.add("x", id="a"))
            assert isinstance(error, ServerUnavailable)
            assert "does not know this user and password: check the URL" in str(error)
            assert Behind(client, queue).everything() == before
            everything_is_refused(queue, client, lease, "WRONGPASS", "check the URL")
            put_back()
            goes_on(queue, lease)


@both_shells
def test_a_user_without_permission_is_told_so_and_goes_on_when_it_is_given(shell: Shell) -> None:
    def permit(*rules: str) -> None:
        command_on(client, "ACL", "SETUSER", "me", *rules)

    with own_server() as server, server.client() as client:
        permit("on", f">{SECRET}", "~hf:{q}:*", "&hf:{q}:*", "+@all")
        with own_queue(shell, server, url=with_login(server.url, f"me:{SECRET}")) as queue:
            queue.add_many(["x", "y"])
            lease = take(queue)
            permit("-@all")
            everything_is_refused(queue, client, lease, "NOPERM", "see SECURITY.md")
            permit("+@all")
            goes_on(queue, lease)


def test_a_user_who_may_not_listen_is_told_so() -> None:
    with own_server() as server, server.client() as client:
        command_on(client, "ACL", "SETUSER", "me", "on", f">{SECRET}", "~*", "+@all")
        with (
            own_queue("Queue", server, url=with_login(server.url, f"me:{SECRET}")) as queue,
            pytest.raises(ServerRefused, match="SECURITY") as refused,
            queue.events(),
        ):
            pass
        assert refused.value.word == "NOPERM"


# --------------------------------------------------------------------- too many, too busy


@both_shells
def test_a_server_that_takes_no_more_clients_is_waited_for(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed to the queue at first, and then while the queue knows it already."""
    with own_server() as server, server.client() as client:
        met: list[str] = []

        def close() -> None:
            met.clear()
            kill_connections(client)
            client.config_set("maxclients", 1)

        def open_after_two(word: str) -> None:
            met.append(word)
            if met.count("MAXCLIENTS") == 2:
                client.config_set("maxclients", 100)

        note_refusals(monkeypatch, open_after_two)
        with own_queue(shell, server, patience=DEADLINE) as queue:
            for id in ("new", "known"):
                close()
                assert queue.add("x", id=id)
                assert met.count("MAXCLIENTS") == 2
            assert queue.counts().ready == 2


def test_who_is_turned_away_hears_why_though_the_connection_is_closed_at_once() -> None:
    why = protocol.refusal(hiredis.ReplyError("ERR max number of clients reached"))
    assert isinstance(why, ServerRefused)
    tries = Tries("here", BRIEFLY)
    time.sleep(tries.after_no_entry(why) + BRIEFLY)
    with pytest.raises(ServerRefused, match="raise its maxclients"):
        tries.after_loss(BrokenPipeError(), sent=False)
    with pytest.raises(ServerUnavailable, match=r"raise its maxclients.* is unknown: try again"):
        tries.after_loss(ConnectionResetError(), sent=True)


@contextmanager
def busy(server: TestServer) -> Iterator[None]:
    """Let the server run a script until it is not needed any more."""

    def run() -> None:
        with server.client() as client, pytest.raises(redis.RedisError):
            client.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.RedisError as error:
            return "BUSY" in str(error)

    with server.client() as client:
        client.config_set("busy-reply-threshold", 10)
        running = threading.Thread(target=run)
        running.start()
        wait_until(is_busy, "a busy server")
        try:
            yield
        finally:
            client.script_kill()
            running.join(DEADLINE)


@both_shells
def test_a_server_that_was_busy_at_first_is_looked_at_when_it_has_time(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    with own_server() as server, own_queue(shell, server) as queue:
        with busy(server):
            must_be_refused(lambda: queue.add("x"), "BUSY", "try again")
        assert "appendonly is off" not in caplog.text
        assert queue.add("x")
        assert "appendonly is off" in caplog.text
        assert queue.counts().ready == 1


def test_who_wants_to_listen_to_a_busy_server_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    note_refusals(monkeypatch, met.append)
    with (
        own_server() as server,
        own_queue("Queue", server, patience=DEADLINE) as queue,
        ThreadPoolExecutor(1) as threads,
    ):
        queue.counts()

        def listen() -> str:
            with queue.events() as events:
                queue.add("x", id="a")
                return next(events).ids[0]

        with busy(server):
            listening = threads.submit(listen)
            wait_until(lambda: met.count("BUSY") >= 2, "a listener who is refused twice")
        assert listening.result(DEADLINE) == "a"
        assert met.count("BUSY") >= 2


# ------------------------------------------------------------------------------- a cluster


def test_a_cluster_that_is_down_is_waited_for() -> None:
    with (
        own_server(kind="cluster") as server,
        server.client() as client,
        own_queue("AsyncQueue", server) as queue,
    ):
        queue.add_many(["x", "y"])
        lease = take(queue)
        slot = command_on(client, "CLUSTER", "KEYSLOT", "hf:{q}:meta")
        command_on(client, "CLUSTER", "DELSLOTS", (slot + 1) % SLOTS)
        must_be_refused(queue.counts, "CLUSTERDOWN", "try again")
        must_be_refused(lambda: queue.add("x"), "CLUSTERDOWN", "try again")
        command_on(client, "CLUSTER", "ADDSLOTS", (slot + 1) % SLOTS)
        goes_on(queue, lease)


def test_all_that_is_waited_for_has_words_that_say_what_to_do() -> None:
    others = {"NOAUTH", "WRONGPASS"}
    for word in (RETRIABLE | ROUTED | protocol.ELSEWHERE | others) - {"HTTP"}:
        said = "ERR max number of clients reached" if word == "MAXCLIENTS" else f"{word} as it is"
        error = protocol.refusal(hiredis.ReplyError(said))
        assert isinstance(error, ServerRefused)
        assert error.word == word
        assert "as it is" not in str(error)
        assert ": " in str(error)


def test_a_server_that_takes_only_local_clients_says_how_to_change_that() -> None:
    """Protected mode, which cannot be met on a loopback address."""
    denied = hiredis.ReplyError("DENIED Redis is running in protected mode because ...")
    with pytest.raises(ServerRefused, match="give it a password"):
        protocol.check_health("here", denied)


# ------------------------------------------------------------------------------ too old

OLD_SERVER = os.environ.get("HOLDFAST_OLD_SERVER", "")
needs_an_old_server = pytest.mark.skipif(
    not OLD_SERVER, reason="HOLDFAST_OLD_SERVER names no server that is too old, such as Redis 6.2"
)


@needs_an_old_server
@both_shells
def test_a_server_that_is_too_old_is_refused_and_its_successor_is_taken(shell: Shell) -> None:
    with (
        own_server(binary=Path(OLD_SERVER)) as old,
        old.client() as client,
        open_queue(shell, "q", old.url) as queue,
    ):
        for ask in (lambda: queue.add("x", id="a"), lambda: queue.lease(30), queue.counts):
            error = told(ask)
            assert isinstance(error, UnsupportedServer)
            assert "needs Valkey 8.0 or Redis 7.0" in str(error)
            assert str(client.info("server")["redis_version"]) in str(error)
        assert client.dbsize() == 0
        old.kill()
        new = TestServer(old.directory)
        try:
            assert queue.add("x", id="a")
            assert queue.audit() == []
        finally:
            new.stop()


@needs_an_old_server
@both_shells
def test_a_server_that_is_too_old_is_also_refused_by_who_may_not_ask_for_its_version(
    shell: Shell,
) -> None:
    with own_server(binary=Path(OLD_SERVER)) as old, old.client() as client:
        rules = ("on", f">{SECRET}", "~*", "&*", "+@all", "-info")
        command_on(client, "ACL", "SETUSER", "me", "resetchannels", *rules)
        with open_queue(shell, "q", with_login(old.url, f"me:{SECRET}")) as queue:
            for ask in (lambda: queue.add("x"), lambda: queue.lease(30), queue.counts):
                error = told(ask)
                assert isinstance(error, UnsupportedServer)
                assert "needs Valkey 8.0 or Redis 7.0" in str(error)
        assert client.dbsize() == 0


# ------------------------------------------------------------------------------ it is frozen


@both_shells
def test_what_was_asked_of_a_frozen_server_has_one_effect_when_it_is_asked_again(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was sent in vain lies in its sockets, and is read when it thaws."""
    with own_server() as server, server.client() as client, own_queue(shell, server) as queue:
        queue.add_many([NewJob("x", id=id) for id in ("complete", "release", "extend", "lease")])
        completed, released, extended = queue.lease_many(3, 600)
        calls: dict[str, Callable[[], object]] = {
            "add": lambda: queue.add("x", id="add"),
            "complete": lambda: queue.complete(completed, add=[NewJob("x", id="follow-up")]),
            "release": lambda: queue.release(released),
            "extend": lambda: queue.extend(extended, 600),
            "lease": lambda: queue.lease(600),
        }
        with monkeypatch.context() as quickly:
            await_replies_for(QUICKLY, quickly)
            queue.close()  # The next connections are impatient.
            server.freeze()
            for ask in calls.values():
                began = time.monotonic()
                error = told(ask)
                assert isinstance(error, ServerUnavailable)
                assert "no answer in time" in str(error)
                assert "try again, with the same id" in str(error)
                # One try may be under way when patience ends; the rest is for a slow machine.
                assert time.monotonic() - began < BRIEFLY + QUICKLY + SLACK
            server.thaw()

        for name, ask in calls.items():
            try:
                answer = ask()
            except LeaseLost:
                assert name == "release"
            else:
                assert name != "lease" or isinstance(answer, Lease)
        behind = Behind(client, queue)
        ids = {id.decode() for id in behind("HKEYS", "jobs")}
        assert ids == {"release", "extend", "lease", "add", "follow-up"}
        numbers = {name.decode(): int(value) for name, value in behind("HGETALL", "meta").items()}
        assert (numbers["completed"], numbers["released"]) == (1, 1)
        # The lease that was asked for twice was given out once or twice, as two jobs.
        assert queue.counts().leased in (2, 3)
        assert numbers["leased"] == 2 + queue.counts().leased
