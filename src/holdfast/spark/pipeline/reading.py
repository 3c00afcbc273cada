"""The input of a pipeline as DataFrames: all of it, to see what it looks like, and part by part."""

from __future__ import annotations

import codecs
import json
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.pipeline.files import Files, as_url, for_spark
from holdfast.spark.pipeline.order import Blocks, Bytes, Order, Plan, Slice
from holdfast.spark.pipeline.splitting import Found, by_blocks, by_bytes

_ONE_BYTE_ENCODINGS: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1"})
_HEADER_BYTES: Final = 64 * 1024


def schema_of(spark: SparkSession, order: Order) -> str:
    """Return the schema of the whole input, as Spark would have it."""
    reader = spark.read.format(order.format).options(**order.options)
    if order.schema is not None:
        reader = reader.schema(order.schema)
    return reader.load([as_url(path) for path in order.input]).schema.json()


def divide(files: Files, order: Order, file: Found) -> list[Slice]:
    """Return the pieces of a big file: none, where it cannot be divided."""
    if order.option("modifiedBefore") or order.option("modifiedAfter"):
        return []  # A piece is a file of another age.
    if order.format == "parquet":
        try:
            return by_blocks(file, order.part_size, files.row_groups(file.path))
        except Py4JJavaError:  # Its part will say what is wrong with it, and the others run.
            return []
    if order.format in ("csv", "json", "text") and _has_lines(order, file, files):
        return by_bytes(file, order.part_size)
    return []


def _has_lines(order: Order, file: Found, files: Files) -> bool:
    encoding = (order.option("encoding") or order.option("charset") or "utf-8").lower()
    return not (
        order.has("multiLine")
        or order.has("wholeText")
        or order.option("lineSep") is not None
        or encoding not in _ONE_BYTE_ENCODINGS
        or files.is_compressed(file.path)
    )


def read(spark: SparkSession, files: Files, plan: Plan, some: Slice, scratch: str) -> DataFrame:
    """Return what a part reads. A piece of a file is copied to `scratch` first."""
    order = plan.order
    schema = StructType.fromJson(json.loads(plan.schema))
    if not some.files:
        return spark.createDataFrame([], schema)
    paths = some.files
    reader = spark.read.format(order.format).options(**order.options).schema(schema)
    if some.base is not None:
        reader = reader.option("basePath", as_url(some.base))
    if some.piece is not None:
        paths = [_cut(files, order, some, scratch)]
        if some.base is not None:
            reader = reader.option("basePath", as_url(scratch))
    return reader.load([for_spark(path) for path in paths])


def _cut(files: Files, order: Order, some: Slice, scratch: str) -> str:
    """Copy a piece of a file, under the directories that say its partition columns."""
    (path,) = some.files
    below = path[len(some.base) :] if some.base else path[path.rindex("/") :]
    target = scratch + below
    match some.piece:
        case Blocks(first=first, after=after):
            files.cut_blocks(path, first, after, target)
        case Bytes(start=start, end=end):
            header = _header(files, order, path) if start else 0
            files.cut_lines(path, start, end, target, header=header)
    return target


def _header(files: Files, order: Order, path: str) -> int:
    """Return how many bytes of a file are its header: with what stands before it."""
    if order.format != "csv" or not order.has("header"):
        return 0
    comment = (order.option("comment") or "").encode()
    most = _HEADER_BYTES
    while True:
        head = files.head(path, most)
        length = 0
        for line in head.splitlines(keepends=True):
            length += len(line)
            said = line.removeprefix(codecs.BOM_UTF8)
            if said.strip() and not (comment and said.startswith(comment)):
                break
        if length < most or len(head) < most:
            return length
        most *= 4  # It goes on.
