"""One run of one part: read it, transform it, write it into a directory of its own."""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import getpid
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline import stages, transforms
from holdfast.spark.pipeline.files import Files, as_url, for_spark
from holdfast.spark.pipeline.order import Done, Order, Plan, Slice, safe
from holdfast.spark.pipeline.reading import read
from holdfast.spark.pipeline.shuffles import refuse_shuffle
from holdfast.worker import Fail, Release, RunningJob

log = logging.getLogger("holdfast")

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*: ")


def run_part(spark: SparkSession, files: Files, plan: Plan, some: Slice, job: RunningJob) -> Done:
    """Run a transform over a part; return what it came to."""
    order = plan.order
    number = job.id.rpartition("/")[2]
    attempt = f"{int(number):05d}.{safe(job.token)}"
    scratch = f"{order.staging}/_piece.{attempt}"
    began = time.time()
    spark = own_session(spark)
    with _tidying(files, order.staging, attempt, scratch):
        frame = read(spark, files, plan, some, scratch)
        inputs = frame.inputFiles()
        frame = apply(order.transform, order.params, frame)
        if not transforms.find(order.transform).per_part:
            refuse_shuffle(order.transform, frame, inputs)
        done = write(spark, files, order, frame, job, attempt, began)
        if order.finish is not None:
            files.write_once(_schema_path(order), frame.schema.json().encode())
        return done


def run_finish(
    spark: SparkSession, files: Files, order: Order, winners: list[Done], job: RunningJob
) -> Done:
    """Run the last transform over what all parts wrote."""
    assert order.finish is not None
    attempt = f"finish.{safe(job.token)}"
    paths = [for_spark(f"{order.staging}/{done.attempt}") for done in winners]
    reader = own_session(spark).read.format(order.output_format).options(**order.output_options)
    if schema := files.read(_schema_path(order)):
        reader = reader.schema(StructType.fromJson(json.loads(schema)))
    frame = reader.load(paths)
    frame = apply(order.finish, order.finish_params, frame)
    with _tidying(files, order.staging, attempt):
        return write(spark, files, order, frame, job, attempt, time.time())


def _schema_path(order: Order) -> str:
    """Return where it is written what the parts write: their files may not tell."""
    return f"{order.staging}/_schema.json"


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings, and views of its own.

    Parts run side by side: a view that one of them makes must not be another's.
    """
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


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
            files.remove_empty(staging)  # Who comes too late may have made it anew.


def apply(name: str, params: dict[str, object], frame: DataFrame) -> DataFrame:
    """Call a transform."""
    try:
        found = transforms.find(name)
        given = found.parameters(params)
    except InvalidArgument as error:
        # Another worker may have it, or this one after the next deploy.
        log.warning("%s; the part is given back for 30 s", error)
        raise Release(after=30) from error
    result = found.function(frame, **given)
    if not isinstance(result, DataFrame):
        raise Fail(f"{name} returned {type(result).__name__}: it must return a DataFrame")
    return result


def write(
    spark: SparkSession,
    files: Files,
    order: Order,
    frame: DataFrame,
    job: RunningJob,
    attempt: str,
    began: float,
) -> Done:
    """Write a DataFrame into a directory of its own; raises `LeaseLost` when that was too late."""
    target = f"{order.staging}/{attempt}"
    writer = frame.write.format(order.output_format).options(**order.output_options)
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


def is_lost(spark: SparkSession) -> bool:
    """Tell whether the JVM is gone, and with it everything that could be run here."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError, AttributeError):
        return True


def reason(error: BaseException) -> str:
    """Return why a run failed, in a few lines: Java's stack says more than anybody can read."""
    cause: Any = None
    said: list[str] = []
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
    elif isinstance(error, PySparkException):
        cause = getattr(error, "_origin", None)
    if cause is None:
        said.append(f"{type(error).__name__}: {error}")
    while cause is not None:
        said.append(str(cause.getMessage() or cause.toString()))
        cause = cause.getCause()
    told: list[str] = []
    for text in said:
        line = _telling_line(text)
        if not any(line in before for before in told):
            told.append(line)
    return "\n".join([*told[:2], *told[2:][-1:]])[:2000]


def _telling_line(text: str) -> str:
    """Return the line that says what happened: of a Python stack it is the last."""
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("\tat ")]
    if "Traceback (most recent call last)" in text:
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[-1]
    return lines[0] if lines else ""
