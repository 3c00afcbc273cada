"""The input of a pipeline as DataFrames: all of it, to see what it looks like, and part by part."""

from __future__ import annotations

import codecs
import json
from typing import Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.pipeline.files import Files, as_url, for_spark, path_of
from holdfast.spark.pipeline.foreign import schema_json
from holdfast.spark.pipeline.formats import own_options
from holdfast.spark.pipeline.gate import relation_of, with_columns_of_files
from holdfast.spark.pipeline.order import (
    MOST_PARTS,
    Blocks,
    Bytes,
    Order,
    Plan,
    Slice,
    too_many_parts,
)
from holdfast.spark.pipeline.splitting import Found, by_blocks, by_bytes
from holdfast.spark.pipeline.trouble import reason

_ONE_BYTE_ENCODINGS: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1"})
_HEADER_BYTES: Final = 64 * 1024
_WITH_FOOTERS: Final = frozenset({"parquet", "orc"})
"""Formats whose files each tell the schema."""
MOST_NAMED: Final = 5
"""Corrupt files that an error names."""


def read_all(spark: SparkSession, order: Order) -> DataFrame:
    """Return the whole input, with the schema that Spark finds in it without corrupt files."""
    reader = spark.read.format(order.format).options(**order.options)
    paths = [as_url(path) for path in order.input]
    if order.schema is not None:
        reader = reader.schema(order.schema)
    try:
        return reader.load(paths)
    except Py4JJavaError as error:  # Spark looks at one file, or at all of them.
        if order.format not in _WITH_FOOTERS or not _is_unreadable(error):
            raise
    if order.has("mergeSchema"):
        return reader.option("ignoreCorruptFiles", True).load(paths)
    schema = _first_readable(spark, order, reader.schema("_ STRING").load(paths).inputFiles())
    # Directories add their columns, as in the whole input.
    return reader.schema(schema).load(paths)


def files_read(spark: SparkSession, plan: Plan) -> set[str]:
    """Return the paths of the files that one plain job would read, as Spark lists them.

    Of directories, it leaves out what is beside directories like `day=1`, for example.
    """
    order = plan.order
    schema = StructType.fromJson(schema_json(plan.schema))
    reader = spark.read.format(order.format).options(**order.options).schema(schema)
    frame = reader.load([as_url(path) for path in order.input])
    relation = relation_of(frame)
    if relation.partitionSchema().isEmpty():
        return {path_of(unquote(url)) for url in frame.inputFiles()}
    jvm: Any = spark._jvm
    nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    directories = relation.location().listFiles(nothing, nothing)
    return {
        path_of(str(some.apply(place).getPath().toString()))
        for some in (directories.apply(number).files() for number in range(directories.size()))
        for place in range(some.size())
    }


def schema_in(frame: DataFrame) -> str:
    """Return the schema of a DataFrame, checked.

    As Java has it: PySpark would import the modules of user-defined types that files name.
    """
    found = str(frame._jdf.schema().json())
    schema_json(found)
    return found


def schema_in_files(frame: DataFrame) -> str | None:
    """Return the schema of the files of an input, if a directory replaces one of their columns."""
    relation = relation_of(frame)
    if relation.overlappedPartCols().isEmpty():
        return None
    found = str(relation.dataSchema().json())
    schema_json(found)
    return found


def _first_readable(spark: SparkSession, order: Order, urls: list[str]) -> StructType:
    """Return the schema of the first file that has one."""
    options = {name: one for name, one in order.options.items() if name.lower() != "basepath"}
    reader = spark.read.format(order.format).options(**options)
    wrong: list[str] = []
    for url in sorted(urls):
        try:
            found = reader.load(for_spark(unquote(url)))
        except Py4JJavaError as error:
            if not _is_unreadable(error):
                raise
            wrong.append(unquote(url))
            last = reason(error)
        else:
            return StructType.fromJson(json.loads(schema_in(found)))
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    named = f"{', '.join(wrong[:MOST_NAMED])}{more}"
    raise OSError(f"no file of the input can be read: {named}. The last: {last}")


def _is_unreadable(error: Py4JJavaError) -> bool:
    """Tell whether a file is to blame, and not the machine that reads it."""
    return "FAILED_READ_FILE" in str(error)


def divide(files: Files, plan: Plan, file: Found) -> list[Slice]:
    """Return the pieces of a big file: none, where it cannot be divided."""
    order = plan.order
    if plan.whole_files:
        return []  # A piece has the name of a copy.
    if order.option("modifiedBefore") or order.option("modifiedAfter"):
        return []  # A piece is a file of another age.
    if order.format == "parquet":
        try:
            return by_blocks(file, order.part_size, files.row_groups(file.path))
        except Py4JJavaError:  # Its part will say what is wrong with it, and the others run.
            return []
    if order.format in ("csv", "json", "text") and _has_lines(order, file, files):
        if file.size > MOST_PARTS * order.part_size:
            raise too_many_parts(order.part_size)
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
    """Return what a part reads. A piece of a file is copied to `scratch` first.

    One without files has the columns of the input, and is not to be read.
    """
    order = plan.order
    schema = StructType.fromJson(schema_json(plan.schema))
    reader = spark.read.format(order.format).options(**order.options).schema(schema)
    if some.files:
        frame = _load(reader, files, order, some, scratch)
    else:
        frame = reader.load([as_url(path) for path in order.input])
    if plan.in_files is None:
        return frame
    return with_columns_of_files(frame, StructType.fromJson(schema_json(plan.in_files)))


def _load(
    reader: DataFrameReader, files: Files, order: Order, some: Slice, scratch: str
) -> DataFrame:
    paths, base = some.files, some.base
    if some.piece is not None:
        paths = [_cut(files, order, some, scratch)]
        reader = reader.options(**own_options(order.format))
        base = base and scratch
    if base is not None:
        reader = reader.option("basePath", as_url(base))
    return reader.load([for_spark(path) for path in paths])


def read_nothing(spark: SparkSession, plan: Plan, empty: str) -> DataFrame:
    """Return the columns of the input without any of its files, over an empty directory."""
    order = plan.order
    schema = StructType.fromJson(schema_json(plan.schema))
    options = {name: one for name, one in order.options.items() if name.lower() != "basepath"}
    return spark.read.format(order.format).options(**options).schema(schema).load(for_spark(empty))


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
            said = line if length > len(line) else line.removeprefix(codecs.BOM_UTF8)
            if said.strip() and not (comment and said.startswith(comment)):
                break
        if length < most or len(head) < most:
            return length
        most *= 4  # It goes on.
