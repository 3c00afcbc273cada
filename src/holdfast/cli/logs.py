"""What commands that run for long log, and to where: the application decides, if it does.

`holdfast work` imports the application's module. If that sets up logging, as it would in a program
of its own, this is the logging that counts. If it does not, lines go to stderr.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.escaping import LOGGERS


def log_to_stderr(level: str = "info") -> None:
    """Log to stderr, unless somebody has set up logging already."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )


class _Level(int):
    """A level that is known again: to tell our own from one that the application set."""


class _Kept(logging.Handler):
    """Keeps records until it is known where they go."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def application_first(level: str | None) -> Iterator[None]:
    """Let the block set up logging, and log to stderr after it where it did not.

    `level` is what the user asked for: of everything where the logging is ours, of Holdfast's lines
    where it is the application's. What is logged in the block is written after it at the latest.
    """
    root, (ours, each_job) = logging.getLogger(), map(logging.getLogger, LOGGERS)
    for handler in ours.handlers[:]:
        if isinstance(handler, logging.NullHandler):
            ours.removeHandler(handler)
    kept, last_resort = _Kept(), logging.lastResort
    meanwhile = _Level(logging.getLevelName((level or "info").upper()))
    before = root.level
    # Not a handler of the root: logging.basicConfig() of the application would do nothing then.
    logging.lastResort = kept
    root.setLevel(meanwhile)
    try:
        yield
    finally:
        logging.lastResort = last_resort
        if root.level is meanwhile:
            root.setLevel(before)
        if not root.handlers:
            log_to_stderr(level or "info")
            if level != "debug":
                each_job.setLevel(
                    logging.WARNING
                )  # A line for each would cost more than short jobs.
        elif level is not None:
            ours.setLevel(level.upper())
        # dictConfig disables loggers that are there before, by default.
        ours.disabled = each_job.disabled = False
        for record in kept.records:
            logger = logging.getLogger(record.name)
            if record.levelno >= logger.getEffectiveLevel():
                logger.callHandlers(record)
