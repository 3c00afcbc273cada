"""Commands that steer a queue: revive, cancel, pause, resume, tidy, audit, repair, delete."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from holdfast.cli.look import reached
from holdfast.cli.options import (
    ask_first,
    duration,
    examples,
    json_option,
    on_a_queue,
    open_queue,
    opened,
    url_option,
    yes_option,
)
from holdfast.cli.text import emit, many
from holdfast.client.sync.queue import Queue
from holdfast.escaping import visible
from holdfast.job import Problem

FAILED_PER_LOOK = 100


@click.command(epilog=examples("revive emails invoice-7", "revive emails --all"))
@on_a_queue
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every job that is failed now.")
def revive(queue: str, url: str | None, ids: tuple[str, ...], every: bool) -> None:
    """Let failed jobs run again.

    As if they never had run. Exits with 1 when one of them is not failed.
    """
    if bool(ids) == every:
        raise click.UsageError("give ids, or --all")
    opened = open_queue(queue, url)
    chosen = _all_failed(opened) if every else list(ids)
    others = [id for id in chosen if not opened.revive(id)]
    click.echo(f"{many(len(chosen) - len(others), 'job')} revived")
    if not every:
        _tell_others(others, "is not failed")


def _all_failed(queue: Queue) -> list[str]:
    """Return the ids of all jobs that are failed, before any of them is moved."""
    ids: list[str] = []
    while some := queue.failed(FAILED_PER_LOOK, first=len(ids)):
        ids += [job.id for job in some]
    return ids


def _tell_others(ids: list[str], what: str) -> None:
    for id in ids:
        click.echo(f"{visible(id)}: {what}", err=True)
    if ids:
        click.get_current_context().exit(1)


@click.command(
    epilog=examples(
        "cancel emails invoice-7 invoice-8",
        "cancel emails invoice-7 --waiting-only",
        """cancel emails --matching '{"to": "ann@example.org"}'""",
    )
)
@on_a_queue
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--matching", metavar="PAYLOAD", help="Every job that has exactly this payload.")
@click.option("--waiting-only", is_flag=True, help="Leave jobs alone that run.")
@yes_option
def cancel(
    queue: str,
    url: str | None,
    ids: tuple[str, ...],
    matching: str | None,
    waiting_only: bool,
    yes: bool,
) -> None:
    """Cancel jobs.

    What waits or has failed is gone. What runs is told, and ends as cancelled however it ends.
    Exits with 1 when one of the ids could not be cancelled.
    """
    if bool(ids) == (matching is not None):
        raise click.UsageError("give ids, or --matching PAYLOAD")
    opened = open_queue(queue, url)
    running = not waiting_only
    if matching is not None:
        ask_first(f"Cancel every job of {visible(queue)} that has this payload?", yes=yes)
        count = opened.cancel_matching(os.fsencode(matching), running=running)
        click.echo(f"{many(count, 'job')} cancelled")
        return
    others = [id for id in ids if not opened.cancel(id, running=running)]
    click.echo(f"{many(len(ids) - len(others), 'job')} cancelled")
    _tell_others(others, "was not cancelled: it is not there, has ended, or is cancelled already")


@click.command(epilog=examples("pause emails", "pause emails --create"))
@on_a_queue
@click.option("--create", is_flag=True, help="Also a queue that does not exist yet.")
def pause(queue: str, url: str | None, create: bool) -> None:
    """Stop handing out jobs until `resume`.

    What is leased goes on, and jobs can be added.
    """
    hint = " To pause it before its first job, give --create"
    open_queue(queue, url, create=create, hint=hint).pause()


@click.command(epilog=examples("resume emails"))
@on_a_queue
def resume(queue: str, url: str | None) -> None:
    """Hand out jobs again."""
    open_queue(queue, url).resume()


@click.command(
    epilog=examples(
        "tidy emails", "tidy emails --failed-longer-than 30d --yes", "tidy emails --force"
    )
)
@on_a_queue
@click.option("--force", is_flag=True, help="Also reclaim right after a silence.")
@click.option(
    "--held-longer-than",
    type=duration,
    metavar="DURATION",
    help="Take back what is held for longer, leased or not.",
)
@click.option(
    "--failed-longer-than",
    type=duration,
    metavar="DURATION",
    help="Drop what is failed for longer.",
)
@yes_option
@json_option
def tidy(queue: str, url: str | None, yes: bool, as_json: bool, **rules: Any) -> None:
    """Do a queue's upkeep now: due jobs, lapsed leases, old results.

    Every lease does so by itself; this is for queues that nobody works on.
    """
    opened = open_queue(queue, url)
    if rules["failed_longer_than"] is not None:
        ask_first(f"Drop failed jobs of {visible(queue)} for good?", yes=yes)
    if rules["held_longer_than"] is not None:
        ask_first(f"Take jobs of {visible(queue)} from those who run them?", yes=yes)
    tidied = msgspec.structs.asdict(opened.tidy(**rules))
    if as_json:
        emit(tidied)
    else:
        click.echo(", ".join(f"{count:,} {what}" for what, count in tidied.items()))


@click.command(epilog=examples("audit emails", "audit emails --json"))
@on_a_queue
@json_option
def audit(queue: str, url: str | None, as_json: bool) -> None:
    """Check a queue for damage; change nothing.

    Exits with 1 when something is: `holdfast repair` mends it.
    """
    found = open_queue(queue, url).audit()
    _tell_problems(found, "all is in order", as_json=as_json)
    if found:
        click.get_current_context().exit(1)


@click.command(epilog=examples("repair emails"))
@on_a_queue
@json_option
def repair(queue: str, url: str | None, as_json: bool) -> None:
    """Repair what `audit` finds.

    Walks every id. Nothing that has a payload is dropped.
    """
    _tell_problems(open_queue(queue, url).repair(), "nothing was to be mended", as_json=as_json)


def _tell_problems(found: list[Problem], none: str, *, as_json: bool) -> None:
    if as_json:
        emit([msgspec.structs.asdict(problem) for problem in found])
        return
    for problem in found:
        click.echo(visible(f"{problem.id}: {problem.what}" if problem.id else problem.what))
    if not found:
        click.echo(none)


@click.command(epilog=examples("delete emails", "delete emails --yes", "delete --idle-for 30d"))
@click.argument("queue", metavar="[QUEUE]", required=False)
@url_option
@click.option(
    "--idle-for",
    type=duration,
    metavar="DURATION",
    help="Only if it is empty and was not used for so long; without QUEUE every such queue.",
)
@yes_option
def delete(queue: str | None, url: str | None, idle_for: float | None, yes: bool) -> None:
    """Remove a queue and everything in it."""
    if idle_for is not None:
        _clear_away(queue, url, idle_for)
        return
    if queue is None:
        raise click.UsageError("which queue? Name one, or say --idle-for")
    found = open_queue(queue, url)
    counts = found.counts()
    there = many(counts.waiting + counts.leased + counts.failed, "job")
    ask_first(f"Remove {visible(queue)} with {there}, for good?", yes=yes)
    found.delete()


def _clear_away(queue: str | None, url: str | None, idle_for: float) -> None:
    """Remove queues that are empty and unused; tell which. Nothing is lost with them."""
    if queue is not None:
        if not open_queue(queue, url).delete(idle_for=idle_for):
            raise click.ClickException(f"{visible(queue)}: not empty, paused, or used since: kept")
        return
    server = opened(url)
    for name, _ in reached(server):
        if Queue(name, server).delete(idle_for=idle_for):
            click.echo(visible(name))
