"""Commands that read: ls, counts, workers, peek, failed, show, explain, result."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import click
import msgspec

from holdfast.cli.options import (
    duration,
    examples,
    json_option,
    on_a_queue,
    open_queue,
    opened,
    url_option,
)
from holdfast.cli.text import (
    clock,
    emit,
    fields,
    limit,
    many,
    payload_json,
    payload_line,
    payload_lines,
    plain,
    seconds,
    table,
    write_raw,
)
from holdfast.client.sync.queue import Queue
from holdfast.connection.server import Server
from holdfast.errors import JobNotFound, ServerRefused
from holdfast.escaping import visible
from holdfast.job import Counts, Job, State

COUNTED = ("ready", "delayed", "leased", "parked", "failed", "ended")

_WHEN = {
    "delayed": "due",
    "leased": "lapses at",
    "failed": "handled from",
    "ended": "remembered until",
}
"""What the `at` of a job means, by state."""

_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
"""A time as `Queue.explain` writes it. The command line shows local times only."""

raw_option = click.option("--raw", is_flag=True, help="Print only the payloads, byte for byte.")
count_option = click.option(
    "-n", "--count", default=10, show_default=True, help="How many to show."
)
first_option = click.option("--first", default=0, help="How many to skip.")


def counts_json(counts: Counts) -> dict[str, Any]:
    """Return counts for JSON."""
    return {**msgspec.structs.asdict(counts), "waiting": counts.waiting}


def job_json(job: Job) -> dict[str, Any]:
    """Return a job for JSON: what most jobs have, then its facts."""
    return {
        "id": job.id,
        "state": job.state,
        **payload_json(job.data),
        "priority": job.priority,
        "at": job.at,
        "leased_at": job.leased_at,
        "token": job.token,
        "behind": job.behind,
        "successor": job.successor,
        "facts": msgspec.structs.asdict(job.facts),
    }


# -------------------------------------------------------------------- queues


@click.command(epilog=examples("ls", "ls --url redis://localhost:6379 --json"))
@url_option
@json_option
def ls(url: str | None, as_json: bool) -> None:
    """List the queues on a server.

    Walks all keys of the database with SCAN, in small steps that do not block other clients. The
    user in the URL needs +scan, and sees only the queues that it may access.
    """
    server = opened(url)
    found = list(reached(server))
    if as_json:
        emit([{"queue": name, **counts_json(counts)} for name, counts in found])
        return
    rows = [
        (name + _paused(counts), *(getattr(counts, state) for state in COUNTED))
        for name, counts in found
    ]
    table(("queue", *COUNTED), rows, right=COUNTED, none="no queues")


def reached(server: Server) -> Iterator[tuple[str, Counts]]:
    """Yield the queues of a server with their counts, except those this user may not access."""
    for name in server.queues():
        try:
            yield name, Queue(name, server).counts()
        except ServerRefused as error:
            if error.word != "NOPERM":
                raise


def _paused(counts: Counts) -> str:
    return " (paused)" if counts.paused else ""


@click.command(epilog=examples("counts emails", "counts emails --json"))
@on_a_queue
@json_option
def counts(queue: str, url: str | None, as_json: bool) -> None:
    """Count the jobs of a queue, by state."""
    found = open_queue(queue, url).counts()
    if as_json:
        emit(counts_json(found))
        return
    fields((state, f"{getattr(found, state):>9,}") for state in COUNTED)
    if found.paused:
        click.secho("paused: no lease is granted until `holdfast resume`", fg="yellow")


@click.command(epilog=examples("workers emails", "workers emails --json"))
@on_a_queue
@json_option
def workers(queue: str, url: str | None, as_json: bool) -> None:
    """Show the workers of a queue.

    Workers register themselves, for a limited time. The list is for people: leases do not depend
    on it.
    """
    found = open_queue(queue, url).workers()
    found.sort(key=lambda worker: (not worker.alive, -worker.alive_until))
    if as_json:
        emit([msgspec.structs.asdict(worker) for worker in found])
        return
    now = time.time()
    table(
        ("holder", "alive", "host", "pid", "running", "about"),
        [
            (
                worker.holder,
                "yes" if worker.alive else f"gone for {seconds(max(0, now - worker.alive_until))}",
                worker.about.get("host", ""),
                worker.about.get("pid", ""),
                _running(worker.about.get("running")),
                _about(worker.about),
            )
            for worker in found
        ],
        right=("pid", "running"),
        none="no workers",
    )


def _running(jobs: object) -> str:
    return str(len(jobs)) if isinstance(jobs, list) else ""


def _about(about: dict[str, Any]) -> str:
    rest = {k: v for k, v in about.items() if k not in ("host", "pid", "running")}
    return ", ".join(f"{name}: {_words(value)}" for name, value in rest.items())


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


# -------------------------------------------------------------------- jobs


@click.command(
    epilog=examples(
        "peek emails",
        "peek emails -n 100 --state delayed",
        "peek emails -n 1 --raw | jq .to",
    )
)
@on_a_queue
@count_option
@click.option(
    "--state",
    type=click.Choice(["ready", "delayed", "leased", "parked", "failed", "ended"]),
    default="ready",
    show_default=True,
    help="Show jobs in this state.",
)
@first_option
@raw_option
@json_option
def peek(
    queue: str, url: str | None, count: int, state: str, first: int, raw: bool, as_json: bool
) -> None:
    """Show the next jobs, or those in another state.

    Leases none of them. With --raw each payload is followed by a line break.
    """
    found = open_queue(queue, url).peek(count, state=cast("State", state), first=first)
    if as_json or raw:
        _write(found, raw=raw)
        return
    when = _WHEN.get(state)
    table(
        ("id", "priority", *([when] if when else []), "payload"),
        [
            (
                job.id,
                _or_blank(job.priority),
                *([clock(job.at) or ""] if when else []),
                payload_line(job.data),
            )
            for job in found
        ],
        right=("priority",),
        none=f"no {state} jobs",
    )


def _or_blank(value: object) -> object:
    return "" if value is None else value


def _write(found: list[Job], *, raw: bool) -> None:
    if raw:
        for job in found:
            write_raw((job.data or b"") + b"\n")
    else:
        emit([job_json(job) for job in found])


@click.command(epilog=examples("failed emails", "failed emails --json | jq '.[].id'"))
@on_a_queue
@count_option
@first_option
@raw_option
@json_option
def failed(queue: str, url: str | None, count: int, first: int, raw: bool, as_json: bool) -> None:
    """Show failed jobs, with their errors.

    A failed job stays until `holdfast revive`, `holdfast cancel` or a failure handler.
    """
    source = open_queue(queue, url)
    found = source.failed(count, first=first)
    if as_json or raw:
        _write(found, raw=raw)
        return
    table(
        ("id", "failed at", "failures", "lapses", "error", "payload"),
        [
            (
                job.id,
                clock(_seconds(job.facts.failed_at)) or "",
                job.failures,
                job.lapses,
                job.error or "",
                payload_line(job.data),
            )
            for job in found
        ],
        right=("failures", "lapses"),
        none="no failed jobs",
    )
    if len(found) == count and (total := source.counts().failed) > first + count:
        click.echo(f"… of {many(total, 'failed job')}", err=True)


@click.command(epilog=examples("show emails invoice-7", "show emails invoice-7 --raw > letter.bin"))
@on_a_queue
@click.argument("id")
@click.option("--raw", is_flag=True, help="Print only the payload, byte for byte.")
@json_option
def show(queue: str, url: str | None, id: str, raw: bool, as_json: bool) -> None:
    """Show one job in full."""
    opened = open_queue(queue, url)
    job = opened.show(id)
    if job is None:
        raise JobNotFound(f"{id}: {opened.explain(id)}")
    if raw:
        write_raw(job.data or b"")
    elif as_json:
        emit(job_json(job))
    else:
        fields(_about_job(job))
        _payload("payload", job.data)


def _about_job(job: Job) -> list[tuple[str, object]]:
    facts = job.facts
    when = _WHEN.get(job.state)
    return [
        ("id", job.id),
        ("state", job.state + (", cancelled while it runs" if facts.cancelled else "")),
        ("priority", job.priority),
        (when or "at", clock(job.at) if when else None),
        ("leased since", clock(job.leased_at)),
        ("token", job.token),
        ("jobs before it", job.behind),
        ("handler", facts.handler),
        ("request", facts.request),
        ("group", facts.group),
        ("timeout", seconds(_seconds(facts.timeout_ms))),
        ("failures", _of(facts.failures, facts.max_failures)),
        ("lapses", _of(facts.lapses, facts.max_lapses)),
        ("error", facts.error),
        ("failed at", clock(_seconds(facts.failed_at))),
        ("outcome", facts.outcome),
        ("ended at", clock(_seconds(facts.ended_at))),
        ("successor", "an update waits for the lease to end" if job.successor else None),
    ]


def _of(count: int | None, most: int | None) -> str | None:
    """Return a count and its limit, also when the count is above it.

    None if the job has ended, and its counts are gone.
    """
    if count is None:
        return None
    if most is not None and 0 <= most < count:
        return f"{count}, and {most} are allowed"
    return f"{count} of {limit(most)}"


def _payload(name: str, data: bytes | None) -> None:
    if data is None:
        return
    click.echo(click.style(f"{name} ({len(data):,} bytes)", bold=True))
    for line in payload_lines(data):
        click.echo(f"  {line}")


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


@click.command(epilog=examples("explain emails invoice-7"))
@on_a_queue
@click.argument("id")
@json_option
def explain(queue: str, url: str | None, id: str, as_json: bool) -> None:
    """Say why a job is not running."""
    why = open_queue(queue, url).explain(id)
    if as_json:
        emit({"id": id, "explanation": why})
    else:
        click.echo(visible(_UTC.sub(_as_clock, why)))


def _as_clock(found: re.Match[str]) -> str:
    return clock(datetime.fromisoformat(found[0]).timestamp()) or ""


@click.command(
    epilog=examples("result emails invoice-7", "result emails invoice-7 --wait 30s --raw")
)
@on_a_queue
@click.argument("id")
@click.option(
    "--wait", type=duration, metavar="DURATION", help="Wait up to this long for the job to end."
)
@click.option("--raw", is_flag=True, help="Print only the result, byte for byte.")
@json_option
def result(
    queue: str, url: str | None, id: str, wait: float | None, raw: bool, as_json: bool
) -> None:
    """Show how a job ended, with its result.

    A result is kept if the job was added with --result-for. Exits with 1 when the job has not
    ended, or did not complete.
    """
    outcome = open_queue(queue, url).result(id, wait=wait)
    if outcome is None:
        raise click.ClickException(f"{visible(id)} has not ended yet: --wait waits for it")
    if as_json:
        payload = payload_json(outcome.result)
        emit(
            {
                "id": outcome.id,
                "kind": outcome.kind,
                "at": plain(outcome.at),
                "error": outcome.error,
                "result": payload["data"],
                **({"result_base64": payload["data_base64"]} if "data_base64" in payload else {}),
            }
        )
    elif raw:
        write_raw(outcome.result or b"")
    else:
        fields([(outcome.kind, clock(outcome.at)), ("error", outcome.error)])
        _payload("result", outcome.result)
    if not outcome.completed:
        click.get_current_context().exit(1)
