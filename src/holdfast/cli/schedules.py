"""`holdfast schedules`: the schedules that workers declare."""

from __future__ import annotations

import time
from typing import Any, Final

import click
import msgspec

from holdfast.cli.options import examples, json_option, on_a_queue, open_queue
from holdfast.cli.text import age, clock, emit, in_iso, table, yellow
from holdfast.client.schedules import overdue, rhythm_of
from holdfast.client.sync.queue import Queue
from holdfast.errors import InvalidArgument
from holdfast.escaping import visible
from holdfast.job import WorkerInfo

MOST_MISSED: Final = 1000
"""The most missed ticks that are counted."""


class Declared(msgspec.Struct, frozen=True):
    """A schedule as a worker declares it, and its ticks. Times are seconds since the epoch."""

    name: str
    handler: str | None
    rule: str
    on_missed: str
    next: float | None = None
    last: float | None = None
    missed: int = 0


@click.command(epilog=examples("schedules reports", "schedules reports --json"))
@on_a_queue
@json_option
def schedules(queue: str, url: str | None, as_json: bool) -> None:
    """Show the schedules that the workers of a queue declare.

    Schedules are in programs; the server keeps only the last tick of each. So a schedule is shown
    while a worker that declares it is alive, and for ten minutes after. `missed` counts the ticks
    since the last that no worker made.
    """
    opened = open_queue(queue, url)
    workers = sorted(opened.workers(), key=lambda worker: worker.alive_until)
    found = [_with_ticks(opened, one) for one in _declared(workers)]
    if as_json:
        emit([in_iso(msgspec.structs.asdict(one), "next", "last") for one in found])
    else:
        _table(found)
    if not any(worker.alive for worker in workers):
        click.secho("no worker is alive, so no ticks are made", fg="yellow", err=True)
    for worker in workers:
        here, count = len(_rows(worker)), worker.about.get("schedule_count")
        if isinstance(count, int) and count > here:
            said = f"declares {count}, but only {here} fit in its entry"
            click.echo(f"{visible(worker.name)} {said}", err=True)


def _table(found: list[Declared]) -> None:
    table(
        ("schedule", "handler", "rule", "next", "due", "last", "made", "missed"),
        [
            (
                *(one.name, one.handler or "", one.rule),
                *(clock(one.next) or "", age(one.next), clock(one.last) or "", age(one.last)),
                yellow(f"{one.missed}{'+' if one.missed == MOST_MISSED else ''}", when=one.missed),
            )
            for one in found
        ],
        right=("missed",),
        drop=("last", "next", "handler", "made"),
        none="no worker declares a schedule",
    )


def _rows(worker: WorkerInfo) -> list[list[Any]]:
    """Return the schedules in a worker's entry: name, handler, what to do if missed, rule."""
    rows = worker.about.get("schedules")
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, list) and len(row) == 4 and all(isinstance(one, str) for one in row[::2])
    ]


def _declared(workers: list[WorkerInfo]) -> list[Declared]:
    """Return the schedules by name. Of two that differ, the last worker's counts."""
    found: dict[str, Declared] = {}
    for worker in workers:
        for name, handler, on_missed, rule in _rows(worker):
            found[name] = Declared(name, handler, str(rule), on_missed)
    return [found[name] for name in sorted(found)]


def _with_ticks(queue: Queue, one: Declared) -> Declared:
    """Return a schedule with its last tick, its next one, and how many were missed."""
    try:
        made, rhythm = queue.last_tick(one.name), rhythm_of(one.rule)
    except InvalidArgument:  # A time zone of the program's own, or no worker of ours.
        return one
    now = round(time.time() * 1000)
    if made is None:
        return msgspec.structs.replace(one, next=_seconds(rhythm(now)))
    last = round(made.timestamp() * 1000)
    return msgspec.structs.replace(
        one,
        next=_seconds(rhythm(max(now, last))),
        # What is kept of a new schedule is its start, which is no tick.
        last=_seconds(last) if rhythm(last - 1) == last else None,
        missed=overdue(rhythm, last, now, MOST_MISSED),
    )


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
