"""Where there are several servers, queues are listed of all, and `doctor` tells whom it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.nodes import Nodes, closing
from cluster.watched import Watched
from faults.shells import Shell
from holdfast import AsyncServer, Queue, Server, ServerRefused, ServerUnavailable
from holdfast.doctor import examine


def queues_of(shell: Shell, url: str, patience: float = 15) -> list[str]:
    """Return the names of queues, as either shell lists them."""
    if shell == "Queue":
        server = Server(url, patience=patience)
        try:
            return server.queues()
        finally:
            server.close()

    async def ask() -> list[str]:
        other = AsyncServer(url, patience=patience)
        try:
            return await other.queues()
        finally:
            await other.close()

    return asyncio.run(ask())


def add_to(url: str, names: list[str]) -> None:
    server = Server(url)
    for name in names:
        Queue(name, server).add(b"x")
    server.close()


@contextmanager
def limited(cluster: Nodes, *rules: str) -> Iterator[str]:
    """The URL of a user who may do all but this."""
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", *rules)
    yield cluster.url.replace("//", "//limited:secret@")
    for node in cluster.nodes:
        node.ask("ACL", "DELUSER", "limited")


def test_the_queues_of_all_nodes_are_listed(cluster: Nodes, shell: Shell, name: str) -> None:
    names = [f"{name}-{number}" for number in range(12)]
    assert len({cluster.primary_of(one) for one in names}) == 3
    add_to(cluster.url, names)
    assert set(names) <= set(queues_of(shell, cluster.url))


def test_who_may_not_ask_for_the_nodes_is_told_what_it_needs(cluster: Nodes, shell: Shell) -> None:
    with (
        limited(cluster, "-cluster") as url,
        pytest.raises(ServerRefused, match=r"needs \+cluster\|slots"),
    ):
        queues_of(shell, url)


def test_a_list_waits_for_the_replica_that_takes_over(
    cluster: Nodes, slow_shell: Shell, name: str
) -> None:
    names = [f"{name}-{number}" for number in range(12)]
    add_to(f"{cluster.url}?replicas=1", names)
    cluster.primary_of(name).kill()
    assert set(names) <= set(queues_of(slow_shell, cluster.url))


def test_a_list_of_nobody_is_unavailable(shell: Shell) -> None:
    with pytest.raises(ServerUnavailable):
        queues_of(shell, "redis+cluster://127.0.0.1:1", patience=0.1)


def test_the_queues_of_the_primary_are_listed(watched: Watched, shell: Shell, name: str) -> None:
    add_to(watched.url, [name])
    assert name in queues_of(shell, watched.url)


def test_doctor_looks_at_the_node_of_the_queue(cluster: Nodes, name: str) -> None:
    for number in range(6):
        queue = f"{name}-{number}"
        told = examine(cluster.url, queue=queue)
        assert told.sound, told.findings
        assert told.url == cluster.url
        [seen] = [finding.what for finding in told.findings if "node of the queue" in finding.what]
        assert seen.endswith(f":{cluster.primary_of(queue).port}/0")


def test_doctor_looks_at_all_primaries_where_no_queue_is_named(cluster: Nodes, name: str) -> None:
    told = examine(cluster.url)
    assert told.sound, told.findings
    assert "all primaries were looked at: 3" in [finding.what for finding in told.findings]
    spoiled = [cluster.primary_of(f"{name}-{number}") for number in range(12)]
    for node in {one.port: one for one in spoiled}.values():
        with node.client() as client:
            kept = client.config_get("maxmemory-policy")["maxmemory-policy"]
            client.config_set("maxmemory-policy", "allkeys-lru")
            try:
                told = examine(cluster.url)
            finally:
                client.config_set("maxmemory-policy", kept)
        assert not told.sound
        [finding] = [one for one in told.findings if one.level == "error"]
        assert "allkeys-lru" in finding.what
        assert finding.what.startswith("maxmemory") or f":{node.port}/0: " in finding.what


def test_doctor_says_which_node_of_a_cluster_is_gone(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, replicas=0)
    with closing(nodes):
        for node in nodes.nodes:
            node.kill()
            told = examine(nodes.url)
            node.start()
            nodes.wait_until_whole()  # Before the next is gone.
            assert not told.sound
            [finding] = [one for one in told.findings if one.level == "error"]
            assert finding.what == f"nothing listens at redis://127.0.0.1:{node.port}/0"
            assert not any("all primaries" in one.what for one in told.findings)


def test_doctor_says_that_a_user_may_not_ask_for_the_nodes(cluster: Nodes) -> None:
    with limited(cluster, "-cluster") as url:
        told = examine(url)
    [finding] = [one for one in told.findings if "one node was looked at" in one.what]
    assert "+cluster|slots" in finding.advice


def test_doctor_looks_at_the_primary(watched: Watched) -> None:
    told = examine(watched.url)
    assert told.tier == "volatile"
    [seen] = [finding.what for finding in told.findings if "the primary is" in finding.what]
    assert seen.endswith(f":{watched.primary().port}/0")


@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_doctor_says_that_nobody_answers(kind: str) -> None:
    path = "/main" if kind == "sentinel" else ""
    told = examine(f"redis+{kind}://127.0.0.1:1{path}")
    assert not told.sound
    assert told.tier == "unknown"
    assert "nothing listens" in told.findings[0].what


def test_doctor_says_that_a_server_is_no_cluster(test_server_url: str) -> None:
    told = examine(test_server_url)
    assert not told.sound
    assert "not a node of a cluster" in str(told.findings[0])
