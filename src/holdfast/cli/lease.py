"""Commands for workers in any language: lease, extend, complete, retry, fail, release.

The token alone identifies a lease, so each command may run in a process of its own. The other
commands read from stdin what `lease` prints.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from holdfast.cli.main import NO_STDOUT
from holdfast.cli.options import (
    duration,
    examples,
    instant,
    on_a_queue,
    open_queue,
)
from holdfast.cli.options import pause as more_than_0
from holdfast.cli.text import emit_line, payload_json
from holdfast.client.sync.queue import Queue
from holdfast.codec import MAX_ERROR_BYTES, MAX_RESULT_BYTES, utf8_name
from holdfast.errors import HoldfastError, InvalidArgument, LeaseLost
from holdfast.escaping import visible
from holdfast.job import NO_FACTS, Extended, Facts, Lease

_read_json: Final = json.JSONDecoder().raw_decode

NO_JOB: Final = 3
LOST: Final = 4
CANCELLED: Final = 5

_TOKEN: Final = re.compile(r"[!-~]{1,128}")
"""Printable ASCII: a token is a holder, a point and a number."""


# ------------------------------------------------------------------------------- lease


@click.command(
    epilog=examples(
        "lease emails --wait 5s > lease.json",
        "lease emails --seconds 2m --payload-file letter.bin > lease.json",
        "lease emails --failed",
    )
)
@on_a_queue
@click.option(
    "--seconds",
    type=more_than_0,
    metavar="DURATION",
    default=30.0,
    help="How long the lease lasts, unless `holdfast extend` renews it.  [default: 30s]",
)
@click.option("--wait", type=duration, metavar="DURATION", help="Wait up to this long for a job.")
@click.option(
    "--failed",
    is_flag=True,
    help="Take failed jobs, to handle the failure: `complete` removes one.",
)
@click.option("-n", "--count", default=1, show_default=True, help="Most jobs to take.")
@click.option(
    "--payload-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="Write the payload to this file, byte for byte, and leave it out of the JSON.",
)
def lease(
    queue: str,
    url: str | None,
    seconds: float,
    wait: float | None,
    failed: bool,
    count: int,
    payload_file: str | None,
) -> None:
    """Take jobs for a limited time, to run them in any language.

    A lease is the right to run a job for a limited time; after that another worker gets it. Prints
    a line of JSON per job: its id, the token of the lease, and the payload in data, or in
    data_base64 if it is not text. After the run, pass that line to `holdfast complete`, `retry`,
    `fail` or `release`. Exits with 3 when there is no job.

    DURATION is 90, 250ms, 5m or 1h30m; a number alone is seconds.
    """
    if payload_file is not None and count != 1:
        raise click.UsageError("--payload-file is for one job: leave out --count")
    if payload_file is not None:
        _check_writable(Path(payload_file))
    if click.get_current_context().meta[NO_STDOUT]:
        raise click.UsageError("stdout is closed: the token of a job would be lost")
    opened = open_queue(queue, url, create=True)
    leases = opened.lease_many(count, seconds, wait=wait, failed=failed)
    try:
        for one in leases:
            if payload_file is not None:
                Path(payload_file).write_bytes(one.data)
            emit_line(_lease_json(queue, one, with_data=payload_file is None))
    except BaseException:  # The caller does not have the token, so it cannot run the job.
        with suppress(HoldfastError):
            opened.release_many(leases)
        raise
    if not leases:
        click.get_current_context().exit(NO_JOB)


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before a job is leased."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise click.UsageError(f"--payload-file {visible(path)}: {error.strerror}") from error


def _lease_json(queue: str, one: Lease, *, with_data: bool) -> dict[str, Any]:
    facts = one.facts
    return {
        "queue": queue,
        "id": one.id,
        "token": one.token,
        **(payload_json(one.data) if with_data else {}),
        "handler": facts.handler,
        "request": facts.request,
        "group": facts.group,
        "timeout": None if facts.timeout_ms is None else facts.timeout_ms / 1000,
        "failures": facts.failures,
        "lapses": facts.lapses,
        "error": facts.error,
        "failed": one.failed,
    }


# -------------------------------------------------------------------------- read leases


def _given_leases(queue: str, id: str | None, token: str | None) -> list[Lease]:
    """Return the lease of --id and --token, else those on stdin. Does not call the server."""
    if (id is None) != (token is None):
        raise click.UsageError("--id and --token go together: `holdfast lease` writes both")
    if id is not None and token is not None:
        return [_lease(id, token, "--id or --token")]
    if sys.stdin.isatty():
        raise click.UsageError("give --id and --token, or on stdin the output of `holdfast lease`")
    return _read_leases(queue, sys.stdin.buffer.read())


def _read_leases(queue: str, data: bytes) -> list[Lease]:
    """Read consecutive JSON objects, one per line or pretty-printed."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not JSON: byte {error.start} is not UTF-8") from error
    found: list[Lease] = []
    end = 0
    while rest := text[end:].lstrip():
        at = len(text) - len(rest)
        try:
            value, end = _read_json(text, at)
        except (ValueError, RecursionError) as error:
            where = f"line {text.count(chr(10), 0, at) + 1}"
            raise click.UsageError(
                f"stdin is not a lease: broken JSON in the object that begins in {where}: "
                f"{visible(error)}"
            ) from error
        found.append(_lease_in(queue, value))
    if not found:
        raise click.UsageError("stdin is empty: give it the output of `holdfast lease`")
    return found


def _lease_in(queue: str, value: object) -> Lease:
    fields = value if isinstance(value, dict) else {}
    id, token = fields.get("id"), fields.get("token")
    if not (isinstance(id, str) and isinstance(token, str)):
        raise click.UsageError(
            "stdin is not a lease: a JSON object with strings id and token is needed"
        )
    if fields.get("queue", queue) != queue:
        raise click.UsageError(
            f"stdin has a lease of the queue {visible(fields['queue'])}, not of {visible(queue)}"
        )
    return _lease(id, token, "stdin")


def _lease(id: str, token: str, where: str) -> Lease:
    try:
        utf8_name("id", id)
    except InvalidArgument as error:
        raise click.UsageError(f"{where}: {visible(error)}") from error
    if not _TOKEN.fullmatch(token):
        raise click.UsageError(f"{where}: {ascii(token)[:100]} is not a token")
    return Lease(id, b"", token)


def _on_a_lease(command: Any) -> Any:
    """Add QUEUE, --id and --token to a command."""
    for option in (
        click.option("--token", help="The token of the lease; goes with --id."),
        click.option("--id", help="The job's id, instead of a lease on stdin."),
        on_a_queue,
    ):
        command = option(command)
    return command


def _settle(leases: Iterable[Lease], way: str, settle: Callable[[Lease], object]) -> None:
    """Settle or extend leases, and print the result of each.

    Exits with LOST if any lease is over, else with CANCELLED if any job was cancelled.
    """
    code = 0
    for one in leases:
        try:
            settled = settle(one)
        except LeaseLost:
            settled = False
        if settled is Extended.CANCELLED:
            emit_line({"id": one.id, way: True, "cancelled": True})
            _say(one, "cancelled: stop the run, then end the lease with any other command")
            code = code or CANCELLED
            continue
        emit_line({"id": one.id, way: settled is not False})
        if settled is False:
            _say(
                one,
                "the lease is over: the job was given to another worker, was cancelled or has "
                "ended. Drop this run: it does not count",
            )
            code = LOST
    if code:
        click.get_current_context().exit(code)


def _say(lease: Lease, what: str) -> None:
    click.echo(f"{visible(lease.id)}: {what}", err=True)


# ------------------------------------------------------------------------------ extend


@click.command(
    epilog=examples(
        "extend emails --seconds 2m < lease.json", "extend emails --id invoice-7 --token 3f…9.1"
    )
)
@_on_a_lease
@click.option(
    "--seconds",
    type=more_than_0,
    metavar="DURATION",
    default=30.0,
    help="How long the lease lasts from now.  [default: 30s]",
)
def extend(queue: str, url: str | None, id: str | None, token: str | None, seconds: float) -> None:
    """Keep a leased job for longer, while it runs.

    Reads the lease from stdin, as `holdfast lease` printed it, or takes --id and --token.
    Exits with 4 when the lease is over: another worker may have the job, so drop this run. Exits
    with 5 when the job was cancelled: stop the run, then end the lease with any other command.

    DURATION is 90, 250ms, 5m or 1h30m; a number alone is seconds.
    """
    leases = _given_leases(queue, id, token)
    opened = open_queue(queue, url)
    _settle(leases, "extended", lambda one: opened.extend(one, seconds))


# ------------------------------------------------------------------------------ settle


@click.command(
    epilog=examples(
        "complete emails < lease.json",
        "complete emails --result-file out.bin < lease.json",
        "complete emails --id invoice-7 --force",
    )
)
@_on_a_lease
@click.option("--result", help="The result; kept if the job was added with --result-for.")
@click.option("--result-file", type=click.File("rb"), help="File with the result; - is stdin.")
@click.option("--force", is_flag=True, help="Complete the job by --id alone, leased or not.")
def complete(
    queue: str,
    url: str | None,
    id: str | None,
    token: str | None,
    result: str | None,
    result_file: BinaryIO | None,
    force: bool,
) -> None:
    """Mark a leased job as done.

    Reads the lease from stdin, as `holdfast lease` printed it, or takes --id and --token.
    Prints {"id": …, "completed": true}, to exactly one caller in the life of a job. Exits with 4,
    and prints false, when the lease is over: another worker may have the job, so drop this run.
    """
    if result is not None and result_file is not None:
        raise click.UsageError("give --result or --result-file, not both")
    if result_file is not None and id is None and _is_stdin(result_file):
        raise click.UsageError("the result is on stdin: say which job with --id and --token")
    if force:
        if id is None or token is not None:
            raise click.UsageError("--force goes with --id alone: it needs no lease")
        leases = [_lease(id, "-", "--id")]
    else:
        leases = _given_leases(queue, id, token)
    kept = os.fsencode(result) if result is not None else None
    if result_file is not None:
        kept = result_file.read(MAX_RESULT_BYTES + 1)
    opened = open_queue(queue, url)
    if force:
        _force(opened, leases[0], kept)
    else:
        _settle(leases, "completed", lambda one: opened.complete(one, kept))


def _force(queue: Queue, one: Lease, result: bytes | None) -> None:
    """Complete a job without a lease. Exits with LOST when there is nothing to complete."""
    completed = queue.complete(one.id, result, force=True)
    emit_line({"id": one.id, "completed": completed})
    if completed:
        return
    job = queue.show(one.id)
    if job is None:
        _say(
            one,
            "no job has this id: it was never added, or it ended and is not remembered. Check the "
            f"id: `holdfast peek {visible(queue.name)}` shows the next jobs",
        )
    elif job.state == "ended":
        _say(
            one,
            f"the job has already ended: {job.facts.outcome or 'completed'}. Nothing was changed",
        )
    else:
        _say(one, f"the job cannot be completed: it is {job.state}. Nothing was changed")
    click.get_current_context().exit(LOST)


def _is_stdin(file: BinaryIO) -> bool:
    return getattr(file, "name", "") in ("<stdin>", 0) or file is sys.stdin.buffer


_error_option = click.option("--error", help="Why the run failed; `holdfast show` shows it.")
_error_file_option = click.option(
    "--error-file",
    type=click.File("rb"),
    help="Read the error from the end of this file, such as a log.",
)


def _reason(error: str | None, file: BinaryIO | None) -> str:
    """Return the error; of a long file only its end."""
    if error is not None and file is not None:
        raise click.UsageError("give --error or --error-file, not both")
    if file is None:
        return error or "no reason was given"
    with suppress(OSError):  # A pipe cannot seek.
        file.seek(-MAX_ERROR_BYTES, os.SEEK_END)
    text = file.read()[-MAX_ERROR_BYTES:].decode(errors="backslashreplace").strip()
    return text[-MAX_ERROR_BYTES // 4 :] or "no reason was given"


@click.command(
    epilog=examples(
        "retry emails --error 'no connection' < lease.json",
        "retry emails --error-file log.txt --after 10m < lease.json",
    )
)
@_on_a_lease
@_error_option
@_error_file_option
@click.option(
    "--after",
    type=duration,
    metavar="DURATION",
    help="Try again after this long, instead of the job's backoff.",
)
@click.option(
    "--at", type=instant, metavar="TIME", help="Try again at this time, instead of after a wait."
)
def retry(
    queue: str,
    url: str | None,
    id: str | None,
    token: str | None,
    error: str | None,
    error_file: BinaryIO | None,
    **due: Any,
) -> None:
    """Count a failure, and try a leased job again later.

    Reads the lease from stdin, as `holdfast lease` printed it, or takes --id and --token. The
    wait grows with each failure, unless --after or --at sets it. After --max-failures of
    `holdfast add` the job is marked as failed instead. Exits with 4 when the lease is over: another
    worker may have the job, so drop this run.

    DURATION is 90, 250ms, 5m or 1h30m; TIME is 2030-01-31T08:00, or seconds since 1970.
    """
    leases, reason = _given_leases(queue, id, token), _reason(error, error_file)
    opened = open_queue(queue, url)

    def again(one: Lease) -> None:
        opened.retry(_with_facts(opened, one), error=reason, **due)

    _settle(leases, "retried", again)


def _with_facts(queue: Queue, one: Lease) -> Lease:
    """Return the lease with the job's facts: the backoff depends on how often it failed."""
    job = queue.show(one.id)
    facts = job.facts if job and isinstance(job.facts, Facts) else NO_FACTS
    return Lease(one.id, b"", one.token, facts)


@click.command(
    epilog=examples(
        "fail emails --error 'not an address' < lease.json",
        "fail emails --id invoice-7 --token 3f…9.1 --error 'no such customer'",
    )
)
@_on_a_lease
@_error_option
@_error_file_option
def fail(
    queue: str,
    url: str | None,
    id: str | None,
    token: str | None,
    error: str | None,
    error_file: BinaryIO | None,
) -> None:
    """Mark a leased job as failed, without a retry.

    Reads the lease from stdin, as `holdfast lease` printed it, or takes --id and --token. The
    job stays, in the list of `holdfast failed`, until `holdfast revive` or `cancel`. Exits with 4
    when the lease is over: another worker may have the job, so drop this run.
    """
    leases, reason = _given_leases(queue, id, token), _reason(error, error_file)
    opened = open_queue(queue, url)
    _settle(leases, "failed", lambda one: opened.fail(one, error=reason))


@click.command(
    epilog=examples(
        "release emails < lease.json",
        "release emails --after 5m < lease.json",
        "release emails --lapsed 'killed: out of memory' < lease.json",
    )
)
@_on_a_lease
@click.option(
    "--after", type=duration, metavar="DURATION", help="Lease it again only after this long."
)
@click.option("--lapsed", metavar="REASON", help="Count a lapse: the run died without an answer.")
def release(
    queue: str,
    url: str | None,
    id: str | None,
    token: str | None,
    after: float | None,
    lapsed: str | None,
) -> None:
    """Give a leased job back, without counting a failure.

    Reads the lease from stdin, as `holdfast lease` printed it, or takes --id and --token. The
    next worker gets the job at once, or after --after. Exits with 4 when the lease is over: another
    worker may have the job, so drop this run.

    DURATION is 90, 250ms, 5m or 1h30m; a number alone is seconds.
    """
    leases = _given_leases(queue, id, token)
    opened = open_queue(queue, url)
    _settle(leases, "released", lambda one: opened.release(one, after=after, lapsed=lapsed))
