"""`holdfast work`: run a worker in the foreground."""

from __future__ import annotations

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
from holdfast.escaping import logger
from holdfast.worker import Worker

log = logger(__name__)

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
@click.option("--recycle-after", type=int, help="Replace a process after this many jobs.")
@click.option(
    "--max-megabytes", type=int, help="Limit on the memory of a process and all that it started."
)
@click.option(
    "--strict",
    is_flag=True,
    help="Take jobs from the first queue that has any, instead of in turns.",
)
@click.option(
    "--lease",
    type=duration,
    metavar="DURATION",
    help="How long until other workers get the jobs of a dead one.",
)
@click.option(
    "--grace",
    type=duration,
    metavar="DURATION",
    help="How long running jobs may take to finish after SIGTERM or Ctrl-C.",
)
@click.option("--until-empty", is_flag=True, help="Exit when there is nothing to do.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log level; info by default. If the module sets up logging: only the level of Holdfast.",
)
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug.")
@click.option("--reload", is_flag=True, help="Restart when a file changes: for development.")
def work(
    targets: tuple[str, ...],
    until_empty: bool,
    log_level: str | None,
    verbose: bool,
    reload: bool,
    **options: Any,
) -> None:
    """Run a worker in the foreground.

    MODULE:NAME is a Worker, a Queue with handlers or, with --queue, a function. MODULE alone stands
    for the only Worker in it, the only Queue with handlers or, with --queue, its functions handle
    and handle_failure. If several queues are named, one worker runs the jobs of all.

    After SIGTERM or Ctrl-C it finishes the running jobs; a second one gives them back at once.
    Exits with 0 if all started jobs were finished, else with 1.
    """
    level = "debug" if verbose else log_level
    with reloading.restart_on_error() if reload else nullcontext(), application_first(level):
        worker = _worker(targets, options)
    with ExitStack() as stack:
        again = stack.enter_context(reloading.watched(worker.ask_to_stop)) if reload else bool
        log.info("starting: %s", worker.describe())
        clean = worker.run(until_empty=until_empty)
        if again():
            reloading.restart()
    if clean:
        log.info("stopped: all started jobs were finished")
    else:
        log.warning("stopped: unfinished jobs were given back")
    sys.exit(0 if clean else 1)


def _worker(targets: tuple[str, ...], options: dict[str, Any]) -> Worker:
    """Return the named worker, or a new one for the named queues or function."""
    queues, url = options.pop("queues"), options.pop("url")
    # Compared with None, as --grace 0 is false too.
    given = {name: value for name, value in options.items() if value is not None}
    if not given["strict"]:
        del given["strict"]
    found = [named(target, with_queue=bool(queues)) for target in targets]
    if len(targets) > 1:
        _check_queues(targets, found)
    if isinstance(found[0], Worker):
        _check_nothing_else(targets[0], [*given, *_queue_options(queues, url)])
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
            f"{targets[0]} is a function: name the queue it works on with --queue"
        )
    worker = Worker([Queue(name, url) for name in queues], **given)
    worker.handler(functions.handle)
    if functions.handle_failure:
        worker.failure_handler(functions.handle_failure)
    return worker


def _queue_options(queues: tuple[str, ...], url: str | None) -> list[str]:
    return [name for name, value in (("queue", queues), ("url", url)) if value]


def _check_queues(targets: tuple[str, ...], found: list[object]) -> None:
    for target, one in zip(targets, found, strict=True):
        if not isinstance(one, Queue | AsyncQueue):
            kind = "a Worker" if isinstance(one, Worker) else "not a queue"
            raise click.UsageError(
                f"{target} is {kind}: only queues can share a worker. Start a process for each of "
                "the others"
            )


def _check_nothing_else(target: str, given: list[str]) -> None:
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(
            f"{target} is a Worker, which gets its options where it is made, as they are checked "
            f"against its handlers: set {options} there, or name its queue instead"
        )


def _functions(target: str, found: object) -> Functions:
    """Return the functions of a target; refuse a target that cannot run jobs."""
    functions = found if isinstance(found, Functions) else None
    handle: object = functions.handle if functions else found
    if isinstance(handle, Declared):
        raise click.BadParameter(
            f"{target} is a handler of a queue: name that queue, to run all its handlers",
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
