"""Whether a transform looks at more than one row at a time, and so at more than its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from holdfast.worker import Fail


def refuse_shuffle(name: str, frame: DataFrame, inputs: Iterable[str]) -> None:
    """Refuse a plan that exchanges rows of the part: its result would be another for each split.

    What a transform loads by itself, and then joins, it may group and sort as it likes.
    """
    ours = frozenset(inputs)
    for node in _nodes(frame._jdf.queryExecution().executedPlan()):
        if node.nodeName() == "Exchange" and any(_reads(leaf, ours) for leaf in _nodes(node)):
            raise Fail(
                f"{name} shuffles: it groups, sorts, deduplicates, limits or windows, and would do "
                "so in each part for itself. Move that into a transform for finish=, which sees "
                "all rows; or say @transform(per_part=True) if that is what you want"
            )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    if node.nodeName() == "AdaptiveSparkPlan":
        yield from _nodes(node.initialPlan())
    children = node.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


def _reads(node: Any, ours: frozenset[str]) -> bool:
    """Tell whether a node reads the part, as far as one can know."""
    if node.children().size() or node.nodeName() == "AdaptiveSparkPlan":
        return False
    if node.getClass().getSimpleName() != "FileSourceScanExec":
        # Rows that come from nowhere are ours too, unless the plan itself holds them.
        return str(node.nodeName()) not in ("LocalTableScan", "Range", "OneRowRelation")
    return any(path in ours for path in node.relation().location().inputFiles())
