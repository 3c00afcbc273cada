"""A primary and its replica, watched by a Sentinel: real ones, on loopback ports."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import redis

from support import TestServer, command_on, free_port, server_binary, wait_until

NAME = "mymaster"
DOWN_MS = 1500
"""A primary that is silent for so long is replaced. (With 500 a Sentinel now and then replaces the
new one too, before it has heard of it.)"""

AGAIN_MS = 2000
"""After twice as long the next may be replaced, too."""


class Watched:
    """Two servers, of which one is primary, and who decides which."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.servers: list[TestServer] = []
        self._sentinel: subprocess.Popen[bytes] | None = None
        try:
            self._start(directory, *options)
        except BaseException:
            self.stop()
            raise

    def _start(self, directory: Path, *options: str) -> None:
        for number in range(2):
            (directory / str(number)).mkdir()
            more = ("--repl-diskless-sync-delay", "0", *options)
            self.servers.append(TestServer(directory / str(number), *more, tcp=True))
        follow(self.servers[1], self.servers[0])
        self.port = free_port()
        self._config = directory / "sentinel.conf"
        self._config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {directory}\nlogfile log\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
            f"sentinel failover-timeout {NAME} {AGAIN_MS}\n"
        )
        command = [str(server_binary()), str(self._config), "--sentinel"]
        self._sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self._is_whole, "the Sentinel")

    @property
    def url(self) -> str:
        """Of all Sentinels, the first of which is not there."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.port}/{NAME}"

    def ask(self, *command: Any) -> Any:
        """Ask the Sentinel."""
        with redis.Redis(port=self.port, protocol=2) as sentinel:
            sentinel.response_callbacks.clear()
            return command_on(sentinel, "SENTINEL", *command)

    def primary(self) -> TestServer:
        """Return who is primary, as the Sentinel says."""
        _, port = self.ask("GET-MASTER-ADDR-BY-NAME", NAME)
        (primary,) = (server for server in self.servers if server.port == int(port))
        return primary

    def replica(self) -> TestServer:
        """Return who is not."""
        primary = self.primary()
        return next(server for server in self.servers if server is not primary)

    def watch(self, primary: TestServer) -> None:
        """Have the Sentinel watch another one, as if it always had."""
        self.ask("REMOVE", NAME)
        self.ask("MONITOR", NAME, "127.0.0.1", primary.port, 1)
        self.ask("SET", NAME, "down-after-milliseconds", DOWN_MS)
        self.ask("SET", NAME, "failover-timeout", AGAIN_MS)

    def wait_for_another(self, than: TestServer) -> TestServer:
        wait_until(lambda: self.primary() is not than, "the replica to take over")
        wait_until(lambda: role(self.primary()) == b"master", "it to be primary")
        return self.primary()

    def heal(self) -> None:
        """Start who was killed, and wait until one follows the other, and the Sentinel knows."""
        for server in self.servers:
            if server.process.poll() is not None:
                server.start()
            server.thaw()
        follow(self.replica(), self.primary())
        wait_until(self._is_whole, "primary, replica and Sentinel")

    def _is_whole(self) -> bool:
        try:
            primary = self.primary()
            replica = self.replica()
            told = self.ask("REPLICAS", NAME)
            known = [dict(zip(one[::2], one[1::2], strict=True)) for one in told]
            good = [one for one in known if one[b"flags"] == b"slave" and one[b"port"]]
            with replica.client() as client:
                linked = command_on(client, "ROLE")[3] == b"connected"
            return (
                linked
                and role(primary) == b"master"
                and [int(one[b"port"]) for one in good] == [replica.port]
            )
        except (redis.RedisError, IndexError):
            return False

    def freeze_sentinel(self) -> None:
        assert self._sentinel
        self._sentinel.send_signal(signal.SIGSTOP)

    def stop_sentinel(self) -> None:
        if self._sentinel:
            self._sentinel.kill()
            self._sentinel.wait()

    def stop(self) -> None:
        self.stop_sentinel()
        for server in self.servers:
            if server.process.poll() is None:
                server.thaw()
                server.kill()


def follow(replica: TestServer, primary: TestServer) -> None:
    with replica.client() as client:
        command_on(client, "REPLICAOF", "127.0.0.1", primary.port)


def role(server: TestServer) -> bytes:
    with server.client() as client:
        told: bytes = command_on(client, "ROLE")[0]
        return told
