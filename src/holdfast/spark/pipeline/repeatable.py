"""What a transform builds must be the same in each call: the planner's, and that of each part.

Python may put the time, a random number or the name of a machine into a plan: as a constant, in a
function, as rows of a small table, as the path of another table, as a setting. Then each part would
have other rows. So all of these are compared, in a form in which neither the names that Spark
numbers anew nor the order of values counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.spark.pipeline import canonical
from holdfast.spark.pipeline.gate import FILE_RELATION
from holdfast.spark.pipeline.logical import LogicalPlan, Operator, several
from holdfast.spark.pipeline.pinning import pinned_here

_COLUMN: Final = re.compile(r" AS .*#\d+L?$|\blambda \w+|[^\s(),\[\]]*#\d+L?")
"""What is numbered or named anew in each plan: columns, aliases and the arguments of lambdas."""
_WORD: Final = re.compile(r"[^\s(),\[\]]+")
_IDENTITY: Final = re.compile(r"@[0-9a-f]{1,8}\b")
"""How Java writes an object that has no text."""
_FILE: Final = re.compile(
    r"FileStatus\{path=(?P<path>[^;]*);[^}]*?\blength=(?P<size>\d+);[^}]*?"
    r"\bmodification_time=(?P<at>\d+);"
)
_FEW_ROWS: Final = 1000
"""A small table with more rows than this is compared by a hash of Spark's."""
_ROWS_IN_PLAN: Final = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})
_SHOWN: Final = 16
"""Characters of a digest in a word."""


class Built(NamedTuple):
    """What a call of a transform has put into its plan."""

    constants: list[str]
    tables: list[str]
    """Other tables that it reads: where they are, and the files that they have now."""
    runs_python: bool

    @property
    def fingerprints(self) -> tuple[str, str]:
        """Return short forms of constants and tables, by which two plans are compared."""
        return _fingerprint(self.constants), _fingerprint(self.tables)


def built(plan: LogicalPlan, *, package: str) -> Built:
    """Return what a call of a transform has put into its plan, and into its session.

    package  of the transform: what its functions refer to in it is compared, too
    """
    operators = list(plan.root.all())
    words: list[str] = []
    for one in operators:
        for text in one.texts:
            words += _WORD.findall(_COLUMN.sub("", text))
    commands = [(name, command) for one in operators for name, command in _functions(one, plan)]
    for name, command in commands:
        words += _captured(name, command, package)
    for one in operators:
        words += _rows(one, plan)
    words += (f"{name}={value}" for name, value in pinned_here(plan.frame.sparkSession).items())
    tables = [fact for one in operators for fact in _table(one, plan.nothing)]
    runs_python = bool(commands) or any(one.kind == "LogicalRDD" for one in operators)
    return Built(sorted(words), sorted(tables), runs_python)


def runs_python(plan: LogicalPlan) -> bool:
    """Tell whether a plan calls functions of Python."""
    return any(
        one.kind == "LogicalRDD" or next(_functions(one, plan), None) for one in plan.root.all()
    )


def _fingerprint(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


# ------------------------------------------------------------------- functions


def _functions(operator: Operator, plan: LogicalPlan) -> Iterator[tuple[str, Any]]:
    """Return the Python functions that an operator calls, by name, as Spark has them."""
    if operator.calls_python:
        found = operator.java.generator()
        yield str(found.name()), found.func()
    if plan.has("PYTHON_UDF"):
        for expression in operator.expressions:
            yield from _below(expression, plan.patterns.PYTHON_UDF())


def _below(expression: Any, pattern: Any) -> Iterator[tuple[str, Any]]:
    if not expression.containsPattern(pattern):
        return
    if str(expression.getClass().getName()).rpartition(".")[2] in ("PythonUDF", "PythonUDAF"):
        yield str(expression.name()), expression.func()
    for below in several(expression.children()):
        yield from _below(below, pattern)


def _captured(name: str, function: Any, package: str) -> Iterator[str]:
    """Return what a function that Spark was given does and refers to."""
    try:
        value = _unpickled(function)
    except Exception:  # noqa: BLE001  # An object of the user that can be loaded elsewhere only.
        value = bytes(function.command().unsafeArray())
    for one in canonical.functions_in(value):
        for what, digest in canonical.captured(one, package):
            yield f"{name}.{what}:{digest[:_SHOWN]}"
    yield f"{name}:{canonical.digest(value, package)[:_SHOWN]}"


def _unpickled(function: Any) -> Any:
    """Return what this process pickled: a function, with the types that it returns."""
    shared = function.broadcastVars()
    variables = (shared.get(number) for number in range(shared.size()))
    paths = {one.id(): str(one.value().path()) for one in variables}
    found = canonical.loaded(function.command().unsafeArray(), paths)
    if isinstance(found, canonical.Shared):  # A large one is a broadcast variable itself.
        found = canonical.loaded(found.content(), paths)
    return found


# ----------------------------------------------------------------------- leaves


def _rows(operator: Operator, plan: LogicalPlan) -> Iterator[str]:
    """Return the rows that a plan itself has."""
    java = operator.java
    match operator.kind:
        case "Range":
            yield f"range({java.start()},{java.end()},{java.step()})"
        case "LocalRelation":
            yield f"rows:{_fingerprint([_in_spark_bytes(java, plan)])[:_SHOWN]}"
        case "LogicalRDD":
            yield from _rdd(java.rdd())


def _in_spark_bytes(relation: Any, plan: LogicalPlan) -> str:
    """Return rows in the bytes that Spark has for them: some values of Java have no text."""
    spark = plan.frame.sparkSession
    jvm: Any = spark._jvm
    ours = getattr(getattr(jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    rows = ours.ofRows(spark._jsparkSession, relation).queryExecution().executedPlan()
    several_rows = getattr(getattr(jvm.scala.collection.immutable, "ArraySeq$"), "MODULE$")
    found = several_rows.unsafeWrapArray(rows.executeCollect())
    few = found.size() <= _FEW_ROWS
    return str(found.mkString("\n")) if few else f"{found.size()} {found.hashCode()}"


def _rdd(rdd: Any) -> Iterator[str]:
    """Return the rows that Python gave to Spark, and the functions that make others from them."""
    kind = str(rdd.getClass().getName()).rpartition(".")[2]
    if kind == "ParallelCollectionRDD":
        rows: list[Any] = []
        for partition in rdd.partitions():
            for one in several(partition.values()):
                rows += _given(one)
        yield f"rows:{canonical.digest(rows)[:_SHOWN]}"
    elif kind == "PythonRDD":
        field = rdd.getClass().getDeclaredField("func")
        field.setAccessible(True)
        yield from _captured("rdd", field.get(rdd), "")
    for one in several(rdd.dependencies()):
        yield from _rdd(one.rdd())


def _given(one: Any) -> list[Any]:
    """Return rows of a batch that Python has pickled; a value of Java as text."""
    if isinstance(one, bytes | bytearray):
        found = canonical.loaded(one, {})
        return found if isinstance(found, list) else [found]
    return [str(one)]


def _table(operator: Operator, nothing: Any) -> Iterator[str]:
    """Return where another table is, how it is read, and which files it has now."""
    if operator.children or operator.reads_a_part or operator.kind in _ROWS_IN_PLAN:
        return
    java = operator.java
    files = java.relation() if operator.kind == "LogicalRelation" else None
    if files is None or str(files.getClass().getName()) != FILE_RELATION:
        yield _IDENTITY.sub("", _COLUMN.sub("", str(java.simpleString(1000))))
        return
    yield str(files.location().rootPaths().mkString("\n"))
    yield from sorted(str(files.options().mkString("\n")).split("\n"))
    for found in _FILE.finditer(str(files.location().listFiles(nothing, nothing).mkString("\n"))):
        yield f"{found['path']} {found['size']} {found['at']}"
