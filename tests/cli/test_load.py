"""`holdfast load`, which loads the library of a release, and `holdfast acl`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.support import Commands
from cluster.nodes import Node, Nodes, closing, url_of
from engine_support import own_server
from holdfast import Queue, ServerRefused, ShardedQueue, Worker, WrongState, libraries
from holdfast.engine import library
from support import TestServer, command_on, wait_until, with_login

OURS = library.library_name()
OLD = "holdfast_0123456789ab"
ANOTHER = f"#!lua name={OLD}\nredis.register_function('hf_0123456789ab_add', function() end)"


@pytest.fixture
def fresh() -> Iterator[TestServer]:
    with own_server() as server:
        yield server


def there(client: redis.Redis) -> list[str]:
    return sorted(
        entry[b"library_name"].decode() for entry in command_on(client, "FUNCTION", "LIST")
    )


def test_the_library_is_loaded_once(hf: Commands, fresh: TestServer) -> None:
    assert f"{OURS} loaded" in hf.ran("load", "--url", fresh.url).stdout
    assert f"{OURS} is there already" in hf.ran("load", "--url", fresh.url).stdout
    with fresh.client() as client:
        assert there(client) == [OURS]


def test_a_user_who_may_not_load_finds_what_somebody_else_has_loaded(
    hf: Commands, fresh: TestServer
) -> None:
    hf.ran("load", "--url", fresh.url)
    rule = hf.ran("acl", "emails").stdout.split()
    with fresh.client() as client:
        command_on(client, *rule)
        with Queue("emails", with_login(fresh.url, "emails:secret")) as queue:
            queue.add("x")
            assert queue.counts().ready == 1
        assert command_on(client, "ACL", "LOG") == []


def test_libraries_of_other_releases_are_shown_and_removed_when_asked(
    hf: Commands, fresh: TestServer
) -> None:
    with fresh.client() as client:
        command_on(client, "FUNCTION", "LOAD", ANOTHER)
        assert f"{OLD} is of another release" in hf.ran("load", "--url", fresh.url).stdout
        assert (
            "libraries of other releases are loaded: holdfast_0123456789ab"
            in hf.ran("doctor", "--url", fresh.url, code=1).stdout
        )
        assert there(client) == [OLD, OURS]
        [done] = json.loads(hf.ran("load", "--prune", "--json", "--url", fresh.url).stdout)
        assert done["removed"] == [OLD]
        assert there(client) == [OURS]


def test_a_library_that_a_worker_uses_is_not_removed(
    fresh: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh.client() as client, Queue("q", fresh.url) as queue:
        command_on(client, "FUNCTION", "LOAD", ANOTHER)
        queue.register(library=OLD)
        with pytest.raises(WrongState, match="of queue q runs it"):
            libraries.load(fresh.url, prune=True)
        assert there(client) == [OLD, OURS]


def test_a_worker_says_which_library_it_uses(fresh: TestServer) -> None:
    with Queue("q", fresh.url) as queue:
        worker = Worker(queue, concurrency=1)
        worker.handler(print)
        worker.start()
        wait_until(queue.workers, "it to register")
        assert queue.workers()[0].about["library"] == OURS
        worker.stop()


def test_every_primary_of_a_cluster_is_loaded(hf: Commands, tmp_path: Path) -> None:
    cluster = Nodes(tmp_path, replicas=0)
    with closing(cluster):
        assert hf.ran("load", "--url", url_of(cluster.nodes)).stdout.count(f"{OURS} loaded") == 3


def test_a_primary_that_has_no_slots_yet_is_loaded_too(hf: Commands, tmp_path: Path) -> None:
    cluster = Nodes(tmp_path, replicas=0)
    with closing(cluster):
        cluster.nodes.append(Node(tmp_path / "joins"))
        first, joins = cluster.nodes[0], cluster.nodes[-1]
        joins.ask("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus)
        wait_until(lambda: len(first.ask("CLUSTER", "SHARDS")) == 4, "it to join")
        done = hf.ran("load", "--url", url_of([first])).stdout
        assert done.count(f"{OURS} loaded") == 4
        assert str(joins.port) in done


def test_a_library_that_a_worker_in_another_database_uses_is_not_removed(
    fresh: TestServer,
) -> None:
    elsewhere = f"{fresh.url}?db=3"
    with fresh.client() as client, Queue("q", elsewhere) as queue:
        command_on(client, "FUNCTION", "LOAD", ANOTHER)
        queue.register(library=OLD)
        with pytest.raises(WrongState, match="of queue q in database 3 runs it"):
            libraries.load(fresh.url, prune=True)
        assert there(client) == [OLD, OURS]


def test_who_may_not_load_is_told_so(hf: Commands, fresh: TestServer) -> None:
    with fresh.client() as client:
        command_on(client, "ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-function")
    url = with_login(fresh.url, "limited:secret")
    said = hf.ran("load", "--url", url, code=1).stderr
    assert "this user may not do this" in said
    assert "'function|load' command" in said


@pytest.mark.parametrize("name", ["emails", "a*b", "two words", 'a"b', "ü", "a\\b", "[x]"])
def test_the_rule_names_one_queue_however_it_is_called(fresh: TestServer, name: str) -> None:
    rule = libraries.acl_rule(name, "someone", load=True)
    words = re.findall(r'"(?:\\.|[^"\\])*"|\S+', rule)
    with fresh.client() as client:
        command_on(client, *map(_read, words))
        with Queue(name, with_login(fresh.url, "someone:secret")) as queue:
            queue.add("x")
            assert queue.counts().ready == 1


def _read(word: str) -> bytes:
    """Read a word as redis-cli does."""
    if not word.startswith('"'):
        return word.encode()
    return word[1:-1].encode().decode("unicode_escape").encode("latin-1")


def test_the_rule_of_a_sharded_queue_names_all_shards(hf: Commands, fresh: TestServer) -> None:
    hf.ran("load", "--url", fresh.url)
    with fresh.client() as client:
        command_on(client, *hf.ran("acl", "events", "--shards", "3").stdout.split())
        url = with_login(fresh.url, "events:secret")
        with ShardedQueue("events", url, shards=3) as queue:
            queue.add_many([b"x"] * 20)
            assert len(queue.lease_many(20, 30)) == 20
        with Queue("events", url) as other, pytest.raises(ServerRefused):
            other.add(b"x")


def test_the_rule_of_a_queue_with_a_space_needs_the_name_of_a_user(hf: Commands) -> None:
    assert "Give one with --user NAME" in hf.ran("acl", "two words", code=2).stderr
