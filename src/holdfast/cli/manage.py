"""Commands that manage a queue: revive, cancel, pause, resume, tidy, audit, repair, delete."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from holdfast.cli.failed import chosen, error_option, handler_option
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


@click.command(
    epilog=examples(
        "revive emails invoice-7", "revive emails --all", "revive emails --error 'no connection'"
    )
)
@on_a_queue
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every failed job.")
@handler_option
@error_option
def revive(
    queue: str,
    url: str | None,
    ids: tuple[str, ...],
    every: bool,
    handler: str | None,
    error: str | None,
) -> None:
    """Run failed jobs again.

    Their failures and lapses count from 0 again. Exits with 1 if one of the ids is not failed.
    """
    some = handler is not None or error is not None
    if bool(ids) + every + some != 1:
        raise click.UsageError("give ids, --all, or --handler or --error")
    opened = open_queue(queue, url)
    named = list(ids) or chosen(opened, handler, error)
    others = [id for id in named if not opened.revive(id)]
    click.echo(f"{many(len(named) - len(others), 'job')} revived")
    if ids:
        _report(others, "is not failed")


def _report(ids: list[str], what: str) -> None:
    for id in ids:
        click.echo(f"{visible(id)}: {what}", err=True)
    if ids:
        click.get_current_context().exit(1)


@click.command(
    epilog=examples(
        "cancel emails invoice-7 invoice-8",
        "cancel emails invoice-7 --waiting-only",
        """cancel emails --matching '{"to": "ann@example.org"}'""",
        "cancel emails --failed --error 'not an address'",
    )
)
@on_a_queue
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--matching", metavar="PAYLOAD", help="Every job with exactly this payload.")
@click.option("--waiting-only", is_flag=True, help="Do not cancel running jobs.")
@click.option("--failed", is_flag=True, help="Failed jobs: those of --handler or --error, or all.")
@handler_option
@error_option
@yes_option
def cancel(
    queue: str,
    url: str | None,
    ids: tuple[str, ...],
    matching: str | None,
    waiting_only: bool,
    failed: bool,
    handler: str | None,
    error: str | None,
    yes: bool,
) -> None:
    """Cancel jobs.

    Waiting and failed jobs are removed at once. A running job is marked: its worker is notified,
    and the job ends as cancelled, however its run ends. Exits with 1 if one of the ids could
    not be cancelled.
    """
    if bool(ids) + (matching is not None) + failed != 1:
        raise click.UsageError("give ids, --matching PAYLOAD, or --failed")
    if not failed and (handler is not None or error is not None):
        raise click.UsageError("--handler and --error go with --failed")
    opened = open_queue(queue, url)
    running = not waiting_only
    if failed:
        found = chosen(opened, handler, error)
        if found:
            ask_first(f"Cancel {many(len(found), 'failed job')} of {visible(queue)}?", yes=yes)
        count = sum(opened.cancel(id, running=False) for id in found)
        click.echo(f"{many(count, 'job')} cancelled")
        return
    if matching is not None:
        ask_first(f"Cancel every job of {visible(queue)} that has this payload?", yes=yes)
        count = opened.cancel_matching(os.fsencode(matching), running=running)
        click.echo(f"{many(count, 'job')} cancelled")
        return
    others = [id for id in ids if not opened.cancel(id, running=running)]
    why = "it does not exist, has ended, or is already cancelled"
    click.echo(f"{many(len(ids) - len(others), 'job')} cancelled")
    _report(others, f"was not cancelled: {why}{', or is running' if waiting_only else ''}")


@click.command(epilog=examples("pause emails", "pause emails --create"))
@on_a_queue
@click.option("--create", is_flag=True, help="Also pause a queue that does not exist yet.")
def pause(queue: str, url: str | None, create: bool) -> None:
    """Stop handing out jobs until `resume`.

    Leased jobs go on, and jobs can be added.
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
@click.option(
    "--force", is_flag=True, help="Reclaim lapsed leases even if no client called for a while."
)
@click.option(
    "--held-longer-than",
    type=duration,
    metavar="DURATION",
    help="Take back jobs leased longer ago than this, even if extended.",
)
@click.option(
    "--failed-longer-than",
    type=duration,
    metavar="DURATION",
    help="Drop jobs that failed longer ago than this.",
)
@yes_option
@json_option
def tidy(queue: str, url: str | None, yes: bool, as_json: bool, **rules: Any) -> None:
    """Do a queue's upkeep now: due jobs, lapsed leases, old results.

    Every lease call does this too, so only a queue without workers needs it.
    """
    opened = open_queue(queue, url)
    if rules["failed_longer_than"] is not None:
        ask_first(f"Drop failed jobs of {visible(queue)} for good?", yes=yes)
    if rules["held_longer_than"] is not None:
        ask_first(f"Take jobs of {visible(queue)} away from their workers?", yes=yes)
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

    Exits with 1 if it finds problems: `holdfast repair` fixes them.
    """
    found = open_queue(queue, url).audit()
    _print_problems(found, "no problems found", as_json=as_json)
    if found:
        click.get_current_context().exit(1)


@click.command(epilog=examples("repair emails"))
@on_a_queue
@json_option
def repair(queue: str, url: str | None, as_json: bool) -> None:
    """Repair what `audit` finds.

    Walks every id. Drops no job that has a payload.
    """
    _print_problems(open_queue(queue, url).repair(), "nothing to repair", as_json=as_json)


def _print_problems(found: list[Problem], none: str, *, as_json: bool) -> None:
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
    help="Only if it is empty, not paused, and unused for this long. "
    "Without QUEUE, remove all such queues.",
)
@yes_option
def delete(queue: str | None, url: str | None, idle_for: float | None, yes: bool) -> None:
    """Remove a queue and everything in it."""
    if idle_for is not None:
        _delete_idle(queue, url, idle_for)
        return
    if queue is None:
        raise click.UsageError("which queue? Give QUEUE, or --idle-for")
    found = open_queue(queue, url)
    counts = found.counts()
    jobs = many(counts.waiting + counts.leased + counts.failed, "job")
    ask_first(f"Remove {visible(queue)} with {jobs}, for good?", yes=yes)
    found.delete()


def _delete_idle(queue: str | None, url: str | None, idle_for: float) -> None:
    """Delete the given queue, or every queue, if it is empty and unused."""
    if queue is not None:
        if not open_queue(queue, url).delete(idle_for=idle_for):
            raise click.ClickException(
                f"{visible(queue)} was kept: it is not empty, is paused, or was used recently"
            )
        return
    server = opened(url)
    for name, _ in reached(server):
        if Queue(name, server).delete(idle_for=idle_for):
            click.echo(visible(name))
