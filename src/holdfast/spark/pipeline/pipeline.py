"""A pipeline: requests over data, split, transformed on Spark and published once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from holdfast import JobNotFound, NewJob, Queue, Request, Server, Worker, arguments
from holdfast.codec import new_id, utf8_name
from holdfast.engine.library import LEAST_KEPT_MS
from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline import foreign, transforms
from holdfast.spark.pipeline.formats import Format, input_options
from holdfast.spark.pipeline.formats import output_options as checked_output_options
from holdfast.spark.pipeline.handle import Handle
from holdfast.spark.pipeline.order import (
    Mode,
    Order,
    Target,
    check_output_name,
    format_of,
    is_a_file,
    size_of,
)
from holdfast.spark.pipeline.roots import Roots, paths

if TYPE_CHECKING:
    from typing import Self

    from pyspark.sql import SparkSession

    from holdfast.job import Duration

PART_SIZE = "128 MB"


class Pipeline:
    """A queue of requests over data: `submit` them here, `work` on them anywhere.

    name   of the queue
    url    of the server; else HOLDFAST_URL, else the embedded one
    roots  directories below which requests may read and write; a path that is not absolute begins
           at the first. By default the current directory. Directories of this machine must exist
    """

    def __init__(
        self,
        name: str,
        url: str | Server | None = None,
        *,
        roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = ".",
    ) -> None:
        self.queue = Queue(name, url)
        self.roots = Roots(roots)

    def close(self) -> None:
        """Close its connections."""
        self.queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Pipeline({self.queue.name!r}, {self.roots!r})"

    def submit(
        self,
        transform: str,
        *,
        input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        output: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        id: str | None = None,
        priority: int = 50,
        limit: int | None = None,
        part_size: int | str = PART_SIZE,
        format: Format | None = None,
        options: Mapping[str, object] | None = None,
        schema: str | None = None,
        output_format: Format | None = None,
        output_options: Mapping[str, object] | None = None,
        mode: Mode = "error",
        finish: str | None = None,
        finish_params: Mapping[str, Any] | None = None,
        partial: bool = False,
        max_failures: int = 3,
        keep_for: Duration = 86400,
    ) -> Handle:
        """Ask for an output: the input, transformed. Returns at once; workers do the rest.

        transform       the name of a function that is registered with `@transform`
        input, output   paths below the roots; the input may have patterns, and be several
        params          for the transform: JSON, checked against its signature here
        id              of the request; one that is used again means the same request
        priority        between requests: 0 to 99, higher runs sooner, also in the middle of another
        limit           how many of its parts may run at a time, on all workers together
        part_size       how much of the input a part has, about
        format, options, schema   how to read it, as Spark's reader takes them; names of files may
                        tell the format
        output_format, output_options   how to write it; by default in the format of the input
        mode            when the output is there: "error", "overwrite" or "append"
        finish          a transform over what all parts wrote, before it is published
        partial         publish what there is when parts have failed
        max_failures    how often a part is tried again
        keep_for        seconds for which the request is remembered when its parts are over; one
                        that is forgotten cannot be published any more
        """
        inputs = paths("input", input)
        kept = arguments.duration_ms("keep_for", keep_for, least=1, forever=True)
        if finish is None and finish_params:
            raise InvalidArgument("finish_params need finish=: name the transform that takes them")
        order = Order(
            id=_name(id),
            transform=transform,
            params=_params("params", transform, params),
            input=[self.roots.locate("input", path) for path in inputs],
            output=self.roots.locate_output(output),
            format=(read_as := format_of("format", format, inputs)),
            options=self._located(input_options(read_as, options or {})),
            schema=_schema(schema),
            output_format=(
                written_as := read_as
                if output_format is None
                else format_of("output_format", output_format, [])
            ),
            output_options=checked_output_options(written_as, output_options or {}),
            mode=_mode(mode),
            part_size=size_of(part_size),
            finish=finish,
            finish_params={} if finish is None else _params("finish_params", finish, finish_params),
            partial=arguments.flag("partial", partial),
            priority=arguments.priority(priority),
            limit=limit,
            max_failures=arguments.whole("max_failures", max_failures, 0, 1000),
        )
        foreign.check_order(self.roots, order)
        check_output_name(order.output, order.id)
        data = _encoded(order)
        request = self.queue.request(
            order.id,
            priority=priority,
            limit=limit,
            keep_for=keep_for,
            follow_up=NewJob(
                msgspec.json.encode(Target(order.output)),
                handler="publish",
                priority=priority,
                max_failures=max_failures,
                # As long as the request is kept, which is ten seconds at least.
                result_for=keep_for if kept > LEAST_KEPT_MS else LEAST_KEPT_MS / 1000,
            ),
        )
        if _is_planned(request):
            return self.handle(order.id)
        self._refuse_output(order)
        request.open()
        self.queue.add(
            data,
            id=f"{order.id}/plan",
            handler="plan",
            priority=priority,
            max_failures=max_failures,
            result_for=keep_for,
        )
        return self.handle(order.id)

    def _located(self, options: dict[str, str]) -> dict[str, str]:
        """Return options, with the option that is a path as a place below the roots."""
        return {
            name: self.roots.locate("options: basePath", value)
            if name.lower() == "basepath"
            else value
            for name, value in options.items()
        }

    def _refuse_output(self, order: Order) -> None:
        """Say at once what the publisher would say at the end, where it can be seen from here."""
        if Path(order.output).is_file():
            raise is_a_file(order.output)
        if order.mode == "error" and Path(order.output).exists():
            raise InvalidArgument(
                f"output {order.output} is there already: say mode='overwrite' or 'append'"
            )

    def handle(self, id: str) -> Handle:
        """Return a request that was submitted, here or elsewhere."""
        return Handle(self.queue, id, self.roots)

    def handles(self) -> list[Handle]:
        """Return the requests that are there or remembered, the oldest first."""
        return [self.handle(status.id) for status in self.queue.requests()]

    def plot(self, path: str | Path) -> Path:
        """Draw the parts of all requests that are remembered, by worker, into a picture."""
        from holdfast.spark.pipeline.report import draw  # noqa: PLC0415

        return draw(self.handles(), path, title=self.queue.name)

    # ------------------------------------------------------------------ work

    def work(
        self,
        spark: SparkSession,
        *,
        concurrency: int | None = None,
        lease: Duration = 15,
        grace: Duration = 30,
        until_empty: bool = False,
    ) -> bool:
        """Plan, run and publish requests until stopped, on this Spark session.

        concurrency  parts that run at a time here; by default one for each core of the session
        """
        with self._prepared(spark, concurrency, lease, grace) as worker:
            return worker.run(until_empty=until_empty)

    @contextmanager
    def working(
        self,
        spark: SparkSession,
        *,
        concurrency: int | None = None,
        lease: Duration = 15,
        grace: Duration = 30,
    ) -> Iterator[Worker]:
        """Work in the background for the block."""
        with self._prepared(spark, concurrency, lease, grace) as worker, worker:
            yield worker

    @contextmanager
    def _prepared(
        self, spark: SparkSession, concurrency: int | None, lease: Duration, grace: Duration
    ) -> Iterator[Worker]:
        from holdfast.spark.pipeline.working import Duties, SparkLost  # noqa: PLC0415

        if not hasattr(spark, "_jsc"):
            raise InvalidArgument(
                "a pipeline needs a classic SparkSession, such as holdfast.spark.session() returns "
                f"(no session of Spark Connect), not {arguments.shown(spark)}"
            )
        count = spark.sparkContext.defaultParallelism if concurrency is None else concurrency
        worker = Worker(self.queue, concurrency=count, lease=lease, grace=grace, ahead=0)
        duties = Duties(spark, self.queue, self.roots, worker)
        over = threading.Event()
        watch = threading.Thread(
            target=duties.watch, args=(over,), name="holdfast pipeline", daemon=True
        )
        watch.start()
        try:
            yield worker
        finally:
            over.set()
            watch.join(5)
        if duties.lost:
            raise SparkLost(f"Spark cannot work here: {duties.lost}. What ran here was given back")


def _name(id: str | None) -> str:
    if id is None:
        return new_id()
    utf8_name("id", id)
    return id


def _is_planned(request: Request) -> bool:
    try:
        status = request.status()
    except JobNotFound:
        return False
    return status.sealed or status.ended


def _params(name: str, transform: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    params = transforms.as_json(name, {} if given is None else given)
    transforms.find(transform).parameters(params)
    return params


def _encoded(order: Order) -> bytes:
    try:
        return msgspec.json.encode(order)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{arguments.shown(error.object)} cannot be written as UTF-8"
        ) from error


def _schema(schema: object) -> str | None:
    if schema is not None and not isinstance(schema, str):
        raise InvalidArgument(
            f"schema must be text, such as 'id LONG, name STRING', not {arguments.shown(schema)}"
        )
    return schema


def _mode(mode: object) -> Mode:
    if mode not in get_args(Mode):
        raise InvalidArgument(
            f"mode must be 'error', 'overwrite' or 'append', not {arguments.shown(mode)}"
        )
    return mode  # type: ignore[return-value]
