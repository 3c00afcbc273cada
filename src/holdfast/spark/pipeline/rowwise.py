"""Whether parts together give what one job would: the check of a transform's plan.

It reads the analysed logical plan, in which neither sizes nor statistics play a role. The part's
relation must occur once, and only operators that are listed here may stand between it and the
result: those that make their rows from one row of the part at a time. What is not listed is
refused. Branches that do not read the part may do anything that gives each part the same rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from pyspark.sql import DataFrame

from holdfast.spark.pipeline.gate import Gate, gate_name
from holdfast.worker import Fail

ROW_WISE: Final = frozenset(
    {
        "Expand",  # unpivot
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "PipeOperator",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "SubqueryAlias",
        "View",
    }
)
JOINS: Final = {
    "Inner": ("left", "right"),
    "Cross": ("left", "right"),
    "LeftOuter": ("left",),
    "LeftSemi": ("left",),
    "LeftAnti": ("left",),
    "LeftSingle": ("left",),
    "ExistenceJoin": ("left",),
    "RightOuter": ("right",),
}
"""Where the part may be: on the side of whose rows each is kept, or dropped, for itself."""
ORDINARY: Final = frozenset({"Join", "LateralJoin"})
BY_PARTITION: Final = frozenset({"MapInArrow", "MapInPandas"})
"""What is given all rows of a partition, so that it matters who made the partitions."""
MADE_PARTITIONS: Final = frozenset(
    {"RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort"}
)
GENERATORS: Final = frozenset(
    {"Explode", "Inline", "JsonTuple", "PosExplode", "ReplicateRows", "Stack", "VariantExplode"}
)
"""Generators that see one row at a time. Table functions in Python may return rows at the end."""
FILE_FACTS: Final = frozenset(
    {"file_path", "file_name", "file_size", "file_modification_time", "row_index"}
)
"""What `_metadata` says of whole files. Where Spark divides them is its own choice."""

_KNOWN_AS: Final = {
    "Aggregate": "groupBy, agg, distinct",
    "AttachDistributedSequence": "pandas_api",
    "CollectMetrics": "observe",
    "Deduplicate": "dropDuplicates",
    "FlatMapGroupsInPandas": "applyInPandas",
    "GlobalLimit": "limit",
    "Sample": "sample",
    "Sort": "orderBy",
    "Window": "over",
}
_TOLD_DAY: Final = re.compile(
    r"\b(?:cast|to_date|to_timestamp\w*)\(\s*(now|today|tomorrow|yesterday)\b(?!#)", re.IGNORECASE
)
"""Words that Spark reads as a time when it runs the query."""
_OF_SESSION: Final = frozenset(
    {
        "current_catalog()",
        "current_database()",
        "current_schema()",
        "current_timezone()",
        "current_user()",
        "session_user()",
        "user()",
    }
)
_RANDOM_VECTOR: Final = re.compile(
    r"\baes_encrypt\(.*, (?:GCM|CBC|DEFAULT), \w+, cast\( as binary\), ", re.IGNORECASE
)
"""Spark draws an initialization vector for each call, though it calls that deterministic."""
_COLUMN: Final = re.compile(r" AS .*#\d+L?$|\blambda \w+|[^\s(),\[\]]*#\d+L?")
"""What is numbered or named anew in each plan: columns, aliases and the arguments of lambdas."""
_WORD: Final = re.compile(r"[^\s(),\[\]]+")
_WAY_OUT: Final = (
    "Move it into a transform for finish=, which sees all rows; or declare the transform with "
    "@transform(per_part=True) if each part may have a result of its own"
)


def refuse_unequal(name: str, frame: DataFrame, gate: Gate) -> None:
    """Refuse a transform whose parts together would differ from one job over the whole input."""
    plan = _Plan(frame, gate)
    _refuse_moments(name, plan)
    _refuse_way(name, plan.root)
    _refuse_places(name, plan)


def reads_file_facts(frame: DataFrame, gate: Gate) -> bool:
    """Tell whether a transform asks for the names of files: then they must not be divided."""
    plan = _Plan(frame, gate)
    return next(plan.places(), None) is not None or plan.asks_for_input_files()


def refuse_staged_names(name: str, frame: DataFrame) -> None:
    """Refuse a finish that asks for the names of files: it reads what parts wrote."""
    if _Plan(frame, None).asks_for_input_files():
        raise Fail(
            f"{name} asks for the names of files, and a finish reads what parts wrote. Keep the "
            "name in a column: the transform of the request can read _metadata.file_path"
        )


def constants(frame: DataFrame) -> list[str]:
    """Return the constants and functions of a plan, in an order that says nothing.

    Python may put the time, a random number or the name of a machine into a plan as a constant.
    Then each call of the transform gives another plan, and each part other rows.
    """
    words: list[str] = []
    for node in _Plan(frame, None).root.all():
        for text in node.texts:
            words += _WORD.findall(_COLUMN.sub("", text))
    return sorted(words)


def fingerprint(words: list[str]) -> str:
    """Return a short form of constants, by which two plans are compared."""
    return hashlib.sha256("\n".join(words).encode(errors="surrogatepass")).hexdigest()


def _refuse_way(name: str, node: _Node) -> None:
    """Follow the part from the result down to its relation."""
    if not node.uses:
        raise Fail(
            f"{name} returned rows that do not come from its input: each part would repeat them. "
            "Return a DataFrame that is derived from the first argument"
        )
    above = ""
    while not node.is_part:
        _refuse_subquery(name, node)
        sides = [number for number, child in enumerate(node.children) if child.uses]
        if not sides:
            raise Fail(f"{name} returned rows of another run: a DataFrame must not be kept")
        _refuse_twice(name, node, len(sides))
        _refuse_table_function(name, node)
        if node.kind in ORDINARY:
            _refuse_side(name, node, "right" if sides[0] else "left")
        else:
            _refuse_operator(name, node, above)
        if node.kind in BY_PARTITION:
            above = node.kind
        node = node.children[sides[0]]


def _refuse_subquery(name: str, node: _Node) -> None:
    if any(one.uses for one in node.subqueries):
        raise Fail(
            f"{name} reads its input in a subquery ({node.kind}), which would see one part "
            f"instead of all rows. {_WAY_OUT}"
        )


def _refuse_table_function(name: str, node: _Node) -> None:
    """Refuse table functions that are called with rows of the part: they have a state."""
    inside = (one for query in node.subqueries for one in query.all())
    for one in [node, *(inside if node.kind == "LateralJoin" else ())]:
        if one.kind == "Generate" and one.generator not in GENERATORS:
            raise Fail(
                f"{name} calls the table function {one.generator}, which may keep a state from row "
                "to row and return more rows after the last one. Use explode over a function that "
                f"returns an array, or mapInPandas. {_WAY_OUT}"
            )


def _refuse_twice(name: str, node: _Node, times: int) -> None:
    if times > 1:
        raise Fail(
            f"{name} reads its input more than once ({node.kind}), and would combine each part "
            f"with itself instead of with all rows. {_WAY_OUT}"
        )


def _refuse_operator(name: str, node: _Node, above: str) -> None:
    if not (node.kind in ROW_WISE or (node.kind == "Sort" and node.is_local_sort)):
        known = f" ({_KNOWN_AS[node.kind]})" if node.kind in _KNOWN_AS else ""
        raise Fail(
            f"{name} uses {node.kind}{known}, which does not work row by row, so each part would "
            f"give a result of its own. {_WAY_OUT}"
        )
    if above and node.kind in MADE_PARTITIONS:
        raise Fail(
            f"{name} uses {above} after {node.kind}: it is given whole partitions, and a part has "
            f"only some of their rows. {_WAY_OUT}"
        )


def _refuse_side(name: str, node: _Node, side: str) -> None:
    kind = node.join
    if side not in JOINS.get(kind, ()):
        raise Fail(
            f"{name} uses a {kind} join with its input on the {side}: rows of the other table "
            "without a match depend on all rows, and each part sees only its own. Put the input "
            f"on the preserved side. {_WAY_OUT}"
        )


def _refuse_moments(name: str, plan: _Plan) -> None:
    """Refuse values that depend on when or where a row is computed, anywhere in the plan."""
    if plan.java.isStreaming():
        raise Fail(f"{name} reads a stream, and parts read it at different times. Read a table")
    if any(node.kind == "Sample" for node in plan.root.all()):
        raise Fail(f"{name} uses Sample (sample), which takes other rows in each part. {_WAY_OUT}")
    if not plan.java.deterministic():
        raise Fail(
            f"{name} uses {_culprit(plan) or 'a function'}, which gives other values for another "
            "split of the input. Derive the value from columns (xxhash64, for example; "
            "_metadata.file_path for the name of a file), or declare the transform with "
            "@transform(per_part=True)"
        )
    if any(_RANDOM_VECTOR.search(text) for node in plan.root.all() for text in node.texts):
        raise Fail(
            f"{name} uses aes_encrypt() without an initialization vector, which gives other values "
            "in each part. Pass one, or use the mode ECB"
        )
    said = plan.moment()
    if said in _OF_SESSION:
        raise Fail(
            f"{name} uses {said}, which depends on the session of a worker. Pass the value as a "
            "parameter of the request, or declare the transform with @transform(per_part=True)"
        )
    if said:
        raise Fail(
            f"{name} uses {said}, and parts run at different times. Pass the value as a parameter "
            "of the request, or declare the transform with @transform(per_part=True)"
        )


def _refuse_places(name: str, plan: _Plan) -> None:
    for text in plan.places():
        if text not in FILE_FACTS:
            raise Fail(
                f"{name} reads {text or 'all'} of _metadata, which depends on how Spark divides "
                f"files. These do not: {', '.join(sorted(FILE_FACTS))}"
            )


class _Plan:
    """The analysed plan of a DataFrame."""

    def __init__(self, frame: DataFrame, gate: Gate | None) -> None:
        self.java: Any = frame._jdf.queryExecution().analyzed()
        jvm: Any = frame.sparkSession._jvm
        self._patterns = getattr(
            getattr(jvm.org.apache.spark.sql.catalyst.trees, "TreePattern$"), "MODULE$"
        )
        reading = _Reading(gate, subqueries=self.has("PLAN_EXPRESSION"))
        self.root = _Node(self.java, reading)

    def has(self, pattern: str) -> bool:
        """Ask Spark's own index of what is in a plan, with its expressions and subqueries."""
        return bool(self.java.containsPattern(getattr(self._patterns, pattern)()))

    def asks_for_input_files(self) -> bool:
        """Tell whether a function of it returns the names of the files that are read."""
        return any("input_file_" in text for node in self.root.all() for text in node.texts)

    def moment(self) -> str | None:
        """Return what stands for the time at which the query runs."""
        if self.has("CURRENT_LIKE"):
            return _culprit(self) or "the current time"
        if self.has("CAST") or self.has("RUNTIME_REPLACEABLE"):
            for node in self.root.all():
                for text in node.texts:
                    if found := _TOLD_DAY.search(text):
                        return f"'{found[1]}' as a time"
        return None

    def places(self) -> Iterator[str]:
        """Return what is read of `_metadata`: names of its fields, or "" for the whole of it."""
        for leaf in self.root.all():
            if not leaf.is_part or not (hidden := leaf.hidden):
                continue
            if hidden in str(self.java.output().mkString("\n")).split("\n"):
                yield ""
            for node in self.root.all():
                for text in node.texts:
                    if text != hidden:
                        yield from _fields(text, hidden)


def _fields(text: str, hidden: str) -> Iterator[str]:
    for found in re.finditer(rf"{re.escape(hidden)}(?!\d)(?:\.(\w+))?", text):
        yield found[1] or ""


class _Reading:
    """What the nodes of one plan share."""

    def __init__(self, gate: Gate | None, *, subqueries: bool) -> None:
        self.gate = gate
        self.subqueries = subqueries
        self.named: dict[int, _Node] = {}
        """Common table expressions: each reference stands for the whole of it."""


class _Node:
    """An operator of a logical plan."""

    def __init__(self, java: Any, reading: _Reading) -> None:
        self._java = java
        self._reading = reading
        kind = str(java.getClass().getName())
        # An extension may have operators with the names of Spark's.
        self.kind = kind.rpartition(".")[2] if kind.startswith("org.apache.spark.sql.") else kind
        below = list(_several(java.children()))
        if self.kind == "WithCTE":
            for one in below[:-1]:
                reading.named[one.id()] = _Node(one.child(), reading)
            below = below[-1:]
            self.kind = "SubqueryAlias"  # With its definitions taken out it only passes rows on.
        self.children = [_Node(one, reading) for one in below]
        if self.kind == "CTERelationRef" and (named := reading.named.get(java.cteId())):
            self.kind = "SubqueryAlias"
            self.children = [named]
        self.subqueries = (
            [_Node(one, reading) for one in _several(java.subqueries())]
            if reading.subqueries
            else []
        )
        self._gate = gate_name(java.relation()) if self.kind == "LogicalRelation" else None
        self.is_part = reading.gate is not None and self._gate == reading.gate.name

    @cached_property
    def uses(self) -> int:
        """How often the part is read here and below. What reads another part counts too."""
        return bool(self._gate) + sum(one.uses for one in (*self.children, *self.subqueries))

    def all(self) -> Iterator[_Node]:
        """Go through this operator and all below, and those of subqueries."""
        yield self
        for one in (*self.children, *self.subqueries):
            yield from one.all()

    @cached_property
    def texts(self) -> list[str]:
        """Its expressions, as Spark writes them."""
        return str(self._java.expressions().mkString("\n")).split("\n")

    @property
    def expressions(self) -> Iterator[Any]:
        """Its expressions, as Spark has them."""
        return _several(self._java.expressions())

    @property
    def is_local_sort(self) -> bool:
        """Whether it sorts within partitions, so that no row moves to another."""
        return not getattr(self._java, "global")()  # A word of Python.

    @property
    def generator(self) -> str:
        """Which generator it calls."""
        found = self._java.generator()
        kind = str(found.getClass().getName())
        return str(found.name()) if kind.endswith("UDTF") else kind.rpartition(".")[2]

    @property
    def join(self) -> str:
        """How it joins."""
        return str(self._java.joinType().toString()).partition("(")[0]

    @property
    def hidden(self) -> str | None:
        """Return the column `_metadata` of this relation if the plan uses it."""
        output, schema = self._java.output(), self._java.relation().schema()
        if output.size() == schema.size():
            return None
        return str(output.apply(output.size() - 1).toString())


def _culprit(plan: _Plan) -> str | None:
    """Return which function it is that depends on time or place."""
    for node in reversed(list(plan.root.all())):  # Subqueries before what they make uncertain.
        for expression in node.expressions:
            if found := _first_of(expression, plan):
                return found
    return None


def _first_of(expression: Any, plan: _Plan) -> str | None:
    for below in _several(expression.children()):
        if found := _first_of(below, plan):
            return found
    current = expression.containsPattern(plan._patterns.CURRENT_LIKE())
    if expression.deterministic() and not current:
        return None
    return f"{expression.prettyName()}()"


def _several(several: Any) -> Iterator[Any]:
    for number in range(several.size()):
        yield several.apply(number)
