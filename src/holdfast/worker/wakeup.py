"""What wakes a loop: another thread, a wake of its queue, a time.

The wake is a blocking pop on a connection of its own.
"""

from __future__ import annotations

import math
import select
import socket
import time
from contextlib import suppress
from typing import Final, Protocol

from holdfast.connection import protocol
from holdfast.connection.server import Server
from holdfast.connection.sockets import Link
from holdfast.errors import HoldfastError

LISTEN_SECONDS: Final = 5.0
_LATE_SECONDS: Final = 5.0
_DEAF_SECONDS: Final = 1.0


class Ear:
    """Listens when told to. Any trouble makes it deaf for a moment, and is nobody's problem."""

    def __init__(self, server: Server, packer: protocol.Packer) -> None:
        self._server = server
        self._slot = packer.slot
        self._listen = packer.pack_wait(LISTEN_SECONDS)
        self._link: Link | None = None
        self._until = 0.0
        self._deaf_until = 0.0
        self.listening = False

    def listen(self) -> None:
        """Listen, if it does not already."""
        now = time.monotonic()
        if self.listening and now < self._until:
            return
        if self.listening:
            self._lose()  # The server should have answered long ago.
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
        """Return what to wait for while it listens."""
        assert self._link is not None
        return self._link.fileno()

    def heard(self) -> bool:
        """Read what came: True when it was the wake, and not that the time is over."""
        assert self._link is not None
        try:
            reply = self._link.read()
        except OSError:
            self._lose()
            return True  # Ask: whoever cut the connection may have cut off a wake.
        self.listening = False
        word = protocol.word_of(reply)
        if word in protocol.NOT_HERE:
            self.close()  # The queue has moved: listen there next time, and ask now.
            self._server.forget(self._slot)
            return True
        if word:
            self._lose()  # This user may not listen, or the server is in trouble.
            return False
        return reply is not None

    def hush(self) -> None:
        """Stop listening, and leave the wake to who can use it."""
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


class Speaker(Protocol):
    """What may have something to say."""

    def fileno(self) -> int:
        """Return what becomes readable then."""


class Waiter:
    """One thread waits; others rouse it. A rouse costs nothing while it does not wait."""

    def __init__(self) -> None:
        self._sleeps = False
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def rouse(self) -> None:
        """Let the one who waits go on, or not wait if it was about to."""
        if self._sleeps:
            self._sleeps = False
            with suppress(OSError):  # Rung often enough, or nobody waits there any more.
                self._rope.send(b"\0")

    def prepare(self) -> None:
        """Have every rouse from now on noticed: then look once more whether to wait at all."""
        self._sleeps = True

    def wait(self, seconds: float, speaker: Speaker | None = None, *, room: bool = False) -> bool:
        """Wait; return whether the speaker has something to say.

        With `room` it waits no longer than until the speaker can be told something.
        """
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if speaker:
            poll.register(speaker.fileno(), select.POLLIN | (select.POLLOUT if room else 0))
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
        """Close what it waits on."""
        self._bell.close()
        self._rope.close()
