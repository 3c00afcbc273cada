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
from holdfast.cli.text import ANEW, can_draw, draw, emit, many, progress_bar
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
@click.option(
    "--file", type=click.File("rb"), help="The payload is what is in this file; - is stdin."
)
@click.option("--lines", is_flag=True, help="A job for each line of stdin, or of --file.")
@click.option("--id", help="The job's id; without one a new one is made.")
@click.option(
    "--on-conflict",
    type=click.Choice(["ignore", "raise", "update"]),
    default="ignore",
    show_default=True,
    help="What to do about a job that has the id.",
)
@click.option(
    "--replace",
    type=click.Choice(_REPLACED),
    multiple=True,
    metavar="WHAT",
    help="With --on-conflict update: replace only this of the job; may be given several times. "
    "data, due, due=later, due=earlier, counts, or an option by its name, such as max-failures.",
)
@click.option("--priority", type=int, help="0 to 99, higher runs sooner; 50 by default.")
@click.option(
    "--delay", type=duration, metavar="DURATION", help="Not before so long from now: 30s, 5m, 2h."
)
@click.option("--at", type=instant, metavar="TIME", help="Not before this time: 2030-01-31T08:00.")
@click.option("--handler", help="The name of the function that shall run it.")
@click.option("--timeout", type=duration, metavar="DURATION", help="How long one run may take.")
@click.option(
    "--max-failures", type=limit, metavar="N|none", help="Runs that may raise; 10 by default."
)
@click.option(
    "--max-lapses", type=limit, metavar="N|none", help="Runs that may end unanswered; 3 by default."
)
@click.option(
    "--min-backoff",
    type=duration,
    metavar="DURATION",
    help="Wait before the first retry; 2s by default.",
)
@click.option(
    "--max-backoff", type=duration, metavar="DURATION", help="The longest such wait; 5m by default."
)
@click.option(
    "--result-for",
    type=duration_or_forever,
    metavar="DURATION|forever",
    help="How long the result is kept; 0 by default.",
)
@click.option("--keep", is_flag=True, help="Keep the payload as long as the result.")
@click.option(
    "--remember-for",
    type=duration_or_forever,
    metavar="DURATION|forever",
    help="How long the id stays taken after the end.",
)
@click.option("--group", help="A group: jobs that share a limit.")
@click.option(
    "--group-limit", type=limit, metavar="N|none", help="How many of the group may run at a time."
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

    Writes the id of the job. When it is back at the prompt, the job is stored.
    """
    if (payload is not None) + (file is not None or lines) != 1:
        raise click.UsageError("give a PAYLOAD, or --file, or --lines (which reads stdin)")
    said = _said(options)
    with open_queue(queue, url, create=True) as opened:
        if lines:
            if said.pop("id", None) is not None:
                raise click.UsageError("--id is the id of one job, and --lines are many")
            _add_lines(opened, file or sys.stdin.buffer, said, as_json=as_json)
            return
        data = os.fsencode(payload) if file is None else _whole(file)  # type: ignore[arg-type]
        _tell(opened.add(data, **said), as_json=as_json)


def _said(options: dict[str, Any]) -> dict[str, Any]:
    """Return what was said, as `Queue.add` takes it."""
    replaced = options.pop("replace")
    said = {name: value for name, value in options.items() if value is not None}
    if replaced:
        if said["on_conflict"] != "update":
            raise click.UsageError("--replace needs --on-conflict update")
        said["on_conflict"] = _update(replaced)
    if not said["keep"]:
        del said["keep"]
    return {
        name: None if name in _LIMITS and value == NONE else value for name, value in said.items()
    }


def _update(replaced: Sequence[str]) -> Update:
    """Return what replaces what is named, and nothing else."""
    dues = [_DUES[name] for name in replaced if name in _DUES]
    if len(dues) > 1:
        raise click.UsageError("give one of --replace due, due=later, due=earlier")
    named = [name.replace("-", "_") for name in replaced if name not in (*_DUES, "data", "counts")]
    return Update("data" in replaced, dues[0] if dues else False, named, "counts" in replaced)


def _tell(receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        emit(_receipt(receipt))
        return
    click.echo(visible(receipt.id))
    if not receipt:
        became = "it was changed" if receipt.updated else "nothing was added"
        stood = f" and is {receipt.state}" if receipt.state else ""
        click.echo(f"{visible(receipt.id)} is already there{stood}: {became}", err=True)


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.id,
        "created": receipt.created,
        "updated": receipt.updated,
        "state": receipt.state,
    }


def _add_lines(queue: Queue, file: BinaryIO, said: dict[str, Any], *, as_json: bool) -> None:
    """Add a job per line, some at a time: the file may be longer than memory."""
    due = {name: said.pop(name) for name in ("delay", "at") if name in said}
    on_conflict = said.pop("on_conflict")
    live = can_draw(sys.stderr)
    begin = ANEW if live else ""
    added = 0
    jobs: Iterator[Any] = (NewJob(line, **due) if due else line for line in each_line(file))
    try:
        while some := list(islice(jobs, LINES_PER_CALL)):
            added += sum(map(bool, queue.add_many(some, on_conflict=on_conflict, **said)))
            if live:
                draw(f"\r{_bar(file)}{many(added, 'job')}", err=True)
    except HoldfastError as error:
        added += sum(map(bool, error.receipts))
        draw(begin, err=True)
        click.echo(f"{many(added, 'job')} added before this:", err=True)
        raise
    except KeyboardInterrupt:
        draw(begin, err=True)
        click.echo(f"{many(added, 'job')} added, and perhaps some of the next", err=True)
        raise
    draw(begin, err=True)
    if as_json:
        emit({"added": added})
    else:
        click.echo(f"{many(added, 'job')} added")


def _bar(file: BinaryIO) -> str:
    """Return how much of a file is read; nothing where nobody knows how much there is."""
    size = os.fstat(file.fileno()).st_size
    return f"{progress_bar(file.tell(), size)} " if size and file.seekable() else ""


def _whole(file: BinaryIO) -> bytes:
    return _bounded(file.read(MAX_PAYLOAD_BYTES + 1))


def each_line(file: BinaryIO) -> Iterator[bytes]:
    """Return each line that is not empty as a payload."""
    while line := file.readline(MAX_PAYLOAD_BYTES + len(b"\r\n")):
        payload = line.removesuffix(b"\n").removesuffix(b"\r")
        if payload:
            yield _bounded(payload)


def _bounded(payload: bytes) -> bytes:
    """Return a payload that is not too long; of one that is, the rest was not read."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidArgument(
            f"payload has more than {MAX_PAYLOAD_BYTES} bytes: "
            "store it elsewhere and queue a reference to it"
        )
    return payload
