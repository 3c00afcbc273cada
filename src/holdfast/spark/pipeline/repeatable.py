"""What a transform builds must be the same in each call: the planner's, and that of each part.

Python may put the time, a random number or the name of a machine into a plan: as a constant, in a
function, as rows of a small table, as the path of another table, as a setting. Then each part would
have other rows. So all of these are compared, in a form in which the names and numbers that Spark
gives anew in each plan do not count, nor the order of the values of `isin` and of rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from holdfast.spark.pipeline import canonical
from holdfast.spark.pipeline.logical import LogicalPlan, Operator, several
from holdfast.spark.pipeline.others import facts, is_of_files, tables_of_files
from holdfast.spark.pipeline.pinning import pinned_here

_NUMBERED: Final = re.compile(
    r"(?P<call>\))#\d++"
    r"|(?P<lambda>\blambda )?+(?<![^\s(),\[\]])(?P<word>[^\s(),\[\]#]*+#[^\s(),\[\]]*+)"
)
"""What may be numbered anew in each plan: calls of Python functions, arguments of lambdas, words
such as columns and subqueries. It never goes back, so a long text takes no longer per character."""
_LAST_NUMBER: Final = re.compile(r"(.*)#(\d+)L?", re.DOTALL)
_QUERY: Final = re.compile(r"[a-z-]*subquery|exists|list")
_NUMBER: Final = re.compile(r"#(\d+)L?$")
_IDENTITY: Final = re.compile(r"@[0-9a-f]{1,8}\b")
"""How Java writes an object that has no text."""
_BETWEEN: Final = "\0\n"
"""Stands between values in a text: hardly a value has it."""
_FEW_ROWS: Final = 1000
"""A small table with more rows than this is compared by a hash of Spark's."""
_ROWS_IN_PLAN: Final = frozenset(
    {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range", "UnionLoopRef"}
)
_SHOWN: Final = 16
"""Characters of a digest."""
_MOST: Final = 500
"""Digests that are kept in a plan; of a plan with more constants there is one digest of all."""


class Built(NamedTuple):
    """What a call of a transform has put into its plan."""

    constants: dict[str, str]
    """Texts of operators, digests of functions and rows, values of settings: by what they are."""
    tables: list[str]
    """Other tables that it reads: where they are, and the files that they have now."""

    @property
    def digests(self) -> dict[str, str]:
        """Return a digest of each constant."""
        found = {name: _fingerprint([text])[:_SHOWN] for name, text in self.constants.items()}
        all_of_them = [f"{name}={digest}" for name, digest in found.items()]
        return found if len(found) <= _MOST else {"all": _fingerprint(all_of_them)}

    @property
    def table_digest(self) -> str:
        """Return a digest of all other tables."""
        return _fingerprint(self.tables)

    def unlike(self, digests: Mapping[str, str]) -> list[str]:
        """Return the constants that have other digests."""
        own = self.digests
        names = [name for name in {**own, **digests} if own.get(name) != digests.get(name)]
        return [self._shown(name) for name in names]

    def _shown(self, name: str) -> str:
        text = self.constants.get(name, "")
        is_digest = len(text) == _SHOWN and " " not in text
        return name if is_digest or not text else f"{name}: {text}"


def built(plan: LogicalPlan, *, package: str) -> Built:
    """Return what a call of a transform has put into its plan, and into its session.

    package  of the transform: what its functions refer to in it is compared, too
    """
    with _active(plan.frame.sparkSession):
        return _built(plan, package)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the one of this thread: by its time zone Java writes moments."""
    sessions = SparkSession._get_j_spark_session_module(spark._jvm)
    before: Any = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _built(plan: LogicalPlan, package: str) -> Built:
    operators = list(plan.root.all())
    numbers, names = _numbers(operators)
    found: dict[str, str] = {}
    for place, one in enumerate(operators):
        if any(one.texts) or _way(one):
            found[f"{one.kind} {place}"] = _constants(one, plan, numbers, names)
        for number, (name, command) in enumerate(_functions(one, plan)):
            for what, digest in _captured(name, command, package):
                found[f"{what} in {one.kind} {place}.{number}"] = digest
        for number, rows in enumerate(_rows(one, plan)):
            found[f"rows {place}.{number}"] = rows
    found.update(pinned_here(plan.frame.sparkSession))
    return Built(found, _tables(operators, plan))


def _tables(operators: list[Operator], plan: LogicalPlan) -> list[str]:
    return sorted(fact for one in operators for fact in _table(one, plan.nothing))


def digest_of_tables(plan: LogicalPlan) -> str:
    """Return a digest of all other tables of a plan, with the files that they have now."""
    for relation, _ in tables_of_files(plan):
        relation.location().refresh()
    return _fingerprint(_tables(list(plan.root.all()), plan))


def _numbers(operators: list[Operator]) -> tuple[dict[str, str], dict[str, str]]:
    """Give numbers to columns in the order in which they come, from the leaves on.

    Return these numbers, and the columns as Spark writes them, by the numbers that Spark gave.
    """
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for one in reversed(operators):
        for line in one.output.split("\n"):
            for number in _NUMBER.findall(line):
                found.setdefault(number, f"#{len(found)}")
                names[number] = line
    return found, names


def _constants(
    operator: Operator, plan: LogicalPlan, numbers: Mapping[str, str], names: Mapping[str, str]
) -> str:
    """Return the expressions of an operator, with columns by their numbers only."""
    texts = operator.texts
    if plan.has("IN"):
        for expression in operator.expressions:
            for one in _below(expression, plan.patterns.IN(), ("In",)):
                values = one.list()
                ordered = sorted(str(values.mkString(_BETWEEN)).split(_BETWEEN))
                given = str(values.mkString("(", ",", ")"))
                texts = [text.replace(given, f"({_BETWEEN.join(ordered)})", 1) for text in texts]

    variables: dict[str, int] = {}
    texts = [_renumbered(text, numbers, names, variables) for text in texts]
    return "\n".join([*_way(operator), *texts])


def _renumbered(
    text: str, numbers: Mapping[str, str], names: Mapping[str, str], variables: dict[str, int]
) -> str:
    """Return an expression without what Spark names and numbers anew in each plan.

    variables  arguments of lambdas, in the order in which they come
    """
    alias = ""
    if (named := _NUMBER.search(text)) and " AS " in text:
        ending = f" AS {names.get(named[1], '')}"
        end = len(text) - len(ending) if text.endswith(ending) else text.rfind(" AS ")
        text, alias = text[:end], f" AS {numbers.get(named[1], '#')}"

    def numbered(match: re.Match[str]) -> str:
        if match["call"]:
            return match["call"]
        found = _LAST_NUMBER.match(match["word"])
        if found is None:
            return match[0]
        rest = match["word"][found.end() :]
        if match["lambda"]:
            return f"{match['lambda']}{variables.setdefault(found[2], len(variables))}{rest}"
        if _QUERY.fullmatch(found[1]):
            return found[1] + rest
        return numbers.get(found[2], found[0]) + rest

    return _NUMBERED.sub(numbered, text) + alias


def _unnumbered(text: str) -> str:
    """Return a text without words that Spark numbers."""

    def rest(match: re.Match[str]) -> str:
        found = _LAST_NUMBER.match(match[0])
        return match[0][found.end() :] if found else match[0]

    return _NUMBERED.sub(rest, text)


def _way(operator: Operator) -> list[str]:
    """Return how an operator works, where its expressions do not say so."""
    if operator.kind in ("Join", "LateralJoin"):
        return [operator.join]
    if operator.kind == "Generate":
        return ["outer" if operator.java.outer() else "inner"]
    return []


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
            for one in _below(expression, plan.patterns.PYTHON_UDF(), ("PythonUDF", "PythonUDAF")):
                yield str(one.name()), one.func()


def _below(expression: Any, pattern: Any, kinds: tuple[str, ...]) -> Iterator[Any]:
    """Return the expressions of some kinds in an expression; all of them have the pattern."""
    if not expression.containsPattern(pattern):
        return
    if str(expression.getClass().getName()).rpartition(".")[2] in kinds:
        yield expression
    for below in several(expression.children()):
        yield from _below(below, pattern, kinds)


def _captured(name: str, function: Any, package: str) -> Iterator[tuple[str, str]]:
    """Return what a function that Spark was given does and refers to."""
    try:
        value = _unpickled(function)
    except Exception:  # noqa: BLE001  # An object of the user that can be loaded elsewhere only.
        value = bytes(function.command().unsafeArray())
    for one in canonical.functions_in(value):
        for what, digest in canonical.captured(one, package):
            yield f"{name}.{what}", digest[:_SHOWN]
    yield name, canonical.digest(value, package)[:_SHOWN]


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
            yield _fingerprint([_in_spark_bytes(java, plan)])[:_SHOWN]
        case "LogicalRDD":
            yield from _rdd(java.rdd())


def _in_spark_bytes(relation: Any, plan: LogicalPlan) -> str:
    """Return rows in the bytes that Spark has for them: some values of Java have no text."""
    jvm: Any = plan.frame.sparkSession._jvm
    rows: Any = plan.frame_of(relation)._jdf.queryExecution().executedPlan()
    several_rows = getattr(getattr(jvm.scala.collection.immutable, "ArraySeq$"), "MODULE$")
    found = several_rows.unsafeWrapArray(rows.executeCollect())
    if found.size() <= _FEW_ROWS:
        return "\n".join(sorted(str(found.mkString("\n")).split("\n")))
    hashing = getattr(getattr(jvm.scala.util.hashing, "MurmurHash3$"), "MODULE$")
    return f"{found.size()} {hashing.unorderedHash(found, 0)}"


def _rdd(rdd: Any) -> Iterator[str]:
    """Return the rows that Python gave to Spark, and the functions that make others from them."""
    kind = str(rdd.getClass().getName()).rpartition(".")[2]
    if kind == "ParallelCollectionRDD":
        rows: list[Any] = []
        for partition in rdd.partitions():
            for one in several(partition.values()):
                rows += _given(one)
        yield _fingerprint(sorted(canonical.digest(row) for row in rows))[:_SHOWN]
    elif kind == "PythonRDD":
        field = rdd.getClass().getDeclaredField("func")
        field.setAccessible(True)
        digests = [digest for _, digest in _captured("rdd", field.get(rdd), "")]
        yield _fingerprint(digests)[:_SHOWN]
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
    if is_of_files(operator):
        yield from facts(operator.java.relation(), nothing)
    else:
        yield _IDENTITY.sub("", _unnumbered(str(operator.java.simpleString(1000))))
