"""Logins where there are several servers: nodes and Sentinels, passwords that change."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from cluster.nodes import Nodes
from cluster.watched import NAME, Watched
from faults.shells import Shell, _Blocking
from holdfast import (
    AsyncQueue,
    AsyncServer,
    Queue,
    Server,
    ServerRefused,
    ServerUnavailable,
    UnsupportedServer,
)
from holdfast.engine.keys import SLOTS, slot_of
from support import DEADLINE, TestServer, command_on

OLD, NEW = "hunter2-old", "hunter2-new"
_users = itertools.count()


class User:
    """A user of several servers, whose password changes."""

    def __init__(self, servers: Sequence[TestServer]) -> None:
        self._servers = servers
        self.name = f"user{next(_users)}"
        self.change(OLD)

    def change(self, password: str) -> None:
        self._tell("ACL", "SETUSER", self.name, "reset", "on", f">{password}", "~*", "&*", "+@all")

    def disconnect(self) -> None:
        self._tell("CLIENT", "KILL", "USER", self.name)

    def _tell(self, *command: str) -> None:
        for server in self._servers:
            with server.client() as client:
                command_on(client, *command)


@contextmanager
def opened(shell: Shell, name: str, url: str, **options: Any) -> Iterator[Queue]:
    options = {"patience": DEADLINE, **options}
    if shell == "Queue":
        with Queue(name, Server(url, **options)) as queue:
            yield queue
        return
    with asyncio.Runner() as runner:
        blocking: Any = _Blocking(AsyncQueue(name, AsyncServer(url, **options)), runner)
        try:
            yield blocking
        finally:
            blocking.close()


def test_the_nodes_of_a_cluster_are_given_the_same_credentials_and_the_new_ones(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    user, password = User(cluster.nodes), [OLD]
    with opened(shell, name, cluster.url, credentials=lambda: (user.name, password[0])) as queue:
        queue.add(b"x")
        user.change(NEW)
        password[0] = NEW
        user.disconnect()
        queue.add(b"x")
        assert queue.counts().ready == 2


def test_the_password_of_a_cluster_may_be_in_a_file(
    cluster: Nodes, shell: Shell, name: str, tmp_path: Path
) -> None:
    user, file = User(cluster.nodes), tmp_path / "password"
    file.write_text(OLD)
    file.chmod(0o600)
    url = cluster.url.replace("//", f"//{user.name}@") + f"?password_file={file}"
    with opened(shell, name, url) as queue:
        queue.add(b"x")
        user.change(NEW)
        file.write_text(NEW)
        user.disconnect()
        queue.add(b"x")


def test_a_wrong_password_for_a_cluster_is_refused(cluster: Nodes, shell: Shell, name: str) -> None:
    user = User(cluster.nodes)
    url = cluster.url.replace("//", f"//{user.name}:wrong@")
    with opened(shell, name, url) as queue, pytest.raises(ServerRefused) as refused:
        queue.add(b"x")
    assert refused.value.word == "WRONGPASS"


def test_sentinels_and_what_they_watch_have_logins_that_change(
    watched: Watched, shell: Shell, name: str, tmp_path: Path
) -> None:
    user, file = User(watched.servers), tmp_path / "password"
    asker = f"asker{next(_users)}"
    file.write_text(f"{OLD}\n")
    file.chmod(0o600)
    with redis.Redis(port=watched.port) as sentinel:
        rules = ("reset", "on", f">{OLD}", "+sentinel", "+auth")
        command_on(sentinel, "ACL", "SETUSER", asker, *rules)
        password = [OLD]
        url = f"{watched.url}?sentinel_user={asker}&sentinel_password_file={file}"
        with opened(shell, name, url, credentials=lambda: (user.name, password[0])) as queue:
            queue.add(b"x")
            command_on(sentinel, "ACL", "SETUSER", asker, "resetpass", f">{NEW}")
            file.write_text(f"{NEW}\n")
            user.change(NEW)
            password[0] = NEW
            user.disconnect()
            queue.add(b"x")
            assert queue.counts().ready == 2


def test_the_credentials_of_queues_are_not_told_to_sentinels(
    watched: Watched, shell: Shell, name: str
) -> None:
    user = User(watched.servers)
    with redis.Redis(port=watched.port) as sentinel:
        command_on(sentinel, "ACL", "LOG", "RESET")
        with opened(shell, name, watched.url, credentials=lambda: (user.name, OLD)) as queue:
            queue.add(b"x")
        assert sentinel.acl_log() == []  # A user that it does not know would be in here.


# ----------------------------------------------------------- a URL of the wrong kind


def test_a_plain_url_of_a_sentinel_is_told_so(watched: Watched, shell: Shell, name: str) -> None:
    url = f"redis://127.0.0.1:{watched.port}"
    with (
        opened(shell, name, url) as queue,
        pytest.raises(UnsupportedServer, match=r"is a Sentinel.*redis\+sentinel://host:port/name"),
    ):
        queue.counts()


def test_a_sentinel_url_of_a_plain_server_is_told_so(
    watched: Watched, shell: Shell, name: str
) -> None:
    url = f"redis+sentinel://127.0.0.1:{watched.primary().port}/{NAME}"
    with (
        opened(shell, name, url) as queue,
        pytest.raises(
            ServerRefused, match="is not a Sentinel: use redis:// for a server by itself"
        ),
    ):
        queue.counts()


def test_a_cluster_url_of_a_sentinel_is_told_so(watched: Watched, shell: Shell, name: str) -> None:
    with (
        opened(shell, name, f"redis+cluster://127.0.0.1:{watched.port}") as queue,
        pytest.raises(ServerRefused, match=r"is not a node of a cluster.*redis\+sentinel://"),
    ):
        queue.counts()


def test_a_plain_url_of_a_cluster_node_is_told_so(cluster: Nodes, shell: Shell) -> None:
    queue_name = next(name for n in range(99) if slot_of(name := f"q{n}") > SLOTS // 2)
    with (
        opened(shell, queue_name, f"redis://127.0.0.1:{cluster.nodes[0].port}") as queue,
        pytest.raises(ServerRefused, match=r"begin the URL with redis\+cluster://"),
    ):
        queue.counts()


def test_a_cluster_url_of_a_plain_server_is_told_so(
    test_server_url: str, shell: Shell, name: str
) -> None:
    with (
        opened(shell, name, test_server_url) as queue,
        pytest.raises(ServerRefused, match="is not a node of a cluster: use redis://"),
    ):
        queue.counts()


def test_credentials_that_do_not_come_keep_a_call_waiting(
    cluster: Nodes, shell: Shell, name: str
) -> None:
    def token() -> str:
        raise LookupError("hunter2")

    with (
        opened(shell, name, cluster.url, credentials=token, patience=0.1) as queue,
        pytest.raises(ServerUnavailable, match="the credentials function raised LookupError") as e,
    ):
        queue.counts()
    assert "hunter2" not in str(e.value)
