"""`holdfast work`: run a worker in the foreground."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import click

from holdfast.cli import reloading
from holdfast.cli.loading import HINT, Functions, named
from holdfast.cli.logs import application_first
from holdfast.cli.options import duration, url_option
from holdfast.client.aio.queue import AsyncQueue
from holdfast.client.handlers import Declared
from holdfast.client.sync.queue import Queue
from holdfast.worker import Worker

log = logging.getLogger("holdfast")

_EXAMPLES = """
\b
Examples:
  holdfast work myapp.jobs
  holdfast work myapp.jobs:worker
  holdfast work myapp.mail:queue myapp.reports:queue --concurrency 4
  holdfast work --queue emails myapp.jobs:send
  holdfast work -q urgent -q bulk --strict myapp.jobs:handle
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
@click.argument("targets", metavar=f"{HINT}...", nargs=-1, required=True)
@click.option("-q", "--queue", "queues", multiple=True, help="A queue to work on; may be repeated.")
@url_option
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
    help="What to log; info by default. If the module sets up logging: what Holdfast logs there.",
)
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug.")
@click.option("--reload", is_flag=True, help="Start again when a file changes: for development.")
def work(
    targets: tuple[str, ...],
    until_empty: bool,
    log_level: str | None,
    verbose: bool,
    reload: bool,
    **options: Any,
) -> None:
    """Run a worker until it is told to stop.

    MODULE:NAME is a Worker, a Queue that has handlers, or with --queue a function. MODULE alone is
    the one Worker in it, the one Queue that has handlers, or with --queue its functions handle
    and handle_failure. Of several queues one worker runs the jobs.

    SIGTERM or Ctrl-C let it finish what runs; a second one gives all back at once. Exits with 0
    when all that had begun was finished, else with 1.
    """
    level = "debug" if verbose else log_level
    with reloading.mended() if reload else nullcontext(), application_first(level):
        worker = _worker(targets, options)
    with ExitStack() as stack:
        again = stack.enter_context(reloading.watched(worker.ask_to_stop)) if reload else bool
        log.info("starting: %s", worker.describe())
        clean = worker.run(until_empty=until_empty)
        if again():
            reloading.restart()
    if clean:
        log.info("stopped: everything that had begun was finished")
    else:
        log.warning("stopped: jobs that were not finished were given back")
    sys.exit(0 if clean else 1)


def _worker(targets: tuple[str, ...], options: dict[str, Any]) -> Worker:
    """Return the worker that is named, or one for the queues or the function that are."""
    queues, url = options.pop("queues"), options.pop("url")
    # Not what is merely false: a grace of 0 is one.
    given = {name: value for name, value in options.items() if value is not None}
    if not given["strict"]:
        del given["strict"]
    found = [named(target, with_queue=bool(queues)) for target in targets]
    if len(targets) > 1:
        _check_queues(targets, found)
    if isinstance(found[0], Worker):
        _check_nothing_else(targets[0], [*given, *_said(queues, url)])
        return found[0]
    if isinstance(found[0], Queue | AsyncQueue):
        if queues or url:
            raise click.UsageError(
                f"{targets[0]} is a queue: give neither --queue nor --url, both are set there"
            )
        return Worker([one for one in found if isinstance(one, Queue | AsyncQueue)], **given)
    functions = _functions(targets[0], found[0])
    if not queues:
        raise click.UsageError(
            f"{targets[0]} is a function: say which queue it works on with --queue"
        )
    worker = Worker([Queue(name, url) for name in queues], **given)
    worker.handler(functions.handle)
    if functions.handle_failure:
        worker.failure_handler(functions.handle_failure)
    return worker


def _said(queues: tuple[str, ...], url: str | None) -> list[str]:
    return [name for name, value in (("queue", queues), ("url", url)) if value]


def _check_queues(targets: tuple[str, ...], found: list[object]) -> None:
    for target, one in zip(targets, found, strict=True):
        if not isinstance(one, Queue | AsyncQueue):
            kind = "a Worker" if isinstance(one, Worker) else "no queue"
            raise click.UsageError(
                f"{target} is {kind}: only queues can be worked on together. Start a process for "
                "each of the others"
            )


def _check_nothing_else(target: str, given: list[str]) -> None:
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"{target} is a Worker, which has its options from where it is made, as its handlers "
            f"were checked against them: set {options} there, or name its queue instead"
        )


def _functions(target: str, found: object) -> Functions:
    """Return what runs jobs, of a function or of a module; refuse what cannot."""
    functions = found if isinstance(found, Functions) else None
    handle: object = functions.handle if functions else found
    if isinstance(handle, Declared):
        raise click.BadParameter(
            f"{target} is a handler of a queue: name that queue, and all its handlers run",
            param_hint=HINT,
        )
    if not callable(handle):
        raise click.BadParameter(
            f"{target} is {type(found).__name__}, neither a Worker, a Queue nor a function",
            param_hint=HINT,
        )
    if functions:
        return functions
    function: Callable[..., Any] = handle
    return Functions(function)
