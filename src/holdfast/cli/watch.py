"""`holdfast watch`: counts and rates, live."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import click

from holdfast.cli.existing import missing_error
from holdfast.cli.look import count_cell, counts_json, queue_cell, reached
from holdfast.cli.options import examples, json_option, opened, pause, url_option
from holdfast.cli.text import CUT, can_draw, draw, emit_line, iso, table_lines
from holdfast.client.sync.queue import Queue
from holdfast.job import Counts, Totals

SHOWN: Final = ("ready", "delayed", "leased", "parked", "failed")
RATES: Final = {"added": "added/s", "completed": "done/s", "retried": "retried/s"}
UP, CLEAR = "\x1b[{}A", "\x1b[J"


@dataclass(frozen=True)
class Look:
    """The counters of a queue at one time."""

    counts: Counts
    totals: Totals
    at: float

    def rates(self, before: Look | None) -> dict[str, float | None]:
        """Return the rates per second since an earlier look."""
        if before is None or self.at <= before.at:
            return dict.fromkeys(RATES)
        passed = self.at - before.at
        return {
            # The totals of a queue that was deleted meanwhile start at 0 again.
            name: max(0, getattr(self.totals, name) - getattr(before.totals, name)) / passed
            for name in RATES
        }


@click.command(
    epilog=examples("watch", "watch emails reports --every 5s", "watch emails --json --times 1")
)
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@url_option
@click.option(
    "--every", type=pause, metavar="DURATION", default=1.0, help="Time between two updates; 1s."
)
@click.option("--times", type=click.IntRange(min=1), help="Exit after this many updates.")
@json_option
def watch(
    queues: tuple[str, ...], url: str | None, every: float, times: int | None, as_json: bool
) -> None:
    """Watch counts and rates of queues, live.

    Shows all queues of the server, or those named. Updates in place on a terminal; else prints a
    line per queue and update. Ctrl-C ends it.
    """
    server = opened(url)
    for name in queues:
        if missing := missing_error(Queue(name, server)):
            click.echo(f"{missing} Waiting for it to appear", err=True)
    before: dict[str, Look] = {}
    screen = _Screen(live=can_draw(sys.stdout) and not as_json)
    looks = 0
    try:
        while True:
            if queues:
                seen = {name: _look(Queue(name, server)) for name in queues}
            else:
                seen = {name: _look(Queue(name, server)) for name, _ in reached(server)}
            if as_json:
                for name, look in seen.items():
                    emit_line(_line(name, look, before.get(name)))
            else:
                screen.draw(_lines(seen, before, heading=not looks or screen.live))
            before, looks = seen, looks + 1
            if looks == times:
                return
            time.sleep(every)
    except KeyboardInterrupt:
        return


class _Screen:
    """Draws lines over the previous ones on a terminal, else below them."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self._drawn = 0

    def draw(self, lines: list[str]) -> None:
        if self.live and self._drawn:
            draw(UP.format(self._drawn) + "\r" + CLEAR)
        # Lines that have scrolled away cannot be overwritten.
        room = max(1, shutil.get_terminal_size().lines - 2)
        if self.live and len(lines) > room + 1:
            lines = [*lines[:room], f"{CUT} and {len(lines) - room} more"]
        for line in lines:
            click.echo(line)
        sys.stdout.flush()
        self._drawn = len(lines)


def _look(queue: Queue) -> Look:
    return Look(queue.counts(), queue.totals(), time.monotonic())


def _lines(seen: dict[str, Look], before: dict[str, Look], *, heading: bool) -> list[str]:
    rows = [
        (
            queue_cell(name, look.counts),
            *(count_cell(look.counts, state) for state in SHOWN),
            *(
                "" if rate is None else f"{rate:,.0f}"
                for rate in look.rates(before.get(name)).values()
            ),
        )
        for name, look in seen.items()
    ]
    numbers = (*SHOWN, *RATES.values())
    # A fixed width keeps piped lines in columns, whatever their numbers.
    drop = ("retried/s", "parked", "delayed", "added/s")
    lines = table_lines(("queue", *numbers), rows, right=numbers, drop=drop, least=7)
    return lines if heading else lines[1:]


def _line(name: str, look: Look, before: Look | None) -> dict[str, Any]:
    rates = {f"{name}_per_second": rate for name, rate in look.rates(before).items()}
    return {"queue": name, "at": iso(time.time()), **counts_json(look.counts), **rates}
