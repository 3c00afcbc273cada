"""One connection to a server, for a thread: bytes out, replies in."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from holdfast import wire
from holdfast.address import Address
from holdfast.topology import FIND_SECONDS

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0
CHUNK_BYTES = 65536


class Link:
    """One connection: bytes out, replies in. Any trouble with it is an OSError."""

    def __init__(
        self,
        address: Address,
        path: str,
        reply_seconds: float | None = None,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.address = address
        self._reply_seconds = reply_seconds or REPLY_SECONDS
        self._socket = _open_socket(address, path, connect_seconds)
        self._socket.settimeout(self._reply_seconds)
        self._reader = hiredis.Reader()
        try:
            for command in address.handshake():
                reply = self.ask(wire.pack(*command))
                if isinstance(reply, hiredis.ReplyError):
                    raise wire.refusal(reply)
        except BaseException:
            self.close()
            raise

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply; an error reply is returned, not raised."""
        self.send(packed)
        return self.read()

    def ask_both(
        self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1
    ) -> tuple[Any, Any]:
        """Send two commands at once, of which the first may take `wait` seconds.

        Where the first is several, `ahead` of them, it is the reply to the first of those.
        """
        self._socket.settimeout(wait + self._reply_seconds)
        self.send(first + second)
        before = self.read()
        for _ in range(ahead - 1):
            self.read()
        reply = self.read()
        self._socket.settimeout(self._reply_seconds)
        return before, reply

    def send(self, packed: bytes) -> None:
        """Send a command; its reply is read later. As long as something is taken, it goes on."""
        if len(packed) <= CHUNK_BYTES:
            self._socket.sendall(packed)
            return
        left = memoryview(packed)
        while left:
            left = left[self._socket.send(left) :]

    def read(self) -> Any:
        """Return the next reply."""
        try:
            while (reply := self._reader.gets()) is False:
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(chunk)
        except hiredis.ProtocolError as error:
            raise ConnectionResetError(f"what came is not a reply: {error}") from error
        return reply

    def read_within(self, seconds: float) -> Any:
        """Return the next reply, or None when there is none in time."""
        self._socket.settimeout(seconds)
        try:
            return self.read()
        except TimeoutError:
            return None

    def show_life(self) -> None:
        """Have an answer, soon, or else an OSError: it was lost before."""
        self._socket.settimeout(FIND_SECONDS)
        self.ask(wire.PING)
        self._socket.settimeout(self._reply_seconds)

    def fileno(self) -> int:
        """Return what to wait for before a read that shall not block."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close at once; what is under way is lost."""
        self._socket.close()


def _open_socket(address: Address, path: str, seconds: float) -> socket.socket:
    tls = address.tls_context() if address.tls else None
    if path:
        opened = socket.socket(socket.AF_UNIX)
    else:
        opened = socket.create_connection((address.host, address.port), seconds)
    try:
        opened.settimeout(seconds)
        if path:
            opened.connect(path)
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls:
            opened = tls.wrap_socket(opened, server_hostname=address.host)
    except BaseException:
        opened.close()
        raise
    return opened
