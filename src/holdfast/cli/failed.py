"""`holdfast failed`: failed jobs, one by one or in groups; and how other commands choose them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import click

from holdfast.cli.look import first_option, in_seconds, or_blank, raw_option, who_holds, write_jobs
from holdfast.cli.options import examples, json_option, on_a_queue, open_queue
from holdfast.cli.text import age, clock, emit, iso, many, payload_line, red, table
from holdfast.client.sync.queue import Queue
from holdfast.escaping import visible
from holdfast.job import Job

SHOWN: Final = 10
GROUPED: Final = 10_000
"""How many failed jobs are looked at for groups, if --count does not say."""
PER_LOOK: Final = 100

_VARIES: Final = re.compile(r"0x[0-9a-f]+|\b(?=[a-f-]*[0-9])[0-9a-f-]{8,}\b|[0-9]+", re.IGNORECASE)
"""What differs between equal errors: ids in hexadecimal, and numbers."""


@click.command(
    epilog=examples(
        "failed emails", "failed emails --by error", "failed emails --json | jq '.[].id'"
    )
)
@on_a_queue
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    help=f"How many to show, {SHOWN} by default; with --by, to look at, {GROUPED} by default.",
)
@first_option
@click.option(
    "--by",
    type=click.Choice(["error", "handler"]),
    help="Count the jobs of each error or handler. In errors, numbers and ids are written as #.",
)
@raw_option
@json_option
def failed(
    queue: str,
    url: str | None,
    count: int | None,
    first: int,
    by: str | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Show failed jobs, with their errors.

    A failed job stays until `holdfast revive`, `holdfast cancel` or a failure handler.
    """
    if by and raw:
        raise click.UsageError("--by shows no payloads: leave out --raw")
    source = open_queue(queue, url)
    if by:
        _by(source, by, count or GROUPED, first, as_json=as_json)
        return
    count = count or SHOWN
    found = source.failed(count, first=first)
    if as_json or raw:
        write_jobs(found, who_holds(source, found), raw=raw)
        return
    table(
        ("id", "handler", "failed at", "when", "failures", "lapses", "error", "payload"),
        [
            (
                *(job.id, or_blank(job.facts.handler)),
                *(clock(_failed_at(job)) or "", age(_failed_at(job))),
                *(job.failures, job.lapses, red(job.error or ""), payload_line(job.data)),
            )
            for job in found
        ],
        right=("failures", "lapses"),
        drop=("failed at", "lapses", "failures", "payload", "handler"),
        none="no failed jobs",
    )
    if len(found) == count and (total := source.counts().failed) > first + count:
        click.echo(f"… of {many(total, 'failed job')}", err=True)


def _failed_at(job: Job) -> float | None:
    return in_seconds(job.facts.failed_at)


# ------------------------------------------------------------------ in groups


@dataclass
class _Group:
    """Failed jobs that have one error or one handler."""

    example: str
    jobs: int = 0
    first: float | None = None
    last: float | None = None

    def add(self, at: float | None) -> None:
        self.jobs += 1
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)


def _by(queue: Queue, by: str, most: int, first: int, *, as_json: bool) -> None:
    """Write the failed jobs in groups, the biggest first."""
    key: Callable[[Job], str] = _error if by == "error" else _handler
    groups: dict[str, _Group] = {}
    looked = 0
    for job in islice(failed_jobs(queue, first), most):
        groups.setdefault(key(job), _Group(job.id)).add(_failed_at(job))
        looked += 1
    total = queue.counts().failed if looked == most else first + looked
    found = sorted(groups.items(), key=lambda item: -item[1].jobs)
    if as_json:
        emit({"by": by, "looked_at": looked, "failed": total, "groups": _groups_json(by, found)})
    else:
        table(
            ("jobs", "first failed", "last failed", "when", "example", by),
            [
                (
                    *(group.jobs, clock(group.first) or "", clock(group.last) or ""),
                    *(age(group.last), group.example, red(name, when=by == "error")),
                )
                for name, group in found
            ],
            right=("jobs",),
            drop=("first failed", "last failed"),
            none="no failed jobs",
        )
    if total > first + looked:
        click.echo(f"looked at {looked:,} of {many(total, 'failed job')}: see --count", err=True)


def _groups_json(by: str, found: list[tuple[str, _Group]]) -> list[dict[str, Any]]:
    return [
        {
            by: name,
            "jobs": group.jobs,
            "first": iso(group.first),
            "last": iso(group.last),
            "example": group.example,
        }
        for name, group in found
    ]


def _handler(job: Job) -> str:
    return job.facts.handler or ""


def _error(job: Job) -> str:
    """Return the first line of an error, without what differs from job to job."""
    first, *_ = (job.error or "").strip().splitlines() or [""]
    return _VARIES.sub("#", first)


# ------------------------------------------------------------------ for other commands


def failed_jobs(queue: Queue, first: int = 0) -> Iterator[Job]:
    """Yield the failed jobs, in pages."""
    while some := queue.failed(PER_LOOK, first=first):
        yield from some
        first += len(some)


def chosen(queue: Queue, handler: str | None, error: str | None) -> list[str]:
    """Return the ids of the failed jobs of a handler, or with an error.

    They are read before any of them is changed. An error is given as a part of it, or as
    `failed --by error` shows it.
    """
    return [
        job.id
        for job in failed_jobs(queue)
        if handler in (None, job.facts.handler)
        and (error is None or error in (job.error or "") or error == visible(_error(job)))
    ]


handler_option = click.option("--handler", help="Failed jobs of this handler.")


def _not_empty(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text == "":
        raise click.BadParameter("is empty, which is a part of every error", param=option)
    return text


error_option = click.option(
    "--error",
    callback=_not_empty,
    help="Failed jobs whose error contains this, or as `failed --by error` shows it.",
)
