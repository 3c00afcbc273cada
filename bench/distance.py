"""A server that is further away: a proxy that keeps every byte back for half the round trip.

    python -m bench.distance <port of the server> <round trip in seconds>

Prints its own port. One thread and `select`, whose timeout is exact to microseconds; as everything
waits equally long, what came first leaves first and one list is enough.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

CHUNK = 1 << 18


class Proxy:
    def __init__(self, server: int, trip: float) -> None:
        self._server, self._delay = server, trip / 2
        self._door = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._other: dict[socket.socket, socket.socket] = {}
        self._under_way: deque[tuple[float, socket.socket, bytes]] = deque()
        self.port: int = self._door.getsockname()[1]

    def serve(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            wait = self._under_way[0][0] - time.monotonic() if self._under_way else 1.0
            readable, _, _ = select.select([self._door, *self._other], [], [], max(0.0, wait))
            for one in readable:
                if one is self._door:
                    self._accept()
                elif one in self._other:
                    self._take(one)
            self._deliver()

    def _accept(self) -> None:
        client, _ = self._door.accept()
        server = socket.create_connection(("127.0.0.1", self._server))
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._other[client], self._other[server] = server, client

    def _take(self, end: socket.socket) -> None:
        try:
            data = end.recv(CHUNK)
        except OSError:
            data = b""
        if data:
            self._under_way.append((time.monotonic() + self._delay, self._other[end], data))
        else:
            self._close(end)

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, end, data = self._under_way.popleft()
            if end in self._other:
                try:
                    end.sendall(data)
                except OSError:
                    self._close(end)

    def _close(self, end: socket.socket) -> None:
        other = self._other.pop(end)
        del self._other[other]
        end.close()
        other.close()


@contextlib.contextmanager
def distance(url: str, trip: float) -> Iterator[str]:
    """Give the URL of the same server, a round trip further away."""
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "bench.distance", port, str(trip)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as proxy:
        try:
            assert proxy.stdout
            yield f"redis://127.0.0.1:{proxy.stdout.readline().strip()}"
        finally:
            proxy.kill()


def main() -> None:
    proxy = Proxy(int(sys.argv[1]), float(sys.argv[2]))
    print(proxy.port, flush=True)
    proxy.serve()


if __name__ == "__main__":
    main()
