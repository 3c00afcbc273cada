"""`holdfast doctor` against servers of every kind: the tier, and the advice."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.support import Commands
from engine_support import own_server
from holdfast import Queue, Server, doctor
from holdfast.server.embedded import find_binary
from support import TestServer, command_on, documented_user, is_redis_7_0, wait_until, with_login

REDIS_7_0 = os.environ.get("HOLDFAST_REDIS_7_0", "")


@pytest.fixture(scope="module")
def durable() -> Iterator[TestServer]:
    """A server set up as docs/server.md recommends, on a port."""
    with own_server("--appendonly", "yes", "--appendfsync", "always", tcp=True) as server:
        yield server


class Doctor:
    """What the command says, in words and as JSON, of the same server."""

    def __init__(self, hf: Commands, url: str, *args: str, code: int) -> None:
        seen = doctor.examine(url, queue=args[0] if args else None)
        if any(found.what.startswith("Redis 7.0 can lose") for found in seen.findings):
            code = 1  # Whatever else is said.
        self.text = hf("doctor", *args, "--url", url, code=code)
        self.told: dict[str, Any] = hf.json("doctor", *args, "--url", url, code=code)
        assert set(self.told) == {"url", "server", "tier", "findings", "sound"}
        assert self.told["sound"] == (code == 0)
        assert f"tier: {self.told['tier']} (" in self.text
        for finding in self.told["findings"]:
            assert set(finding) == {"level", "what", "advice"}
            # It was asked twice: numbers may differ.
            assert without_digits(finding["what"]) in without_digits(self.text)
            assert finding["advice"] in self.text
            assert bool(finding["advice"]) == (finding["level"] != "ok")

    @property
    def tier(self) -> str:
        return str(self.told["tier"])

    def of(self, level: str) -> list[str]:
        """What it found, leaving out the version: tests run on old servers too."""
        return [
            f"{finding['what']} → {finding['advice']}"
            for finding in self.told["findings"]
            if finding["level"] == level and not re.match(r"(Redis|Valkey) \d", finding["what"])
        ]


def without_digits(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def test_the_embedded_server_is_durable(hf: Commands, tmp_path: Path) -> None:
    told = Doctor(hf, f"embedded://{tmp_path}/data", code=0)
    assert told.tier == "durable"
    assert told.text.startswith(f"embedded://{tmp_path}/data: ")
    assert (told.of("error"), told.of("warning")) == ([], [])
    assert any(re.search(r"are used of [\d,.]+ MB", line) for line in told.of("ok"))
    assert not any("HOLDFAST_URL" in line for line in told.of("ok"))


def test_the_embedded_server_that_nobody_chose_is_named(
    hf: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    told = hf.ran("doctor")
    assert told.stdout.startswith(f"embedded://{tmp_path}/data/holdfast: ")
    assert "✓ HOLDFAST_URL is not set: this is the embedded server of this user" in told.stdout
    (tmp_path / ".holdfast").mkdir(mode=0o700)
    told = hf.ran("doctor")
    assert told.stdout.startswith(f"embedded://{tmp_path}/.holdfast: ")
    assert "✓ HOLDFAST_URL is not set: this is the embedded server of this project" in told.stdout


@pytest.mark.skipif(not REDIS_7_0, reason="HOLDFAST_REDIS_7_0 names no redis-server 7.0")
def test_redis_7_0_of_your_own_can_lose_jobs(
    hf: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with own_server(*options, binary=Path(REDIS_7_0)) as server:
        told = hf.ran("doctor", "--url", server.url, code=1)
        assert "✗ Redis 7.0 can lose acknowledged jobs" in told.stdout
        with caplog.at_level(logging.WARNING, "holdfast"):
            for _ in range(2):
                with Queue("q", server.url) as queue:
                    queue.counts()
    [line] = [line for line in caplog.messages if "Redis 7.0 can lose" in line]
    assert line.startswith(server.url)


def test_a_server_as_recommended_is_durable(hf: Commands, durable: TestServer) -> None:
    told = Doctor(hf, durable.url, code=0)
    assert told.tier == "durable"
    assert (told.of("error"), told.of("warning")) == ([], [])
    assert any("a round trip takes" in line for line in told.of("ok"))
    assert any("this user may run all that a queue needs" in line for line in told.of("ok"))


def test_everysec_is_one_second(hf: Commands) -> None:
    with own_server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        told = Doctor(hf, server.url, code=0)
    assert told.tier == "one-second"
    assert told.of("warning") == [
        (
            "appendfsync is everysec: a crash or a power cut can cost about the last second → "
            "set appendfsync always; a call costs one flush, however many jobs are in it"
        )
    ]


@pytest.mark.parametrize("save", ["", "60 1"])
def test_no_append_only_file_is_volatile(hf: Commands, save: str) -> None:
    with own_server("--save", save) as server:
        told = Doctor(hf, server.url, code=1)
    assert told.tier == "volatile"
    assert told.of("error") == [
        (
            "appendonly is off: jobs added since the last snapshot are lost when the server stops "
            "→ set appendonly yes"
        )
    ]


def test_flushing_when_the_system_likes_is_volatile(hf: Commands) -> None:
    options = ("--appendfsync", "no", "--no-appendfsync-on-rewrite", "yes")
    with own_server("--appendonly", "yes", *options) as server:
        told = Doctor(hf, server.url, code=1)
    assert told.tier == "volatile"
    assert "appendfsync is no" in told.of("error")[0]
    assert "set no-appendfsync-on-rewrite no" in told.of("warning")[0]


def test_an_eviction_policy_drops_jobs(hf: Commands) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb")
    with own_server(*options, "--maxmemory-policy", "allkeys-lru") as server:
        told = Doctor(hf, server.url, code=1)
    assert told.tier == "durable"
    assert told.of("error") == [
        "maxmemory-policy is allkeys-lru: a full server will drop jobs → set it to noeviction"
    ]


def test_a_server_that_is_nearly_full(hf: Commands, durable: TestServer) -> None:
    with durable.client() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.1))
        try:
            told = Doctor(hf, durable.url, code=0)
        finally:
            client.config_set("maxmemory", 0)
    assert "finish jobs, or raise maxmemory" in told.of("warning")[0]


def test_a_replica_is_read_only_and_its_primary_may_lose_it(
    hf: Commands, durable: TestServer
) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with own_server(*options, "--replicaof", f"127.0.0.1 {durable.port}") as replica:
        with replica.client() as client:
            wait_until(lambda: client.info()["master_link_status"] == "up", "the replica")
            # Before that it does not let itself be stopped.
            wait_until(lambda: not client.info()["aof_rewrite_in_progress"], "its first file")
        told = Doctor(hf, replica.url, code=1)
        assert told.tier == "durable"
        assert told.of("error") == [
            (
                f"this is a read-only replica of 127.0.0.1:{durable.port}: jobs can be read, not "
                "changed → connect to its primary"
            )
        ]
        primary = Doctor(hf, durable.url, code=0)
        assert "replicas (1) follow this primary asynchronously" in primary.of("warning")[0]


@pytest.fixture
def with_password(durable: TestServer) -> Iterator[TestServer]:
    with durable.client() as client:
        client.config_set("requirepass", "hunter2")
        yield durable
        client.config_set("requirepass", "")


def test_a_wrong_password(hf: Commands, with_password: TestServer) -> None:
    told = Doctor(hf, with_login(with_password.url, ":wrong-secret"), code=1)
    assert told.tier == "unknown"
    [error] = told.of("error")
    assert error.startswith("the server does not know this user and password → check the URL")
    assert "wrong-secret" not in told.text
    none = Doctor(hf, with_password.url, code=1)
    [error] = none.of("error")
    assert error.startswith("the server needs a password → put user and password into the URL")
    assert Doctor(hf, with_login(with_password.url, ":hunter2"), code=0).tier == "durable"


def test_nothing_listens(hf: Commands, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # Ours, so that nobody else listens there.
        for url in (f"redis://127.0.0.1:{port}", f"unix://{tmp_path}/nothing.sock"):
            told = Doctor(hf, url, code=1)
            assert (told.tier, told.told["server"]) == ("unknown", None)
            [error] = told.of("error")
            assert error.startswith("nothing listens at ")
            assert "start the server, or correct the URL" in error


def test_an_embedded_server_that_does_not_start(
    hf: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake"
    version = f'if [ "$1" = --version ]; then exec "{find_binary()}" "$1"; fi'
    fake.write_text(f"#!/bin/sh\n{version}\necho no luck today; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(fake))
    told = Doctor(hf, f"embedded://{tmp_path}/data", code=1)
    [error] = told.of("error")
    assert error.startswith("the embedded server does not run → the embedded server in ")
    assert "no luck today" in error
    assert "server.log" in error
    assert "The log ends" not in error


def test_something_else_listens_or_nothing_answers(
    hf: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "REPLY_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        told = Doctor(hf, f"redis://127.0.0.1:{mute.getsockname()[1]}", code=1)
    assert "no answer from" in told.of("error")[0]
    told = Doctor(hf, "redis://nobody.invalid", code=1)
    assert "cannot be reached" in told.of("error")[0]


def test_a_user_of_one_queue_names_it(hf: Commands, durable: TestServer) -> None:
    with durable.client() as client:
        command_on(client, "ACL", "SETUSER", *documented_user("emails"))
    url = with_login(durable.url, "emails:secret")
    unnamed = Doctor(hf, url, code=1)
    assert "name one of them: holdfast doctor QUEUE" in unnamed.of("error")[0]
    told = Doctor(hf, url, "emails", code=0)
    assert told.tier == "unknown"
    [warning] = told.of("warning")
    assert "this user may not ask for appendfsync" in warning
    assert any("this user may run all that a queue needs" in line for line in told.of("ok"))


@pytest.mark.parametrize(
    ("rule", "level", "says"),
    [
        ("-zadd", "error", "this user may not run ZADD → give it what a queue needs: SECURITY.md"),
        ("-hscan", "warning", "this user may not run HSCAN: `repair` is refused → allow HSCAN"),
        ("-blpop", "warning", "this user may not run BLPOP: a client that waits for work polls"),
        ("-subscribe", "warning", "this user may not run SUBSCRIBE: `events`"),
        ("resetchannels", "warning", "this user may not run PUBLISH: the calls of this user"),
        ("-fcall", "warning", "so it runs as a script: about ten times the work"),
        ("-@scripting +fcall_ro", "error", "this user may not run FCALL, which every change"),
        ("-fcall_ro", "warning", "so it runs as a script: about ten times the work"),
        ("-@scripting", "error", "this user may not call functions on the keys of a queue named"),
        ("-config", "warning", "this user may not ask for appendfsync"),
    ],
)
def test_what_a_user_may_not_do_is_named(
    hf: Commands, durable: TestServer, rule: str, level: str, says: str
) -> None:
    user = ["limited", "reset", "on", ">secret", "~*", "&*", "+@all", *rule.split()]
    Doctor(hf, durable.url, code=0)  # The library is there.
    with durable.client() as client:
        command_on(client, "ACL", "SETUSER", *user)
    told = Doctor(
        hf, with_login(durable.url, "limited:secret"), code=0 if level == "warning" else 1
    )
    assert says in " ".join(told.of(level))


def test_it_changes_nothing_and_warns_nobody(
    hf: Commands, durable: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    if is_redis_7_0():
        pytest.skip("everybody is warned of Redis 7.0")
    with durable.client() as client, caplog.at_level(logging.WARNING):
        before = client.dbsize()
        Doctor(hf, durable.url, code=0)
        assert client.dbsize() == before
    assert Server(durable.url).queues() == []
    assert hf.ran("doctor", "--url", durable.url).stderr == ""
