"""The user that the pages recommend can do what the reference does, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from docs.pages import DOCS, ROOT, run
from engine_support import load_library
from holdfast import Queue, ServerRefused, Worker
from holdfast.engine import library
from support import TestServer, command_on

SERVER_PAGE, SECURITY = DOCS / "server.md", ROOT / "SECURITY.md"


def documented() -> str:
    found = re.search(r"^ACL SETUSER (.*)$", SERVER_PAGE.read_text(), re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture
def limited_url(
    test_server: TestServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a user made by the line on the page."""
    name, *rules = documented().split()
    assert ">secret" in rules
    command_on(client, "ACL", "SETUSER", name, "reset")
    command_on(client, "ACL", "SETUSER", name, *rules)
    load_library(client)
    url = test_server.url.replace("//", f"//{name}:secret@")
    monkeypatch.setenv("HOLDFAST_URL", url)
    yield url
    command_on(client, "ACL", "DELUSER", name)


@pytest.mark.parametrize("page", ["queue", "failures", "operating", "errors"])
def test_the_documented_user_can_do_what_the_reference_does(limited_url: str, page: str) -> None:
    with Queue("emails") as queue:
        queue.delete()
        run(DOCS / f"{page}.md")
        assert queue.audit() == []
        queue.delete()


def test_the_documented_user_leaves_nothing_in_the_log_of_what_was_denied(
    limited_url: str, client: redis.Redis
) -> None:
    command_on(client, "ACL", "LOG", "RESET")
    with Queue("emails", limited_url) as queue:
        queue.add("x")
        with queue.events():
            lease = queue.lease(30, wait=1)
        assert lease
        assert queue.complete(lease)
        worker = Worker(queue)
        worker.handler(lambda job: None)
        queue.add("y")
        worker.run(until_empty=True)
        assert queue.audit() == []
        queue.delete()
    denied: Any = client.acl_log()
    assert [(entry["reason"], entry["object"]) for entry in denied] == []


def test_the_documented_user_can_do_nothing_else(limited_url: str, client: redis.Redis) -> None:
    with Queue("reports") as other, pytest.raises(ServerRefused) as refused:
        other.add("not here")
    assert refused.value.word == "NOPERM"
    assert client.keys("hf:{reports}:*") == []
    with redis.Redis.from_url(limited_url) as user:
        for command in (
            ("EVAL", "return 1", "0"),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("GET", "hf:{emails}:jobs"),
            ("SUBSCRIBE", "hf:{reports}:events"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                command_on(user, *command)


def test_the_line_has_the_commands_that_the_functions_use_and_no_more() -> None:
    lua = "".join(path.read_text() for path in Path(library.__file__).parent.rglob("*.lua"))
    sent = {"fcall", "fcall_ro", "blpop", "subscribe", "info", "ping"}
    sent |= {"client|setname", "client|setinfo"}
    used = {command.lower() for command in re.findall(r"call\('([A-Z]+)'", lua)}
    rules = documented().split()
    assert {rule[1:] for rule in rules if rule.startswith("+")} == sent | used
    assert "-" not in {rule[0] for rule in rules}


def test_both_pages_show_the_same_line() -> None:
    assert documented() in SECURITY.read_text()
