"""What a transform may do with tables other than its input: each part reads them for itself.

So they must give each part the same rows. Operators that are listed do. Some pick rows, or depend
on their order: limits, most windows, `first`, `collect_list`. They give the same rows where an
order, or a group, decides about them. That is a fact of the data. The planner asks Spark for it
once; the files of these tables are pinned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark.pipeline.logical import LogicalPlan, Operator, column, kind_of, several
from holdfast.spark.pipeline.rowwise import (
    BY_PARTITION,
    GENERATORS,
    MADE_PARTITIONS,
    ORDINARY,
    ROW_WISE,
)
from holdfast.worker import Fail

SAME_ROWS: Final = frozenset(
    {
        *ROW_WISE,
        *ORDINARY,
        "Aggregate",
        "CTERelationRef",
        "DataSourceV2Relation",
        "Deduplicate",
        "Distinct",
        "Except",
        "FlatMapGroupsInArrow",
        "FlatMapGroupsInPandas",
        "GlobalLimit",
        "HiveTableRelation",
        "Intersect",
        "LocalLimit",
        "LocalRelation",
        "LogicalRDD",
        "LogicalRelation",
        "Offset",
        "OneRowRelation",
        "Range",
        "Sort",
        "Union",
        "UnionLoop",
        "UnionLoopRef",
        "Window",
    }
)
ORDER_FREE: Final = frozenset(
    {
        "Average",
        "BitAndAgg",
        "BitOrAgg",
        "BitXorAgg",
        "BitmapConstructAgg",
        "BitmapOrAgg",
        "BoolAnd",
        "BoolOr",
        "Corr",
        "Count",
        "CountIf",
        "CountMinSketchAgg",
        "CovPopulation",
        "CovSample",
        "HyperLogLogPlusPlus",
        "Kurtosis",
        "Max",
        "Median",
        "Min",
        "Percentile",
        "PercentileCont",
        "PercentileDisc",
        "PivotFirst",  # Of a pivot: Spark has made one row for each value of it.
        "Product",
        "RegrAvgX",
        "RegrAvgY",
        "RegrCount",
        "RegrIntercept",
        "RegrR2",
        "RegrSXX",
        "RegrSXY",
        "RegrSYY",
        "RegrSlope",
        "Skewness",
        "StddevPop",
        "StddevSamp",
        "Sum",
        "VariancePop",
        "VarianceSamp",
    }
)
"""Aggregates that give the same for each order of their rows, but for the last bits of sums."""
RANKS: Final = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Functions of windows that give the same for rows that are equal in the order."""
COLLECTS: Final = frozenset({"CollectList", "CollectSet"})
FREE_OF_ORDER: Final = frozenset(
    {
        "ArrayContains",
        "ArrayExists",
        "ArrayForAll",
        "ArrayMax",
        "ArrayMin",
        "ArraySort",
        "ArraysOverlap",
        "Size",
        "SortArray",
    }
)
"""Functions that give the same for each order of an array."""
KEEPS_ELEMENTS: Final = frozenset(
    {"ArrayCompact", "ArrayDistinct", "ArrayFilter", "ArrayRemove", "ArrayTransform", "Flatten"}
)
"""Functions of one element each: in another order they give the same in another order."""

_KNOWN_AS: Final = {
    "AnyValue": "any_value",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "Deduplicate": "dropDuplicates",
    "FlatMapCoGroupsInPandas": "cogroup, applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "GlobalLimit": "limit",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "Offset": "offset",
    "RowNumber": "row_number",
}
_LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset"})
_KEEPS_ORDER: Final = frozenset({"Filter", "Project", "SubqueryAlias", *_LIMITS})
_COMPARES: Final = frozenset({*_LIMITS, "Deduplicate", "Distinct", "Except", "Intersect", "Window"})
_COLLATION: Final = re.compile(r"\bCOLLATE (?!UTF8_BINARY\b)|\bcollate\(")
_ORDINARY_ORDER: Final = (
    "lambdafunction(if ((isnull(lambda left) AND isnull(lambda right))) 0 else if "
    "(isnull(lambda left)) 1 else if (isnull(lambda right)) -1 else if "
    "((lambda left < lambda right)) -1 else if ((lambda left > lambda right)) 1 else 0, "
)
"""The default comparison of array_sort."""
_NUMBER: Final = re.compile(r"#\d+L?")
_MADE_BY_PYTHON: Final = frozenset(
    {"EmptyRDD", "MapPartitionsRDD", "ParallelCollectionRDD", "PythonRDD", "UnionRDD"}
)
"""RDDs of rows that Python made. Others read files, or hold what a query once gave."""
_WAY_OUT: Final = (
    "Name more columns in the order or the group, until they decide: orderBy before limit, "
    "row_number instead of dropDuplicates, max_by over a struct instead of first; put sort_array "
    "directly around collect_list. Or read a copy of what was picked, or declare the transform "
    "with @transform(per_part=True)"
)


class Picked(NamedTuple):
    """An operator that takes any of several rows, unless equal keys mean equal rows."""

    what: str
    rows: Operator
    keys: list[Any]
    values: list[Any]
    """The columns that may not differ where the keys are equal; [] for all of them."""


def refuse_unsure(name: str, plan: LogicalPlan) -> None:
    """Refuse a transform that may find other rows in another table each time.

    It may run queries on these tables, which are pinned: once, when a request is planned.
    """
    for node in plan.root.all():
        if node.uses:
            continue
        _refuse_operator(name, node)
        _refuse_collation(name, node)
        for picked in _picks(node):
            _refuse_undecided(name, picked, plan)


def _refuse_operator(name: str, node: Operator) -> None:
    if node.kind not in SAME_ROWS:
        raise _unsure(name, _named(node.kind))
    if node.kind in BY_PARTITION and any(
        one.kind in MADE_PARTITIONS for one in node.children[0].all()
    ):
        raise _unsure(name, f"{node.kind} over partitions that were made or sorted before")
    if node.kind in ("GlobalLimit", "Offset") and not _sorted(node.children[0]):
        raise _unsure(name, f"{_named(node.kind)} without orderBy")
    if (
        node.kind == "Generate"
        and node.generator not in GENERATORS
        and node.children[0].kind != "OneRowRelation"
    ):
        raise _unsure(name, f"the table function {node.generator}")
    if node.kind == "LogicalRDD":
        for kind in _lineage(node.java.rdd()):
            if kind not in _MADE_BY_PYTHON:
                raise _unsure(name, f"an RDD ({kind}), which hides where its rows come from,")


def _refuse_collation(name: str, node: Operator) -> None:
    """Refuse to group or sort by text of which unlike values are equal: any may stand for them."""
    if node.kind == "Aggregate":
        given = [
            *node.texts,
            *(one.dataType().sql() for one in several(node.java.references().toSeq())),
        ]
    elif node.kind in _COMPARES:
        given = [node.java.schema().sql()]
    else:
        return
    if any(_COLLATION.search(text) for text in given):
        raise _unsure(name, f"{_named(node.kind)} of text with a collation")


def _lineage(rdd: Any) -> Iterator[str]:
    yield kind_of(rdd)
    for one in several(rdd.dependencies()):
        yield from _lineage(one.rdd())


# ------------------------------------------------------------------ what picks


def _picks(node: Operator) -> Iterator[Picked]:
    """Return the picks of an operator; the data must leave only one choice for each."""
    java = node.java
    match node.kind:
        case "GlobalLimit" | "Offset":
            if found := _sorted(node.children[0]):
                keys = [one.child() for one in several(found.java.order())]
                yield Picked(f"{_named(node.kind)} after orderBy", found.children[0], keys, [])
        case "Deduplicate":
            keys = list(several(java.keys()))
            if len(keys) < java.output().size():
                yield Picked(f"{_named(node.kind)} of some columns", node.children[0], keys, [])
        case "Aggregate":
            keys = list(several(java.groupingExpressions()))
            unsure = [one for each in node.expressions for one in _aggregates(each, ())]
            grouped = [(what, values) for what, more, values in unsure if not more]
            if grouped:
                values = [one for _, some in grouped for one in some]
                yield Picked(grouped[0][0], node.children[0], keys, values)
            for what, more, values in unsure:
                if more:
                    yield Picked(what, node.children[0], [*keys, *more], values)
        case "Window":
            windows = [_window_in(one) for one in several(java.windowExpressions())]
            unsure = [one for one in windows if not _same_for_equals(one)]
            if unsure:
                keys = list(several(java.partitionSpec()))
                keys += [one.child() for one in several(java.orderSpec())]
                yield Picked(f"a window ({_function(unsure[0])})", node.children[0], keys, [])
        case "FlatMapGroupsInPandas" | "FlatMapGroupsInArrow":
            keys = list(several(java.groupingAttributes()))
            yield Picked(_named(node.kind), node.children[0], keys, [])


def _sorted(node: Operator) -> Operator | None:
    """Return the sort that decides about the order of rows here."""
    while node.kind in _KEEPS_ORDER:
        node = node.children[0]
    return node if node.kind == "Sort" and not node.is_local_sort else None


def _aggregates(
    expression: Any, above: tuple[str, ...]
) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Return aggregates that depend on the order of rows: names, more keys, and values."""
    kind = kind_of(expression)
    if kind not in ("AggregateExpression", "PythonUDAF"):
        if not _sees_elements(expression, kind):
            kind = f"{kind} by a function"
        for below in several(expression.children()):
            yield from _aggregates(below, (*above, kind))
        return
    function = expression.aggregateFunction() if kind == "AggregateExpression" else expression
    kind, given = kind_of(function), list(several(function.children()))
    if kind in ORDER_FREE or (kind in COLLECTS and _in_any_order(above)):
        return
    what = _called(function)
    match kind:
        case "MaxBy" | "MinBy":
            yield what, given[1:], given[:1]
        case "Mode" if function.reverseOpt().isDefined():
            return
        case "ListAgg":
            order = [one.child() for one in several(function.orderExpressions())]
            if not any(one.semanticEquals(given[0]) for one in order):
                yield what, order, given[:1]
        case _:
            yield what, [], [one for one in given if not one.foldable()]


def _in_any_order(above: tuple[str, ...]) -> bool:
    """Tell whether functions around a list give the same for each order of it."""
    for kind in reversed(above):
        if kind not in KEEPS_ELEMENTS:
            return kind in FREE_OF_ORDER
    return False


def _sees_elements(expression: Any, kind: str) -> bool:
    """Tell whether a function over an array does not depend on where its elements are."""
    if kind == "ArraySort":
        order = _NUMBER.sub("", str(expression.function().toString()))
        return order.startswith(_ORDINARY_ORDER)
    if kind in ("ArrayTransform", "ArrayFilter"):
        return bool(expression.function().arguments().size() == 1)
    return True


def _window_in(expression: Any) -> Any:
    while kind_of(expression) != "WindowExpression":
        expression = expression.children().apply(0)
    return expression


def _function(window: Any) -> str:
    found = window.windowFunction()
    if kind_of(found) == "AggregateExpression":
        found = found.aggregateFunction()
    return _called(found)


def _called(function: Any) -> str:
    kind = kind_of(function)
    if kind == "PythonUDAF":
        return str(function.name())
    return _KNOWN_AS.get(kind) or str(function.prettyName())


def _same_for_equals(window: Any) -> bool:
    """Tell whether a function over a window gives the same for rows that are equal in its order."""
    function = window.windowFunction()
    if kind_of(function) in RANKS:
        return True
    if kind_of(function) != "AggregateExpression":
        return False
    frame = str(window.windowSpec().frameSpecification().toString())
    whole = "unboundedpreceding" in frame and "unboundedfollowing" in frame
    return (whole or "RangeFrame" in frame) and kind_of(function.aggregateFunction()) in ORDER_FREE


# ------------------------------------------------------------- what data decide


def _refuse_undecided(name: str, picked: Picked, plan: LogicalPlan) -> None:
    """Ask whether rows that are equal in the keys differ in the values."""
    if any(one.kind == "UnionLoopRef" for one in picked.rows.all()) or plan.is_correlated(
        picked.rows
    ):
        raise _unsure(name, f"{picked.what} in a subquery whose rows depend on others")
    rows = plan.rows_of(picked.rows)
    keys = [column(key).alias(f"k{number}") for number, key in enumerate(picked.keys)]
    values = F.struct(*map(column, picked.values)) if picked.values else F.struct("*")
    grouped = rows.groupBy(*keys)
    try:
        found = grouped.agg(F.min(values).alias("least"), F.max(values).alias("most"))
        differing = found.where(~F.col("least").eqNullSafe(F.col("most")))
    except AnalysisException:  # Maps and variants have no order.
        differing = grouped.agg(F.count(F.lit(1)).alias("rows")).where("rows > 1")
    if not differing.isEmpty():
        raise _unsure(
            name, f"{picked.what}, where rows are equal in all that decides and differ in the rest,"
        )


def _named(kind: str) -> str:
    return f"{kind} ({_KNOWN_AS[kind]})" if kind in _KNOWN_AS else kind


def _unsure(name: str, what: str) -> Fail:
    return Fail(
        f"{name} uses {what} over another table, which may give other rows each time, and each "
        f"part reads that table for itself. {_WAY_OUT}"
    )
