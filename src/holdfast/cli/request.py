"""`holdfast request …`: create, watch and manage requests."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.cli.add import each_line
from holdfast.cli.following import follow
from holdfast.cli.main import Suggesting
from holdfast.cli.options import (
    NONE,
    ask_first,
    duration,
    duration_or_forever,
    examples,
    json_option,
    on_a_queue,
    open_queue,
    pause,
    yes_option,
)
from holdfast.cli.options import limit as as_limit
from holdfast.cli.text import (
    emit,
    fields,
    in_iso,
    limit,
    many,
    payload_json,
    payload_line,
    progress_bar,
    red,
    seconds,
    table,
    when,
    yellow,
)
from holdfast.client.status import Part, RequestStatus
from holdfast.escaping import visible

id_argument = click.argument("id", metavar="REQUEST")


@click.group(
    cls=Suggesting,
    epilog=examples(
        "request create reports report-42 --limit 4 --priority 80 < parts.txt",
        "request progress reports report-42",
        "request set-limit reports report-42 8",
    ),
)
def request() -> None:
    """Create, watch and manage requests: work in parts."""


def status_json(status: RequestStatus) -> dict[str, Any]:
    """Return the status of a request for JSON."""
    told = {
        **msgspec.structs.asdict(status),
        "settled": status.settled,
        "ended": status.ended,
        "rate": status.rate,
        "ends_at": status.ends_at,
    }
    return in_iso(told, *(name for name in told if name.endswith("_at")))


# ------------------------------------------------------------------ create

_file_option = click.option(
    "--file", type=click.File("rb"), help="Make a part of each line of this file, instead of stdin."
)
_handler_option = click.option("--handler", help="Name of the handler that runs the parts.")


@request.command(
    epilog=examples(
        "request create reports report-42 --limit 4 --priority 80 < parts.txt",
        "request create reports --file parts.txt --handler render --on-failure fail_fast",
        "request create reports report-42 --open < first-parts.txt",
    )
)
@on_a_queue
@click.argument("id", metavar="[REQUEST]", required=False)
@_file_option
@_handler_option
@click.option("--limit", type=as_limit, metavar="N|none", help="How many parts may run at a time.")
@click.option("--priority", type=int, help="0 to 99, higher runs sooner; 50 by default.")
@click.option(
    "--on-failure",
    type=click.Choice(["continue", "fail_fast"]),
    help="When a part fails: go on with the others (the default), or stop the request.",
)
@click.option(
    "--keep-for",
    type=duration_or_forever,
    metavar="DURATION|forever",
    help="How long to keep its status and results after the end; 1d by default.",
)
@click.option(
    "--open-for",
    type=duration,
    metavar="DURATION",
    help="Fail the request if it is not sealed within this time.",
)
@click.option("--open", "unsealed", is_flag=True, help="Leave it open for more parts.")
@json_option
def create(
    queue: str,
    url: str | None,
    id: str | None,
    file: BinaryIO | None,
    handler: str | None,
    unsealed: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a request: a part for each line.

    Prints its id. Empty lines are skipped. At the end the request is sealed; after an error it is
    cancelled. With --open it stays open for `request add` and `request seal`, and the same command
    with the same lines adds only the missing parts.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("limit") == NONE:
        given["limit"] = None
    asked = open_queue(queue, url, create=True).request(id, **given)
    lines = each_line(file or sys.stdin.buffer)
    named: Any = {} if handler is None else {"handler": handler}
    if unsealed:
        asked.open()
        added = asked.add_many(lines, **named)
    else:
        with asked:
            added = asked.add_many(lines, **named)
    if as_json:
        emit({"id": asked.id, "added": added, "sealed": not unsealed})
    else:
        click.echo(visible(asked.id))
        click.echo(f"{many(added, 'part')} added", err=True)


@request.command(epilog=examples("request add reports report-42 < more-parts.txt"))
@on_a_queue
@id_argument
@_file_option
@_handler_option
@json_option
def add(
    queue: str,
    url: str | None,
    id: str,
    file: BinaryIO | None,
    handler: str | None,
    as_json: bool,
) -> None:
    """Add a part for each line to an open request."""
    opened = open_queue(queue, url)
    status = opened.request(id).status()
    asked = opened.request(id, append=True, priority=status.priority, limit=status.limit)
    asked.open()
    named: Any = {} if handler is None else {"handler": handler}
    added = asked.add_many(each_line(file or sys.stdin.buffer), **named)
    if as_json:
        emit({"id": id, "added": added})
    else:
        click.echo(f"{many(added, 'part')} added")


# -------------------------------------------------------------------- look


@request.command(epilog=examples("request ls reports", "request ls reports --json"))
@on_a_queue
@json_option
def ls(queue: str, url: str | None, as_json: bool) -> None:
    """List the requests, also those remembered after their end."""
    found = open_queue(queue, url).requests()
    if as_json:
        emit([status_json(status) for status in found])
        return
    numbers = ("done", "failed", "running", "total", "limit", "priority")
    rows = [
        (
            *(status.id, _state(status), status.done, red(status.failed, when=status.failed)),
            *(status.running, status.total, _limit(status), status.priority),
        )
        for status in found
    ]
    drop = ("priority", "limit", "running")
    table(("request", "state", *numbers), rows, right=numbers, drop=drop, none="no requests")


def _state(status: RequestStatus) -> object:
    return red(status.state, when=status.state == "failed")


def _limit(status: RequestStatus) -> object:
    return yellow(limit(status.limit), when=status.limit == 0 and not status.ended)


@request.command(
    epilog=examples(
        "request show reports report-42", "request show reports report-42 --parts --json"
    )
)
@on_a_queue
@id_argument
@click.option("--parts", is_flag=True, help="Also show how each part ended.")
@json_option
def show(queue: str, url: str | None, id: str, parts: bool, as_json: bool) -> None:
    """Show the status of a request."""
    asked = open_queue(queue, url).request(id)
    status = asked.status()
    found = list(asked.results()) if parts else []
    if as_json:
        more = {"parts": [_part_json(part) for part in found]} if parts else {}
        emit({**status_json(status), **more})
        return
    fields(_about(status))
    if parts:
        click.echo()
        table(
            ("part", "state", "result or error"),
            [
                (
                    *(part.number, red(part.state, when=part.state == "failed")),
                    part.error or payload_line(part.result),
                )
                for part in found
            ],
            right=("part",),
            none="no parts",
        )


def _part_json(part: Part) -> dict[str, Any]:
    result = {
        name.replace("data", "result"): data for name, data in payload_json(part.result).items()
    }
    return {
        "number": part.number,
        "id": part.id,
        "state": part.state,
        "error": part.error,
        **result,
    }


def _about(status: RequestStatus) -> list[tuple[str, object]]:
    return [
        ("request", status.id),
        ("state", _state(status)),
        ("reason", status.reason),
        ("parts", status.total),
        ("done", status.done),
        ("failed", red(status.failed, when=status.failed)),
        ("cancelled", status.cancelled),
        ("running", status.running),
        ("parked", status.parked),
        ("delayed", status.delayed),
        ("priority", status.priority),
        ("limit", _limit(status)),
        ("opened", when(status.opened_at)),
        ("ended", when(status.ended_at)),
        ("per second", f"{status.rate:.1f}" if status.rate else None),
        ("ends about", None if status.ended else when(status.ends_at)),
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
    "--every", type=pause, metavar="DURATION", default=1.0, help="Time between two updates; 1s."
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
    words = [f"{status.settled:,} of {status.total:,}", status.state]
    if status.failed:
        words.append(click.style(f"{status.failed:,} failed", fg="red"))
    if not status.ended:
        words.append(f"{status.running:,} running")
        if status.ends_at is not None:
            words.append(f"{seconds(max(0, status.ends_at - status.asked_at))} left")
    elif status.reason:
        words.append(visible(status.reason))
    return f"{progress_bar(status.settled, status.total)} {', '.join(words)}"


# -------------------------------------------------------------------- steer


@request.command(epilog=examples("request seal reports report-42"))
@on_a_queue
@id_argument
def seal(queue: str, url: str | None, id: str) -> None:
    """Seal a request: no more parts can be added."""
    open_queue(queue, url).request(id).seal()


@request.command(epilog=examples("request cancel reports report-42 --yes"))
@on_a_queue
@id_argument
@yes_option
def cancel(queue: str, url: str | None, id: str, yes: bool) -> None:
    """Cancel a request: no more parts run."""
    asked = open_queue(queue, url).request(id)
    status = asked.status()
    left = many(status.total - status.settled, "part")
    ask_first(f"Cancel {visible(id)} with {left} to go?", yes=yes)
    if not asked.cancel():
        raise click.ClickException(f"{visible(id)}: it has ended, or is already being stopped")


@request.command("set-limit", epilog=examples("request set-limit reports report-42 8"))
@on_a_queue
@id_argument
@click.argument("limit", type=as_limit, metavar="N|none")
def set_limit(queue: str, url: str | None, id: str, limit: int) -> None:
    """Set how many parts may run at a time; 0 pauses the request."""
    open_queue(queue, url).request(id).set_limit(None if limit == NONE else limit)


@request.command("set-priority", epilog=examples("request set-priority reports report-42 99"))
@on_a_queue
@id_argument
@click.argument("priority", type=int)
def set_priority(queue: str, url: str | None, id: str, priority: int) -> None:
    """Set the priority of a request: 0 to 99, higher runs sooner."""
    open_queue(queue, url).request(id).set_priority(priority)


@request.command(epilog=examples("request revive reports report-42"))
@on_a_queue
@id_argument
def revive(queue: str, url: str | None, id: str) -> None:
    """Run the failed parts of a request again."""
    opened = open_queue(queue, url)
    failed = [part.id for part in opened.request(id).results() if part.state == "failed"]
    revived = sum(opened.revive(part) for part in failed)
    click.echo(f"{many(revived, 'part')} revived")
