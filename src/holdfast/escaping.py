r"""Make text from outside harmless for terminals and for our log.

Ids, names, payloads and errors may contain line breaks, escape sequences and characters that
reverse the direction of a line. Written raw, they could forge a line of a log or control a
terminal. So everything that is not printable becomes an escape, such as `\n` or `\x1b`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any


def visible(text: object) -> str:
    """Return a text on one line, with everything escaped that is not printable."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)


def logger(name: str) -> logging.Logger:
    """Return one of our loggers. Its records are escaped before any handler of the user sees them.

    Each logger has a filter of its own: the filters of a parent do not see records of a child.
    """
    log = logging.getLogger(name)
    if not any(isinstance(one, _Escapes) for one in log.filters):
        log.addFilter(_Escapes())
    return log


def loggers() -> list[logging.Logger]:
    """Return all our loggers: one for each module that logs, `holdfast.jobs` and their parents."""
    known = [name for name in logging.root.manager.loggerDict if name.startswith("holdfast.")]
    return [logging.getLogger(name) for name in ("holdfast", *known)]


class _Escapes(logging.Filter):
    """Rewrites messages that are not one printable line, and tracebacks. Drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            _escape_message(record)
            if record.exc_info and not record.exc_text:
                record.exc_text = _harmless_traceback(record.exc_info)
        except Exception:  # noqa: BLE001, S110  # str() of an argument raised: handlers report that.
            pass
        return True


def _escape_message(record: logging.LogRecord) -> None:
    if record.getMessage().isprintable():
        return
    # Keep the arguments apart: error trackers group records by the message without them.
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
    """Return a traceback whose messages forge no line; None if the usual one is harmless.

    The line breaks stay. Lines inside a message are indented, because a line of a log begins at
    the left.
    """
    told = traceback.TracebackException(*exc_info)
    _quote_notes(told)
    pieces = list(told.format())
    harmless = "".join(map(_harmless_piece, pieces)).rstrip("\n")
    usual = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    return None if harmless == usual else harmless


def _harmless_piece(piece: str) -> str:
    """Return a frame or a message with all lines but the first indented."""
    if piece.startswith("\n"):  # Python's own text between two exceptions.
        return piece
    first, *more = piece.rstrip("\n").split("\n")
    indented = (line if line[:1] in (" ", "") else f"    {line}" for line in more)
    return "".join(f"{visible(line)}\n" for line in (first, *indented))


def _quote_notes(told: traceback.TracebackException) -> None:
    """Indent the notes of an exception and of its causes: each line of a note is one piece."""
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
