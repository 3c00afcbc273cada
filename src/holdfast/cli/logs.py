"""Logging of long-running commands: as the application sets it up, else to stderr.

`holdfast work` imports the application's module. If that sets up logging, as in a program of its
own, its setup is used. If it does not, records go to stderr.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.escaping import loggers


def log_to_stderr(level: str = "info") -> None:
    """Log to stderr, unless logging is set up already."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )


class _Level(int):
    """A level compared by identity, which shows whether the application has set another."""


class _Kept(logging.Handler):
    """Buffers records until logging is set up."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def application_first(level: str | None) -> Iterator[None]:
    """Use the logging that the block sets up; if it sets up none, log to stderr after it.

    `level` is the user's choice. It applies to all records on stderr, but only to Holdfast's
    records in the application's logging. Records of the block are written after it at the latest.
    """
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    for handler in ours.handlers[:]:
        if isinstance(handler, logging.NullHandler):
            ours.removeHandler(handler)
    kept, last_resort = _Kept(), logging.lastResort
    meanwhile = _Level(logging.getLevelName((level or "info").upper()))
    before = root.level
    # A handler of the root would turn the application's logging.basicConfig() into a no-op.
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
                # A line per job would cost more than a short job itself.
                logging.getLogger("holdfast.jobs").setLevel(logging.WARNING)
        elif level is not None:
            ours.setLevel(level.upper())
        # By default dictConfig disables existing loggers.
        for log in loggers():
            log.disabled = False
        for record in kept.records:
            logger = logging.getLogger(record.name)
            if record.levelno >= logger.getEffectiveLevel():
                logger.callHandlers(record)
