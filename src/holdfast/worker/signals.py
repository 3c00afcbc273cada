"""Signal handling: graceful shutdown, immediate shutdown, and a dump of running jobs."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType

log = logging.getLogger("holdfast")


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

    def show_running(number: int, frame: FrameType | None) -> None:
        with suppress(Exception):  # An error here must not stop the worker.
            lines = "".join(f"{line}\n" for line in running())
            # Not sys.stderr.write: the signal may have interrupted one.
            os.write(sys.stderr.fileno(), lines.encode(errors="backslashreplace"))
        show_stacks(number, frame)

    heard: dict[int, Callable[[int, FrameType | None], None]]
    heard = {signal.SIGTERM: hear, signal.SIGINT: hear}
    if hasattr(signal, "SIGQUIT") and _has_file(sys.stderr):
        heard[signal.SIGQUIT] = show_running
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_stacks(_number: int, _frame: FrameType | None) -> None:
    """Write the stack of every thread to stderr."""
    # Not faulthandler.register, which inspects threads while they run, and may crash.
    faulthandler.dump_traceback(sys.stderr, all_threads=True)


def _has_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
