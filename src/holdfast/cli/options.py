"""What commands take alike: a queue, a URL, durations, times, limits, whether to go on."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from holdfast.queue import Queue
from holdfast.server import Server

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE: Final = 3
"""Seconds for which a command is tried again when the connection is lost: somebody waits."""

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|min|[smhdw]?)\s*")


NONE: Final = -1
"""No limit, which somebody said."""


def duration(text: str | float) -> float:
    """Return seconds: 90, 1.5s, 5m, 2h, 1d, 1h30m."""
    if isinstance(text, int | float):
        return text
    total, end = 0.0, 0
    for found in _DURATION.finditer(text):
        if found.start() != end:
            break
        total, end = total + float(found[1]) * _UNITS[found[2] or "s"], found.end()
    if not text or end != len(text):
        raise click.BadParameter(f"{text!r} is no duration: 90, 1.5s, 5m, 2h, 1d, 1h30m")
    return total


def pause(text: str | float) -> float:
    """Return seconds, more than 0."""
    seconds = duration(text)
    if seconds <= 0:
        raise click.BadParameter("should be more than 0")
    return seconds


def duration_or_forever(text: str) -> float:
    """Return seconds, which may be endless."""
    return math.inf if text == "forever" else duration(text)


def instant(text: str) -> datetime | float:
    """Return an instant: local where it names no zone."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: 2030-01-31T08:00, 2030-01-31T08:00Z, or seconds since 1970"
        ) from None


def limit(text: str) -> int:
    """Return a number; `NONE` for none, as click's own None is what was not said."""
    if text == "none":
        return NONE
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a number nor none")
    return int(text)


queue_argument = click.argument("queue", metavar="QUEUE")
url_option = click.option(
    "--url",
    metavar="URL",
    help="Where the server is; else HOLDFAST_URL, else the embedded one.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def on_a_queue(command: F) -> F:
    """Let a command take the name of a queue and a URL."""
    return queue_argument(url_option(command))


def opened(url: str | None) -> Server:
    """Return the server that a command talks to; it is closed when the command ends."""
    server = Server(url, patience=PATIENCE)
    click.get_current_context().call_on_close(server.close)
    return server


def open_queue(name: str, url: str | None) -> Queue:
    """Return the queue that a command is about."""
    return Queue(name, opened(url))


def log_to_stderr(level: str = "info") -> None:
    """Let a command that runs for long tell what happens."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", stream=sys.stderr
    )


def ask_first(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; where nobody can answer, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Say so with --yes: nobody is here to ask.")
    click.confirm(question, abort=True, err=True)


def examples(*lines: str) -> str:
    """Return examples as the end of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  holdfast {line}" for line in lines)])
