"""Queues of a cluster: each is on the node of its slot, and is followed wherever that goes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from cluster.nodes import Node, Nodes, blocked, existing_keys, refusals, url_of
from engine_support import take
from faults.shells import Shell, open_queue
from holdfast import (
    HoldfastError,
    Queue,
    RunningJob,
    Server,
    ServerRefused,
    ServerUnavailable,
    Worker,
)
from holdfast.engine import library
from holdfast.engine.keys import NAMES, queue_keys, slot_of
from support import DEADLINE, command_on, wait_until
from worker.support import at_work

# Longer than a test takes: a sleeper that nobody wakes makes the test fail.
ASLEEP = 2 * DEADLINE


def has_library(node: Node) -> bool:
    with node.client() as client:
        found = command_on(client, "FUNCTION", "LIST", "LIBRARYNAME", library.library_name())
        return bool(found)


def forget_library(cluster: Nodes) -> None:
    for node in cluster.primaries():
        node.ask("FUNCTION", "FLUSH")


# ------------------------------------------------------------------------- where they are


def test_every_queue_is_on_the_node_of_its_slot(cluster: Nodes, shell: Shell, name: str) -> None:
    served = set()
    for number in range(12):
        with open_queue(shell, f"{name}-{number}", cluster.url) as queue:
            queue.add(b"x")
            owner = cluster.primary_of(queue.name)
            assert "jobs" in existing_keys(owner, queue.name)
            served.add(owner)
    assert len(served) == 3


def test_a_server_object_carries_queues_of_all_nodes(cluster: Nodes, name: str) -> None:
    server = Server(cluster.url)
    queues = [Queue(f"{name}-{number}", server) for number in range(12)]
    assert len({cluster.primary_of(queue.name) for queue in queues}) == 3
    for queue in queues * 2:
        queue.add(b"x")
    assert [queue.counts().ready for queue in queues] == [2] * 12
    assert [queue.audit() for queue in queues] == [[]] * 12
    server.close()


@pytest.mark.parametrize("name", ["q", "a}b", "{", "a{b}c", "{a}{b}", "ü\n\0", "x" * 512])
def test_the_slot_of_a_queue_is_the_servers(cluster: Nodes, name: str) -> None:
    slots = {cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key) for key in queue_keys(name)}
    assert slots == {slot_of(name)}


def test_any_node_tells_where_the_others_are(cluster: Nodes, shell: Shell, name: str) -> None:
    for node in cluster.nodes:
        with open_queue(shell, name, url_of([node])) as queue:
            queue.add(b"x")
            assert queue.audit() == []


def test_a_node_that_is_gone_does_not_matter_where_another_is_named(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[0].port}"
    with open_queue(shell, name, url) as queue:
        assert queue.add(b"x")


# ---------------------------------------------------------------------------- a slot moves


MOVES: dict[str, Callable[[Nodes, str, Node], None]] = {
    "key by key": lambda cluster, name, to: cluster.move(name, to),
    "as a whole": lambda cluster, name, to: cluster.move_at_once(name, to),
    "by a failover": lambda cluster, name, to: cluster.hand_over(name),
}
moves = pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))


@moves
def test_a_queue_that_moved_is_followed_and_brings_its_library(
    cluster: Nodes, queue: Queue, move: Callable[[Nodes, str, Node], None]
) -> None:
    queue.add_many([b"x", b"y"], result_for=60)
    lease = take(queue)
    before = cluster.primary_of(queue.name)
    forget_library(cluster)
    move(cluster, queue.name, cluster.elsewhere(queue.name))
    cluster.wait_for_another(queue.name, than=before)
    assert queue.complete(lease, b"result")
    assert has_library(cluster.primary_of(queue.name))
    outcome = queue.result(lease.id)
    assert outcome
    assert outcome.result == b"result"
    assert queue.counts().ready == 1


@moves
def test_who_waits_for_work_is_not_left_behind(
    cluster: Nodes,
    queue: Queue,
    shell: Shell,
    threads: ThreadPoolExecutor,
    move: Callable[[Nodes, str, Node], None],
) -> None:
    queue.add(b"now", delay=3600)  # So that there is something to move.
    before = cluster.primary_of(queue.name)
    asleep = blocked(before)
    waiting = threads.submit(lambda: queue.lease(30, wait=ASLEEP))
    wait_until(lambda: blocked(before) > asleep, "a sleeper")
    move(cluster, queue.name, cluster.elsewhere(queue.name))
    with Queue(queue.name, cluster.url) as other:
        other.add(b"x", id="a")
    lease = waiting.result(DEADLINE)
    assert lease
    assert lease.id == "a"


@moves
def test_who_listens_to_events_hears_them_from_any_node(
    cluster: Nodes,
    queue: Queue,
    threads: ThreadPoolExecutor,
    move: Callable[[Nodes, str, Node], None],
) -> None:
    queue.add(b"x", id="a", result_for=60)
    waiting = threads.submit(lambda: queue.result("a", wait=ASLEEP))
    move(cluster, queue.name, cluster.elsewhere(queue.name))
    with Queue(queue.name, cluster.url) as other:
        other.complete(take(other), b"result")
    outcome = waiting.result(DEADLINE)
    assert outcome
    assert outcome.result == b"result"


STAGES = ("begun", "between", "all keys are there")


@pytest.mark.parametrize("stage", STAGES)
def test_a_call_in_the_middle_of_a_move_waits_for_its_end(
    cluster: Nodes, queue: Queue, threads: ThreadPoolExecutor, stage: str
) -> None:
    queue.add_many([b"x"] * 3, result_for=60)
    queue.complete(take(queue))
    source, target = cluster.primary_of(queue.name), cluster.elsewhere(queue.name)
    called: list[Future[int]] = []

    def call(now: str) -> None:
        if now == stage and not called:
            before = refusals(source, "TRYAGAIN") + refusals(target, "TRYAGAIN")
            called.append(threads.submit(lambda: bool(queue.add(b"x")) + queue.counts().ready))
            wait_until(
                lambda: refusals(source, "TRYAGAIN") + refusals(target, "TRYAGAIN") > before,
                "a call that is told to try again",
            )
            assert not called[0].done()

    cluster.move(queue.name, target, between=call)
    assert called[0].result(DEADLINE) == 4


def test_a_new_queue_in_a_slot_that_moves_is_asked_for_where_it_goes(
    cluster: Nodes, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    """Nothing is there yet: the one node sends us to the other, which wants to be whole first."""
    source, target = cluster.primary_of(queue.name), cluster.elsewhere(queue.name)
    asked, told = refusals(source, "ASK"), refusals(target, "TRYAGAIN")
    called: list[Future[object]] = []

    def call(_: str) -> None:
        if not called:
            called.append(threads.submit(lambda: queue.add(b"x")))
            wait_until(lambda: refusals(target, "TRYAGAIN") > told, "one who was sent on")

    cluster.move(queue.name, target, between=call)
    assert refusals(source, "ASK") > asked
    assert called[0].result(DEADLINE)
    assert existing_keys(source, queue.name) == []
    assert "jobs" in existing_keys(target, queue.name)


def test_one_who_was_sent_on_brings_the_script_along(
    cluster: Nodes, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    """With every key of a queue there, which no queue has, the other node answers at once."""
    queue.add(b"x")
    source, target = cluster.primary_of(queue.name), cluster.elsewhere(queue.name)
    keys = dict(zip(NAMES, queue_keys(queue.name), strict=True))
    with source.client() as client:
        there = existing_keys(source, queue.name)
        for name, key in keys.items():
            if name not in there:
                kinds = {"wake": "LPUSH", "parked": "ZADD", "delayed": "ZADD", "leased": "ZADD"}
                kind = kinds.get(name, "ZADD" if name in ("turns", "failed", "ended") else "HSET")
                rest: dict[str, list[Any]] = {
                    "LPUSH": ["1"],
                    "ZADD": [0, "-"],
                    "HSET": ["-", "-"],
                }
                command_on(client, kind, key, *rest[kind])
    forget_library(cluster)
    answers: list[int] = []

    def call(now: str) -> None:
        if now == "all keys are there":
            answers.append(queue.counts().ready)

    cluster.move(queue.name, target, between=call)
    assert answers == [1]
    assert not has_library(source)
    with target.client() as client:
        client.unlink(*keys.values())


def test_no_node_runs_a_script_on_half_a_queue(cluster: Nodes, queue: Queue) -> None:
    """That is why: a key that never exists is among those that every call names."""
    queue.add(b"x")
    assert "events" not in existing_keys(cluster.primary_of(queue.name), queue.name)
    source, target = cluster.primary_of(queue.name), cluster.elsewhere(queue.name)
    impatient = Queue(queue.name, Server(cluster.url, patience=0))

    def refused(_: str) -> None:
        with pytest.raises(ServerRefused, match="moving to another node"):
            impatient.counts()
        with pytest.raises(ServerRefused, match="moving to another node"):
            impatient.add(b"y")

    cluster.move(queue.name, target, between=refused)
    assert existing_keys(source, queue.name) == []
    assert queue.counts().ready == 1
    impatient.close()


# --------------------------------------------------------------------------------- workers


def test_a_worker_on_queues_of_all_nodes_listens_where_they_are(cluster: Nodes, name: str) -> None:
    queues = [Queue(f"{name}-{number}", cluster.url) for number in range(6)]
    assert len({cluster.primary_of(queue.name) for queue in queues}) == 3
    ran: list[tuple[str, bytes]] = []
    worker = Worker(queues)

    @worker.handler
    def note(job: RunningJob) -> None:
        ran.append((job.queue, job.data))

    def listening() -> int:
        return sum(blocked(node) for node in cluster.primaries())

    with at_work(worker):
        wait_until(lambda: listening() == 6, "six ears")
        for number, move in enumerate(MOVES.values()):
            move(cluster, queues[number].name, cluster.elsewhere(queues[number].name))
        for queue in queues:
            queue.add(b"after")
        wait_until(lambda: len(ran) == 6, "six runs")
        wait_until(lambda: listening() == 6, "six ears again")
    assert sorted(ran) == sorted((queue.name, b"after") for queue in queues)
    for queue in queues:
        assert queue.audit() == []
        queue.close()


# ------------------------------------------------------------------------- words and logins


def test_a_plain_url_that_leads_to_a_cluster_says_how_to_write_it(
    cluster: Nodes, name: str
) -> None:
    elsewhere = cluster.elsewhere(name)
    with (
        Queue(name, elsewhere.url) as queue,
        pytest.raises(ServerRefused, match=r"redis\+cluster://") as caught,
    ):
        queue.counts()
    assert caught.value.word == "MOVED"


def test_a_cluster_url_that_leads_to_a_server_by_itself_says_so(
    cluster: Nodes, shell: Shell, test_server_url: str
) -> None:
    with (
        open_queue(shell, "q", test_server_url) as queue,
        pytest.raises(ServerRefused, match="not a node of a cluster: use redis://"),
    ):
        queue.counts()


def test_without_any_node_it_is_unavailable(shell: Shell) -> None:
    url = "redis+cluster://127.0.0.1:1,127.0.0.1:2"
    with (
        open_queue(shell, "q", url, patience=0.1) as queue,
        pytest.raises(ServerUnavailable, match="Nothing was changed"),
    ):
        queue.add(b"x")


def test_a_user_who_may_not_ask_for_the_slots_is_led_by_redirects(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    rules = ["on", ">secret", "~*", "&*", "+@all", "-cluster"]
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "limited", *rules)
    url = cluster.url.replace("//", "//limited:secret@")
    for number in range(6):
        with open_queue(shell, f"{name}-{number}", url) as queue:
            queue.add(b"x")
            cluster.hand_over(queue.name) if not number else None
            assert queue.counts().ready == 1
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "limited")


def test_a_wrong_password_is_refused_at_once(cluster: Nodes, shell: Shell) -> None:
    url = cluster.url.replace("//", "//nobody:wrong@")
    with open_queue(shell, "q", url) as queue, pytest.raises(HoldfastError, match="password"):
        queue.counts()


def knows_no_address(node: Node) -> bool:
    return all(
        member[0] == b"nowhere.invalid"
        for _, _, *served_by in node.ask("CLUSTER", "SLOTS")
        for member in served_by
    )


def test_nodes_that_call_themselves_by_names_of_their_own_are_reached_by_one_host(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    try:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-announce-hostname", "nowhere.invalid")
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
        wait_until(lambda: all(map(knows_no_address, cluster.nodes)), "the names to be known")
        names = [f"{name}-{number}" for number in range(6)]
        for one in names:
            with open_queue(shell, one, f"{cluster.url}?reach=127.0.0.1") as queue:
                assert queue.add(b"x")
        owner = cluster.primary_of(names[0])
        unreachable = url_of([node for node in cluster.primaries() if node is not owner])
        with (
            open_queue(shell, names[0], unreachable, patience=0.1) as queue,
            pytest.raises(ServerUnavailable),
        ):
            queue.add(b"x")
    finally:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")
            node.ask("CONFIG", "SET", "cluster-announce-hostname", "")


def test_nodes_that_do_not_know_their_names_are_reached_where_they_were_asked(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    try:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
        for number in range(6):
            with open_queue(shell, f"{name}-{number}", cluster.url) as queue:
                queue.add(b"x")
                cluster.hand_over(queue.name) if not number else None  # Led on by a redirect.
                assert queue.add(b"x")
    finally:
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


def test_a_cluster_that_serves_not_all_slots_is_waited_for(
    cluster: Nodes, queue: Queue, threads: ThreadPoolExecutor
) -> None:
    queue.add(b"x")
    asked = cluster.primary_of(queue.name)
    slot = cluster.slot_beside(queue.name)
    asked.ask("CLUSTER", "DELSLOTS", slot)
    try:
        wait_until(lambda: b"cluster_state:fail" in asked.ask("CLUSTER", "INFO"), "it to be down")
        before = refusals(asked, "CLUSTERDOWN")
        called = threads.submit(lambda: queue.add(b"y"))
        wait_until(lambda: refusals(asked, "CLUSTERDOWN") > before, "a call that is refused")
        assert not called.done()
    finally:
        asked.ask("CLUSTER", "ADDSLOTS", slot)
    assert called.result(DEADLINE)
