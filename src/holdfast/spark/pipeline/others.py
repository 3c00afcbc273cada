"""The other tables that a plan reads from files: as their files are now, and not as they were.

A DataFrame lists its files once, when it is made. A transform may use one that was made before it
was called: a view of the worker, or what a helper keeps. Its list may be out of date, and so the
files are listed anew: before the plan is compared with others, and after it has run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from holdfast.spark.pipeline.gate import FILE_RELATION
from holdfast.spark.pipeline.logical import LogicalPlan, Operator
from holdfast.spark.pipeline.pinning import pinned_here, settings_of
from holdfast.worker import Fail

_FILE: Final = re.compile(
    r"FileStatus\{path=(?P<path>.*?); isDirectory=\w++; length=(?P<size>\d++);.*?"
    r"\bmodification_time=(?P<at>\d++);",
    re.DOTALL,
)


class Files(NamedTuple):
    """A table of files in a plan."""

    relation: Any
    has_name: bool
    """Whether it is looked up each time: a table of a catalog, or a view."""


def tables_of_files(plan: LogicalPlan) -> Iterator[Files]:
    """Return the tables of files in a plan, other than the part."""
    return _below(plan.root, has_name=False)


def _below(operator: Operator, *, has_name: bool) -> Iterator[Files]:
    if is_of_files(operator):
        named = has_name or bool(operator.java.catalogTable().isDefined())
        yield Files(operator.java.relation(), named)
    for one in (*operator.children, *operator.subqueries):
        yield from _below(one, has_name=has_name or operator.kind == "View")


def is_of_files(operator: Operator) -> bool:
    """Tell whether an operator is a table of files, and not a part."""
    if operator.kind != "LogicalRelation" or operator.reads_a_part:
        return False
    return str(operator.java.relation().getClass().getName()) == FILE_RELATION


def list_anew(name: str, plan: LogicalPlan) -> None:
    """List the files of tables that were not loaded by this call of a transform.

    Spark reads them with the settings of the session in which they were loaded.
    """
    spark = plan.frame.sparkSession
    for relation, _ in tables_of_files(plan):
        if not (session := relation.sparkSession()).equals(spark._jsparkSession):
            own = pinned_here(spark)
            theirs = settings_of(SparkSession(spark.sparkContext, session))
            if unlike := [one for one in own if own[one] != theirs.get(one, own[one])]:
                raise Fail(
                    f"{name} reads a table that was loaded in another session, where {unlike[0]} "
                    f"is {theirs[unlike[0]]!r} and not {own[unlike[0]]!r}. Load it with "
                    "df.sparkSession"
                )
            relation.location().refresh()


def refuse_unlisted(name: str, plan: LogicalPlan) -> None:
    """Refuse tables of files that Spark reads in its second way, which tells no list of them."""
    for one in plan.root.all():
        if one.kind == "DataSourceV2Relation":
            above = one.java.table().getClass().getSuperclass()
            if above is not None and str(above.getName()).endswith(".FileTable"):
                raise Fail(
                    f"{name} reads {one.java.table().name()} with another value of "
                    "spark.sql.sources.useV1SourceList, and its files could not be compared. "
                    "Leave that setting as it is, and load the table with df.sparkSession"
                )


def refuse_kept(name: str, first: LogicalPlan, second: LogicalPlan) -> None:
    """Refuse a transform that uses a DataFrame of another table again when it is called again."""
    before = {_identity(first, one.relation) for one in tables_of_files(first)}
    for relation, has_name in tables_of_files(second):
        if not has_name and _identity(second, relation) in before:
            place = str(relation.location().rootPaths().mkString(", "))[:200]
            raise Fail(
                f"{name} reads {place} through a DataFrame that it keeps from call to call, with "
                "the columns and the list of files that it had then. Load the table anew in each "
                "call, with df.sparkSession"
            )


def _identity(plan: LogicalPlan, relation: Any) -> int:
    jvm: Any = plan.frame.sparkSession._jvm
    return int(jvm.System.identityHashCode(relation.location()))


def facts(relation: Any, nothing: Any) -> Iterator[str]:
    """Return where a table is, how it is read, its columns, and the files that it has."""
    yield str(relation.location().rootPaths().mkString("\n"))
    yield from sorted(str(relation.options().mkString("\n")).split("\n"))
    yield str(relation.schema().json())
    for found in _FILE.finditer(
        str(relation.location().listFiles(nothing, nothing).mkString("\n"))
    ):
        yield f"{found['path']} {found['size']} {found['at']}"
