"""Wakes a control loop: by another thread, by a wake of its queue, or at a time.

Wakes of a queue arrive in a blocking pop on a separate connection.
"""

from __future__ import annotations

import math
import select
import socket
import time
from contextlib import suppress
from typing import Final, Protocol

from holdfast.connection import protocol
from holdfast.connection.server import Link, Server
from holdfast.errors import HoldfastError

LISTEN_SECONDS: Final = 5.0
_LATE_SECONDS: Final = 5.0
_DEAF_SECONDS: Final = 1.0


class WakeListener:
    """Listens for wakes of a queue. After an error it pauses for a moment; wakes are only hints."""

    def __init__(self, server: Server, packer: protocol.Packer) -> None:
        self._server = server
        self._slot = packer.slot
        self._listen = packer.pack_wait(LISTEN_SECONDS)
        self._link: Link | None = None
        self._until = 0.0
        self._deaf_until = 0.0
        self.listening = False

    def listen(self) -> None:
        """Start listening, if it does not already."""
        now = time.monotonic()
        if self.listening and now < self._until:
            return
        if self.listening:
            self._lose()  # The server's answer is overdue.
        if now < self._deaf_until:
            return
        try:
            self._link = self._link or self._server.connect(self._slot)
            self._link.send(self._listen)
        except (OSError, HoldfastError):
            self._lose()
            return
        self.listening = True
        self._until = now + LISTEN_SECONDS + _LATE_SECONDS

    def fileno(self) -> int:
        """Return the descriptor to wait for while it listens."""
        assert self._link is not None
        return self._link.fileno()

    def heard(self) -> bool:
        """Read the answer. Return True for a wake, False for a timeout of the pop."""
        assert self._link is not None
        try:
            reply = self._link.read()
        except OSError:
            self._lose()
            return True  # A wake may have been lost with the connection.
        self.listening = False
        word = protocol.word_of(reply)
        if word in protocol.NOT_HERE:
            self.close()  # The queue has moved: listen there next time, and lease now.
            self._server.forget(self._slot)
            return True
        if word:
            self._lose()  # This user may not listen, or the server is in trouble.
            return False
        return reply is not None

    def stop(self) -> None:
        """Stop listening, and leave the wake to a worker that can use it."""
        if self.listening:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self.listening = False
        if self._link is not None:
            self._link.close()
            self._link = None

    def _lose(self) -> None:
        self.close()
        self._server.forget(self._slot)
        self._deaf_until = time.monotonic() + _DEAF_SECONDS


class Readable(Protocol):
    """An object with a descriptor to wait for."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Waiter:
    """Lets one thread wait and others wake it. Waking costs nothing while it is not waiting."""

    def __init__(self) -> None:
        self._sleeps = False
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def rouse(self) -> None:
        """Wake the thread, or keep it from waiting if it was about to."""
        if self._sleeps:
            self._sleeps = False
            with suppress(OSError):  # The buffer is full, or the waiter is closed.
                self._rope.send(b"\0")

    def prepare(self) -> None:
        """Notice every `rouse` from now on. Check once more afterwards whether to wait at all."""
        self._sleeps = True

    def wait(self, seconds: float, other: Readable | None = None, *, room: bool = False) -> bool:
        """Wait; return whether the other descriptor is readable.

        With `room` it also returns when the descriptor is writable.
        """
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if other:
            poll.register(other.fileno(), select.POLLIN | (select.POLLOUT if room else 0))
        ready = poll.poll(None if seconds == math.inf else max(0.0, seconds) * 1000)
        self._sleeps = False
        heard = False
        for descriptor, events in ready:
            if descriptor == self._bell.fileno():
                with suppress(BlockingIOError):
                    self._bell.recv(4096)
            elif events != select.POLLOUT:
                heard = True
        return heard

    def close(self) -> None:
        """Close its sockets."""
        self._bell.close()
        self._rope.close()
