"""What commands print: payloads, tables, JSON, times.

Text from a queue may hold escape sequences, line breaks or characters that reverse a line. They are
escaped, so that they cannot control the terminal.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TextIO

import click
import msgspec

from holdfast.client.status import in_words
from holdfast.escaping import visible

CUT: Final = "…"
FULL, EMPTY = "█", "░"


# -------------------------------------------------------------------- payloads


def payload_line(data: bytes | None) -> str:
    """Return a payload on one line; bytes that are not UTF-8 are escaped."""
    return "" if data is None else visible(data.decode(errors="backslashreplace"))


def payload_lines(data: bytes) -> list[str]:
    """Return a payload as lines: JSON is pretty-printed, other text keeps its own lines."""
    try:
        value = msgspec.json.decode(data)
        if isinstance(value, dict | list):
            return [visible(line) for line in _json(value, ascii_only=False).splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        pass
    return [visible(line) for line in data.decode(errors="backslashreplace").split("\n")]


def write_raw(data: bytes) -> None:
    """Write bytes as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# -------------------------------------------------------------------- lines that change

CLEAR_LINE: Final = "\r\x1b[K"
"""Go to the start of the line, and clear it."""


def can_draw(stream: TextIO) -> bool:
    """Tell whether printed lines can be overwritten."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def draw(text: str, *, err: bool = False) -> None:
    """Print text that moves the cursor, also with NO_COLOR."""
    click.echo(text, nl=False, err=err, color=True)


def fitted(line: str) -> str:
    """Return a line cut to one row: of a wrapped line only the last row could be overwritten."""
    most, bare = shutil.get_terminal_size().columns, click.unstyle(line)
    return line if _width(bare) <= most else _cut(bare, most)


# -------------------------------------------------------------------- JSON


def emit(value: object) -> None:
    """Write a value as JSON, in ASCII, so that it cannot control the terminal."""
    click.echo(_json(plain(value), ascii_only=True))


def emit_line(value: object) -> None:
    """Write a value as JSON on a line of its own, at once."""
    click.echo(json.dumps(plain(value)))
    sys.stdout.flush()


def _json(value: object, *, ascii_only: bool) -> str:
    return json.dumps(value, indent=2, ensure_ascii=ascii_only)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinite times become null, bytes escaped text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value


def payload_json(data: bytes | None) -> dict[str, str | None]:
    """Return a payload for JSON: as text if it is UTF-8, else in base64."""
    if data is None:
        return {"data": None}
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data": None, "data_base64": base64.b64encode(data).decode()}


# -------------------------------------------------------------------- tables


class Coloured(NamedTuple):
    """A value with a colour: red where something failed, yellow where something waits for you."""

    value: object
    colour: str

    def __str__(self) -> str:
        return str(self.value)


def red(value: object, when: object = True) -> object:
    """Return a value, in red if `when` is true."""
    return Coloured(value, "red") if when else value


def yellow(value: object, when: object = True) -> object:
    """Return a value, in yellow if `when` is true."""
    return Coloured(value, "yellow") if when else value


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    drop: Sequence[str] = (),
    none: str = "nothing",
) -> None:
    """Write rows under headings; `right` are the headings of numbers.

    In a table that is wider than the terminal, cells are cut to a quarter of the width, except in
    the first and the last column. Then the columns in `drop` are left out, in this order, until it
    fits. Lines are cut to the width. `none` is the message if there are no rows.
    """
    if not rows:
        click.echo(none, err=True)
        return
    for line in table_lines(headings, rows, right=right, drop=drop):
        click.echo(line)


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    drop: Sequence[str] = (),
    least: int = 0,
) -> list[str]:
    """Return the lines of a table; `least` is the minimum width of a column of numbers."""
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    columns = [
        _Column(name, cells, right=name in right, least=least * (name in right))
        for name, *cells in zip(headings, *rows, strict=True)
    ]
    if most and _least(columns) > most:
        for column in columns[1:-1]:
            column.cut(max(most // 4, CELL_LEAST))
        for name in drop:
            if _least(columns) <= most:
                break
            columns = [column for column in columns if column.name != name]
    heading, *lines = (_row(columns, n, most) for n in range(len(columns[0].cells)))
    return [click.style(heading, bold=True), *lines]


CELL_LEAST: Final = 25
"""Cells have at least this width, which is that of a time."""

LAST_LEAST: Final = 12
"""The last column is cut to this width before another column is left out."""


class _Column:
    """The cells of a column, from its heading on, and their width."""

    def __init__(self, name: str, cells: Sequence[object], *, right: bool, least: int) -> None:
        self.name, self.right, self._least = name, right, least
        self.cells = [name, *map(visible, cells)]
        self.colours = [
            cell.colour if isinstance(cell, Coloured) else None for cell in (name, *cells)
        ]
        self.width = max(least, *map(_width, self.cells), 0)

    def cut(self, most: int) -> None:
        """Cut the cells to a width. The heading stays whole."""
        self.cells[1:] = [_cut(cell, most) for cell in self.cells[1:]]
        self.width = max(self._least, *map(_width, self.cells), 0)


def _least(columns: Sequence[_Column]) -> int:
    """Return the width that a table needs: its last column may be cut."""
    *widths, last = (column.width for column in columns)
    return sum(widths) + min(last, LAST_LEAST) + 2 * len(widths)


def _row(columns: Sequence[_Column], n: int, most: int) -> str:
    """Return a line of a table, cut to a width; 0 for none."""
    line, used, blanks = "", 0, 0
    for column in columns:
        text = column.cells[n]
        pad = column.width - _width(text)
        blanks += pad if column.right else 0
        if text:
            left = most - used - blanks if most else 0
            if most and left <= 0:
                break
            text = _cut(text, left)
            colour = column.colours[n]
            line += " " * blanks + (click.style(text, fg=colour) if colour else text)
            used, blanks = used + blanks + _width(text), 0
        blanks += 2 + (0 if column.right else pad)
    return line


def sentence(text: str) -> None:
    """Write a text as one line; on a terminal, as lines of whole words."""
    if sys.stdout.isatty():
        text = click.wrap_text(text, shutil.get_terminal_size().columns)
    click.echo(text)


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, one pair per line, without values that are None."""
    given = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        shown = visible(value)
        if isinstance(value, Coloured):
            shown = click.style(shown, fg=value.colour)
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {shown}")


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _cut(line: str, most: int) -> str:
    if not most or _width(line) <= most:
        return line
    while _width(line) >= most:
        line = line[:-1]
    return line + CUT


def progress_bar(done: int, total: int, width: int = 30) -> str:
    """Return a progress bar."""
    filled = width * done // total if total else width
    return FULL * filled + EMPTY * (width - filled)


# -------------------------------------------------------------------- times and numbers


def clock(at: float | None) -> str | None:
    """Return an instant in local time, with its zone."""
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return "never"


def age(at: float | None) -> str:
    """Return how long ago an instant was, or how soon it is: 3 min ago, in 2 h 5 min."""
    if at is None or not math.isfinite(at):
        return ""
    apart = at - time.time()
    words = in_words(float(round(abs(apart))))
    if round(apart) == 0:
        return "now"
    return f"in {words}" if apart > 0 else f"{words} ago"


def when(at: float | None) -> str | None:
    """Return an instant in local time, with how long ago it was."""
    told, ago = clock(at), age(at)
    return f"{told} ({ago})" if told and ago else told


def iso(at: float | None) -> str | None:
    """Return an instant for JSON, in UTC; None for none and for never."""
    if at is None:
        return None
    try:
        told = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None
    return told.replace("+00:00", "Z")


def in_iso(value: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a dict in which these instants are written for JSON."""
    return value | {name: iso(value[name]) for name in names}


def seconds(value: float | None) -> str | None:
    """Return a duration in words: 1 h 30 min."""
    return None if value is None or not math.isfinite(value) else in_words(value)


def many(count: int, what: str) -> str:
    """Return a number and what it counts: 1 job, 2 jobs."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def limit(value: int | None) -> str:
    """Return a limit as text; None and -1, its value in a job's facts, mean no limit."""
    return "none" if value is None or value < 0 else str(value)
