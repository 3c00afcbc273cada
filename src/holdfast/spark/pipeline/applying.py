"""Calling a transform: on an input that it cannot read yet, and with a check of what it built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline.gate import Gate, behind_a_gate, forget_cached
from holdfast.spark.pipeline.rowwise import (
    constants,
    fingerprint,
    reads_file_facts,
    refuse_staged_names,
    refuse_unequal,
)
from holdfast.spark.pipeline.transforms import Transform, UnknownTransform, find
from holdfast.spark.pipeline.trouble import Permanent, is_bug, is_lost, reason
from holdfast.worker import Fail, Release, Retry

Rows: TypeAlias = Literal["open", "empty"]

GIVEN_BACK_SECONDS: Final = 30.0
_ALL_ROWS: Final = "holdfast_all_rows"
"""The view that a finish is given, in a session of its own."""


class GivenBack(Release):
    """Give a job back that another worker can run, or this worker after the next deploy."""

    def __init__(self, why: str) -> None:
        super().__init__(after=GIVEN_BACK_SECONDS)
        self.why = why


class Trial(NamedTuple):
    """What a transform gave before there was a part."""

    schema: StructType
    reads_file_facts: bool
    constants: str
    """A fingerprint of the constants in its plan; "" if each part may have its own."""


def tried(name: str, params: dict[str, object], frame: DataFrame) -> Trial:
    """Call a transform before there is a part, and refuse it for the reasons that parts have.

    It cannot read the input. A transform with per_part=True may run queries, and finds no rows.
    Others are called twice, as each part calls them again, and must build the same plan.
    """
    found, given = _known(name, params)
    with _gated(frame) as (gated, gate):
        result = called(found, given, gated, gate, "empty")
        if found.per_part:
            return Trial(result.schema, reads_file_facts(result, gate), "")
        first = constants(result)
        second = constants(called(found, given, gated, gate, "empty"))
        if first != second:
            raise _other_constants(name, sorted(set(first) - set(second)))
        return Trial(result.schema, reads_file_facts(result, gate), fingerprint(first))


@contextmanager
def transformed(
    name: str, params: dict[str, object], frame: DataFrame, rows: Rows, planned: str
) -> Iterator[DataFrame]:
    """Give the result of a transform over a part; refuse it if one job would differ.

    rows     "open" to read them when it is written; "empty" where the input has no files
    planned  the fingerprint of the constants in its plan, if all parts must have the same
    """
    found, given = _known(name, params)
    with _gated(frame) as (gated, gate):
        result = called(found, given, gated, gate, rows)
        if planned and not found.per_part and fingerprint(constants(result)) != planned:
            raise _other_constants(name)
        gate.state = rows
        yield result


@contextmanager
def _gated(frame: DataFrame) -> Iterator[tuple[DataFrame, Gate]]:
    gated, gate = behind_a_gate(frame)
    try:
        yield gated, gate
    finally:
        with suppress(Exception):  # What went wrong says more.
            forget_cached(gated)


def called(
    found: Transform, given: dict[str, Any], frame: DataFrame, gate: Gate, per_part: Rows
) -> DataFrame:
    """Call a transform on a part behind a gate, and check what it built.

    per_part  the rows that a transform with per_part=True can read while it is called
    """
    if found.per_part:
        gate.state = per_part
        return call(found, given, frame)
    try:
        result = call(found, given, frame)
    except Exception as error:
        if gate.was_read:
            raise _looked(found.name) from error
        raise
    if gate.was_read:
        raise _looked(found.name)
    refuse_unequal(found.name, result, gate)
    return result


def _looked(name: str) -> Fail:
    return Fail(
        f"{name} runs a query on its input (count, first, collect, toPandas, write, rdd, …) while "
        "it is called, and would see one part instead of all rows. Return a DataFrame that says "
        "what to do with each row. What needs all rows belongs into a transform for finish=; "
        "declare the transform with @transform(per_part=True) if each part is to be read alone"
    )


def _other_constants(name: str, seen: Sequence[str] = ()) -> Fail:
    example = f" ({' '.join(seen)[:100]})" if seen else ""
    return Fail(
        f"{name} does not build the same plan each time: constants or functions{example} differ "
        "from call to call, and so from part to part. Pass times, random numbers and facts of one "
        "machine as parameters of the request, or declare the transform with "
        "@transform(per_part=True)"
    )


def finished(name: str, params: dict[str, object], frame: DataFrame) -> DataFrame:
    """Return the result of the finish transform, which sees all rows.

    It finds them in a view, which has no `_metadata`: they are in files of ours.
    """
    frame.createTempView(_ALL_ROWS)
    result = call(*_known(name, params), frame.sparkSession.table(_ALL_ROWS))
    refuse_staged_names(name, result)
    return result


def _known(name: str, params: dict[str, object]) -> tuple[Transform, dict[str, Any]]:
    try:
        found = find(name)
        return found, found.parameters(params)
    except UnknownTransform as error:
        raise GivenBack(error.in_a_worker()) from error
    except InvalidArgument as error:
        raise GivenBack(str(error)) from error


def call(found: Transform, given: dict[str, Any], frame: DataFrame) -> DataFrame:
    """Call a transform. An error that would be raised again fails the job at once."""
    try:
        result = found.function(frame, **given)
    except (Fail, Retry, Release):
        raise
    except Exception as error:
        if is_lost(frame.sparkSession) or not is_bug(error):
            raise
        raise Permanent(f"{found.name}: {reason(error)}") from error
    if not isinstance(result, DataFrame):
        raise Fail(f"{found.name} returned {type(result).__name__}: it must return a DataFrame")
    if not result.sparkSession._jsparkSession.equals(frame.sparkSession._jsparkSession):
        raise Fail(
            f"{found.name} returned a DataFrame of another session, which has other settings than "
            "the request. Make other tables with df.sparkSession"
        )
    return result
