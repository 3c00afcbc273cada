"""Commands that look at queues and jobs: ls, counts, groups, peek, show, explain, result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeAlias, cast

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
    age,
    clock,
    emit,
    fields,
    iso,
    limit,
    payload_json,
    payload_line,
    payload_lines,
    red,
    seconds,
    sentence,
    table,
    when,
    write_raw,
    yellow,
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


Who: TypeAlias = Callable[[str | None], str | None]
"""Returns the `host:pid` of the worker that holds a lease, or the token if it is not known."""


def who_holds(queue: Queue, jobs: list[Job]) -> Who:
    """Return who holds leases. Asks for the workers only if one of the jobs is leased."""
    known = queue.workers() if any(job.token for job in jobs) else []
    names = {worker.holder: worker.name for worker in known}
    return lambda token: token and names.get(token.rpartition(".")[0], token)


def job_json(job: Job, who: Who) -> dict[str, Any]:
    """Return a job for JSON: what most jobs have, then its facts."""
    facts = msgspec.structs.asdict(job.facts)
    times = ("failed_at", "ended_at", "taken_until")
    return {
        "id": job.id,
        "state": job.state,
        **payload_json(job.data),
        "priority": job.priority,
        "at": iso(job.at),
        "leased_at": iso(job.leased_at),
        "worker": who(job.token),
        "token": job.token,
        "behind": job.behind,
        "successor": job.successor,
        "facts": facts | {name: iso(in_seconds(facts[name])) for name in times},
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
        (queue_cell(name, counts), *(count_cell(counts, state) for state in COUNTED))
        for name, counts in found
    ]
    drop = ("ended", "parked", "delayed")
    table(("queue", *COUNTED), rows, right=COUNTED, drop=drop, none="no queues")


def reached(server: Server) -> Iterator[tuple[str, Counts]]:
    """Yield the queues of a server with their counts, except those this user may not access."""
    for name in server.queues():
        try:
            yield name, Queue(name, server).counts()
        except ServerRefused as error:
            if error.word != "NOPERM":
                raise


def queue_cell(name: str, counts: Counts) -> object:
    """Return the name of a queue for a table."""
    return yellow(f"{name} (paused)") if counts.paused else name


def count_cell(counts: Counts, state: str) -> object:
    """Return how many jobs are in a state, for a table."""
    count = getattr(counts, state)
    return red(count, when=state == "failed" and count)


@click.command(epilog=examples("counts emails", "counts emails --json"))
@on_a_queue
@json_option
def counts(queue: str, url: str | None, as_json: bool) -> None:
    """Count the jobs of a queue, by state."""
    found = open_queue(queue, url).counts()
    if as_json:
        emit(counts_json(found))
        return
    for state in COUNTED:
        count = getattr(found, state)
        fields([(f"{state:8}", red(f"{count:>8,}", when=state == "failed" and count))])
    if found.paused:
        click.secho("paused: no lease is granted until `holdfast resume`", fg="yellow")


@click.command(epilog=examples("groups emails", "groups emails --json"))
@on_a_queue
@json_option
def groups(queue: str, url: str | None, as_json: bool) -> None:
    """Show the groups that have jobs, with their limits."""
    found = open_queue(queue, url).groups()
    if as_json:
        emit([msgspec.structs.asdict(group) for group in found])
        return
    numbers = ("running", "limit", "waiting", "jobs")
    table(
        ("group", *numbers),
        [
            (
                *(group.name, group.running),
                *(yellow(limit(group.limit), when=group.limit == 0), group.parked, group.jobs),
            )
            for group in found
        ],
        right=numbers,
        none="no groups have jobs",
    )


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
    source = open_queue(queue, url)
    found = source.peek(count, state=cast("State", state), first=first)
    who = who_holds(source, found)
    if as_json or raw:
        write_jobs(found, who, raw=raw)
        return
    at, held = _WHEN.get(state), state == "leased"
    table(
        (
            *("id", "handler", "priority", *(["worker"] if held else [])),
            *([at, "when"] if at else []),
            "payload",
        ),
        [
            (
                *(job.id, or_blank(job.facts.handler), or_blank(job.priority)),
                *([or_blank(who(job.token))] if held else []),
                *([clock(job.at) or "", age(job.at)] if at else []),
                payload_line(job.data),
            )
            for job in found
        ],
        right=("priority",),
        drop=(at or "", "priority", "handler"),
        none=f"no {state} jobs",
    )


def or_blank(value: object) -> object:
    """Return a value for a table, in which None is blank."""
    return "" if value is None else value


def write_jobs(found: list[Job], who: Who, *, raw: bool) -> None:
    """Write jobs as JSON, or only their payloads as they are."""
    if raw:
        for job in found:
            write_raw((job.data or b"") + b"\n")
    else:
        emit([job_json(job, who) for job in found])


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
        return
    who = who_holds(opened, [job])
    if as_json:
        emit(job_json(job, who))
    else:
        fields(_about_job(job, who))
        _payload("payload", job.data)


def _about_job(job: Job, who: Who) -> list[tuple[str, object]]:
    facts = job.facts
    at = _WHEN.get(job.state)
    state = job.state + (", cancelled while it runs" if facts.cancelled else "")
    held, worker = job.state == "leased", who(job.token)
    return [
        ("id", job.id),
        ("state", red(state, when=job.state == "failed")),
        ("priority", job.priority),
        (at or "at", when(job.at) if at else None),
        ("leased since" if held else "last leased", when(job.leased_at)),
        ("worker" if held else "last worker", worker if worker != job.token else None),
        ("token" if held else "last token", job.token),
        ("jobs before it", job.behind),
        ("handler", facts.handler),
        ("request", facts.request),
        ("group", facts.group),
        ("timeout", seconds(in_seconds(facts.timeout_ms))),
        ("failures", _of(facts.failures, facts.max_failures)),
        ("lapses", _of(facts.lapses, facts.max_lapses)),
        ("error", red(facts.error) if facts.error else None),
        ("failed at", when(in_seconds(facts.failed_at))),
        ("outcome", facts.outcome),
        ("ended at", when(in_seconds(facts.ended_at))),
        ("successor", "an update waits for the lease to end" if job.successor else None),
        ("not kept", _not_kept(job)),
    ]


def _not_kept(job: Job) -> str | None:
    """Return what is not known any more of a job that has ended."""
    if job.state != "ended":
        return None
    known = {"payload": job.data, "priority": job.priority, "timeout": job.facts.timeout_ms}
    known |= {name: getattr(job.facts, name) for name in ("handler", "failures", "lapses")}
    return ", ".join(name for name, value in known.items() if value is None) or None


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


def in_seconds(ms: int | None) -> float | None:
    """Return milliseconds in seconds."""
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
        sentence(visible(_UTC.sub(_as_clock, why)))


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
                "at": iso(outcome.at),
                "error": outcome.error,
                "result": payload["data"],
                **({"result_base64": payload["data_base64"]} if "data_base64" in payload else {}),
            }
        )
    elif raw:
        write_raw(outcome.result or b"")
    else:
        bad = outcome.kind == "failed"
        fields([(outcome.kind, red(when(outcome.at), when=bad)), ("error", outcome.error)])
        _payload("result", outcome.result)
    if not outcome.completed:
        click.get_current_context().exit(1)
