"""Whether a transform looks at more than one row at a time, and so at more than its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

from holdfast.worker import Fail

_WIDE: Final = frozenset(
    {"Exchange", "TakeOrderedAndProject", "CollectLimit", "CollectTail", "GlobalLimit"}
)


def refuse_shuffle(name: str, frame: DataFrame, inputs: Iterable[str]) -> None:
    """Refuse a plan that exchanges rows of the part: its result would be another for each split.

    What a transform loads by itself, and then joins, it may group and sort as it likes.
    """
    ours = frozenset(inputs)
    for node in _nodes(frame._jdf.queryExecution().executedPlan()):
        if _is_wide(str(node.nodeName())) and any(_reads(leaf, ours) for leaf in _nodes(node)):
            raise Fail(
                f"{name} shuffles: it groups, sorts, deduplicates, limits or windows, and would do "
                "so in each part for itself. Move that into a transform for finish=, which sees "
                "all rows; or say @transform(per_part=True) if that is what you want"
            )


def _is_wide(name: str) -> bool:
    """Tell whether a node looks at many rows; those of one partition need no exchange."""
    return name in _WIDE or name.endswith("Aggregate") or name.startswith("Window")


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for below in _below(node):
        yield from _nodes(below)


def _below(node: Any) -> Iterator[Any]:
    """Return what a node gets its rows from."""
    match node.getClass().getSimpleName():
        case "AdaptiveSparkPlanExec":
            yield node.initialPlan()
        case "InMemoryTableScanExec":
            yield node.relation().cachedPlan()
    for several in (node.children(), node.subqueries()):
        for number in range(several.size()):
            yield several.apply(number)


def _reads(node: Any, ours: frozenset[str]) -> bool:
    """Tell whether a node reads the part, as far as one can know."""
    if any(True for _ in _below(node)):
        return False
    if node.getClass().getSimpleName() != "FileSourceScanExec":
        # Rows that come from nowhere are ours too, unless the plan itself holds them.
        return str(node.nodeName()) not in ("LocalTableScan", "Range", "OneRowRelation")
    return any(path in ours for path in node.relation().location().inputFiles())
