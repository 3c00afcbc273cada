"""What a user of the server may not do is refused before anything changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import redis

from conftest import Clock
from engine_support import (
    CHANGES,
    Behind,
    Held,
    command_calls,
    engine_calls,
    filled,
    load_library,
    own_server,
    refused,
    take,
)
from holdfast import Queue, QueueFull, Server, ServerRefused
from holdfast.engine import library
from support import TestServer, command_on, wait_until, with_login

pytestmark = pytest.mark.grid  # Each test makes a user of its own.

AsUser = Callable[..., Queue]
_users = itertools.count()

LUA = "".join(path.read_text() for path in Path(library.__file__).parent.rglob("*.lua"))
INNER = sorted(set(re.findall(r"\bcall\('([A-Z]+)'", LUA)))
CALLS: dict[str, Callable[[Queue, Held], object]] = {
    **CHANGES,
    "counts": lambda queue, held: queue.counts(),
    "audit": lambda queue, held: queue.audit(),
}
LIMITED = ("+fcall", "+fcall_ro", "+publish", *(f"+{command}" for command in INNER))


@pytest.fixture
def queue_name() -> str:
    """A name that can stand in an ACL rule."""
    return f"q-acl-{next(_users)}"


@pytest.fixture
def clock(client: redis.Redis) -> Clock:
    """A clock that is at the server's time when the queue is populated."""
    clock = Clock()
    seconds, microseconds = client.time()
    clock.ms = seconds * 1000 + microseconds // 1000 - 3000
    return clock


@pytest.fixture
def as_user(test_server: TestServer, client: redis.Redis, queue_name: str) -> Iterator[AsUser]:
    """Give the queue to a user with some rules of its own; on the server's own clock."""
    servers = []
    name = f"user-{queue_name}"

    def login(*rules: str, patience: float | None = None) -> Queue:
        command_on(client, "ACL", "SETUSER", name, "reset", "on", ">secret", *rules)
        servers.append(Server(with_login(test_server.url, f"{name}:secret"), patience=patience))
        return Queue(queue_name, servers[-1])

    yield login
    for server in servers:
        server.close()
    command_on(client, "ACL", "DELUSER", name)


def limits(name: str) -> tuple[str, ...]:
    """The rules that are said to be enough for a queue."""
    return (f"~hf:{{{name}}}:*", f"&hf:{{{name}}}:*", *LIMITED)


def test_the_functions_use_the_commands_that_are_denied_here() -> None:
    assert {"TIME", "HSET", "HGET", "ZADD", "ZREM", "LPUSH", "UNLINK"} <= set(INNER)
    assert "PUBLISH" not in INNER


@pytest.mark.parametrize("kind", CALLS)
def test_a_denied_command_is_refused_and_nothing_has_changed(
    queue: Queue, clock: Clock, spoiled: Behind, as_user: AsUser, kind: str
) -> None:
    for command in INNER:
        held = filled(spoiled, clock)
        user = as_user("~*", "&*", "+@all", f"-{command}")
        before = spoiled.everything()
        error = refused(partial(CALLS[kind], user, held))
        if error:
            assert error.word == "NOPERM", command
            assert "ACL" in str(error)
            assert spoiled.everything() == before, command
        else:
            assert queue.audit() == [], command


@pytest.mark.parametrize("command", INNER)
def test_a_command_that_is_denied_later_changes_nothing_either(
    queue: Queue,
    clock: Clock,
    spoiled: Behind,
    as_user: AsUser,
    client: redis.Redis,
    command: str,
) -> None:
    user = Queue(queue.name, as_user("~*", "&*", "+@all").server, clock=clock)
    held = filled(spoiled, clock)
    user.resume()
    command_on(client, "ACL", "SETUSER", f"user-{queue.name}", f"-{command}")
    clock.advance(1)  # What a known caller may do is asked once a second.
    before = spoiled.everything()
    error = refused(lambda: CHANGES["lease"](user, held))
    if error:
        assert error.word == "NOPERM"
        assert spoiled.everything() == before
    else:
        assert queue.audit() == []


CANNOT = {
    "fcall": ("-fcall", "-fcall_ro"),
    "function load": ("-function|load",),
    "fcall or function load": ("-@scripting", "+evalsha", "+script|load"),
}


@pytest.mark.parametrize("rules", CANNOT.values(), ids=list(CANNOT))
def test_a_user_who_may_not_use_functions_runs_scripts(
    client: redis.Redis, behind: Behind, as_user: AsUser, rules: tuple[str, ...]
) -> None:
    client.script_flush()
    client.function_flush()
    user = as_user("~*", "&*", "+@all", *rules)
    user.add(b"x", id="a", result_for=60)
    lease = user.lease(30)
    assert lease
    assert user.complete(lease, b"y")
    outcome = user.result("a")
    assert outcome
    assert outcome.result == b"y"
    assert command_calls(client, "evalsha") > 0
    load_library(client)


@pytest.mark.parametrize("command", ["evalsha", "script|load"])
def test_a_user_who_may_neither_call_functions_nor_run_scripts_is_told_so(
    client: redis.Redis, behind: Behind, as_user: AsUser, command: str
) -> None:
    client.script_flush()
    user = as_user("~*", "&*", "+@all", "-fcall", "-fcall_ro", f"-{command}")
    with pytest.raises(ServerRefused) as error:
        user.add(b"")
    assert error.value.word == "NOPERM"
    assert behind.everything() == {}


def test_a_user_who_may_neither_load_nor_run_scripts_waits_until_the_library_is_there(
    client: redis.Redis, as_user: AsUser
) -> None:
    client.function_flush()
    rules = ("~*", "&*", "+@all", "-function", "-evalsha", "-script")
    with pytest.raises(ServerRefused, match="holdfast load") as error:
        as_user(*rules, patience=0).add(b"")
    assert error.value.word == "NOT_LOADED"
    user, calls_before = as_user(*rules), command_calls(client, "fcall")
    with ThreadPoolExecutor() as pool:
        receipt = pool.submit(user.add, b"x", id="a")
        wait_until(lambda: command_calls(client, "fcall") > calls_before + 1, "a second try")
        load_library(client)
        assert receipt.result()
    assert user.counts().ready == 1


def test_what_cannot_be_loaded_into_a_full_server_runs_as_a_script() -> None:
    with own_server() as server, server.client() as client, Queue("q", server.url) as queue:
        queue.add(b"x", id="a")
        client.function_flush()
        client.config_set("maxmemory", "1")
        with pytest.raises(QueueFull):
            queue.add(b"y")
        assert queue.complete(take(queue))
        client.config_set("maxmemory", "0")
        assert queue.add(b"z")


def test_a_user_with_no_more_than_a_queue_needs_can_do_everything(
    queue: Queue, clock: Clock, behind: Behind, as_user: AsUser
) -> None:
    user = as_user(*limits(queue.name), "+blpop", "+subscribe")
    for kind in CHANGES:
        CHANGES[kind](user, filled(behind, clock))
        assert user.audit() == []
        assert user.counts() == queue.counts()
        user.delete()
    with user.events() as events:
        user.add(b"x")
        assert next(events).kind == "added"
    lease = user.lease(30, wait=5)
    assert lease is not None
    assert user.lease(30, wait=0.001) is None
    assert user.complete(lease)


def test_a_user_without_the_channel_can_do_everything_but_is_not_heard(
    queue: Queue, clock: Clock, behind: Behind, as_user: AsUser
) -> None:
    user = as_user(*(rule for rule in limits(queue.name) if not rule.startswith("&")))
    with queue.events() as events:
        for kind in CHANGES:
            CHANGES[kind](user, filled(behind, clock))
            assert user.audit() == []
            user.delete()
        queue.add(b"x", id="last")
        told = list(itertools.takewhile(lambda event: event.ids != ["last"], events))
    assert "deleted" not in {event.kind for event in told}


def test_a_user_who_may_not_wait_for_a_wake_asks_as_seldom_as_any_other(
    queue: Queue, client: redis.Redis, as_user: AsUser
) -> None:
    user = as_user(*limits(queue.name))
    assert user.lease(30) is None
    made = engine_calls(client)
    assert user.lease(30, wait=0.25) is None
    assert engine_calls(client) - made <= 5


def test_a_limited_user_cannot_reach_another_queue(
    queue: Queue, as_user: AsUser, spoiled: Behind
) -> None:
    user = as_user(*limits("another"))
    for call in (lambda: user.add(b""), lambda: user.lease(30), user.counts, user.delete):
        with pytest.raises(ServerRefused) as error:
            call()
        assert error.value.word == "NOPERM"
    assert spoiled.everything() == {}
