"""`holdfast events`: what happens in a queue, live."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from holdfast.cli.options import examples, json_option, on_a_queue, open_queue, pause
from holdfast.cli.text import can_draw, clock, emit_line, fitted, iso
from holdfast.client.sync.queue import Queue
from holdfast.connection.conversation import Subscription
from holdfast.connection.protocol import Packer
from holdfast.connection.server import carry_out
from holdfast.escaping import visible
from holdfast.job import Event, read_events

SLICE_SECONDS: Final = 1.0
"""How long one read waits: then it is seen whether the time is over."""

_COLOURS: Final = {"failed": "red", "reclaimed": "red", "paused": "yellow", "cancelled": "yellow"}


@click.command(
    epilog=examples("events emails", "events emails --for 1m --json", "events emails --idle 10s")
)
@on_a_queue
@click.option(
    "--for", "lasting", type=pause, metavar="DURATION", help="End after this long; else Ctrl-C."
)
@click.option(
    "--idle", type=pause, metavar="DURATION", help="End after this long without an event."
)
@json_option
def events(
    queue: str, url: str | None, lasting: float | None, idle: float | None, as_json: bool
) -> None:
    """Show what happens in a queue, live.

    Prints a line per event: when, what, to how many jobs, and their ids if one call moved at most
    100. Events may be missed while the connection is down. Ctrl-C ends it.
    """
    opened = open_queue(queue, url)
    live = can_draw(sys.stdout)
    try:
        for event in _events(opened, lasting or math.inf, idle or math.inf):
            now = time.time()
            if as_json:
                emit_line({"at": iso(now), **msgspec.structs.asdict(event)})
                continue
            line = _line(event, now)
            # A line that is cut has no colour.
            click.secho(fitted(line) if live else line, fg=_COLOURS.get(event.kind))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return


def _line(event: Event, now: float) -> str:
    ids = " ".join(map(visible, event.ids))
    return f"{clock(now)}  {visible(event.kind):<10}  {event.count:>5}  {ids}".rstrip()


def _events(queue: Queue, lasting: float, idle: float) -> Iterator[Event]:
    """Yield events until the time is over, or none came for `idle` seconds."""
    wait = min(SLICE_SECONDS, lasting, idle)
    subscription = Subscription(queue.server, [Packer(queue.name)], wait)
    now = time.monotonic()
    over_at, idle_at = now + lasting, now + idle
    try:
        while time.monotonic() < min(over_at, idle_at):
            message = carry_out(subscription.next())
            if message is not None:
                idle_at = time.monotonic() + idle
                yield from read_events(message)
    finally:
        subscription.close()
