"""Waits for the first of: a rouse from another thread, something to hear, a time."""

from __future__ import annotations

import math
import select
import socket
from contextlib import suppress
from typing import Protocol


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
