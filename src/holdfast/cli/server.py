"""Commands about servers: run the embedded one, check any, load the library, print an ACL rule."""

from __future__ import annotations

import dataclasses
import signal
import threading
from typing import Final

import click

from holdfast import libraries
from holdfast.cli.options import examples, json_option, url_option
from holdfast.cli.text import emit
from holdfast.doctor import Diagnosis, examine
from holdfast.engine import library
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

    Without DIRECTORY it is the server that programs use without a URL: the one in the nearest
    .holdfast directory, from here up to the home directory, else this user's.

    The embedded server starts with the first process that uses it, and stops after the last. This
    command is such a process, so the server keeps running, and is restarted if it is killed. After
    Ctrl-C or SIGTERM the server stops when no other process uses it.
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
    click.echo("the server stops when no other process uses it", err=True)


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

    Changes nothing. Name a QUEUE if the user in the URL may access only that one. Exits with 1
    when the server cannot be used, or will lose jobs.
    """
    found = examine(url, queue=queue)
    if as_json:
        emit({**dataclasses.asdict(found), "sound": found.sound})
    else:
        _print(found)
    if not found.sound:
        click.get_current_context().exit(1)


@click.command(epilog=examples("load --url redis://admin:secret@localhost", "load --prune"))
@url_option
@click.option("--prune", is_flag=True, help="Remove the libraries of other releases.")
@json_option
def load(url: str | None, prune: bool, as_json: bool) -> None:
    """Load the library of this release, once, for users who may not.

    It goes to the server, or to every primary of a cluster. Clients load it by themselves if their
    user may run FUNCTION LOAD. Where applications may not, run this as a user who may, before the
    first program of a new release starts.

    --prune removes the libraries of other releases, unless a worker that is alive uses one. Do it
    when programs that only add jobs have the new release, too: they would have to wait.
    """
    done = libraries.load(url, prune=prune)
    if as_json:
        emit([dataclasses.asdict(one) for one in done])
        return
    for one in done:
        what = "loaded" if one.new else "is there already"
        click.echo(f"{visible(one.server)}: {library.library_name()} {what}")
        for name in one.removed:
            click.echo(f"{visible(one.server)}: {visible(name)} removed")
        for name in one.others:
            click.echo(f"{visible(one.server)}: {visible(name)} is of another release")


@click.command(
    epilog=examples("acl emails", "acl emails --user mailer --load", "acl events --shards 16")
)
@click.argument("queue")
@click.option("--user", help="The name of the user; by default that of the queue.")
@click.option("--shards", type=click.IntRange(1, 256), help="For a sharded queue: how many it has.")
@click.option("--load", "may_load", is_flag=True, help="Let the user load the library.")
def acl(queue: str, user: str | None, shards: int | None, may_load: bool) -> None:
    """Print the ACL rule of a user for one queue.

    The user may do all that the queue needs, and nothing else. Replace `secret` by a password, and
    run the line in redis-cli or valkey-cli.
    """
    click.echo(libraries.acl_rule(queue, user, load=may_load, shards=shards))


def _print(found: Diagnosis) -> None:
    named = f": {found.server}" if found.server else ""
    click.echo(visible(found.url + named))
    tier = click.style(found.tier, fg=_COLOURS[found.tier], bold=True)
    click.echo(f"tier: {tier} ({TIERS[found.tier]})")
    for finding in found.findings:
        mark, colour = _MARKS[finding.level]
        click.echo(f"{click.style(mark, fg=colour)} {visible(finding.what)}")
        if finding.advice:
            click.echo(f"  → {visible(finding.advice)}")
