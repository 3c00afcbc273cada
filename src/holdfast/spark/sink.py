"""The sink: tasks stage their rows, and the driver commits all or none of them with one record.

A task that fails, or runs a second time, leaves staged rows that are never committed; they are
forgotten after a while. Committed rows are published by the driver or, if it dies, by the next call
to the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.codec import random_name
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.job import Staged
from holdfast.spark.columns import check_columns, jobs_of
from holdfast.spark.options import SinkOptions, reach
from holdfast.spark.tasks import freeze_loaded_objects

QUERY_ID = "sql.streaming.queryId"
"""The local property that names the streaming query to its tasks."""


@dataclass
class Message(WriterCommitMessage):
    """What one task has staged, and its streaming query."""

    staged: Staged
    query: str | None


class _Writer:
    """Base of the batch and the stream writer. Spark pickles it, so it holds no connection."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                "a queue cannot be overwritten: use mode('append'), "
                "and outputMode('append') or 'update' for a stream"
            )
        check_columns(schema)
        self._options = options
        self._write = random_name()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        task = TaskContext.get()
        assert task is not None, "write() is called in a task"
        freeze_loaded_objects()
        staged = (
            self._options.place.open()
            .write(self._write)
            .stage(
                (job for batch in iterator for job in jobs_of(batch)),
                partition=task.partitionId(),
                attempt=task.taskAttemptId(),
                keep_for=self._options.staged_for,
            )
        )
        return Message(staged, task.getLocalProperty(QUERY_ID))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame into a queue."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        reach(options.place)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what the tasks have staged, and publish it."""
        self._options.place.open().write(self._write).commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what the successful tasks have staged."""
        self._options.place.open().write(self._write).abort(_staged(messages))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a stream into a queue, each of them once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, and publish it; a batch that is already committed is skipped."""
        staged = _staged(messages)
        if not staged:
            return
        writer = self._options.writer or _query_of(messages)
        self._options.place.open().write(staged[0].write).commit(
            staged, writer=writer, batch=batchId
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what the successful tasks of a batch have staged."""
        if staged := _staged(messages):
            self._options.place.open().write(staged[0].write).abort(staged)


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message.staged for message in messages if isinstance(message, Message)]


def _query_of(messages: list[WriterCommitMessage | None]) -> str:
    """Return the id of the query. The checkpoint stores it, so it survives a restart."""
    for message in messages:
        if isinstance(message, Message) and message.query:
            return message.query
    raise HoldfastError("the tasks of this stream do not know its query: give option 'writer'")
