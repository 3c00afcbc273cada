"""The Spark data source `holdfast`: checks options, and makes readers and writers."""

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
        """Return the columns of a read. The option `reader` is that of a stream.

        `load()` calls this at once, so wrong options of a stream are refused there.
        """
        if "reader" not in self.options:
            return look.JOBS.schema
        source_options(self.options)
        return source.JOBS.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that shows the jobs of a queue."""
        look.JOBS.check(schema)
        return look.LookReader(look_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a source that claims the jobs of a queue, batch by batch."""
        options = source_options(self.options)
        source.JOBS.check(schema)
        return source.StreamSource(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that adds the rows of a DataFrame as jobs."""
        options = sink_options(self.options, stream=False)
        return sink.BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer that adds the rows of a stream as jobs."""
        options = sink_options(self.options, stream=True)
        return sink.StreamWriter(options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Register the format `holdfast` with a Spark session.

    A session that is started where Holdfast is installed finds the format by itself. Other sessions
    need this call. It is harmless to call it in any session.
    """
    spark.dataSource.register(HoldfastDataSource)
