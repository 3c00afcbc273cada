"""A queue that does not exist is an error, and not an empty queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from cli.support import Commands, started
from holdfast import Queue, Server, ShardedQueue
from support import DEADLINE, TestServer, command_on, with_login

COMMANDS = [
    "counts Q",
    "peek Q",
    "failed Q",
    "show Q a",
    "explain Q a",
    "result Q a",
    "workers Q",
    "revive Q a",
    "revive Q --all",
    "cancel Q a",
    "cancel Q --matching x --yes",
    "pause Q",
    "resume Q",
    "tidy Q",
    "audit Q",
    "repair Q",
    "delete Q --yes",
    "request ls Q",
    "request show Q r",
    "request progress Q r",
    "request seal Q r",
    "request cancel Q r --yes",
    "request set-limit Q r 1",
    "request set-priority Q r 1",
    "request revive Q r",
    "extend Q --id a --token b",
    "complete Q --id a --token b",
    "retry Q --id a --token b",
    "fail Q --id a --token b",
    "release Q --id a --token b",
]


@pytest.fixture
def shop(server: Server) -> Iterator[Queue]:
    """A queue that has had a job, and has none now."""
    queue = Queue("q-shop", server)
    queue.add(b"x")
    queue.complete(queue.lease(5))  # type: ignore[arg-type]
    yield queue
    queue.delete()


def keys_of(client: redis.Redis, name: str) -> list[bytes]:
    found: list[bytes] = list(client.scan_iter(match=f"hf:{{{name}}}:*"))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_queue_is_refused_and_the_right_one_suggested(
    hf: Commands, shop: Queue, client: redis.Redis, command: str
) -> None:
    error = hf.error(*command.replace("Q", "q-shpo").split())
    assert error.startswith(f"Error: queue q-shpo does not exist on {shop.server.address}: did")
    assert "did you mean q-shop?" in error
    assert keys_of(client, "q-shpo") == []


@pytest.mark.parametrize("command", ["counts", "pause", "resume", "tidy", "audit", "workers"])
def test_an_emptied_queue_exists(hf: Commands, shop: Queue, command: str) -> None:
    hf(command, shop.name)


def test_a_queue_that_somebody_works_on_exists(hf: Commands, queue: Queue) -> None:
    queue.register(alive_for=60)
    assert hf.json("counts", queue.name)["ready"] == 0


def test_a_queue_that_was_paused_once_exists(hf: Commands, queue: Queue) -> None:
    assert "To pause it before its first job, give --create" in hf.error("pause", queue.name)
    hf("pause", queue.name, "--create")
    assert hf.json("counts", queue.name)["paused"]
    hf("resume", queue.name)
    hf("counts", queue.name)
    hf("delete", queue.name, "--yes")
    assert "does not exist" in hf.error("counts", queue.name)


def test_adding_and_working_make_a_queue(hf: Commands, queue: Queue) -> None:
    hf("lease", queue.name, code=3)
    hf("add", queue.name, "x")
    hf("counts", queue.name)
    queue.delete()
    command = ["work", "-q", queue.name, "--until-empty", "builtins:print"]
    with started(*command) as process:
        process.communicate(timeout=DEADLINE)
        assert process.returncode == 0


def test_watching_goes_on_and_says_so(hf: Commands, shop: Queue) -> None:
    result = hf.ran("watch", "q-shpo", "--times", 1)
    assert "did you mean q-shop? Waiting for it to appear" in result.stderr
    assert "q-shpo" in result.stdout


def test_shards_exist_together_and_a_sharded_name_is_explained(
    hf: Commands, server: Server
) -> None:
    queue = ShardedQueue("q-many", server, shards=4)
    number = queue.sharding.number_of("a")
    queue.add(b"x", id="a")
    for shard in range(4):
        expected = 1 if shard == number else 0
        assert hf.json("counts", f"q-many/4/{shard}")["ready"] == expected
    error = hf.error("counts", "q-many")
    assert error.endswith(f"it is sharded, so name one of its shards, such as q-many/4/{number}.")
    assert "queue q-many/8/0 does not exist" in hf.error("counts", "q-many/8/0")
    queue.delete()


def test_who_may_not_look_for_names_gets_the_error_alone(
    hf: Commands, shop: Queue, test_server: TestServer, client: redis.Redis
) -> None:
    from support import documented_user

    user = documented_user("q-sh*")
    command_on(client, "ACL", "SETUSER", "limited", "reset", *user[1:])
    url = with_login(test_server.url, "limited:secret")
    try:
        error = hf.error("counts", "q-shpo", "--url", url)
        shown = url.replace(":secret@", ":***@")
        assert error == f"Error: queue q-shpo does not exist on {shown}."
        hf("counts", shop.name, "--url", url)
        hf("pause", "q-shut", "--create", "--url", url)
        hf("resume", "q-shut", "--url", url)
        hf("counts", "q-shut", "--url", url)
        hf("delete", "q-shut", "--yes", "--url", url)
    finally:
        command_on(client, "ACL", "DELUSER", "limited")


def test_names_in_suggestions_are_escaped(hf: Commands, server: Server) -> None:
    queue = Queue("q-\x1bodd\nname", server)
    queue.add(b"x")
    assert r"did you mean q-\x1bodd\nname?" in hf.error("counts", "q-\x1bodd\nnam")
    queue.delete()


def test_a_name_unlike_all_others_is_told_where_they_are_listed(hf: Commands, shop: Queue) -> None:
    assert hf.error("counts", "entirely-else").endswith(". `holdfast ls` lists the queues.")
