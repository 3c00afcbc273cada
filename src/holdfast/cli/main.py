"""The group of commands, and what they have in common: help, errors, exit codes.

Commands are imported when they are used, so that `--help` and shell completion are quick.

    0    done
    1    it could not be done; one line on stderr says why, and what to do
    2    it was not understood: a wrong option, a wrong value
    130  Ctrl-C
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from importlib import import_module
from typing import Any, Final

import click

from holdfast.errors import HoldfastError, InvalidArgument, ServerRefused, ServerUnavailable

INTERRUPTED: Final = 130

_SECTIONS: Final = {
    "Jobs": {
        "add": ("add", "Add jobs: one payload, a file, or a job per line."),
        "work": ("work", "Run a worker until it is told to stop."),
        "peek": ("look", "Show the next jobs, or those of another state."),
        "show": ("look", "Show all about one job."),
        "explain": ("look", "Say why a job is not running."),
        "result": ("look", "Show how a job ended, with its result."),
        "failed": ("look", "Show failed jobs, with their errors."),
        "revive": ("manage", "Let failed jobs run again."),
        "cancel": ("manage", "Let jobs not run again."),
    },
    "Queues": {
        "ls": ("look", "List the queues on a server."),
        "counts": ("look", "Count the jobs of a queue, by state."),
        "watch": ("watch", "Watch counts and rates of queues, live."),
        "workers": ("look", "Show who works on a queue."),
        "pause": ("manage", "Grant no lease until resume."),
        "resume": ("manage", "Grant leases again."),
        "tidy": ("manage", "Promote, reclaim and prune now."),
        "audit": ("manage", "Look for what is broken; change nothing."),
        "repair": ("manage", "Mend what audit finds."),
        "delete": ("manage", "Remove a queue and everything in it."),
    },
    "Requests": {
        "request": ("request", "Look at requests, and steer them."),
    },
    "Data on Spark": {
        "pipeline": ("pipeline", "Transform data on Spark: split into parts, published once."),
    },
    "Servers": {
        "server": ("server", "Run the embedded server in the foreground."),
        "doctor": ("server", "Tell what a server keeps, and what to do about it."),
        "bench": ("bench", "Measure a server, in a few seconds."),
    },
}
"""Each command: the module that has it, and its short help."""

_COMMANDS: Final = {
    name: found for commands in _SECTIONS.values() for name, found in commands.items()
}


class Commands(click.Group):
    """Commands that are imported when needed, and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name."""
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"holdfast.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands by what they are about, without importing them."""
        for section, commands in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, help) for name, (_, help) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what goes wrong is said in one line."""
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
            # What could not be written shall not be tried again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if error.errno == errno.ENOSPC:
                raise click.ClickException(f"cannot write: {error.strerror}") from error
            ctx.exit()  # A reader that has enough is no error.


def one_line(error: HoldfastError) -> str:
    """Return an error for a terminal: names in it may hold anything."""
    from holdfast.cli.text import visible  # noqa: PLC0415  (not needed for help)

    text, _, _ = str(error).partition(" The log ends:\n")
    hint = ""
    if isinstance(error, ServerRefused | ServerUnavailable):
        hint = ". `holdfast doctor` looks closer"
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
@click.version_option(package_name="holdfast", prog_name="holdfast")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Work with Holdfast queues: jobs that are not lost.

    The server is the one in --url, else the one in HOLDFAST_URL, else the embedded one.
    `holdfast COMMAND --help` shows options and examples.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # It is closed: the next socket would get its number.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # No letter is worth a traceback.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    # Warnings about a server are for programs; here `doctor` tells them. `work` sets up a log.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
