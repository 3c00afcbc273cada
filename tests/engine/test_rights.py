"""Which commands a user may not run: all are asked about that a queue uses, and none is run."""

from __future__ import annotations

import re

import pytest
import redis

from engine_support import Behind, command_calls
from holdfast import Queue, Server
from holdfast.engine import calls, library
from support import TestServer, command_on, with_login

pytestmark = pytest.mark.grid

ENGINE = library.LUA
RIGHTS = (ENGINE / "reads.lua").read_text().partition("function transition.rights()")[2]


def test_all_commands_are_asked_about_that_a_queue_uses() -> None:
    lua = "".join(path.read_text() for path in ENGINE.rglob("*.lua"))
    used = set(re.findall(r"call\('([A-Z]+)'", lua))
    asked = re.findall(r"\{'([A-Z]+)'", RIGHTS)
    assert set(asked) == used | {"BLPOP", "SUBSCRIBE"}
    assert len(asked) == len(set(asked))


def test_who_may_do_everything_is_denied_nothing(queue: Queue, behind: Behind) -> None:
    before = command_calls(behind.client, "hget")
    assert queue._run(calls.rights()) == []
    assert behind.everything() == {}
    assert command_calls(behind.client, "hget") == before


@pytest.mark.parametrize("command", sorted(set(re.findall(r"\{'([A-Z]+)'", RIGHTS))))
def test_each_is_found(test_server: TestServer, client: redis.Redis, command: str) -> None:
    rules = ("reset", "on", ">secret", "~*", "&*", "+@all", f"-{command}")
    command_on(client, "ACL", "SETUSER", "rights", *rules)
    server = Server(with_login(test_server.url, "rights:secret"))
    assert Queue("q rights", server)._run(calls.rights()) == [command]
    server.close()
    command_on(client, "ACL", "DELUSER", "rights")
