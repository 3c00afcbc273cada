"""What wakes a worker's threads: another thread, a wake of a queue, a time, a signal.

Wakes of a queue arrive in a blocking pop on a separate connection. Signals start a graceful
shutdown, then an immediate one; SIGQUIT shows the running jobs.
"""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Protocol

from holdfast.connection import protocol
from holdfast.connection.server import Link, Server
from holdfast.errors import HoldfastError
from holdfast.escaping import logger

log = logger(__name__)

LISTEN_SECONDS: Final = 5.0
LATE_SECONDS: Final = 5.0
"""How late the answer of a blocking pop may be before the connection counts as lost."""
_DEAF_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.01
"""How often the loop's own thread looks whether handlers keep the thread that leads."""


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
        self._until = now + LISTEN_SECONDS + LATE_SECONDS

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


class Lead:
    """The right to carry out a control loop. Its own thread has it, or the thread of its handlers.

    The thread of the handlers leaves it while handlers run. If it does not take it again for
    `LOOK_SECONDS`, the loop's own thread does: then a handler takes long.
    """

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        """In which the loop's own thread waits while it leads."""
        self._lock = threading.Lock()
        self._lock.acquire()  # For the loop's own thread.
        self.is_asked = False
        """Whether the thread of the handlers waits for the lead."""
        self._moves = 0
        """How often it has taken and left the lead."""
        self._dozes = False
        self._alarm: SimpleQueue[None] = SimpleQueue()
        """Wakes the loop's own thread from its doze."""

    def take(self, *, ask: bool) -> bool:
        """Take the lead, in the thread of the handlers. If it is not free, ask for it or return."""
        if not self._lock.acquire(blocking=False):
            if not ask:
                return False
            self.is_asked = True
            self._waiter.rouse()
            self._lock.acquire()
            self.is_asked = False
        self._moves += 1
        return True

    def leave(self) -> None:
        """Leave the lead, in the thread of the handlers."""
        self._moves += 1
        self._lock.release()
        if self._dozes:
            self._dozes = False
            self._alarm.put(None)

    def stand_by(self) -> None:
        """Leave the lead, in the loop's own thread, until handlers take long or it is given up."""
        self._lock.release()
        seen = -1
        while seen != self._moves or not self._lock.acquire(blocking=False):
            # If the other thread leads and has not moved, it waits for work or for the server.
            waits, seen = seen == self._moves, self._moves
            self._dozes = waits
            with suppress(Empty):
                self._alarm.get(timeout=None if waits and self._lock.locked() else LOOK_SECONDS)
            self._dozes = False

    def end(self) -> None:
        """Leave the lead for good, as the loop is over."""
        self._lock.release()


# ----------------------------------------------------------------------------- signals


class StopRequest:
    """A flag that asks the worker to stop. A signal handler may set it at any moment.

    Not a threading.Event: a signal handler that runs while the event's lock is held would deadlock.
    """

    def __init__(self) -> None:
        self._asked = False
        self._said: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask the worker to stop."""
        self._asked = True
        self._said.put(None)

    def clear(self) -> None:
        """Reset the flag."""
        self._asked = False
        self._said = SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the worker was asked to stop."""
        return self._asked

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, and return it. Only one thread may wait."""
        if not self._asked:
            with suppress(Empty):
                self._said.get(timeout=seconds)
        return self._asked


@contextmanager
def handle_signals(
    stop: Callable[[], None],
    leave: Callable[[], None],
    running: Callable[[], Iterable[str]] = tuple,
) -> Iterator[None]:
    """Handle signals: SIGTERM and Ctrl-C stop, a second one leaves at once, SIGQUIT shows stacks.

    Only the main thread can install signal handlers. In other threads this does nothing: the
    program itself has to stop the worker.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = 0

    def hear(number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        name = signal.Signals(number).name
        if signals == 1:
            log.info("%s: finishing running jobs; send it again to leave at once", name)
            stop()
        else:
            log.warning("%s: leaving at once", name)
            leave()

    heard: dict[int, Callable[[int, FrameType | None], None]]
    heard = {signal.SIGTERM: hear, signal.SIGINT: hear}
    with suppress(AttributeError, OSError, ValueError):  # No such signal, or no file to write to.
        sys.stderr.fileno()
        heard[signal.SIGQUIT] = partial(_show_running, running)
    before: dict[int, Any] = {}
    for number, handler in heard.items():
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_running(
    running: Callable[[], Iterable[str]], number: int, frame: FrameType | None
) -> None:
    """Write a line about each running job, and the stack of every thread, to stderr."""
    with suppress(Exception):  # An error here must not stop the worker.
        lines = "".join(f"{line}\n" for line in running())
        # Not sys.stderr.write: the signal may have interrupted one.
        os.write(sys.stderr.fileno(), lines.encode(errors="backslashreplace"))
    show_stacks(number, frame)


def show_stacks(_number: int, _frame: FrameType | None) -> None:
    """Write the stack of every thread to stderr."""
    # Not faulthandler.register, which inspects threads while they run, and may crash.
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
