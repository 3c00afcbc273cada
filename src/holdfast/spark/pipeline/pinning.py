"""What a request pins when it is planned, so that all its parts mean the same.

Session settings that change results, the code of its transforms and the version of Spark. Settings
are applied to the session of each part. A worker with other code gives the part back.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, cast

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.pipeline import transforms
from holdfast.spark.pipeline.apart import session_apart
from holdfast.spark.pipeline.order import Order, Plan
from holdfast.spark.pipeline.sources import fingerprint
from holdfast.worker import Fail

_LEGACY: Final = "spark.sql.legacy."
"""Settings that restore the behaviour of older versions. They are pinned if they are set."""

SETTINGS: Final = frozenset(
    f"spark.sql.{name}"
    for name in (
        "ansi.doubleQuotedIdentifiers",
        "ansi.enabled",
        "caseSensitive",
        "charAsVarchar",
        "chunkBase64String.enabled",
        "columnNameOfCorruptRecord",
        "csv.parser.columnPruning.enabled",
        "decimalOperations.allowPrecisionLoss",
        "execution.pandas.convertToArrowArraySafely",
        "execution.pandas.structHandlingMode",
        "execution.pythonUDF.arrow.enabled",
        "files.ignoreCorruptFiles",
        "files.ignoreMissingFiles",
        "function.concatBinaryAsString",
        "function.eltOutputAsString",
        "json.enablePartialResults",
        "jsonGenerator.ignoreNullFields",
        "legacy.sizeOfNull",
        "legacy.timeParserPolicy",
        "mapKeyDedupPolicy",
        "parquet.binaryAsString",
        "parquet.datetimeRebaseModeInRead",
        "parquet.datetimeRebaseModeInWrite",
        "parquet.inferTimestampNTZ.enabled",
        "parquet.int96AsTimestamp",
        "parquet.int96RebaseModeInRead",
        "parquet.int96RebaseModeInWrite",
        "parquet.int96TimestampConversion",
        "parquet.mergeSchema",
        "parquet.outputTimestampType",
        "parquet.writeLegacyFormat",
        "parser.escapedStringLiterals",
        "parser.quotedRegexColumnNames",
        "preserveCharVarcharTypeInfo",
        "readSideCharPadding",
        "session.timeZone",
        "sources.partitionColumnTypeInference.enabled",
        "storeAssignmentPolicy",
        "timestampType",
        "variable.substitute",
    )
)
"""Settings of a session that change what a query returns, and not only how fast."""

_MOMENTS: Final = range(-1_600_000_000, 2_300_000_000, 182 * 86400)
"""Moments at which local times are compared with UTC: two in a year, from 1919 to 2042."""
_GATE_NEEDS: Final = {"spark.sql.sources.useV1SourceList": "avro,csv,json,kafka,orc,parquet,text"}


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings that parts must have."""
    found = _legacy(spark)
    found.update((name, str(spark.conf.get(name))) for name in SETTINGS)
    return found


def own_session(spark: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with views and caches of its own, and the settings that a request pinned.

    Parts run side by side: what one of them makes or caches must not be another's.
    """
    session = session_apart(spark)
    for name, value in _GATE_NEEDS.items():
        session.conf.set(name, value)
    if settings is not None:
        for name in _legacy(session):
            session.conf.unset(name)
        for name, value in settings.items():
            if not _is_pinned(name):
                raise Fail(f"{name} is not one of the settings that a request pins")
            session.conf.set(name, value)
    return session


def pinned_here(spark: SparkSession) -> dict[str, str]:
    """Return the settings that are set and would be pinned, in one call of Java."""
    said = spark._jsparkSession.sessionState().conf().getAllConfs().mkString("\n")
    pairs = (line.split(" -> ", 1) for line in str(said).split("\n"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1 and _is_pinned(pair[0])}


def _is_pinned(name: str) -> bool:
    return name in SETTINGS or name.startswith(_LEGACY)


def _legacy(spark: SparkSession) -> dict[str, str]:
    return {name: one for name, one in pinned_here(spark).items() if name.startswith(_LEGACY)}


# ---------------------------------------------------------------------- schema


def difference(planned: StructType, here: StructType) -> str | None:
    """Return in which column two schemas differ; None where only nullability does."""
    if len(planned) != len(here) or planned.names != here.names:
        for number, (one, other) in enumerate(zip(planned.names, here.names, strict=False)):
            if one != other:
                return f"column {number + 1} is {other!r}, and was {one!r} when it was planned"
        more = set(here.names) ^ set(planned.names)
        return f"there are {len(here)} columns, and were {len(planned)}: {', '.join(sorted(more))}"
    for field, other_field in zip(planned, here, strict=True):
        was, now = field.dataType.simpleString(), other_field.dataType.simpleString()
        if was != now:
            return f"column {field.name!r} is {now}, and was {was} when it was planned"
    return None


# ------------------------------------------------------------------------ code


def unlike(plan: Plan, spark: SparkSession) -> str | None:
    """Return in what this worker differs from the planner; None if it can run the parts."""
    if plan.spark != spark.version:
        return f"it was planned on Spark {plan.spark}, and this is {spark.version}"
    try:
        code = code_of(plan.order)
    except transforms.UnknownTransform as error:
        return error.in_a_worker()
    if plan.code != code:
        return (
            f"the code of {plan.order.transform!r} or of its finish differs from the code that "
            "planned it. Start a worker with that code, or cancel the request and submit it again"
        )
    zone = zone_here(spark)
    if plan.zone not in ("", zone):
        return (
            f"it was planned in {plan.zone}, and this worker is in {zone}: some values and files "
            "are read as local times. Start workers with the same TZ"
        )
    return other_python(plan) if plan.runs_python else None


def other_python(plan: Plan) -> str | None:
    """Return in what the Python of this worker differs from the planner's."""
    here = python_here()
    if plan.python == here:
        return None
    return (
        f"it calls Python functions and was planned with {plan.python}, and this worker has "
        f"{here}. Start workers with the same version of Python"
    )


def python_here() -> str:
    """Return the version of Python of this process."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def zone_here(spark: SparkSession) -> str:
    """Return the local time zone of this process and of its Java.

    Python and ORC files take times as local times, whatever the session's time zone is.
    """
    offsets = [time.localtime(moment).tm_gmtoff for moment in _MOMENTS]
    rules = hashlib.sha256(repr([offsets, _java_offsets(spark)]).encode()).hexdigest()[:8]
    return f"the local time zone {'/'.join(dict.fromkeys(time.tzname))} ({rules})"


@functools.lru_cache(maxsize=10)
def _java_offsets(spark: SparkSession) -> list[int]:
    zone = cast("Any", spark._jvm).java.util.TimeZone.getDefault()
    return [zone.getOffset(moment * 1000) for moment in _MOMENTS]


def code_of(order: Order) -> str:
    """Return a fingerprint of the code that an order runs."""
    names = [order.transform] if order.finish is None else [order.transform, order.finish]
    return ".".join(fingerprint(transforms.find(name).function) for name in names)
