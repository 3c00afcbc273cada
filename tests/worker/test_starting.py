"""A worker that starts while its server cannot serve it yet waits; what will not pass is raised."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis

from engine_support import is_loading, let_go, own_server, slow_server
from holdfast import AsyncQueue, AsyncServer, Queue, Server, ServerRefused
from support import DEADLINE, SLOTS, TestServer, command_on, wait_until, with_login
from worker.support import Heard, control_of, worker_of, working

Trouble: TypeAlias = tuple[TestServer, Callable[[], object]]
"""A server that has a job `before` and cannot serve now, and what mends it."""


@contextmanager
def work_command(directory: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run `holdfast work` with a handler that writes what it runs."""
    (directory / "jobs.py").write_text("def handle(job):\n    print('ran', job.id, flush=True)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "work", "-q", "q", "jobs:handle"],
        cwd=directory,
        env={**os.environ, "HOLDFAST_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_command_waits_for_a_server_that_loads_its_data(tmp_path: Path) -> None:
    with slow_server() as server, work_command(tmp_path, server.url) as process:
        assert process.stdout
        assert process.stderr
        for line in process.stderr:
            if "still loading" in line:
                break
        assert process.poll() is None
        assert is_loading(server)
        let_go(server)
        assert process.stdout.readline() == "ran before\n"


@contextmanager
def loading() -> Iterator[Trouble]:
    with slow_server() as server:
        yield server, lambda: let_go(server)


@contextmanager
def with_a_job(*options: str) -> Iterator[tuple[TestServer, redis.Redis]]:
    with own_server(*options) as server, server.client() as client:
        with Queue("q", server.url) as queue:
            queue.add(b"", id="before")
        yield server, client


@contextmanager
def out_of_clients() -> Iterator[Trouble]:
    with with_a_job() as (server, client):
        client.config_set("maxclients", 1)
        yield server, lambda: client.config_set("maxclients", 100)


@contextmanager
def busy() -> Iterator[Trouble]:
    """It runs somebody's script, which takes its time."""

    def run() -> None:
        with server.client() as other, suppress(redis.RedisError):
            other.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.RedisError as error:
            return "BUSY" in str(error)

    with with_a_job() as (server, client):
        client.config_set("busy-reply-threshold", 10)
        running = threading.Thread(target=run)
        running.start()
        wait_until(is_busy, "it to be busy")
        yield server, lambda: command_on(client, "SCRIPT", "KILL")
        running.join(DEADLINE)


@contextmanager
def without_its_primary() -> Iterator[Trouble]:
    """It is a replica whose primary is gone, until it becomes the primary."""
    with with_a_job("--replica-serve-stale-data", "no") as (server, client):
        command_on(client, "REPLICAOF", "127.0.0.1", 1)
        yield server, lambda: command_on(client, "REPLICAOF", "NO", "ONE")


@contextmanager
def read_only() -> Iterator[Trouble]:
    """It is a replica that answers, until it becomes the primary."""
    with with_a_job() as (server, client):
        command_on(client, "REPLICAOF", "127.0.0.1", 1)
        yield server, lambda: command_on(client, "REPLICAOF", "NO", "ONE")


@contextmanager
def without_replicas() -> Iterator[Trouble]:
    with with_a_job() as (server, client):
        client.config_set("min-replicas-to-write", 1)
        yield server, lambda: client.config_set("min-replicas-to-write", 0)


@contextmanager
def cluster_down() -> Iterator[Trouble]:
    """A slot of it is served by nobody."""
    with own_server(kind="cluster") as server, server.client() as client:
        with Queue("q", server.url) as queue:
            queue.add(b"", id="before")
        slot = command_on(client, "CLUSTER", "KEYSLOT", "hf:{q}:meta")
        command_on(client, "CLUSTER", "DELSLOTS", (slot + 1) % SLOTS)
        yield server, lambda: command_on(client, "CLUSTER", "ADDSLOTS", (slot + 1) % SLOTS)


PASSING = {
    "LOADING": loading,
    "MAXCLIENTS": out_of_clients,
    "BUSY": busy,
    "MASTERDOWN": without_its_primary,
    "READONLY": read_only,
    "NOREPLICAS": without_replicas,
    "CLUSTERDOWN": cluster_down,
}


@pytest.mark.parametrize("word", PASSING)
def test_a_worker_starts_while_the_server_refuses_for_now(
    word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs the job when the trouble is over, and says so."""
    heard = Heard()
    with PASSING[word]() as (server, mend):
        queue = Queue("q", Server(server.url, patience=0.1))
        try:
            with working(queue, lambda job: None, hooks=[heard]) as worker:
                control = control_of(worker, "q")
                wait_until(lambda: control._trouble, "it to be refused")
                assert heard.told == []
                mend()
                heard.wait_for("done", "before")
                wait_until(lambda: "again after" in caplog.text, "it to be logged")
        finally:
            with suppress(redis.RedisError):
                mend()
        queue.close()
    assert "the worker keeps trying" in caplog.text


@pytest.mark.parametrize(
    ("login", "word"), [("", "NOAUTH"), (":wrong", "WRONGPASS"), ("nobody:secret", "NOPERM")]
)
def test_a_server_that_will_not_have_the_worker_ends_it(login: str, word: str) -> None:
    with own_server() as server, server.client() as client:
        command_on(client, "ACL", "SETUSER", "nobody", "on", ">secret", "-@all")
        client.config_set("requirepass", "right")
        with Queue("q", with_login(server.url, login) if login else server.url) as queue:
            with pytest.raises(ServerRefused) as refused:
                worker_of(queue, lambda job: None).start()
            assert refused.value.word == word


def test_a_server_that_is_back_is_logged_once_with_how_long_it_was_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connection.retries.TELL_AFTER_SECONDS", 0)
    monkeypatch.setattr("holdfast.connection.retries.TELL_EVERY_SECONDS", 4 * DEADLINE)
    caplog.set_level(logging.WARNING)

    def lines(text: str) -> list[str]:
        return [line for line in caplog.messages if text in line]

    with own_server() as server:
        a, b = (Queue(name, Server(server.url, patience=4 * DEADLINE)) for name in "ab")
        heard = Heard()
        with working([a, b], lambda job: None, hooks=[heard]):
            a.add(b"", id="a")
            heard.wait_for("done", "a")
            server.kill()
            wait_until(lambda: lines("; trying again until"), "the loss to be logged")
            server.start()
            for queue in (a, b):
                queue.add(b"", id=f"again {queue.name}")
                heard.wait_for("done", f"again {queue.name}")
        a.close()
        b.close()
    [line] = lines("answers again after")
    assert server.url in line
    [line] = lines("; trying again until the server answers")
    assert "more" not in line  # A worker does not give up.


# ------------------------------------------------------------- the settings of the user


@pytest.mark.parametrize("kind", [Server, AsyncServer])
def test_another_client_of_a_server_has_all_its_settings(
    kind: type[Server | AsyncServer],
) -> None:
    names = [name for name in inspect.signature(kind).parameters if name != "url"]
    first = kind(
        "redis://127.0.0.1:1", patience=7, reply_within=2, credentials=lambda: "x", client_name="c"
    )
    assert ["address", *names] == [field.name for field in fields(first.settings)]
    for copy in (Server.like(first), AsyncServer.like(first)):
        assert copy.address == first.address
        assert copy.settings == first.settings
        assert (copy._patience, copy._reply_seconds) == (7, 2)
        assert copy.session is not first.session
    assert Server.like(first, patience=1).settings == replace(first.settings, patience=1)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_worker_has_the_settings_of_the_server_that_it_was_given(
    test_server: TestServer, queue_name: str, kind: str
) -> None:
    queue: Queue | AsyncQueue
    settings: Any = {"patience": 3, "reply_within": 1}
    if kind == "sync":
        queue = Queue(queue_name, Server(test_server.queue_url, **settings))
    else:
        queue = AsyncQueue(queue_name, AsyncServer(test_server.queue_url, **settings))
    worker = worker_of(queue, lambda job: None)  # type: ignore[arg-type]
    with worker:
        server = control_of(worker, queue_name).queue.server
        assert (server._patience, server._reply_seconds) == (3, 1)


@pytest.mark.parametrize(("said", "lease", "kept"), [(60, 15, 5), (60, 3, 1), (None, 15, 5)])
def test_a_worker_waits_no_longer_for_a_reply_than_its_leases_allow(
    test_server: TestServer, queue_name: str, said: float | None, lease: float, kept: float
) -> None:
    queue = Queue(queue_name, Server(test_server.queue_url, reply_within=said))
    with working(queue, lambda job: None, lease=lease) as worker:
        assert control_of(worker, queue_name).queue.server._reply_seconds == kept
    queue.close()


def test_a_worker_without_any_patience_does_not_ask_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[int] = []
    with own_server() as server:
        queue = Queue("q", Server(server.url, patience=0))
        with working(queue, lambda job: None) as worker:
            control = control_of(worker, "q")
            pause = control._pause

            def note() -> None:
                pauses.append(control._trouble)
                pause()

            monkeypatch.setattr(control, "_pause", note)
            server.kill()
            wait_until(lambda: control._trouble >= 3, "it to try again")
            troubles = control._trouble
            assert len(pauses) >= troubles - 1
            server.start()
            wait_until(lambda: not control._trouble, "it to be back")
        queue.close()
