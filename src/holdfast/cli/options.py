"""Arguments and options that commands share: queue, URL, durations, times, limits, --yes."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from holdfast.cli.existing import check_exists
from holdfast.client.sync.queue import Queue
from holdfast.connection.address import parse
from holdfast.connection.server import Server
from holdfast.escaping import visible
from holdfast.server.directory import default_directory, default_notice

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE: Final = 3
"""Seconds to retry after the connection is lost. They are few, because a person waits."""

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|min|[smhdw]?)\s*")


NONE: Final = -1
"""No limit, given explicitly as `none`."""


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
        raise click.BadParameter(f"{text!r} is not a duration: 90, 1.5s, 5m, 2h, 1d, 1h30m")
    return total


def pause(text: str | float) -> float:
    """Return seconds; refuse 0."""
    seconds = duration(text)
    if seconds <= 0:
        raise click.BadParameter("should be more than 0")
    return seconds


def duration_or_forever(text: str) -> float:
    """Return seconds, infinite for `forever`."""
    return math.inf if text == "forever" else duration(text)


def instant(text: str) -> datetime | float:
    """Return an instant, in local time if the text has no zone."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time: 2030-01-31T08:00, 2030-01-31T08:00Z, or seconds since 1970"
        ) from None


def limit(text: str) -> int:
    """Return a number, or `NONE` for none: in click, None means that the option was not given."""
    if text == "none":
        return NONE
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(f"{text!r} is neither a number nor none")
    return int(text)


queue_argument = click.argument("queue", metavar="QUEUE")
_url_option = click.option(
    "--url",
    metavar="URL",
    help="The server; HOLDFAST_URL if left out, else the embedded server.",
)


def _password_from(context: click.Context, _: click.Parameter, file: str | None) -> None:
    """Use the password in a file for all connections of this command."""
    if file is None:
        return
    names = ("HOLDFAST_PASSWORD", "HOLDFAST_PASSWORD_FILE")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ["HOLDFAST_PASSWORD_FILE"] = file

    def restore() -> None:
        del os.environ["HOLDFAST_PASSWORD_FILE"]
        os.environ.update(before)

    context.call_on_close(restore)


_password_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    expose_value=False,
    callback=_password_from,
    help="File with the password, so that `ps` does not show it; else HOLDFAST_PASSWORD_FILE.",
)


def url_option(command: F) -> F:
    """Add --url and --password-file to a command."""
    return _url_option(_password_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def on_a_queue(command: F) -> F:
    """Add QUEUE, --url and --password-file to a command."""
    return queue_argument(url_option(command))


def opened(url: str | None) -> Server:
    """Return the server that a command talks to; it is closed when the command ends."""
    address = parse(url)
    server = Server(address, patience=PATIENCE if address.patience is None else None)
    if server.address.by_default and (notice := default_notice(default_directory())):
        click.echo(f"Warning: {visible(notice)}", err=True)
    click.get_current_context().call_on_close(server.close)
    return server


def open_queue(name: str, url: str | None, *, create: bool = False, hint: str = "") -> Queue:
    """Return the queue of a command. It must exist, unless the command may `create` it."""
    queue = Queue(name, opened(url))
    if not create:
        check_exists(queue, hint=hint)
    return queue


def ask_first(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone; refuse if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm with --yes: stdin is not a terminal.")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # Not at the end of the input.
            raise KeyboardInterrupt from None
        raise
    if not agreed:
        raise click.Abort


def examples(*lines: str) -> str:
    """Return examples as the end of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  holdfast {line}" for line in lines)])
