"""`holdfast work --reload`: restart when a file of the program changes. For development.

The worker stops gracefully, so running handlers may finish. Then the same process executes the
program again, with the same arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn

import click

from holdfast.escaping import logger

log = logger(__name__)

LOOK_SECONDS: Final = 0.3

_INSTALLED: Final = tuple(
    f"{os.path.realpath(path)}{os.sep}"
    for path in (
        *(str(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    )
)
"""Not watched: installed packages and Holdfast do not change during development."""


class Watch:
    """The files of the imported modules, with the times of their last changes."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def look(self, *more: str) -> str | None:
        """Return a file that changed since the first look, or None. `more` adds files to watch."""
        for file in {*self._seen, *_own_files(), *more}:
            with suppress(OSError):
                changed = Path(file).stat().st_mtime_ns
                if self._seen.setdefault(file, changed) != changed:
                    return file
        return None


def _own_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not os.path.realpath(file).startswith(_INSTALLED):
            yield file


@contextmanager
def watched(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Call `stop` when a file changes. Yields a function that tells whether to restart."""
    watch, over = Watch(), threading.Event()
    watch.look()
    changed: list[str] = []

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            if file := watch.look():
                log.info("%s changed: restarting when running jobs are finished", file)
                changed.append(file)
                stop()
                return

    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)

    def again() -> bool:
        """Tell whether to restart: a file changed, and no signal asked the worker to stop."""
        with suppress(BlockingIOError):
            return bool(changed) and not set(os.read(ours, 100)) & {signal.SIGINT, signal.SIGTERM}
        return bool(changed)

    looking = threading.Thread(target=look, name="reload", daemon=True)
    looking.start()
    try:
        yield again
    finally:
        over.set()
        looking.join()
        signal.set_wakeup_fd(before)
        os.close(ours)
        os.close(theirs)


@contextmanager
def restart_on_error() -> Iterator[None]:
    """If the block raises, wait for the next change of a file, then restart."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # An import may raise anything.
        if isinstance(error, click.ClickException):
            error.show()
        else:
            traceback.print_exc()
        watch, files = Watch(), set(_files_in(error, error.__traceback__))
        watch.look(*files)
        click.echo("waiting for a file to change", err=True)
        while not watch.look(*files):
            time.sleep(LOOK_SECONDS)
        restart()


def _files_in(error: BaseException, frames: TracebackType | None) -> Iterator[str]:
    """Yield the files in a traceback: a module that fails is not in sys.modules."""
    if isinstance(error, SyntaxError) and error.filename:
        yield error.filename
    while frames is not None:
        yield frames.tb_frame.f_code.co_filename
        frames = frames.tb_next


def restart() -> NoReturn:
    """Replace this process with a new run of its program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
