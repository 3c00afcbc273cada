"""Options of formats: those that Spark documents, by name, and nothing that becomes a setting."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from docs.pages import DOCS, rows, section
from holdfast import InvalidArgument
from holdfast.spark.pipeline.formats import (
    CODECS,
    READ,
    WRITE,
    Format,
    input_options,
    output_options,
)

PAGE = DOCS / "pipeline.md"
FORMATS: tuple[Format, ...] = get_args(Format)
CATALYST = "org.apache.spark.sql.catalyst"
SOURCES = "org.apache.spark.sql.execution.datasources"
CLASSES = {
    "csv": f"{CATALYST}.csv.CSVOptions",
    "json": f"{CATALYST}.json.JSONOptions",
    "parquet": f"{SOURCES}.parquet.ParquetOptions",
    "orc": f"{SOURCES}.orc.OrcOptions",
    "text": f"{SOURCES}.text.TextOptions",
}
ENUMS = {
    "parquet": f"{SOURCES}.parquet.ParquetCompressionCodec",
    "orc": f"{SOURCES}.orc.OrcCompressionCodec",
    "text": f"{CATALYST}.util.HadoopCompressionCodec",
}
NOT_TAKEN = {
    "csv": {"inputBufferSize"},
    "json": {"explodeEmbeddedArray", "pretty", "sortKeys", "useUnsafeRow"},
    "parquet": {"parquet.compression"},
    "orc": {"orc.compress"},
    "text": set(),
}
"""Names of Hadoop's, and what is not documented."""


def java(spark: SparkSession, name: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.java.lang.Class.forName(name)


@pytest.mark.parametrize("format", FORMATS)
def test_the_options_are_those_of_spark(spark: SparkSession, format: Format) -> None:
    known = java(spark, f"{CLASSES[format]}$").getField("MODULE$").get(None).getAllOptions().toSeq()
    theirs = {known.apply(number) for number in range(known.size())}
    assert (READ[format] | WRITE[format]) == theirs - NOT_TAKEN[format]


@pytest.mark.parametrize("format", ENUMS)
def test_the_codecs_are_those_of_spark(spark: SparkSession, format: Format) -> None:
    theirs = {str(one.toString()).lower() for one in java(spark, ENUMS[format]).getEnumConstants()}
    assert set(CODECS[format].split("|")) == theirs


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "name",
    [
        "fs.file.impl",
        "FS.File.Impl",
        "dfs.nameservices",
        "parquet.compression",
        "mapreduce.output.fileoutputformat.outputdir",
        "spark.sql.sources.commitProtocolClass",
        "hadoop.security.credential.provider.path",
        "io.compression.codecs",
        "path",
        "paths",
        "PartitionBy",
        "ignoreCorruptFiles",
        "ignoremissingfiles",
        "header\0",
        " header",
        "",
    ],
)
def test_what_is_no_option_of_a_format_is_refused_by_name(format: Format, name: str) -> None:
    for check in (input_options, output_options):
        with pytest.raises(InvalidArgument, match="is not allowed") as raised:
            check(format, {name: "x"})
        assert f"For {format} there are " in str(raised.value)


def test_a_refusal_says_what_to_do_instead() -> None:
    for name, said in (
        ("partitionBy", "partition_by="),
        ("path", "as input and output"),
        ("ignoreCorruptFiles", "partial=True"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            output_options("parquet", {name: "x"})


def test_files_are_chosen_for_inputs_only_and_compressed_in_outputs_only() -> None:
    chosen = {
        "modifiedBefore": "2026-01-01T00:00:00",
        "MODIFIEDAFTER": "2025-01-01T00:00:00",
        "pathGlobFilter": "*.parquet",
        "recursiveFileLookup": True,
        "mergeSchema": True,
        "basePath": "in",
    }
    assert input_options("parquet", chosen)["mergeSchema"] == "true"
    for name, value in chosen.items():
        if name != "mergeSchema":
            with pytest.raises(InvalidArgument, match="is not allowed"):
                output_options("parquet", {name: value})
    written = {"compression": "ZSTD", "maxRecordsPerFile": 1000}
    assert output_options("parquet", written) == {
        "compression": "ZSTD",
        "maxRecordsPerFile": "1000",
    }
    with pytest.raises(InvalidArgument, match="is not allowed"):
        input_options("parquet", {"compression": "zstd"})
    assert output_options("csv", {"header": True, "multiLine": True, "sep": ";"})["sep"] == ";"


@pytest.mark.parametrize(
    ("format", "option", "value"),
    [
        ("text", "compression", "org.apache.hadoop.io.compress.GzipCodec"),
        ("csv", "codec", "java.lang.Runtime"),
        ("parquet", "compression", "gzip2"),
        ("csv", "compression", ""),
        ("csv", "encoding", "../../etc/passwd"),
        ("json", "charset", "a b"),
        ("csv", "timeZone", "../UTC"),
        ("csv", "locale", "en/../x"),
        ("csv", "extension", "../x"),
        ("csv", "maxRecordsPerFile", "-1"),
        ("csv", "nullValue", "x" * 1001),
        ("csv", "sep", "\0"),
        ("csv", "sep", None),
        ("csv", "sep", [","]),
    ],
)
def test_a_value_that_names_something_else_is_refused(
    format: Format, option: str, value: object
) -> None:
    with pytest.raises(InvalidArgument, match=f"output_options: {option}"):
        output_options(format, {option: value})


def test_an_option_is_given_once() -> None:
    with pytest.raises(InvalidArgument, match="given twice"):
        input_options("csv", {"header": True, "HEADER": False})


def test_a_schema_is_parsed_as_a_schema_and_nothing_else(spark: SparkSession) -> None:
    for ddl in (
        "a STRING DEFAULT reflect('java.lang.System', 'getProperty', 'user.home')",
        "a INT GENERATED ALWAYS AS (1)",
        "a STRING) USING csv LOCATION '/etc' --",
        "SELECT 1",
    ):
        with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
            spark.read.schema(ddl)


@pytest.mark.parametrize("format", FORMATS)
def test_the_page_lists_the_options(format: Format) -> None:
    row = next(row for row in rows(section(PAGE, "Options")) if row[0] == f"`{format}`")
    both, written = (frozenset(re.findall(r"`([^`]+)`", cell)) for cell in row[1:])
    assert (both, written) == (READ[format], WRITE[format])
