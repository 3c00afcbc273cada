"""What tests share: a server of their own, and waiting for a condition."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis

from holdfast.embedded import find_binary

DEADLINE = 30.0


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait for a condition; fail when it does not come true in a generous time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE:.0f} s for {what}"
        time.sleep(0.005)


def server_binary() -> Path:
    return Path(os.environ.get("HOLDFAST_TEST_SERVER") or find_binary())


class TestServer:
    """A server process of the tests' own, on a unix socket, or on a loopback port with tcp=True."""

    __test__ = False

    def __init__(self, directory: Path, *options: str, tcp: bool = False) -> None:
        self.directory = directory
        self.port = _free_port() if tcp else 0
        self.socket = directory / "s"
        self.url = f"redis://127.0.0.1:{self.port}" if tcp else f"unix://{self.socket}"
        self._options = options
        self.start()

    def start(self) -> None:
        command = [str(server_binary()), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", str(self.socket), "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "no", "--logfile", "log", *self._options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self._answers, "the server")

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
