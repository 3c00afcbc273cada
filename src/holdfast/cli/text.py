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
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import click
import msgspec

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


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    none: str = "nothing",
) -> None:
    """Write rows under headings; `right` are the headings of numbers.

    On a terminal, lines are cut to its width, and cells to a quarter of it, except in the first and
    the last column. `none` is the message if there are no rows.
    """
    if not rows:
        click.echo(none, err=True)
        return
    for line in table_lines(headings, rows, right=right):
        click.echo(line)


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Collection[str] = (),
    least: int = 0,
) -> list[str]:
    """Return the lines of a table; `least` is the minimum width of a column of numbers."""
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    cells = [[visible(cell) for cell in row] for row in rows]
    for row in cells:
        row[1:-1] = [_cut(cell, most // 4) for cell in row[1:-1]]
    widths = [
        max(_width(heading), least * (heading in right), *(_width(row[i]) for row in cells), 0)
        for i, heading in enumerate(headings)
    ]

    def line(row: Sequence[str]) -> str:
        padded = [
            " " * (width - _width(cell)) + cell
            if heading in right
            else cell + " " * (width - _width(cell))
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        return _cut("  ".join(padded).rstrip(), most)

    return [click.style(line(headings), bold=True), *map(line, cells)]


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, one pair per line, without values that are None."""
    given = [(name, visible(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {value}")


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


def seconds(value: float | None) -> str | None:
    """Return a duration in words: 1 h 30 min."""
    if value is None or not math.isfinite(value):
        return None
    if value < 60:
        return f"{value:.3g} s"
    parts, left = [], round(value)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def many(count: int, what: str) -> str:
    """Return a number and what it counts: 1 job, 2 jobs."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def limit(value: int | None) -> str:
    """Return a limit as text; None and -1, its value in a job's facts, mean no limit."""
    return "none" if value is None or value < 0 else str(value)
