"""What the signals of a process mean to a worker that runs in it."""

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


class Asked:
    """Whether somebody asked to stop. A signal handler may say so at any moment.

    Not a threading.Event: a signal that comes while its lock is held would wait for ever.
    """

    def __init__(self) -> None:
        self._asked = False
        self._said: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._asked = True
        self._said.put(None)

    def clear(self) -> None:
        """Forget that somebody asked."""
        self._asked = False
        self._said = SimpleQueue()

    def is_set(self) -> bool:
        """Tell whether somebody asked."""
        return self._asked

    def wait(self, seconds: float) -> bool:
        """Wait until somebody asks; return whether somebody did. For one who waits."""
        if not self._asked:
            with suppress(Empty):
                self._said.get(timeout=seconds)
        return self._asked


@contextmanager
def heeded(
    stop: Callable[[], None],
    leave: Callable[[], None],
    running: Callable[[], Iterable[str]] = tuple,
) -> Iterator[None]:
    """SIGTERM and Ctrl-C stop, a second one leaves at once; SIGQUIT shows what runs, with stacks.

    Only the main thread can have it so; elsewhere the worker is stopped by whoever runs it.
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
            log.info("%s: finishing what runs; once more to leave at once", name)
            stop()
        else:
            log.warning("%s: leaving at once", name)
            leave()

    def show_running(number: int, frame: FrameType | None) -> None:
        with suppress(Exception):  # Whatever it is, the worker goes on.
            lines = "".join(f"{line}\n" for line in running())
            # Not sys.stderr.write: the signal may have come in the middle of one.
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
    """Write what every thread does to stderr."""
    # Not faulthandler.register, which looks at threads while they run, and may crash.
    faulthandler.dump_traceback(sys.stderr, all_threads=True)


def _has_file(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
