"""The server as a thread sees it: connect by URL, run a call, ask again when a reply is lost.

A call goes out under a caller: a random name and a number that counts up. When the
connection breaks, the same call is sent again under the same number, and the engine
answers it as it did before. So a lost reply neither doubles nor hides anything.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import hiredis

from holdfast import arguments, wire
from holdfast.address import Address, parse
from holdfast.embedded import Embedded
from holdfast.engine.call import Call
from holdfast.errors import ServerRefused, ServerUnavailable
from holdfast.incarnation import Incarnation
from holdfast.job import Duration

T = TypeVar("T")

log = logging.getLogger("holdfast")

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 10.0
PATIENCE_SECONDS = 15.0
CHUNK_BYTES = 65536


class Link:
    """One connection: bytes out, replies in. Any trouble with it is an OSError."""

    def __init__(self, address: Address, path: str, reply_seconds: float | None = None) -> None:
        self._reply_seconds = reply_seconds or REPLY_SECONDS
        self._socket = _open_socket(address, path)
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

    def ask_both(self, first: bytes, second: bytes, wait: float = 0) -> tuple[Any, Any]:
        """Send two commands at once, of which the first may take `wait` seconds."""
        self._socket.settimeout(wait + self._reply_seconds)
        self.send(first + second)
        replies = self.read(), self.read()
        self._socket.settimeout(self._reply_seconds)
        return replies

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

    def fileno(self) -> int:
        """Return what to wait for before a read that shall not block."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close at once; what is under way is lost."""
        self._socket.close()


def _open_socket(address: Address, path: str) -> socket.socket:
    tls = address.tls_context() if address.tls else None
    if path:
        opened = socket.socket(socket.AF_UNIX)
    else:
        opened = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    try:
        opened.settimeout(CONNECT_SECONDS)
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


_warned: set[tuple[str, str]] = set()


def warn_once(address: Address, warnings: list[str]) -> None:
    """Warn about a server, once in the life of this process, however many connect to it."""
    for warning in warnings:
        if (said := (str(address), warning)) not in _warned:
            _warned.add(said)
            log.warning("%s: %s", *said)


def embedded_path(embedded: Embedded) -> str:
    """Start the embedded server where it does not run; trouble is an OSError, to be tried again."""
    try:
        return str(embedded.ensure())
    except ServerUnavailable as error:
        raise ConnectionError(str(error)) from error


class Caller:
    """A name and a number for calls, one in flight at a time, and the link that carries them."""

    __slots__ = ("link", "name", "number")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.number = 0
        self.link: Link | None = None

    def drop(self) -> None:
        """Close the link: a reply may still be on its way, and must not meet the next call."""
        if self.link is not None:
            self.link.close()
            self.link = None


class Server:
    """A Redis or Valkey server. Threads share it; a forked child begins anew.

    url           where it is; without one HOLDFAST_URL, else the embedded server
    patience      seconds for which a call is tried again when the connection is lost
    reply_within  seconds after which a connection that does not answer is taken for lost
    """

    def __init__(
        self,
        url: str | Address | None = None,
        *,
        patience: Duration = PATIENCE_SECONDS,
        reply_within: Duration | None = None,
    ) -> None:
        self.address = url if isinstance(url, Address) else parse(url)
        self.incarnation: Incarnation[Caller] = Incarnation(Caller)
        self._patience = arguments.duration_ms("patience", patience, forever=True) / 1000
        self._reply_seconds = arguments.seconds_or_none("reply_within", reply_within)
        self._embedded = Embedded(self.address.path or None) if self.address.embedded else None
        self._unchecked = True
        self._listens = True  # False where this user may not: then it asks from time to time.

    def __repr__(self) -> str:
        return f"Server({str(self.address)!r})"

    def run(self, packer: wire.Packer, call: Call[T], now: bytes = b"") -> T:
        """Carry a call to the server and bring back what it answers.

        Goes on trying for `patience` seconds, then raises `ServerUnavailable`.
        """
        caller = self.incarnation.take_caller()
        caller.number += 1
        packed = packer.pack(call, now, caller.name, caller.number)
        first, wait = b"", call.wait
        if wait and call.listen and self._listens:
            first = packer.pack_wait(wait)
        elif wait:
            time.sleep(wait)
        begun = time.time()
        tries: wire.Tries | None = None
        clean = False
        try:
            while True:
                clean = sent = False
                try:
                    link = caller.link or self._open_link(caller)
                    sent = True
                    if first:
                        before, reply = link.ask_both(first, packed, wait)
                    else:
                        before, reply = None, link.ask(packed)
                    clean = True
                except OSError as error:
                    caller.drop()
                    tries = tries or wire.Tries(self.address, self._patience, call, begun)
                    pause = tries.after_loss(error, sent=sent)
                except ServerRefused as error:
                    tries = tries or wire.Tries(self.address, self._patience, call, begun)
                    pause = tries.after_no_entry(error)
                else:
                    if not isinstance(reply, hiredis.ReplyError):
                        if wait and wire.word_of(before) == "NOPERM":
                            self._listens = False
                        return call.read(reply)
                    if wire.word_of(reply) in wire.ELSEWHERE:
                        caller.drop()
                    tries = tries or wire.Tries(self.address, self._patience, call, begun)
                    pause = tries.after_refusal(before, reply)
                first, wait = tries.first, 0  # A wake may have been heard already: ask at once.
                time.sleep(pause)
        finally:
            if not clean:
                caller.drop()
            self.incarnation.give_caller(caller)

    @contextmanager
    def subscribe(self, channel: bytes, idle: float) -> Iterator[Iterator[bytes]]:
        """Listen to a channel until no message came for `idle` seconds; reconnects by itself."""
        messages = self._messages(channel, idle)
        next(messages)  # Subscribed before the caller goes on.
        try:
            yield messages
        finally:
            messages.close()

    def _messages(self, channel: bytes, idle: float) -> Generator[bytes, None, None]:
        quiet_at = time.monotonic() + idle
        tries: wire.Tries | None = None
        begun = False
        while True:
            link = None
            try:
                link = self.connect()
                reply = link.ask(wire.pack(b"SUBSCRIBE", channel))
                if isinstance(reply, hiredis.ReplyError):
                    raise wire.refusal(reply)
                tries = None
                if not begun:
                    begun = True
                    yield b""
                    quiet_at = time.monotonic() + idle
                asked = False
                while (left := quiet_at - time.monotonic()) > 0:
                    message = link.read_within(min(left, REPLY_SECONDS))
                    if message is None and asked:
                        raise TimeoutError
                    asked = message is None
                    if asked:
                        link.send(wire.pack(b"PING"))
                    elif message[0] == b"message":
                        yield message[2]
                        quiet_at = time.monotonic() + idle
                return
            except OSError as error:
                tries = tries or wire.Tries(self.address, self._patience)
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                tries = tries or wire.Tries(self.address, self._patience)
                time.sleep(tries.after_no_entry(error))
            finally:
                if link is not None:
                    link.close()

    def queues(self) -> list[str]:
        """Return the names of the queues on this server.

        Walks all keys of the database, some at a time, so that nobody else waits. A queue that
        was never used, or was deleted, has none.
        """
        tries: wire.Tries | None = None
        while True:
            link = None
            try:
                link = self.connect()
                found: set[str] = set()
                position = b"0"
                while True:
                    position, some = wire.read_scan(link.ask(wire.pack_scan(position)))
                    found |= some
                    if position == b"0":
                        return sorted(found)
            except OSError as error:
                tries = tries or wire.Tries(self.address, self._patience)
                time.sleep(tries.after_loss(error, sent=False))
            except ServerRefused as error:
                tries = tries or wire.Tries(self.address, self._patience)
                time.sleep(tries.after_no_entry(error))
            finally:
                if link is not None:
                    link.close()

    def close(self) -> None:
        """Close idle connections and leave the embedded server. A later call opens new ones."""
        for caller in self.incarnation.take_callers():
            caller.drop()
        if self._embedded:
            self._embedded.leave()

    def _open_link(self, caller: Caller) -> Link:
        caller.link = self.connect()
        return caller.link

    def connect(self) -> Link:
        """Open a connection of its own; trouble is an OSError or a refusal."""
        path = embedded_path(self._embedded) if self._embedded else self.address.path
        link = Link(self.address, path, self._reply_seconds)
        if self._unchecked:
            try:
                warnings = wire.check_health(self.address, link.ask(wire.INFO))
            except BaseException:
                link.close()
                raise
            self._unchecked = False
            warn_once(self.address, warnings)
        return link
