"""The analysed logical plan of a DataFrame, as Spark has it in Java."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.column import Column as ClassicColumn

from holdfast.spark.pipeline.gate import Gate, gate_name


class LogicalPlan:
    """The analysed plan of a DataFrame."""

    def __init__(self, frame: DataFrame, gate: Gate | None) -> None:
        self.frame = frame
        self.java: Any = frame._jdf.queryExecution().analyzed()
        jvm: Any = frame.sparkSession._jvm
        self.patterns = getattr(
            getattr(jvm.org.apache.spark.sql.catalyst.trees, "TreePattern$"), "MODULE$"
        )
        self.nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        """An empty Scala list."""
        self._datasets = getattr(getattr(jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
        self._reading = _Reading(gate, subqueries=self.has("PLAN_EXPRESSION"))
        self.root = Operator(self.java, self._reading)

    def has(self, pattern: str) -> bool:
        """Ask Spark's own index of what is in a plan, with its expressions and subqueries."""
        return bool(self.java.containsPattern(getattr(self.patterns, pattern)()))

    def tells_time(self) -> bool:
        """Tell whether Spark reads a constant text in it as a time, such as 'now' or 'to' || 'day'.

        Spark's own optimizer does so, before all else, by the two rules that are asked here.
        """
        if not (self.has("CAST") or self.has("RUNTIME_REPLACEABLE")):
            return False
        jvm: Any = self.frame.sparkSession._jvm
        rules = jvm.org.apache.spark.sql.catalyst.optimizer
        replaced = getattr(getattr(rules, "ReplaceExpressions$"), "MODULE$")
        told = getattr(getattr(rules, "SpecialDatetimeValues$"), "MODULE$")
        queries = [one.java for node in self.root.all() for one in node.subqueries]
        plain = (replaced.apply(java) for java in (self.java, *queries))
        return any(not one.fastEquals(told.apply(one)) for one in plain)

    def is_correlated(self, operator: Operator) -> bool:
        """Tell whether an operator uses columns of a query around it."""
        return any(
            bool(one.java.containsPattern(self.patterns.OUTER_REFERENCE()))
            for one in operator.all()
        )

    def rows_of(self, operator: Operator) -> DataFrame:
        """Return the rows of one of its operators."""
        missing = operator.names_used() - operator.names_made()
        if not missing:
            return self.frame_of(operator.java)
        jvm: Any = self.frame.sparkSession._jvm
        found = [java for name, java in self._reading.defined.items() if name in missing]
        definitions = jvm.org.apache.spark.api.python.PythonUtils.toSeq(found)
        with_cte = jvm.org.apache.spark.sql.catalyst.plans.logical.WithCTE
        return self.frame_of(with_cte(operator.java, definitions))

    def frame_of(self, java: Any) -> DataFrame:
        """Return the rows of a plan in Java."""
        session = self.frame.sparkSession
        return DataFrame(self._datasets.ofRows(session._jsparkSession, java), session)

    def asks_for_input_files(self) -> bool:
        """Tell whether a function of it returns the names of the files that are read."""
        return any("input_file_" in text for node in self.root.all() for text in node.texts)

    def places(self) -> Iterator[str]:
        """Return what is read of `_metadata`: names of its fields, or "" for the whole of it."""
        for leaf in self.root.all():
            if not leaf.is_part or not (hidden := leaf.hidden):
                continue
            if hidden in self.root.output.split("\n"):
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
        self.named: dict[int, Operator] = {}
        """Common table expressions: each reference stands for the whole of it."""
        self.defined: dict[int, Any] = {}
        """The same, as Spark has them."""


class Operator:
    """An operator of a logical plan."""

    def __init__(self, java: Any, reading: _Reading) -> None:
        self.java = java
        self._reading = reading
        kind = _kind(java)
        # An extension may have operators with the names of Spark's.
        self.kind = kind.rpartition(".")[2] if kind.startswith("org.apache.spark.sql.") else kind
        self._made: set[int] = set()
        self._used: set[int] = set()
        """Common table expressions that it defines, and uses, by their numbers."""
        below = list(several(java.children()))
        if self.kind == "WithCTE":
            for one in below[:-1]:
                self._made.add(one.id())
                reading.defined[one.id()] = one
                reading.named[one.id()] = Operator(one.child(), reading)
            below = below[-1:]
            self.kind = "SubqueryAlias"  # With its definitions taken out it only passes rows on.
        self.children = [Operator(one, reading) for one in below]
        if self.kind == "CTERelationRef" and (named := reading.named.get(java.cteId())):
            self.kind = "SubqueryAlias"
            self.children = [named]
            self._used = {int(java.cteId())}
        self.subqueries = (
            [Operator(one, reading) for one in several(java.subqueries())]
            if reading.subqueries
            else []
        )
        self._gate = gate_name(java.relation()) if self.kind == "LogicalRelation" else None
        self.is_part = reading.gate is not None and self._gate == reading.gate.name

    @cached_property
    def uses(self) -> int:
        """How often the part is read here and below. What reads another part counts too."""
        return bool(self._gate) + sum(one.uses for one in (*self.children, *self.subqueries))

    def all(self) -> Iterator[Operator]:
        """Go through this operator and all below, and those of subqueries."""
        yield self
        for one in (*self.children, *self.subqueries):
            yield from one.all()

    def names_used(self) -> set[int]:
        """Return the common table expressions that are used here and below."""
        return {name for one in self.all() for name in one._used}

    def names_made(self) -> set[int]:
        """Return the common table expressions that are defined here and below."""
        return {name for one in self.all() for name in one._made}

    @cached_property
    def texts(self) -> list[str]:
        """Its expressions, as Spark writes them."""
        return str(self.java.expressions().mkString("\n")).split("\n")

    @cached_property
    def output(self) -> str:
        """Its columns, a line each."""
        return str(self.java.output().mkString("\n"))

    @property
    def expressions(self) -> Iterator[Any]:
        """Its expressions, as Spark has them."""
        return several(self.java.expressions())

    @property
    def is_local_sort(self) -> bool:
        """Whether it sorts within partitions, so that no row moves to another."""
        return not getattr(self.java, "global")()  # A word of Python.

    @property
    def reads_a_part(self) -> bool:
        """Whether it is the relation of this part, or of another."""
        return self._gate is not None

    @property
    def generator(self) -> str:
        """Which generator it calls."""
        found = self.java.generator()
        return str(found.name()) if self.calls_python else _kind(found).rpartition(".")[2]

    @property
    def calls_python(self) -> bool:
        """Whether it calls a table function of Python."""
        return self.kind == "Generate" and _kind(self.java.generator()).endswith("UDTF")

    @property
    def join(self) -> str:
        """How it joins."""
        return str(self.java.joinType().toString()).partition("(")[0]

    @property
    def hidden(self) -> str | None:
        """Return the column `_metadata` of this relation if the plan uses it."""
        output, schema = self.java.output(), self.java.relation().schema()
        if output.size() == schema.size():
            return None
        return str(output.apply(output.size() - 1).toString())


def _kind(java: Any) -> str:
    return str(java.getClass().getName())


def kind_of(java: Any) -> str:
    """Return the name of the class of an object in Java."""
    return _kind(java).rpartition(".")[2]


def column(expression: Any) -> Column:
    """Return an expression of a plan as a column."""
    jvm: Any = SparkContext._jvm
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def several(found: Any) -> Iterator[Any]:
    """Return the elements of a Scala sequence."""
    for number in range(found.size()):
        yield found.apply(number)
