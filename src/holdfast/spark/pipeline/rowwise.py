"""Whether parts together give what one job would: the check of a transform's plan.

It reads the analysed logical plan, in which neither sizes nor statistics play a role. The part's
relation must occur once, and only operators that are listed here may stand between it and the
result: those that make their rows from one row of the part at a time. What is not listed is
refused. What may stand in branches that do not read the part is in `branches.py`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from holdfast.spark.pipeline.logical import LogicalPlan, Operator, several
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
    r", (?:GCM|CBC|DEFAULT), \w++, cast\( as binary\), ", re.IGNORECASE
)
"""In a call of aes_encrypt: Spark draws a vector for each, though it calls that deterministic."""
_WAY_OUT: Final = (
    "Move it into a transform for finish=, which sees all rows; or declare the transform with "
    "@transform(per_part=True) if each part may have a result of its own"
)


def refuse_unequal(name: str, plan: LogicalPlan) -> None:
    """Refuse a transform whose parts together would differ from one job over the whole input."""
    _refuse_moments(name, plan)
    _refuse_way(name, plan.root)
    _refuse_places(name, plan)


def reads_file_facts(plan: LogicalPlan) -> bool:
    """Tell whether a transform asks for the names of files: then they must not be divided."""
    return next(plan.places(), None) is not None or plan.asks_for_input_files()


def refuse_staged_names(name: str, plan: LogicalPlan) -> None:
    """Refuse a finish that asks for the names of files: it reads what parts wrote."""
    if plan.asks_for_input_files():
        raise Fail(
            f"{name} asks for the names of files, and a finish reads what parts wrote. Keep the "
            "name in a column: the transform of the request can read _metadata.file_path"
        )


def _refuse_way(name: str, node: Operator) -> None:
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


def _refuse_subquery(name: str, node: Operator) -> None:
    if any(one.uses for one in node.subqueries):
        raise Fail(
            f"{name} reads its input in a subquery ({node.kind}), which would see one part "
            f"instead of all rows. {_WAY_OUT}"
        )


def _refuse_table_function(name: str, node: Operator) -> None:
    """Refuse table functions that are called with rows of the part: they have a state."""
    inside = (one for query in node.subqueries for one in query.all())
    for one in [node, *(inside if node.kind == "LateralJoin" else ())]:
        if one.kind == "Generate" and one.generator not in GENERATORS:
            raise Fail(
                f"{name} calls the table function {one.generator}, which may keep a state from row "
                "to row and return more rows after the last one. Use explode over a function that "
                f"returns an array, or mapInPandas. {_WAY_OUT}"
            )


def _refuse_twice(name: str, node: Operator, times: int) -> None:
    if times > 1:
        raise Fail(
            f"{name} reads its input more than once ({node.kind}), and would combine each part "
            f"with itself instead of with all rows. {_WAY_OUT}"
        )


def _refuse_operator(name: str, node: Operator, above: str) -> None:
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


def _refuse_side(name: str, node: Operator, side: str) -> None:
    kind = node.join
    if side not in JOINS.get(kind, ()):
        raise Fail(
            f"{name} uses a {kind} join with its input on the {side}: rows of the other table "
            "without a match depend on all rows, and each part sees only its own. Put the input "
            f"on the preserved side. {_WAY_OUT}"
        )


def _refuse_moments(name: str, plan: LogicalPlan) -> None:
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
    if any(_draws_vector(text) for node in plan.root.all() for text in node.texts):
        raise Fail(
            f"{name} uses aes_encrypt() without an initialization vector, which gives other values "
            "in each part. Pass one, or use the mode ECB"
        )
    said = _moment(plan)
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


def _draws_vector(text: str) -> bool:
    called = text.lower().find("aes_encrypt(")
    return called >= 0 and _RANDOM_VECTOR.search(text, called) is not None


def _refuse_places(name: str, plan: LogicalPlan) -> None:
    for text in plan.places():
        if text not in FILE_FACTS:
            raise Fail(
                f"{name} reads {text or 'all'} of _metadata, which depends on how Spark divides "
                f"files. These do not: {', '.join(sorted(FILE_FACTS))}"
            )


def _moment(plan: LogicalPlan) -> str | None:
    """Return what stands for the time at which the query runs."""
    if plan.has("CURRENT_LIKE"):
        return _culprit(plan) or "the current time"
    return "a word like 'now' or 'today' as a time" if plan.tells_time() else None


def _culprit(plan: LogicalPlan) -> str | None:
    """Return which function it is that depends on time or place."""
    for node in reversed(list(plan.root.all())):  # Subqueries before what they make uncertain.
        for expression in node.expressions:
            if found := _first_of(expression, plan):
                return found
    return None


def _first_of(expression: Any, plan: LogicalPlan) -> str | None:
    for below in several(expression.children()):
        if found := _first_of(below, plan):
            return found
    current = expression.containsPattern(plan.patterns.CURRENT_LIKE())
    if expression.deterministic() and not current:
        return None
    return f"{expression.prettyName()}()"
