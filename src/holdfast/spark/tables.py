"""The columns of a read, defined once for Spark and Arrow, which must agree exactly."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types

from holdfast.errors import InvalidArgument

STRING: Final = (types.StringType(), pa.string())
BINARY: Final = (types.BinaryType(), pa.binary())
INT: Final = (types.IntegerType(), pa.int32())
TIMESTAMP: Final = (types.TimestampType(), pa.timestamp("us", tz="UTC"))


class Table:
    """Named columns, all nullable."""

    def __init__(self, **columns: tuple[types.DataType, Any]) -> None:
        self.names = tuple(columns)
        self.schema = types.StructType(
            [types.StructField(name, kind) for name, (kind, _) in columns.items()]
        )
        self._arrow = pa.schema([(name, kind) for name, (_, kind) in columns.items()])

    def batch(self, columns: dict[str, list[Any]]) -> pa.RecordBatch:
        """Return columns of values as one batch."""
        return pa.RecordBatch.from_pydict(columns, schema=self._arrow)

    def check(self, schema: types.StructType) -> None:
        """Refuse a schema of the user's own: the columns are fixed."""
        if schema != self.schema:
            raise InvalidArgument(
                "the schema is fixed: "
                + ", ".join(
                    f"{field.name} {field.dataType.simpleString()}" for field in self.schema
                )
                + ". Remove .schema(…)"
            )
