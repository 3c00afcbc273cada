"""A blocking connection to a server: sends bytes, reads replies."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from typing import Any, Final

import hiredis

from holdfast.connection import protocol
from holdfast.connection.address import Address
from holdfast.connection.credentials import Login
from holdfast.connection.topology import FIND_SECONDS

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0
CHUNK_BYTES = 65536


class Link:
    """A connection that sends bytes and reads replies. Its failures are OSErrors."""

    def __init__(
        self,
        address: Address,
        path: str,
        login: Login,
        introduction: protocol.Introduction,
        reply_seconds: float,
        connect_seconds: float,
    ) -> None:
        self.address = address
        self._reply_seconds = reply_seconds
        try:
            self._socket = _open_socket(address, path, connect_seconds)
        except OSError as error:
            raise explained(error, address, connect_seconds) from None
        self._socket.settimeout(reply_seconds)
        self._reader = hiredis.Reader()
        self._introduction = introduction
        greeting = introduction.pack(login, address.db)
        self._unheard = greeting.names
        try:
            self.send(greeting.packed)
            for _ in range(greeting.must):
                if isinstance(reply := self._read_first(), hiredis.ReplyError):
                    raise protocol.refusal(reply)
        except BaseException:
            self.close()
            raise

    def ask(self, packed: bytes) -> Any:
        """Send a command and return its reply. An error reply is returned, not raised."""
        self.send(packed)
        return self.read()

    def ask_both(
        self, first: bytes, second: bytes, wait: float = 0, ahead: int = 1
    ) -> tuple[Any, Any]:
        """Send two commands at once. The first may take `wait` seconds.

        `first` may contain `ahead` commands; then only the reply to the first of them is returned.
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
        """Send a command without reading its reply. A timeout applies to each chunk."""
        try:
            if len(packed) <= CHUNK_BYTES:
                self._socket.sendall(packed)
                return
            left = memoryview(packed)
            while left:
                left = left[self._socket.send(left) :]
        except OSError as error:
            if self._unheard:
                raise unspoken(error, self.address) from None
            raise

    def read(self) -> Any:
        """Return the next reply."""
        return self._hear_names() or self._read() if self._unheard else self._read()

    def settle(self) -> None:
        """Read the replies to the client names, so that the next reply is that of the call."""
        if refused := self._hear_names():
            raise protocol.refusal(refused)

    def _hear_names(self) -> hiredis.ReplyError | None:
        """Read the replies to the client names. Return an error that rejects the connection."""
        while self._unheard:
            name, *others = self._unheard
            if not self._introduction.hear(name, reply := self._read_first()):
                refused: hiredis.ReplyError = reply
                return refused
            self._unheard = tuple(others)
        return None

    def _read_first(self) -> Any:
        try:
            return self._read()
        except OSError as error:
            raise unspoken(error, self.address) from None

    def _read(self) -> Any:
        chunk = b""
        try:
            while (reply := self._reader.gets()) is False:
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    raise ConnectionResetError("the server closed the connection")
                self._reader.feed(chunk)
        except hiredis.ProtocolError as error:
            return protocol.misread(self.address, chunk, error)
        return reply

    def read_within(self, seconds: float) -> Any:
        """Return the next reply, or None after a timeout."""
        self._socket.settimeout(seconds)
        try:
            return self.read()
        except TimeoutError:
            return None

    def limit(self, seconds: float) -> None:
        """Set the timeout of replies."""
        if seconds != self._reply_seconds:
            self._reply_seconds = seconds
            self._socket.settimeout(seconds)

    def show_life(self) -> None:
        """Ping a server that was lost before; raise OSError if it does not answer soon."""
        self._socket.settimeout(FIND_SECONDS)
        self.ask(protocol.PING)
        self._socket.settimeout(self._reply_seconds)

    def fileno(self) -> int:
        """Return the descriptor to wait for before a read."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close at once. Outstanding replies are lost."""
        self._socket.close()


def explained(error: OSError, address: Address, seconds: float) -> OSError:
    """Return an error that says why a connection failed and what to do."""
    if isinstance(error, socket.gaierror):
        return ConnectionError(
            f"the host name {address.host!r} cannot be resolved ({error.strerror}): correct the "
            "URL, or look at the DNS settings of this machine"
        )
    if not address.tls or isinstance(error, ssl.SSLCertVerificationError):
        return error
    if isinstance(error, TimeoutError):
        return TimeoutError(
            f"no TLS connection within {seconds:.3g} s: is it the right host and port, and does "
            "the port speak TLS? If it does not, begin the URL with redis:// or valkey://"
        )
    if isinstance(error, ssl.SSLError | ConnectionResetError):
        return ConnectionError(
            f"the TLS handshake failed ({error.strerror or error}): does the port speak TLS? If "
            "it does not, begin the URL with redis:// or valkey://"
        )
    return error


def unspoken(error: OSError, address: Address) -> OSError:
    """Return an error for a new connection that was lost before its first reply."""
    if address.tls or not address.host or isinstance(error, TimeoutError):
        return error
    return ConnectionResetError(
        f"{error}. It did not answer at all: does the port speak TLS? Then begin the URL with "
        "rediss:// or valkeys://"
    )


def _open_socket(address: Address, path: str, seconds: float) -> socket.socket:
    tls = address.tls_context() if address.tls else None
    opened = _connected_to(path, seconds) if path else _connected(address, seconds)
    try:
        if tls:
            opened = tls.wrap_socket(opened, server_hostname=address.host)
    except BaseException:
        opened.close()
        raise
    return opened


def _connected_to(path: str, seconds: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(seconds)
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


def _connected(address: Address, seconds: float) -> socket.socket:
    """Connect to the first address of a host that answers, within `seconds` in total."""
    until = time.monotonic() + seconds
    trouble: OSError | None = None
    for family, kind, proto, _, place in _resolve(address.host, address.port, seconds):
        left = until - time.monotonic()
        if left <= 0:
            break
        opened = socket.socket(family, kind, proto)
        try:
            opened.settimeout(left)
            opened.connect(place)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            opened.settimeout(max(until - time.monotonic(), 0.001))
        except OSError as error:
            trouble = error
            opened.close()
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise trouble or TimeoutError


# ------------------------------------------------------------------------------ host names


class _Lookup:
    """A DNS lookup in a separate thread, since `getaddrinfo` has no timeout."""

    def __init__(self, host: str, port: int) -> None:
        self.done = threading.Event()
        self.found: list[Any] = []
        self.trouble: OSError | None = None
        _lookups[host, port] = self  # Before the thread starts, which removes it.
        threading.Thread(target=self._look, args=(host, port), daemon=True).start()

    def _look(self, host: str, port: int) -> None:
        try:
            self.found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.trouble = error
        except ValueError as error:  # The name cannot be encoded.
            self.trouble = socket.gaierror(socket.EAI_NONAME, str(error))
        finally:
            _lookups.pop((host, port), None)
            self.done.set()


_lookups: Final[dict[tuple[str, int], _Lookup]] = {}
"""Running lookups. Equal lookups share one thread, so that threads do not pile up."""

os.register_at_fork(after_in_child=_lookups.clear)


def _resolve(host: str, port: int, seconds: float) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        pass
    lookup = _lookups.get((host, port)) or _Lookup(host, port)
    if not lookup.done.wait(seconds):
        raise TimeoutError(f"the host name {host!r} was not resolved within {seconds:.3g} s")
    if lookup.trouble:
        raise socket.gaierror(*lookup.trouble.args)
    return lookup.found
