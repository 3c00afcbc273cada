"""`holdfast add`: jobs from an argument, a file, or lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, Literal

import click

from holdfast.cli.options import (
    NONE,
    duration,
    duration_or_forever,
    examples,
    instant,
    json_option,
    limit,
    on_a_queue,
    open_queue,
)
from holdfast.cli.text import CLEAR_LINE, can_draw, draw, emit, many, progress_bar
from holdfast.client.sync.queue import Queue
from holdfast.codec import MAX_PAYLOAD_BYTES
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.escaping import visible
from holdfast.job import NewJob, Receipt, Update

LINES_PER_CALL: Final = 1000

_LIMITS: Final = ("max_failures", "max_lapses", "group_limit")

_DUES: Final[Mapping[str, bool | Literal["later", "earlier"]]] = {
    "due": True,
    "due=later": "later",
    "due=earlier": "earlier",
}
_REPLACED: Final = (
    *("data", *_DUES, "counts", "priority", "handler", "timeout", "max-failures", "max-lapses"),
    *("min-backoff", "max-backoff", "result-for", "keep", "remember-for", "group"),
)


@click.command(
    epilog=examples(
        "add emails 'hello'",
        """add emails '{"to": "ann@example.org"}' --id invoice-7 --priority 90""",
        "add emails --file letter.bin --delay 30s --handler send",
        "add emails --lines < addresses.txt",
        "add emails --lines --file addresses.txt --at 2030-01-31T08:00",
    )
)
@on_a_queue
@click.argument("payload", required=False)
@click.option("--file", type=click.File("rb"), help="Read the payload from this file; - is stdin.")
@click.option("--lines", is_flag=True, help="Add a job for each line of stdin, or of --file.")
@click.option("--id", help="The job's id; generated if left out.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "raise", "update"]),
    default="ignore",
    show_default=True,
    help="What to do if the id is taken.",
)
@click.option(
    "--replace",
    type=click.Choice(_REPLACED),
    multiple=True,
    metavar="WHAT",
    help="With --on-conflict update: replace only this; may be repeated. One of data, due, "
    "due=later, due=earlier, counts, or the name of an option, such as max-failures.",
)
@click.option("--priority", type=int, help="0 to 99, higher runs sooner; 50 by default.")
@click.option(
    "--delay", type=duration, metavar="DURATION", help="Earliest start, from now: 30s, 5m, 2h."
)
@click.option("--at", type=instant, metavar="TIME", help="Earliest start: 2030-01-31T08:00.")
@click.option("--handler", help="Name of the handler that runs it.")
@click.option("--timeout", type=duration, metavar="DURATION", help="How long one run may take.")
@click.option(
    "--max-failures", type=limit, metavar="N|none", help="Failures to allow; 10 by default."
)
@click.option(
    "--max-lapses",
    type=limit,
    metavar="N|none",
    help="Lapses (runs that end without an answer) to allow; 3 by default.",
)
@click.option(
    "--min-backoff",
    type=duration,
    metavar="DURATION",
    help="Wait before the first retry; 2s by default.",
)
@click.option(
    "--max-backoff",
    type=duration,
    metavar="DURATION",
    help="Longest wait before a retry; 5m by default.",
)
@click.option(
    "--result-for",
    type=duration_or_forever,
    metavar="DURATION|forever",
    help="How long to keep the result; 0 by default.",
)
@click.option("--keep", is_flag=True, help="Keep the payload as long as the result.")
@click.option(
    "--remember-for",
    type=duration_or_forever,
    metavar="DURATION|forever",
    help="How long the id stays taken after the job has ended.",
)
@click.option("--group", help="The job's group; jobs of a group share a limit.")
@click.option(
    "--group-limit",
    type=limit,
    metavar="N|none",
    help="How many jobs of the group may run at a time.",
)
@json_option
def add(
    queue: str,
    url: str | None,
    payload: str | None,
    file: BinaryIO | None,
    lines: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Add jobs: one payload, a file, or a job per line.

    Prints the job's id, or with --lines how many jobs were added, once they are stored.
    """
    if (payload is not None) + (file is not None or lines) != 1:
        raise click.UsageError("give a PAYLOAD, or --file, or --lines (which reads stdin)")
    given = _given(options)
    with open_queue(queue, url, create=True) as opened:
        if lines:
            if given.pop("id", None) is not None:
                raise click.UsageError("--id names one job: leave it out with --lines")
            _add_lines(opened, file or sys.stdin.buffer, given, as_json=as_json)
            return
        data = os.fsencode(payload) if file is None else _read_payload(file)  # type: ignore[arg-type]
        _print_receipt(opened.add(data, **given), as_json=as_json)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options as arguments of `Queue.add`."""
    replaced = options.pop("replace")
    given = {name: value for name, value in options.items() if value is not None}
    if replaced:
        if given["on_conflict"] != "update":
            raise click.UsageError("--replace needs --on-conflict update")
        given["on_conflict"] = _update(replaced)
    if not given["keep"]:
        del given["keep"]
    return {
        name: None if name in _LIMITS and value == NONE else value for name, value in given.items()
    }


def _update(replaced: Sequence[str]) -> Update:
    """Return an `Update` that replaces only the named fields."""
    dues = [_DUES[name] for name in replaced if name in _DUES]
    if len(dues) > 1:
        raise click.UsageError("give one of --replace due, due=later, due=earlier")
    named = [name.replace("-", "_") for name in replaced if name not in (*_DUES, "data", "counts")]
    return Update("data" in replaced, dues[0] if dues else False, named, "counts" in replaced)


def _print_receipt(receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        emit(_receipt_json(receipt))
        return
    click.echo(visible(receipt.id))
    if not receipt:
        change = "it was changed" if receipt.updated else "nothing was added"
        state = f" and is {receipt.state}" if receipt.state else ""
        click.echo(f"{visible(receipt.id)} already exists{state}: {change}", err=True)


def _receipt_json(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.id,
        "created": receipt.created,
        "updated": receipt.updated,
        "state": receipt.state,
    }


def _add_lines(queue: Queue, file: BinaryIO, given: dict[str, Any], *, as_json: bool) -> None:
    """Add a job per line, in batches: the file may be larger than memory."""
    due = {name: given.pop(name) for name in ("delay", "at") if name in given}
    on_conflict = given.pop("on_conflict")
    live = can_draw(sys.stderr)
    begin = CLEAR_LINE if live else ""
    added = 0
    jobs: Iterator[Any] = (NewJob(line, **due) if due else line for line in each_line(file))
    try:
        while some := list(islice(jobs, LINES_PER_CALL)):
            added += sum(map(bool, queue.add_many(some, on_conflict=on_conflict, **given)))
            if live:
                draw(f"\r{_bar(file)}{many(added, 'job')}", err=True)
    except HoldfastError as error:
        added += sum(map(bool, error.receipts))
        draw(begin, err=True)
        click.echo(f"{many(added, 'job')} added before this error:", err=True)
        raise
    except KeyboardInterrupt:
        draw(begin, err=True)
        click.echo(f"{many(added, 'job')} added, and perhaps some of the next batch", err=True)
        raise
    draw(begin, err=True)
    if as_json:
        emit({"added": added})
    else:
        click.echo(f"{many(added, 'job')} added")


def _bar(file: BinaryIO) -> str:
    """Return a bar of how much of the file is read; empty if its size is unknown."""
    size = os.fstat(file.fileno()).st_size
    return f"{progress_bar(file.tell(), size)} " if size and file.seekable() else ""


def _read_payload(file: BinaryIO) -> bytes:
    return _checked(file.read(MAX_PAYLOAD_BYTES + 1))


def each_line(file: BinaryIO) -> Iterator[bytes]:
    """Yield each line that is not empty as a payload."""
    while line := file.readline(MAX_PAYLOAD_BYTES + len(b"\r\n")):
        payload = line.removesuffix(b"\n").removesuffix(b"\r")
        if payload:
            yield _checked(payload)


def _checked(payload: bytes) -> bytes:
    """Refuse a payload that is too long. Its full length is unknown, as the rest was not read."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidArgument(
            f"payload has more than {MAX_PAYLOAD_BYTES} bytes: "
            "store it elsewhere and queue a reference to it"
        )
    return payload
