"""Calling a transform: on an input that it cannot read yet, and with a check of what it built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline.apart import forget_cached
from holdfast.spark.pipeline.branches import refuse_unsure
from holdfast.spark.pipeline.gate import Gate, behind_a_gate, in_session
from holdfast.spark.pipeline.logical import LogicalPlan
from holdfast.spark.pipeline.order import Plan
from holdfast.spark.pipeline.others import list_anew, refuse_kept, refuse_unlisted
from holdfast.spark.pipeline.pinning import other_python, own_session
from holdfast.spark.pipeline.repeatable import Built, built, digest_of_tables, runs_python
from holdfast.spark.pipeline.rowwise import reads_file_facts, refuse_staged_names, refuse_unequal
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
    runs_python: bool
    constants: dict[str, str] = {}  # noqa: RUF012
    """Digests of the constants and functions in its plan."""
    tables: str = ""
    """A digest of the other tables that it reads; "" if parts may differ."""


def tried(name: str, params: dict[str, object], frame: DataFrame) -> Trial:
    """Call a transform before there is a part, and refuse it for the reasons that parts have.

    It cannot read the input. A transform with per_part=True may run queries, and finds no rows.
    Others are called twice, as each part calls them again, and must build the same plan. If they do
    not, they are called once more: the first call may have filled a cache.
    """
    found, given = _known(name, params)
    session = frame.sparkSession
    others = iter([in_session(frame, own_session(session)) for _ in range(2)])  # As it is now.
    with _gated(frame) as (gated, gate):
        plan = called(found, given, gated, gate, "empty")
        facts = plan.frame.schema, reads_file_facts(plan), runs_python(plan)
        if found.per_part:
            return Trial(*facts)
        refuse_unsure(found.name, plan)
        first = _built(found, plan)
    second, again = _built_again(found, given, next(others))
    refuse_kept(name, plan, again)
    if first != second:
        first, (second, _) = second, _built_again(found, given, next(others))
    if first.tables != second.tables:
        raise _other_tables(name, sorted(set(first.tables) ^ set(second.tables)))
    if first.constants != second.constants:
        raise _other_constants(name, first.unlike(second.digests))
    return Trial(*facts, first.digests, first.table_digest)


def _built_again(
    found: Transform, given: dict[str, Any], frame: DataFrame
) -> tuple[Built, LogicalPlan]:
    with _gated(frame) as (gated, gate):
        plan = called(found, given, gated, gate, "empty")
        return _built(found, plan), plan


@contextmanager
def transformed(
    name: str,
    params: dict[str, object],
    frame: DataFrame,
    rows: Rows,
    plan: Plan,
    new_session: Callable[[], SparkSession],
) -> Iterator[DataFrame]:
    """Give the result of a transform over a part; refuse it if one job would differ.

    rows         "open" to read them when it is written; "empty" where the input has no files
    new_session  makes another session, in case that the transform has to be called again
    """
    found, given = _known(name, params)
    checked = bool(plan.tables) and not found.per_part
    with _gated(frame) as (gated, gate):
        result = called(found, given, gated, gate, rows)
        first = _built(found, result) if checked else None
        if not first or (first.digests, first.table_digest) == (plan.constants, plan.tables):
            gate.state = rows
            yield result.frame
            if checked:
                _refuse_changed(name, result, plan)
            return
    again = in_session(frame, new_session())  # The first call may have filled a cache.
    with _gated(again) as (gated, gate):
        result = called(found, given, gated, gate, rows)
        second = _built(found, result)
        if second.table_digest != plan.tables:
            raise _other_tables(name)
        if unlike := second.unlike(plan.constants):
            raise _other_constants(name, unlike)
        gate.state = rows
        yield result.frame
        _refuse_changed(name, result, plan)


def _refuse_changed(name: str, result: LogicalPlan, plan: Plan) -> None:
    """Refuse what was read of other tables whose files changed meanwhile."""
    if digest_of_tables(result) != plan.tables:
        raise _other_tables(name)


def _built(found: Transform, plan: LogicalPlan) -> Built:
    return built(plan, package=found.function.__module__.partition(".")[0])


@contextmanager
def _gated(frame: DataFrame) -> Iterator[tuple[DataFrame, Gate]]:
    gated, gate = behind_a_gate(frame)
    try:
        yield gated, gate
    finally:
        forget_cached(gated.sparkSession)


def called(
    found: Transform, given: dict[str, Any], frame: DataFrame, gate: Gate, per_part: Rows
) -> LogicalPlan:
    """Call a transform on a part behind a gate, and check what it built.

    per_part  the rows that a transform with per_part=True can read while it is called
    """
    if found.per_part:
        gate.state = per_part
        plan = LogicalPlan(call(found, given, frame), gate)
        list_anew(found.name, plan)
        return plan
    try:
        result = call(found, given, frame)
    except Exception as error:
        if gate.was_read:
            raise _looked(found.name) from error
        raise
    if gate.was_read:
        raise _looked(found.name)
    plan = LogicalPlan(result, gate)
    list_anew(found.name, plan)
    refuse_unlisted(found.name, plan)
    refuse_unequal(found.name, plan)
    return plan


def _looked(name: str) -> Fail:
    return Fail(
        f"{name} runs a query on its input (count, first, collect, toPandas, write, rdd, …) while "
        "it is called, and would see one part instead of all rows. Return a DataFrame that says "
        "what to do with each row. What needs all rows belongs into a transform for finish=; "
        "declare the transform with @transform(per_part=True) if each part is to be read alone"
    )


def _other_constants(name: str, unlike: Sequence[str]) -> Fail:
    example = " ".join(unlike[0].split())[:100] if unlike else ""
    return Fail(
        f"{name} does not build the same plan each time ({example}): constants, settings, rows or "
        "what functions refer to differ from call to call or from worker to worker, and so from "
        "part to part. Pass times, random numbers and facts of one machine as parameters of the "
        "request; sort what comes from a set, or start workers with the same PYTHONHASHSEED; or "
        "declare the transform with @transform(per_part=True)"
    )


def _other_tables(name: str, seen: Sequence[str] = ()) -> Fail:
    example = f" ({', '.join(seen)[:200]})" if seen else ""
    return Fail(
        f"{name} reads other tables than when the request was planned, or their files have "
        f"changed{example}: parts would join different rows. Let tables stay as they are while a "
        "request runs, or read a copy; then submit the request again"
    )


def finished(name: str, params: dict[str, object], frame: DataFrame, plan: Plan) -> DataFrame:
    """Return the result of the finish transform, which sees all rows.

    It finds them in a view, which has no `_metadata`: they are in files of ours.
    """
    frame.createOrReplaceTempView(_ALL_ROWS)
    result = call(*_known(name, params), frame.sparkSession.table(_ALL_ROWS))
    found = LogicalPlan(result, None)
    refuse_staged_names(name, found)
    list_anew(name, found)
    if runs_python(found) and (why := other_python(plan)):
        raise GivenBack(why)
    return result


def finish_tried(
    name: str, params: dict[str, object], frame: DataFrame, plan: Plan
) -> DataFrame | None:
    """Call the finish transform before there are parts, on no rows; return what it gave.

    None if it runs queries: without rows they find something else than they will.
    """
    with _gated(frame) as (gated, gate):
        try:
            result = finished(name, params, gated, plan)
        except Exception:
            if gate.was_read:
                return None
            raise
        return None if gate.was_read else result


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
