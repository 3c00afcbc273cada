"""The part's rows behind a gate: while a transform is called, no query can read them.

A transform builds a plan; it must not look at its rows, as each part has other ones. Spark asks
the file index of a relation for its files before any query can read one, whichever thread or API
started the query. So the index of the part is an object of this process: while the gate is closed
it lists nothing and remembers that it was asked.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final, Literal

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

_numbers: Final = itertools.count(1)
_starting: Final = threading.Lock()

FILE_RELATION: Final = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"


class Gate:
    """A file index, as Spark calls it: closed, open, or open on an input without files."""

    def __init__(self, index: Any, none: Any) -> None:
        self.state: Literal["closed", "open", "empty"] = "closed"
        self.was_read = False
        """Whether a query wanted the files while it was closed."""
        self.name = f"holdfast gate {next(_numbers)}"
        self._index = index
        self._none = none
        # Py4J forgets an object when Python drops it, even before Java has read the answer.
        self._kept: list[Any] = []
        self._root_paths = index.rootPaths()
        self._partitions = index.partitionSchema()
        self._listing_time = index.metadataOpsTimeNs()

    # ------------------------------------------------- what Spark calls: FileIndex

    def listFiles(self, partitions: Any, data: Any) -> Any:  # noqa: N802
        """Return the files; nothing that Spark could use while it is closed."""
        if self.state == "closed":
            self.was_read = True
            return None
        if self.state == "empty":
            return self._none
        return self._keep(self._index.listFiles(partitions, data))

    def inputFiles(self) -> Any:  # noqa: N802
        """Return the names of the files: another part has other ones."""
        if self.state == "closed":
            self.was_read = True
        return self._keep(self._index.inputFiles())

    def _keep(self, answer: Any) -> Any:
        self._kept.append(answer)
        return answer

    def rootPaths(self) -> Any:  # noqa: N802, D102
        return self._root_paths

    def sizeInBytes(self) -> Any:  # noqa: N802, D102
        return self._index.sizeInBytes()

    def partitionSchema(self) -> Any:  # noqa: N802, D102
        return self._partitions

    def metadataOpsTimeNs(self) -> Any:  # noqa: N802, D102
        return self._listing_time

    def isTimeTravel(self) -> bool:  # noqa: N802, D102
        return False

    def refresh(self) -> None:
        """Keep the files: they are pinned."""

    def hashCode(self) -> int:  # noqa: N802, D102
        return hash(self.name) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:  # noqa: D102
        return str(other) == self.name

    def toString(self) -> str:  # noqa: N802, D102
        return self.name

    class Java:
        """How Py4J knows what this is."""

        implements: Final = ["org.apache.spark.sql.execution.datasources.FileIndex"]


def behind_a_gate(frame: DataFrame) -> tuple[DataFrame, Gate]:
    """Return the same rows of files through a gate, which is closed."""
    context = frame.sparkSession.sparkContext
    with _starting:
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = context._jvm
    immutable = jvm.scala.collection.immutable
    index = relation_of(frame).location()
    gate = Gate(index, getattr(getattr(immutable, "Nil$"), "MODULE$"))
    return _copied(frame, index=gate), gate


def relation_of(frame: DataFrame) -> Any:
    """Return the relation of a DataFrame that a reader loaded from files."""
    return frame._jdf.queryExecution().analyzed().relation()


def with_columns_of_files(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the same rows of files, in which these columns stand."""
    return _copied(frame, data=frame.sparkSession._jsparkSession.parseDataType(schema.json()))


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return the same rows of files in another session."""
    return _copied(frame, session)


def _copied(
    frame: DataFrame,
    session: SparkSession | None = None,
    *,
    index: Any = None,
    data: Any = None,
) -> DataFrame:
    session = session or frame.sparkSession
    relation = relation_of(frame)
    copied = relation.copy(
        relation.location() if index is None else index,
        relation.partitionSchema(),
        relation.dataSchema() if data is None else data,
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession(),
    )
    return DataFrame(session._jsparkSession.baseRelationToDataFrame(copied), session)


def gate_name(relation: Any) -> str | None:
    """Return the name of the gate of a relation in a plan; None if it has no gate."""
    if relation.getClass().getName() != FILE_RELATION:
        return None
    index = relation.location()
    return str(index.toString()) if "$Proxy" in index.getClass().getName() else None
