"""One run of one part: read it, transform it, write it into a directory of its own."""

from __future__ import annotations

import datetime as dt
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import getpid
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.pipeline import stages
from holdfast.spark.pipeline.apart import forget_cached
from holdfast.spark.pipeline.applying import Rows, finished, transformed
from holdfast.spark.pipeline.files import Files, as_url, for_spark
from holdfast.spark.pipeline.foreign import schema_json
from holdfast.spark.pipeline.formats import own_options
from holdfast.spark.pipeline.order import Done, Order, Plan, Slice, Stamp, safe
from holdfast.spark.pipeline.pinning import difference, own_session
from holdfast.spark.pipeline.reading import read, read_nothing
from holdfast.worker import Fail, RunningJob

_EXACT: Final = {
    "datetimeRebaseModeInWrite": "CORRECTED",
    "int96RebaseModeInWrite": "CORRECTED",
    "outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings with which Parquet keeps every moment as it is."""


def run_part(spark: SparkSession, files: Files, plan: Plan, some: Slice, job: RunningJob) -> Done:
    """Run a transform over a part; return what it came to."""
    order = plan.order
    number = job.id.rpartition("/")[2]
    attempt = f"{int(number):05d}.{safe(job.token)}"
    scratch = f"{order.staging}/_piece.{attempt}"
    began = time.time()
    new_session = partial(own_session, spark, plan.settings)
    _refuse_changed(files, some)
    with _tidying(files, order.staging, attempt, scratch):
        frame = read(new_session(), files, plan, some, scratch)
        rows: Rows = "open" if some.files else "empty"
        with transformed(order.transform, order.params, frame, rows, plan, new_session) as result:
            _refuse_other_columns(plan, result)
            done = write(spark, files, stored(result, order), order, job, attempt, began)
        _refuse_changed(files, some)  # Also while it was read.
        return done


def try_transform(spark: SparkSession, files: Files, plan: Plan, job: RunningJob) -> None:
    """Call the transform of a request as a part does, on no rows; raise what all parts would meet.

    No file of the input is looked at: a file that is gone or corrupt is a matter of its part.
    """
    order = plan.order
    empty = f"{order.staging}/_check.{safe(job.token)}"
    files.make(empty)
    try:
        new_session = partial(own_session, spark, plan.settings)
        frame = read_nothing(new_session(), plan, empty)
        with transformed(
            order.transform, order.params, frame, "empty", plan, new_session
        ) as result:
            _refuse_other_columns(plan, result)
    finally:
        with suppress(Exception):  # What went wrong says more.
            files.remove(empty)


def run_finish(
    spark: SparkSession, files: Files, plan: Plan, winners: list[Done], job: RunningJob
) -> Done:
    """Run the last transform over what all parts wrote."""
    order = plan.order
    assert order.finish is not None
    attempt = f"finish.{safe(job.token)}"
    session = own_session(spark, plan.settings)
    parts = read_parts(session, plan, [f"{order.staging}/{done.attempt}" for done in winners])
    try:
        frame = finished(order.finish, order.finish_params, parts, plan)
        with _tidying(files, order.staging, attempt):
            writer = as_output(frame, order)
            return write(session, files, writer, order, job, attempt, time.time())
    finally:
        forget_cached(session)


def read_parts(spark: SparkSession, plan: Plan, paths: list[str]) -> DataFrame:
    """Return what parts wrote for a finish."""
    reader = spark.read.format("parquet").schema(StructType.fromJson(schema_json(plan.output)))
    return reader.options(**own_options("parquet")).load([for_spark(path) for path in paths])


def as_output(frame: DataFrame, order: Order) -> DataFrameWriter:
    """Return how the rows of an output are written."""
    return frame.write.format(order.output_format).options(**order.output_options)


def stored(frame: DataFrame, order: Order) -> DataFrameWriter:
    """Return how the rows of a part are written; for a finish, in a form that keeps their types."""
    if order.finish is None:
        return as_output(frame, order)
    for name, value in _EXACT.items():
        frame.sparkSession.conf.set(f"spark.sql.parquet.{name}", value)
    return frame.write.format("parquet")


def _refuse_other_columns(plan: Plan, frame: DataFrame) -> None:
    planned = StructType.fromJson(schema_json(plan.output))
    if differs := difference(planned, frame.schema):
        raise Fail(f"{plan.order.transform} gave other columns than planned: {differs}")


def _refuse_changed(files: Files, some: Slice) -> None:
    """Refuse files that are not those of the plan: parts would be of different inputs."""
    for path, planned in zip(some.files, some.stamps, strict=True):
        now = files.stamp(path)
        if now == planned:
            continue
        if now is None:
            what = "is gone"
        else:
            what = (
                f"has changed: {planned.size} bytes of {_moment(planned)} when the request was "
                f"planned, {now.size} bytes of {_moment(now)} now"
            )
        raise Fail(f"{path} {what}. Put it back as it was, or submit the request again")


def _moment(stamp: Stamp) -> str:
    moment = dt.datetime.fromtimestamp(stamp.modified_ms / 1000, dt.UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds")


@contextmanager
def _tidying(files: Files, staging: str, attempt: str, scratch: str = "") -> Iterator[None]:
    """Leave nothing behind of a run that went wrong, or came too late."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # What went wrong says more.
            files.remove(f"{staging}/{attempt}")
        raise
    finally:
        with suppress(Exception):
            if scratch:
                files.remove(scratch)
            files.remove_empty(staging)  # A late run may have made it again.


def write(
    spark: SparkSession,
    files: Files,
    writer: DataFrameWriter,
    order: Order,
    job: RunningJob,
    attempt: str,
    began: float,
) -> Done:
    """Write a DataFrame into a directory of its own; raises `LeaseLost` when that was too late."""
    target = f"{order.staging}/{attempt}"
    writer.save(as_url(target))
    job.extend()
    names = [name for name in files.names(target) if name[0] not in "._"]
    seen = stages.rows(spark.sparkContext, group_of(job))
    return Done(
        attempt,
        names,
        seen.read,
        seen.written,
        began,
        time.time() - began,
        f"{platform.node()}:{getpid()}",
        job.failures + job.lapses + 1,
    )


def group_of(job: RunningJob) -> str:
    """Return the name of the jobs that Spark runs for this run."""
    return f"{job.id} {job.token}"
