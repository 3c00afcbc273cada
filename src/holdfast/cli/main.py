"""The group of commands, and what they have in common: help, errors, exit codes.

Commands are imported when they are used, so that `--help` and shell completion are quick.

    0    done
    1    failed; one line on stderr says why, and what to do
    2    usage error: a wrong option or value
    3    (lease) there is no job
    4    (complete, retry, fail, release, extend) the lease is over
    5    (extend) the lease is held, but the job was cancelled
    130  Ctrl-C
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

from holdfast import distribution
from holdfast.errors import HoldfastError, InvalidArgument, ServerRefused, ServerUnavailable
from holdfast.escaping import visible

INTERRUPTED: Final = 130

NO_STDOUT: Final = "holdfast.no_stdout"
"""Key of `click.Context.meta`: whether stdout was closed at the start."""

_SECTIONS: Final = {
    "Jobs": {
        "add": ("add", "Add jobs: one payload, a file, or a job per line."),
        "work": ("work", "Run a worker in the foreground."),
        "peek": ("look", "Show the next jobs, or those in another state."),
        "show": ("look", "Show one job in full."),
        "explain": ("look", "Say why a job is not running."),
        "result": ("look", "Show how a job ended, with its result."),
        "failed": ("failed", "Show failed jobs, with their errors."),
        "revive": ("manage", "Run failed jobs again."),
        "cancel": ("manage", "Cancel jobs."),
    },
    "Workers in any language": {
        "lease": ("lease", "Take jobs for a limited time, to run them in any language."),
        "extend": ("lease", "Keep a leased job for longer, while it runs."),
        "complete": ("lease", "Mark a leased job as done."),
        "retry": ("lease", "Count a failure, and try a leased job again later."),
        "fail": ("lease", "Mark a leased job as failed, without a retry."),
        "release": ("lease", "Give a leased job back, without counting a failure."),
    },
    "Queues": {
        "ls": ("look", "List the queues on a server."),
        "counts": ("look", "Count the jobs of a queue, by state."),
        "watch": ("watch", "Watch counts and rates of queues, live."),
        "events": ("events", "Show what happens in a queue, live."),
        "groups": ("look", "Show the groups that have jobs, with their limits."),
        "schedules": ("schedules", "Show the schedules that the workers of a queue declare."),
        "workers": ("workers", "Show the workers of a queue."),
        "fail-worker": ("workers", "Give back all jobs of a worker that is gone."),
        "pause": ("manage", "Stop handing out jobs until `resume`."),
        "resume": ("manage", "Hand out jobs again."),
        "tidy": ("manage", "Do a queue's upkeep now: due jobs, lapsed leases, old results."),
        "audit": ("manage", "Check a queue for damage; change nothing."),
        "repair": ("manage", "Repair what `audit` finds."),
        "delete": ("manage", "Remove a queue and everything in it."),
    },
    "Requests": {
        "request": ("request", "Create, watch and manage requests: work in parts."),
    },
    "Data on Spark": {
        "pipeline": ("pipeline", "Transform data on Spark: split into parts, published once."),
    },
    "Servers": {
        "server": ("server", "Run the embedded server in the foreground."),
        "doctor": ("server", "Check whether a server is safe for jobs, and what to change."),
        "load": ("server", "Load the library of this release, once, for users who may not."),
        "acl": ("server", "Print the ACL rule of a user for one queue."),
        "bench": ("bench", "Measure a server's speed, in a few seconds."),
    },
}
"""Each command: its module and its short help."""

_COMMANDS: Final = {
    name: found for commands in _SECTIONS.values() for name, found in commands.items()
}


class Suggesting(click.Group):
    """A group that suggests similar names for a misspelt command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            close = get_close_matches(name, self.list_commands(ctx), 3)
            meant = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"No such command {name!a}.{meant}")
        return super().resolve_command(ctx, args)


class Commands(Suggesting):
    """A group that imports commands when needed, and prints errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"holdfast.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands by section, without importing them."""
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, help) for name, (_, help) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; print an error as one line."""
        try:
            return super().invoke(ctx)
        except InvalidArgument as error:
            raise click.UsageError(one_line(error)) from error
        except HoldfastError as error:
            raise click.ClickException(one_line(error)) from error
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            # At exit Python flushes stdout: without this, it would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if error.errno == errno.ENOSPC:
                raise click.ClickException(
                    f"cannot write the output: {error.strerror}. The command itself was not undone"
                ) from error
            ctx.exit()  # The reader closed the pipe, as `head` does: not an error.


def one_line(error: HoldfastError) -> str:
    """Return an error as one line that is safe to print: names in it may hold anything."""
    text, _, _ = str(error).partition(" The log ends:\n")
    hint = ""
    if isinstance(error, ServerRefused | ServerUnavailable):
        hint = ". Run `holdfast doctor` to check the server"
    return visible(text.rstrip(".")) + hint


@click.group(
    "holdfast",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  holdfast add emails '{"to": "ann@example.org"}' --priority 90
  holdfast work myapp.jobs:queue
  holdfast watch emails
  holdfast doctor""",
)
@click.version_option(package_name=distribution.NAME, prog_name="holdfast")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Add, run and manage jobs in Holdfast queues on Redis or Valkey.

    Commands use the server in --url, else the one in HOLDFAST_URL, else the embedded server, which
    starts by itself. `holdfast COMMAND --help` shows options and examples.
    """
    ctx.meta[NO_STDOUT] = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # Closed: the next socket would get its descriptor.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    # Without a buffer (PYTHONUNBUFFERED) Python takes a partial write for a complete one.
    if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, raw = sys.stdout.encoding, sys.stdout.detach()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Never fail on a character.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    # Warnings about a server are for programs; here `doctor` shows them. `work` sets up logging.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
