"""`holdfast request …`: look at requests, and steer them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli.following import follow
from holdfast.cli.options import (
    NONE,
    ask_first,
    examples,
    json_option,
    on_a_queue,
    open_queue,
    pause,
    yes_option,
)
from holdfast.cli.options import limit as as_limit
from holdfast.cli.text import (
    clock,
    emit,
    fields,
    limit,
    many,
    payload_json,
    payload_line,
    progress_bar,
    seconds,
    table,
    visible,
)
from holdfast.progress import Part, RequestStatus

id_argument = click.argument("id", metavar="REQUEST")


@click.group(
    epilog=examples(
        "request ls reports",
        "request progress reports report-42",
        "request set-limit reports report-42 8",
    )
)
def request() -> None:
    """Look at requests, and steer them."""


def status_json(status: RequestStatus) -> dict[str, Any]:
    """Return how far a request is, for JSON."""
    return {
        **msgspec.structs.asdict(status),
        "settled": status.settled,
        "ended": status.ended,
        "rate": status.rate,
        "ends_at": status.ends_at,
    }


# -------------------------------------------------------------------- look


@request.command(epilog=examples("request ls reports", "request ls reports --json"))
@on_a_queue
@json_option
def ls(queue: str, url: str | None, as_json: bool) -> None:
    """List the requests that are there, or remembered."""
    found = open_queue(queue, url).requests()
    if as_json:
        emit([status_json(status) for status in found])
        return
    numbers = ("done", "failed", "running", "total", "limit", "priority")
    rows = [
        (
            *(status.id, status.state, status.done, status.failed, status.running),
            *(status.total, limit(status.limit), status.priority),
        )
        for status in found
    ]
    table(("request", "state", *numbers), rows, right=numbers, none="no requests")


@request.command(
    epilog=examples(
        "request show reports report-42", "request show reports report-42 --parts --json"
    )
)
@on_a_queue
@id_argument
@click.option("--parts", is_flag=True, help="Also what became of each part.")
@json_option
def show(queue: str, url: str | None, id: str, parts: bool, as_json: bool) -> None:
    """Show how far a request is."""
    asked = open_queue(queue, url).request(id)
    status = asked.status()
    found = list(asked.results()) if parts else []
    if as_json:
        told = {"parts": [_part_json(part) for part in found]} if parts else {}
        emit({**status_json(status), **told})
        return
    fields(_about(status))
    if parts:
        click.echo()
        table(
            ("part", "state", "result or error"),
            [(part.number, part.state, part.error or payload_line(part.result)) for part in found],
            right=("part",),
            none="no parts",
        )


def _part_json(part: Part) -> dict[str, Any]:
    told = {
        name.replace("data", "result"): data for name, data in payload_json(part.result).items()
    }
    return {
        "number": part.number,
        "id": part.id,
        "state": part.state,
        "error": part.error,
        **told,
    }


def _about(status: RequestStatus) -> list[tuple[str, object]]:
    return [
        ("request", status.id),
        ("state", status.state),
        ("reason", status.reason),
        ("parts", status.total),
        ("done", status.done),
        ("failed", status.failed),
        ("cancelled", status.cancelled),
        ("running", status.running),
        ("parked", status.parked),
        ("delayed", status.delayed),
        ("priority", status.priority),
        ("limit", limit(status.limit)),
        ("opened", clock(status.opened_at)),
        ("ended", clock(status.ended_at)),
        ("per second", f"{status.rate:.1f}" if status.rate else None),
        ("ends about", None if status.ended else clock(status.ends_at)),
    ]


@request.command(
    epilog=examples(
        "request progress reports report-42",
        "request progress reports report-42 --every 10s --json",
    )
)
@on_a_queue
@id_argument
@click.option(
    "--every", type=pause, metavar="DURATION", default=1.0, help="How long between two looks; 1s."
)
@json_option
def progress(queue: str, url: str | None, id: str, every: float, as_json: bool) -> None:
    """Follow a request until it has ended.

    Exits with 0 when it completed, else with 1.
    """
    asked = open_queue(queue, url).request(id)
    status = follow(asked.status, _line, status_json if as_json else None, every)
    if status.state != "completed":
        click.get_current_context().exit(1)


def _line(status: RequestStatus) -> str:
    said = [f"{status.settled:,} of {status.total:,}", status.state]
    if status.failed:
        said.append(click.style(f"{status.failed:,} failed", fg="red"))
    if not status.ended:
        said.append(f"{status.running:,} running")
        if status.ends_at is not None:
            said.append(f"{seconds(max(0, status.ends_at - status.asked_at))} left")
    elif status.reason:
        said.append(visible(status.reason))
    return f"{progress_bar(status.settled, status.total)} {', '.join(said)}"


# -------------------------------------------------------------------- steer


@request.command(epilog=examples("request seal reports report-42"))
@on_a_queue
@id_argument
def seal(queue: str, url: str | None, id: str) -> None:
    """Say that no more parts come."""
    open_queue(queue, url).request(id).seal()


@request.command(epilog=examples("request cancel reports report-42 --yes"))
@on_a_queue
@id_argument
@yes_option
def cancel(queue: str, url: str | None, id: str, yes: bool) -> None:
    """Let no more parts run."""
    asked = open_queue(queue, url).request(id)
    status = asked.status()
    left = many(status.total - status.settled, "part")
    ask_first(f"Cancel {visible(id)} with {left} to go?", yes=yes)
    if not asked.cancel():
        raise click.ClickException(f"{visible(id)}: it has ended, or is being stopped already")


@request.command("set-limit", epilog=examples("request set-limit reports report-42 8"))
@on_a_queue
@id_argument
@click.argument("limit", type=as_limit, metavar="N|none")
def set_limit(queue: str, url: str | None, id: str, limit: int) -> None:
    """Let so many parts run at a time; 0 holds it up."""
    open_queue(queue, url).request(id).set_limit(None if limit == NONE else limit)


@request.command("set-priority", epilog=examples("request set-priority reports report-42 99"))
@on_a_queue
@id_argument
@click.argument("priority", type=int)
def set_priority(queue: str, url: str | None, id: str, priority: int) -> None:
    """Give it another priority: 0 to 99, higher runs sooner."""
    open_queue(queue, url).request(id).set_priority(priority)


@request.command(epilog=examples("request revive reports report-42"))
@on_a_queue
@id_argument
def revive(queue: str, url: str | None, id: str) -> None:
    """Let its failed parts run again."""
    opened = open_queue(queue, url)
    failed = [part.id for part in opened.request(id).results() if part.state == "failed"]
    revived = sum(opened.revive(part) for part in failed)
    click.echo(f"{many(revived, 'part')} revived")
