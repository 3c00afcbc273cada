"""`holdfast work`: run a worker in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast.aqueue import AsyncQueue
from holdfast.calling import Declared
from holdfast.cli.loading import load
from holdfast.cli.options import duration, log_to_stderr
from holdfast.queue import Queue
from holdfast.worker import Worker

_EXAMPLES = """
\b
Examples:
  holdfast work myapp.jobs:worker
  holdfast work myapp.jobs:queue
  holdfast work --queue emails myapp.jobs:send
  holdfast work -q urgent -q bulk --strict --concurrency 4 myapp.jobs:handle
  holdfast work -q videos --executor process --concurrency auto myapp.jobs:encode
"""


def _concurrency(value: str) -> int | str:
    if value == "auto":
        return value
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r}: should be a number, or auto") from None


@click.command(epilog=_EXAMPLES)
@click.argument("target", metavar="MODULE:NAME")
@click.option("-q", "--queue", "queues", multiple=True, help="A queue to work on; may be repeated.")
@click.option("--url", help="Where the server is; else HOLDFAST_URL, else the embedded one.")
@click.option(
    "--executor",
    type=click.Choice(["thread", "process", "async"]),
    help="Where plain functions run.",
)
@click.option(
    "--concurrency", type=_concurrency, metavar="N|auto", help="How many handlers run at a time."
)
@click.option("--recycle-after", type=int, help="Jobs after which a process is replaced.")
@click.option(
    "--max-megabytes", type=int, help="What a process may have of its own, with all it started."
)
@click.option("--strict", is_flag=True, help="The first queue that has work, instead of turns.")
@click.option(
    "--lease",
    type=duration,
    metavar="DURATION",
    help="How long until others get the jobs of a dead worker.",
)
@click.option(
    "--grace",
    type=duration,
    metavar="DURATION",
    help="How long it may take to finish after SIGTERM or Ctrl-C.",
)
@click.option("--until-empty", is_flag=True, help="End when there is nothing to do.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log to stderr.",
)
def work(target: str, until_empty: bool, log_level: str, **options: Any) -> None:
    """Run a worker until it is told to stop.

    MODULE:NAME is a Worker, a Queue that has handlers, or with --queue a function.

    SIGTERM or Ctrl-C let it finish what runs; a second one gives all back at once. Exits with 0
    when all that had begun was finished, else with 1.
    """
    log_to_stderr(log_level)
    worker = _worker(target, _load(target), options)
    clean = worker.run(until_empty=until_empty)
    sys.exit(0 if clean else 1)


def _load(target: str) -> object:
    """Return what MODULE:NAME names."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name) or module_name.startswith("."):
        raise click.BadParameter("should look like myapp.jobs:worker", param_hint="MODULE:NAME")
    found: object = load(module_name, "MODULE:NAME")
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"{module_name!r} has no {name!r}", param_hint="MODULE:NAME")
        found = getattr(found, part)
    return found


def _worker(target: str, found: object, options: dict[str, Any]) -> Worker:
    """Return the worker that is named, or one for the function that is."""
    queues, url = options.pop("queues"), options.pop("url")
    # Not what is merely false: a grace of 0 is one.
    given = {name: value for name, value in options.items() if value is not None}
    if not given["strict"]:
        del given["strict"]
    if isinstance(found, Worker):
        if queues or url or given:
            raise click.UsageError(
                f"{target} is a worker and says itself what it works on: options go with a function"
            )
        return found
    if isinstance(found, Queue | AsyncQueue):
        if queues or url:
            raise click.UsageError(f"{target} is a queue: give neither --queue nor --url")
        return Worker(found, **given)
    if isinstance(found, Declared):
        raise click.BadParameter(
            f"{target} is a handler of a queue: name that queue, and all its handlers run",
            param_hint="MODULE:NAME",
        )
    if not callable(found):
        raise click.BadParameter(
            f"{target} is {type(found).__name__}, neither a Worker, a Queue nor a function",
            param_hint="MODULE:NAME",
        )
    if not queues:
        raise click.UsageError(f"{target} is a function: say which queue it works on with --queue")
    handler: Callable[..., Any] = found
    worker = Worker([Queue(name, url) for name in queues], **given)
    worker.handler(handler)
    return worker
