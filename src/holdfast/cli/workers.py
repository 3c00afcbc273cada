"""Commands about the workers of a queue: workers, fail-worker."""

from __future__ import annotations

import time
from typing import Any, Final

import click
import msgspec

from holdfast.cli.options import (
    ask_first,
    examples,
    json_option,
    on_a_queue,
    open_queue,
    yes_option,
)
from holdfast.cli.text import age, emit, in_iso, iso, many, seconds, table, yellow
from holdfast.client.sync.queue import Queue
from holdfast.escaping import visible
from holdfast.job import WorkerInfo

LOOKED: Final = 1000
"""The most leased jobs that are counted before a worker's are taken back."""

_IN_COLUMNS: Final = ("host", "pid", "running", "handlers", "unnamed")
_ELSEWHERE: Final = ("schedules", "schedule_count")


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
        emit([_json(worker) for worker in found])
        return
    table(
        ("worker", "alive", "running", "handlers", "about", "holder"),
        [
            (
                worker.name,
                "yes" if worker.alive else yellow(_gone(worker)),
                _running(worker.about.get("running")),
                _handlers(worker.about),
                _about(worker.about),
                worker.holder,
            )
            for worker in found
        ],
        right=("running",),
        drop=("holder", "about", "handlers"),
        none="no workers",
    )


def _json(worker: WorkerInfo) -> dict[str, Any]:
    about = dict(worker.about)
    if isinstance(started_at := about.get("started_at"), int | float):
        about["started_at"] = iso(started_at)
    told = in_iso(msgspec.structs.asdict(worker), "alive_until")
    return {"worker": worker.name, **told, "about": about}


def _gone(worker: WorkerInfo) -> str:
    return f"gone for {seconds(float(round(max(0, time.time() - worker.alive_until))))}"


def _running(jobs: object) -> str:
    return str(len(jobs)) if isinstance(jobs, list) else ""


def _handlers(about: dict[str, Any]) -> str:
    names = about.get("handlers")
    known = [str(name) for name in names] if isinstance(names, list) else []
    return ", ".join([*known, *(["jobs without a name"] if about.get("unnamed") is True else [])])


def _about(about: dict[str, Any]) -> str:
    rest = {k: v for k, v in about.items() if k not in (*_IN_COLUMNS, *_ELSEWHERE)}
    if isinstance(started_at := rest.get("started_at"), int | float):
        rest["started_at"] = age(started_at)
    return ", ".join(f"{name}: {_words(value)}" for name, value in rest.items())


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


@click.command("fail-worker", epilog=examples("fail-worker emails web-1:4242 --yes"))
@on_a_queue
@click.argument("worker", metavar="HOST:PID")
@yes_option
def fail_worker(queue: str, url: str | None, worker: str, yes: bool) -> None:
    """Give back all jobs of a worker that is gone.

    Its leases end now, not when they lapse, and each counts as a lapse. If the worker still runs,
    its runs do not count once another worker has the jobs. HOST:PID is as `holdfast workers` shows
    it; a holder is taken too.
    """
    opened = open_queue(queue, url)
    one = _named(opened, worker)
    alive = "is alive" if one.alive else f"is {_gone(one)}"
    ask_first(
        f"Give back {_held(opened, one.holder)} of {visible(one.name)}, which {alive}?", yes=yes
    )
    count = opened.fail_worker(one)
    click.echo(f"{many(count, 'job')} given back")


def _named(queue: Queue, name: str) -> WorkerInfo:
    """Return the worker of a name. Refuse a name that none or several have."""
    found = [one for one in queue.workers() if name in (one.name, one.holder)]
    if not found:
        raise click.ClickException(
            f"{visible(name)} is not a worker of {visible(queue.name)}: "
            f"`holdfast workers {visible(queue.name)}` lists them"
        )
    if len(found) > 1:  # A container that starts again has the host and pid that it had.
        holders = ", ".join(
            f"{visible(one.holder)} ({'alive' if one.alive else _gone(one)})" for one in found
        )
        raise click.ClickException(
            f"{len(found)} workers are {visible(name)}: name a holder: {holders}"
        )
    return found[0]


def _held(queue: Queue, holder: str) -> str:
    """Return how many jobs a holder has leased."""
    leased = queue.peek(LOOKED, state="leased")
    held = sum((job.token or "").rpartition(".")[0] == holder for job in leased)
    return f"{'at least ' if len(leased) == LOOKED else ''}{many(held, 'job')}"
