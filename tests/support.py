"""What tests share: a server of their own, of one kind or another, and waiting for a condition."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import redis

from holdfast import testing
from holdfast.engine import library
from holdfast.server.embedded import find_binary

DEADLINE = 30.0
SECURITY = Path(__file__).parents[1] / "SECURITY.md"

Kind: TypeAlias = Literal["plain", "acl", "scripts", "cluster", "nodes"]
KINDS: dict[Kind, str] = {
    "plain": "a server by itself",
    "acl": "queues connect as the user that SECURITY.md recommends, who may reach `q*`",
    "scripts": "queues connect as a user who may run scripts, but neither call nor load functions",
    "cluster": "a cluster of one node, which has all slots",
    "nodes": "the first of three nodes of a cluster, which queues find through the others",
}
"""The kinds of server that a run can be given with --server-kind."""

SLOTS = 16384


def await_replies_for(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Have clients take a reply for lost after so long."""
    patch.setattr("holdfast.connection.conversation.REPLY_SECONDS", seconds)


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for a condition; fail when it does not come true in a generous time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE:.0f} s for {what}"
        time.sleep(0.005)


class Clock(testing.Clock):
    """A time that tests set; the same at the beginning of each."""

    def __init__(self) -> None:
        super().__init__(1_700_000_000_000)


def server_binary() -> Path:
    return Path(os.environ.get("HOLDFAST_TEST_SERVER") or find_binary())


def is_redis_7_0() -> bool:
    """Say whether the tests run on a server that every queue warns about."""
    told = subprocess.run(
        [server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return "Redis server v=7.0." in told.stdout


def documented_user(queues: str) -> list[str]:
    """Return the user that SECURITY.md recommends as words of ACL SETUSER, for these queues."""
    line = re.search(r"^ACL SETUSER (.*)$", SECURITY.read_text(), re.MULTILINE)
    assert line
    name, *rules = line[1].split()
    assert {f"~hf:{{{name}}}:*", f"&hf:{{{name}}}:*", ">secret"} <= set(rules)
    return [name, *(rule.replace(f"{{{name}}}", f"{{{queues}}}") for rule in rules)]


def with_login(url: str, login: str) -> str:
    return url.replace("//", f"//{login}@", 1)


class TestServer:
    """A server process of the tests' own, on a unix socket, or on a loopback port with tcp=True.

    `url` is for a user who may do everything, `queue_url` is what this kind of server gives
    to queues.
    """

    __test__ = False

    def __init__(
        self,
        directory: Path,
        *options: str,
        tcp: bool = False,
        kind: Kind = "plain",
        binary: Path | None = None,
    ) -> None:
        self.directory = directory
        self._binary = binary or server_binary()
        self.port = free_port() if tcp else 0
        self.socket = directory / "s"
        self.url = f"redis://127.0.0.1:{self.port}" if tcp else f"unix://{self.socket}"
        self.queue_url = self.url
        self._kind = kind
        self._options = options
        if kind == "cluster":
            # Without a cluster-port the bus would listen on the port and 10,000, or on 10,000.
            self._options += ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
            self._options += ("--cluster-port", str(free_port()))
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        wait_until(self._answers, "the server")
        with self.client() as client:
            if self._kind == "acl":
                command_on(client, "FUNCTION", "LOAD", library.library())
                user = documented_user("q*")
                command_on(client, "ACL", "SETUSER", *user)
                self.queue_url = with_login(self.url, f"{user[0]}:secret")
            elif self._kind == "scripts":
                rules = ("on", ">secret", "~*", "&*", "+@all", "-fcall", "-fcall_ro", "-function")
                command_on(client, "ACL", "SETUSER", "scripts", *rules)
                self.queue_url = with_login(self.url, "scripts:secret")
            elif self._kind == "cluster":
                _give_all_slots(client)

    def launch(self, *more: str) -> None:
        """Start, with more options for this time, and wait for nothing."""
        command = [str(self._binary), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", str(self.socket), "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "no", "--logfile", "log", *self._options, *more]
        # With Python's signals, what limits the size of a file is an error to it, and not its end.
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, restore_signals=False)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        """A second opinion: redis-py on the same server."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.thaw()
        self.process.terminate()
        self.process.wait()


def command_on(client: redis.Redis, *command: Any) -> Any:
    """Run any command. (Redis-py has no types for that.)"""
    return client.execute_command(*command)  # type: ignore[no-untyped-call]


def kill_connections(client: redis.Redis) -> None:
    command_on(client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def _give_all_slots(client: redis.Redis) -> None:
    """Make a node a whole cluster; it remembers that when it is started again."""

    def state() -> bytes:
        told: bytes = command_on(client, "CLUSTER", "INFO")
        return told

    if b"cluster_slots_assigned:0" in state():
        command_on(client, "CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
    wait_until(lambda: b"cluster_state:ok" in state(), "the cluster")


_reserved: deque[socket.socket] = deque()
"""The last ports that were given away here: sockets of UDP, which nobody else uses."""


def free_port() -> int:
    """Find a port below those that systems give away, which no other test is given for a while."""
    while len(_reserved) > 100:
        _reserved.popleft().close()
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        reserved = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reserved.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        _reserved.append(reserved)
        return port
