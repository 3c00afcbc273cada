"""`holdfast pipeline …`: submit, run and watch requests over data on Spark."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.existing import check_exists
from holdfast.cli.following import follow
from holdfast.cli.loading import load
from holdfast.cli.logs import application_first
from holdfast.cli.main import Suggesting
from holdfast.cli.options import (
    NONE,
    ask_first,
    duration,
    examples,
    json_option,
    on_a_queue,
    opened,
    pause,
    yes_option,
)
from holdfast.cli.options import limit as as_limit
from holdfast.cli.text import (
    age,
    clock,
    emit,
    fields,
    in_iso,
    iso,
    many,
    progress_bar,
    red,
    seconds,
    table,
    when,
    yellow,
)
from holdfast.errors import MissingExtra, RequestNotFound, missing_extra
from holdfast.escaping import visible
from holdfast.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.pipeline import Handle, Pipeline, Progress

id_argument = click.argument("id", metavar="REQUEST")
roots_option = click.option(
    "--root",
    "roots",
    multiple=True,
    default=(".",),
    metavar="DIRECTORY",
    help="A directory that requests may read and write; may be repeated. By default this one.",
)
transforms_option = click.option(
    "--transforms",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="A module with transforms; may be repeated.",
)


@click.group(
    cls=Suggesting,
    epilog=examples(
        "pipeline work reports --transforms myapp.transforms --root /data",
        "pipeline submit reports clean 'sales/*.parquet' clean --transforms myapp.transforms",
        "pipeline status reports REQUEST --follow",
    ),
)
def pipeline() -> None:
    """Transform data on Spark: split into parts, published once."""


@contextmanager
def _needs_spark() -> Iterator[None]:
    """If Spark is missing, raise an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra("spark", error)
        if isinstance(missing, MissingExtra):
            raise click.ClickException(str(missing)) from error
        raise


def _pipeline(queue: str, url: str | None, roots: tuple[str, ...] = (".",)) -> Pipeline:
    with _needs_spark():
        from holdfast.spark.pipeline import Pipeline  # noqa: PLC0415
    return Pipeline(queue, opened(url), roots=roots)


def _load(modules: Iterable[str]) -> None:
    with _needs_spark():
        for module in modules:
            load(module, "--transforms")


def _handle(queue: str, url: str | None, id: str) -> Handle:
    return _existing(queue, url).handle(id)


def _existing(queue: str, url: str | None) -> Pipeline:
    """Return the pipeline of an existing queue."""
    found = _pipeline(queue, url)
    check_exists(found.queue)
    return found


def _parameters(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> Any:  # noqa: ARG001
    """Return NAME=VALUE options as a dict. A value that is not JSON stays text."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} should look like name=value")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = value
        with suppress(ValueError):
            found[name] = json.loads(value)
    return found


# ------------------------------------------------------------------- submit


@pipeline.command(
    epilog=examples(
        "pipeline submit reports clean 'sales/*.parquet' clean --param min_amount=1.5",
        "pipeline submit reports clean logs/*.csv out --option header=true --to parquet --wait",
    )
)
@on_a_queue
@click.argument("transform")
@click.argument("input", nargs=-1, required=True)
@click.argument("output")
@click.option("--param", "params", multiple=True, callback=_parameters, metavar="NAME=VALUE")
@click.option("--id", help="The id of the request; generated if left out.")
@click.option(
    "--priority", type=int, default=50, show_default=True, help="0 to 99, higher runs sooner."
)
@click.option("--limit", type=as_limit, help="How many parts may run at a time.")
@click.option("--part-size", default="128 MB", show_default=True)
@click.option(
    "--from", "format", metavar="FORMAT", help="Input format; by default from the file names."
)
@click.option("--option", "options", multiple=True, callback=_parameters, metavar="NAME=VALUE")
@click.option("--schema", help="Schema of the input, such as 'id LONG, name STRING'.")
@click.option(
    "--to", "output_format", metavar="FORMAT", help="Output format; by default the input's."
)
@click.option(
    "--output-option", "output_options", multiple=True, callback=_parameters, metavar="NAME=VALUE"
)
@click.option("--mode", type=click.Choice(["error", "overwrite", "append"]), default="error")
@click.option("--finish", help="A transform over the output of all parts.")
@click.option("--finish-param", "finish_params", multiple=True, callback=_parameters)
@click.option("--partial", is_flag=True, help="If parts fail, publish the output of the others.")
@click.option("--wait", is_flag=True, help="Follow the request until it has ended.")
@roots_option
@transforms_option
def submit(
    queue: str,
    url: str | None,
    transform: str,
    input: tuple[str, ...],
    output: str,
    roots: tuple[str, ...],
    modules: tuple[str, ...],
    wait: bool,
    limit: int | None,
    **options: Any,
) -> None:
    """Submit a request that transforms INPUT into OUTPUT. Prints its id."""
    _load(modules)
    handle = _pipeline(queue, url, roots).submit(
        transform,
        input=input,
        output=output,
        limit=None if limit == NONE else limit,
        **options,
    )
    click.echo(visible(handle.id))
    if wait:
        _follow(handle, every=1.0, as_json=False)


# --------------------------------------------------------------------- work


@pipeline.command(epilog=examples("pipeline work reports --transforms myapp.transforms"))
@on_a_queue
@roots_option
@transforms_option
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option("--memory", default="1g", show_default=True, help="Memory of the Spark driver.")
@click.option(
    "--concurrency", type=int, help="How many parts to run at a time; by default one per core."
)
@click.option("--lease", type=duration, default="15s", show_default=True)
@click.option("--grace", type=duration, default="30s", show_default=True)
@click.option("--until-empty", is_flag=True, help="Exit when there is nothing to do.")
def work(
    queue: str,
    url: str | None,
    roots: tuple[str, ...],
    modules: tuple[str, ...],
    master: str,
    memory: str,
    concurrency: int | None,
    lease: float,
    grace: float,
    until_empty: bool,
) -> None:
    """Plan, run and publish requests.

    After SIGTERM or Ctrl-C it finishes what is running; a second one gives everything back at once.
    """
    _fix_hashes()
    with application_first(None):
        _load(modules)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # It logs every call.
    working = _pipeline(queue, url, roots)
    _check_transforms(modules)
    Worker(working.queue, concurrency=concurrency, lease=lease, grace=grace)  # Before Java starts.
    spark = _session(f"holdfast {queue}", master, memory)
    click.echo(f"working on {visible(queue)}", err=True)
    if not working.work(
        spark, concurrency=concurrency, lease=lease, grace=grace, until_empty=until_empty
    ):
        click.get_current_context().exit(1)


def _fix_hashes() -> None:
    """Begin anew with the hashes of every other worker, so that sets have one order in all."""
    program = Path(sys.argv[0]).name
    if program in ("holdfast", "__main__.py") and "PYTHONHASHSEED" not in os.environ:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _check_transforms(modules: tuple[str, ...]) -> None:
    """Refuse a worker that would give every request back."""
    from holdfast.spark.pipeline.transforms import registered  # noqa: PLC0415

    if not registered():
        why = f"{', '.join(modules)} registers none with @transform" if modules else ""
        raise click.UsageError(
            "this worker would know no transforms: "
            + (why or "name the modules that have them with --transforms")
        )


def _session(name: str, master: str, memory: str) -> SparkSession:
    from holdfast.spark import session  # noqa: PLC0415
    from holdfast.spark.pipeline.trouble import reason  # noqa: PLC0415
    from holdfast.spark.session import START_ERRORS  # noqa: PLC0415

    try:
        return session(name, master=master, memory=memory)
    except START_ERRORS as error:
        why = visible(reason(error)).rstrip(".")
        raise click.ClickException(
            f"Spark does not start with --master {visible(master)} and --memory {memory}: {why}. "
            "Java may say more above"
        ) from error


# --------------------------------------------------------------------- look


@pipeline.command(epilog=examples("pipeline ls reports", "pipeline ls reports -n 100 --json"))
@on_a_queue
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many to show: the newest.",
)
@json_option
def ls(queue: str, url: str | None, count: int, as_json: bool) -> None:
    """List the requests, the oldest first, also those remembered after their end."""
    existing = _existing(queue, url)
    statuses = existing.queue.requests()
    found: list[tuple[float, Progress]] = []
    for status in statuses[-count:]:
        with suppress(RequestNotFound):  # Forgotten meanwhile.
            found.append((status.opened_at, existing.handle(status.id).progress()))
    if as_json:
        emit([{**_builtins(one), "opened_at": iso(opened_at)} for opened_at, one in found])
        return
    numbers = ("done", "failed", "running", "parts")
    table(
        ("request", "state", *numbers, "opened", "when", "why"),
        [
            (
                *(one.id, _state(one), one.done, red(one.failed, when=one.failed)),
                *(one.running, one.parts, clock(opened_at) or "", age(opened_at)),
                one.error or yellow(one.waiting_because or ""),
            )
            for opened_at, one in found
        ],
        right=numbers,
        drop=("opened", "running", "why", "when"),
        none="no requests",
    )
    if len(statuses) > count:
        click.echo(f"… the newest of {many(len(statuses), 'request')}", err=True)


def _state(progress: Progress) -> object:
    return red(progress.state, when=progress.state == "failed")


@pipeline.command(
    epilog=examples("pipeline status reports REQUEST", "pipeline status reports REQUEST --follow")
)
@on_a_queue
@id_argument
@click.option(
    "--follow", is_flag=True, help="Follow it until it has ended; exits with 0 if it is done."
)
@click.option(
    "--every", type=pause, metavar="DURATION", default=1.0, help="Time between two updates; 1s."
)
@json_option
def status(queue: str, url: str | None, id: str, follow: bool, every: float, as_json: bool) -> None:
    """Show the progress of a request."""
    handle = _handle(queue, url, id)
    if follow:
        _follow(handle, every, as_json)
        return
    progress = handle.progress()
    if as_json:
        emit(_builtins(progress))
        return
    settled = progress.parts - progress.waiting - progress.running
    counted = progress.counted
    uncounted = f" in the first {counted:,} parts that ended" if counted < settled else ""
    fields(
        [
            ("request", progress.id),
            ("state", _state(progress)),
            ("error", progress.error),
            ("parts", progress.parts),
            ("done", progress.done),
            ("running", progress.running),
            ("waiting", progress.waiting),
            ("failed", red(progress.failed, when=progress.failed)),
            ("rows in", f"{progress.rows_in:,}{uncounted}"),
            ("rows out", f"{progress.rows_out:,}{uncounted}"),
            ("ends" if not progress.ended else "ended", when(progress.ends_at)),
            ("warning", progress.warning),
            ("waiting because", progress.waiting_because and yellow(progress.waiting_because)),
            *((f"part {number}", error) for number, error in progress.errors.items()),
        ]
    )


def _follow(handle: Handle, every: float, as_json: bool) -> None:
    progress = follow(handle.progress, _line, _builtins if as_json else None, every)
    if progress.state != "done":
        click.get_current_context().exit(1)


def _builtins(progress: Progress) -> Any:
    return in_iso(msgspec.to_builtins(progress, str_keys=True), "ends_at")


def _line(progress: Progress) -> str:
    words = [f"{progress.done:,} of {progress.parts:,} parts", progress.state]
    if progress.running:
        words.append(f"{progress.running:,} running")
    if progress.failed:
        words.append(click.style(f"{progress.failed:,} failed", fg="red"))
    if progress.rows_out:
        words.append(f"{progress.rows_out:,} rows")
    if progress.ends_at is not None and not progress.ended:
        words.append(f"{seconds(max(0.0, progress.ends_at - time.time()))} left")
    if progress.error:
        words.append(visible(progress.error))
    if progress.waiting_because:
        words.append(f"waiting because: {visible(progress.waiting_because)}")
    return f"{progress_bar(round(progress.fraction * 100), 100)} {', '.join(words)}"


@pipeline.command(epilog=examples("pipeline report reports timeline.png"))
@on_a_queue
@click.argument("picture", type=click.Path(dir_okay=False))
def report(queue: str, url: str | None, picture: str) -> None:
    """Draw which worker ran which part, and when, into the file PICTURE."""
    click.echo(_existing(queue, url).plot(picture))


# -------------------------------------------------------------------- steer


@pipeline.command(epilog=examples("pipeline cancel reports REQUEST --yes"))
@on_a_queue
@id_argument
@yes_option
def cancel(queue: str, url: str | None, id: str, yes: bool) -> None:
    """Cancel a request: no more parts run, and nothing is published."""
    ask_first(f"Cancel {visible(id)}?", yes=yes)
    if not _handle(queue, url, id).cancel():
        raise click.ClickException(f"{visible(id)} has already ended")


@pipeline.command(epilog=examples("pipeline revive reports REQUEST"))
@on_a_queue
@id_argument
def revive(queue: str, url: str | None, id: str) -> None:
    """Run again what failed: the plan, parts, or the publishing."""
    click.echo(f"{_handle(queue, url, id).revive()} revived")
