r"""Text from outside, made harmless: for terminals, and for every line of our log.

Ids, names, payloads and errors may hold line breaks, escape sequences and letters that reverse
the direction of a line. Written raw, they could forge a line of a log or control a terminal. Here
whatever is not printable becomes an escape, such as `\n` or `\x1b`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final

LOGGERS: Final = ("holdfast", "holdfast.worker")
"""All that we log to. A filter is needed at each: those of a parent do not see its children."""


def visible(text: object) -> str:
    """Return a text on one line, with everything escaped that is not simply printed."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)


def guard_the_log() -> None:
    """Escape what our loggers are given, before any handler or formatter of the user sees it."""
    for name in LOGGERS:
        log = logging.getLogger(name)
        if not any(isinstance(one, _Escapes) for one in log.filters):
            log.addFilter(_Escapes())


class _Escapes(logging.Filter):
    """Rewrites records that would not be one printable line, and their tracebacks; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            _escape_message(record)
            if record.exc_info and not record.exc_text:
                record.exc_text = _harmless_traceback(record.exc_info)
        except Exception:  # noqa: BLE001, S110  # An object without a text: handlers report that.
            pass
        return True


def _escape_message(record: logging.LogRecord) -> None:
    if record.getMessage().isprintable():
        return
    # The arguments stay apart: error trackers group records by their message without them.
    if isinstance(record.args, Mapping):
        record.args = {name: _escaped(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_escaped, record.args))
    if not (message := record.getMessage()).isprintable():
        record.msg, record.args = visible(message), None


def _escaped(value: object) -> object:
    if isinstance(value, str | BaseException) and not str(value).isprintable():
        return visible(value)
    return value


def _harmless_traceback(exc_info: Any) -> str | None:
    """Return a traceback in which messages forge no line; None where the usual one is harmless.

    Its lines stay lines. Those that a message brings are indented, as a line of a log begins at
    the left.
    """
    told = traceback.TracebackException(*exc_info)
    _quote_notes(told)
    pieces = list(told.format())
    harmless = "".join(map(_harmless_piece, pieces)).rstrip("\n")
    usual = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    return None if harmless == usual else harmless


def _harmless_piece(piece: str) -> str:
    """Return a frame or a message, all of its lines but the first indented."""
    if piece.startswith("\n"):  # Between two exceptions: Python's own words.
        return piece
    first, *more = piece.rstrip("\n").split("\n")
    indented = (line if line[:1] in (" ", "") else f"    {line}" for line in more)
    return "".join(f"{visible(line)}\n" for line in (first, *indented))


def _quote_notes(told: traceback.TracebackException) -> None:
    """Indent the notes of an exception and of all that led to it: each line is a piece."""
    left, seen = [told], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one.__notes__, list):
            lines = [line for note in one.__notes__ for line in str(note).split("\n")]
            one.__notes__ = [f"    {line}" for line in lines]
        left += [led for led in (one.__cause__, one.__context__) if led is not None]
        left += getattr(one, "exceptions", None) or []
