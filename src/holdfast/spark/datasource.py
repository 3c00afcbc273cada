"""The format `holdfast`, as Spark knows it: which reader and which writer, with checked options."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from holdfast.spark import look, sink, source
from holdfast.spark.options import look_options, sink_options, source_options


class HoldfastDataSource(DataSource):
    """Queues as tables and streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "holdfast"

    def schema(self) -> StructType:
        """Return the columns of a read: a stream's has a `reader`, a batch's has none.

        It is asked for at once by `load()`, so that a stream's options are refused there.
        """
        if "reader" not in self.options:
            return look.JOBS.schema
        source_options(self.options)
        return source.JOBS.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Look at a queue."""
        look.JOBS.check(schema)
        return look.LookReader(look_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Claim what a queue has, batch by batch."""
        options = source_options(self.options)
        source.JOBS.check(schema)
        return source.StreamSource(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Add the rows of a DataFrame as jobs."""
        options = sink_options(self.options, stream=False)
        return sink.BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Add the rows of a stream as jobs."""
        options = sink_options(self.options, stream=True)
        return sink.StreamWriter(options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make the format `holdfast` known to a session.

    A session that was started where Holdfast is installed finds it by itself; this is for those
    that were not, and costs nothing for the others.
    """
    spark.dataSource.register(HoldfastDataSource)
