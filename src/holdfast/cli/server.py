"""`holdfast server`, `holdfast doctor`: the embedded server, and any server looked at closely."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import Final

import click

from holdfast.cli.options import examples, json_option, url_option
from holdfast.cli.text import emit
from holdfast.doctor import Diagnosis, examine
from holdfast.escaping import visible
from holdfast.server.directory import default_owner
from holdfast.server.embedded import Embedded
from holdfast.server.health import TIERS

LOOK_SECONDS: Final = 2.0

_MARKS: Final = {"error": ("✗", "red"), "warning": ("!", "yellow"), "ok": ("✓", "green")}
_COLOURS: Final = {"durable": "green", "one-second": "yellow", "volatile": "red", "unknown": "red"}


@click.command(epilog=examples("server", "server /srv/jobs"))
@click.argument("directory", required=False, type=click.Path(file_okay=False))
def server(directory: str | None) -> None:
    """Run the embedded server in the foreground.

    Without DIRECTORY it is the server that programs use where no URL is given: the one in the
    nearest .holdfast directory, from here up to the home directory, else this user's.

    It needs no such process: it starts with its first user and stops after its last. This one is a
    user, so that it stays. After Ctrl-C or SIGTERM it stops as soon as nobody else uses it. When it
    is killed, it is started again.
    """
    embedded = Embedded(directory)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    embedded.ensure()
    if directory is None:
        click.echo(f"the embedded server of this {default_owner()}", err=True)
    click.echo(f"embedded://{visible(embedded.directory)}")
    click.echo(f"listens at unix://{visible(embedded.socket)}; Ctrl-C ends it", err=True)
    try:
        while not stop.wait(LOOK_SECONDS):
            embedded.ensure()
    finally:
        embedded.leave()
    click.echo("it stops when nobody else uses it", err=True)


@click.command(
    epilog=examples(
        "doctor",
        "doctor --url redis://localhost:6379",
        "doctor emails --url redis://emails:secret@queue.example.org",
    )
)
@click.argument("queue", required=False)
@url_option
@json_option
def doctor(queue: str | None, url: str | None, as_json: bool) -> None:
    """Check whether a server is safe for jobs, and what to change.

    Changes nothing. Name a QUEUE where the user in the URL may reach only that one. Exits with 1
    when the server cannot be used, or will lose jobs.
    """
    found = examine(url, queue=queue)
    if as_json:
        emit({**dataclasses.asdict(found), "sound": found.sound})
    else:
        _tell(found)
    if not found.sound:
        click.get_current_context().exit(1)


def _tell(found: Diagnosis) -> None:
    named = f": {found.server}" if found.server else ""
    click.echo(visible(found.url + named))
    tier = click.style(found.tier, fg=_COLOURS[found.tier], bold=True)
    click.echo(f"tier: {tier} ({TIERS[found.tier]})")
    for finding in found.findings:
        mark, colour = _MARKS[finding.level]
        click.echo(f"{click.style(mark, fg=colour)} {visible(finding.what)}")
        if finding.advice:
            click.echo(f"  → {visible(finding.advice)}")
