"""Inputs with odd names, options and headers, whole and divided."""

from __future__ import annotations

import gzip
import io
import itertools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Handle, Pipeline, transform
from holdfast.spark.pipeline.files import _CHUNK, Files
from holdfast.spark.pipeline.formats import Format
from spark.pipeline.support import must_be_published, names, numbers, rows


def test_a_directory_with_a_comma_in_its_name(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    expected = numbers(spark, root / "in,put/day=1", rows=100, files=2)
    handle = pipeline.submit("same", input="in,put", format="parquet", output="out", max_failures=0)
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("day = 1").count() == expected.count()


@pytest.mark.parametrize(
    ("input", "part_size"), [("in/day=*", 100_000_000), ("in/day=*/*.parquet", 1000)]
)
def test_a_base_path_of_the_users_own(
    spark: SparkSession, pipeline: Pipeline, root: Path, input: str, part_size: int
) -> None:
    for day in (1, 2):
        spark.range(3000).repartition(1).write.option("parquet.block.size", 4000).parquet(
            str(root / f"in/day={day}")
        )
    handle = pipeline.submit(
        "same",
        input=input,
        format="parquet",
        options={"basePath": str(root / "in")},
        output="out",
        max_failures=0,
        part_size=part_size,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("day = 1").count() == 3000
    assert handle.read(spark).where("day = 2").count() == 3000


def test_the_names_of_options_are_without_case(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in/deep").mkdir(parents=True)
    (root / "in/deep/a.csv").write_text("".join(f'{n},"two\nlines"\n' for n in range(300)))
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options={"recursivefilelookup": "True", "MULTILINE": "TRUE"},
        output="out",
        output_format="parquet",
        part_size=1000,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).where("_c1 = 'two\nlines'").count() == 300


def test_a_divided_file_keeps_its_age(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    (root / "in").mkdir()
    (root / "in/old.csv").write_text("".join(f"{n}\n" for n in range(3000)))
    os.utime(root / "in/old.csv", (1_000_000_000, 1_000_000_000))
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options={"modifiedBefore": "2020-01-01T00:00:00"},
        output="out",
        part_size=2000,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert handle.read(spark).count() == 3000


def test_a_header_behind_a_mark_and_a_comment(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    (root / "in").mkdir()
    lines = ["\ufeff# of today", "", "n", *map(str, range(300))]
    (root / "in/marked.csv").write_text("\n".join(lines) + "\n")
    options = {"header": True, "comment": "#"}
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        options=options,
        part_size=400,
        output="out",
        output_format="parquet",
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert sorted(int(row.n) for row in handle.read(spark).collect()) == list(range(300))


def test_a_header_that_is_longer_than_a_megabyte(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    columns = [f"{'column' * 10_000}{n}" for n in range(20)]
    (root / "in").mkdir()
    lines = [",".join(columns), *(",".join([str(n), *["x" * 200] * 19]) for n in range(300))]
    (root / "in/wide.csv").write_text("\n".join(lines) + "\n")
    handle = pipeline.submit(
        "first_column", input="in/*.csv", options={"header": True}, output="out", part_size="700 KB"
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert sorted(int(row[0]) for row in handle.read(spark).collect()) == list(range(300))


@transform
def first_column(df: DataFrame) -> DataFrame:
    return df.select(F.col(df.columns[0]).alias("n"))


@transform
def with_file_name(df: DataFrame) -> DataFrame:
    return df.select("*", "_metadata.file_name")


def must_equal(spark: SparkSession, handle: Handle, root: Path, expected: DataFrame) -> None:
    """Check that a request is published with the rows and columns of a plain job."""
    must_be_published(handle, root, handle.id)
    found = handle.read(spark)
    assert found.dtypes == expected.dtypes
    assert rows(found) == rows(expected)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def test_a_named_link_is_read_under_its_own_name(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    link(root / "in/a.csv.gz", put(root / "blobs/9f86", gzip.compress(b"1,a\n2,b\n")))
    link(root / "in/b.csv", put(root / "blobs/_b.csv", b"3,c\n"))
    several = put(root / "blobs/c.csv", b"".join(b"%d,d\n" % n for n in range(100)))
    link(root / "in/day=1/c.csv", several)
    named = ["in/a.csv.gz", "in/b.csv", "in/day=1/c.csv", "blobs/c.csv", "blobs/c.csv"]
    schema = "id INT, name STRING"
    reader = spark.read.schema(schema)
    files = pipeline.submit(
        "with_file_name",
        input=named,
        schema=schema,
        output="files",
        output_format="parquet",
        id="files",
    )
    divided = pipeline.submit(
        "same",
        input="in/day=1/c.csv",
        schema=schema,
        options={"basePath": "in"},
        output="divided",
        output_format="parquet",
        id="divided",
        part_size=200,
    )
    plain = reader.csv([str(root / path) for path in named[:4]])
    with pipeline.working(spark):
        must_equal(spark, files, root, with_file_name(plain))
        plain = reader.option("basePath", str(root / "in")).csv(str(root / "in/day=1/c.csv"))
        must_equal(spark, divided, root, plain)
    assert divided.progress().parts > 1


@pytest.mark.parametrize("part_size", [20, 100_000_000])
@pytest.mark.parametrize(
    "folders",
    [
        ("", "day=1"),
        ("day=1", "day=2/more"),
        ("x/day=1", "x/day=2"),
        ("", "more"),
        ("_a=1", "b=2/.c"),
    ],
    ids=lambda folders: " and ".join(folder or "top" for folder in folders),
)
def test_of_directories_those_files_are_read_that_spark_reads(
    spark: SparkSession, pipeline: Pipeline, root: Path, folders: tuple[str, str], part_size: int
) -> None:
    for number, folder in enumerate(folders):
        put(root / "in" / folder / "a b%.csv", b"".join(b"%d%d\n" % (number, n) for n in range(20)))
    handle = pipeline.submit(
        "same",
        input="in",
        format="csv",
        schema="id INT",
        output="out",
        output_format="parquet",
        part_size=part_size,
        id="out",
    )
    with pipeline.working(spark):
        must_equal(spark, handle, root, spark.read.schema("id INT").csv(str(root / "in")))


def test_strings_that_are_stored_as_deltas_survive_copies_of_ours(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    texts = [f"s{n}" for n in range(60)]
    pq.write_table(
        pa.table({"id": range(60), "s": texts}),
        put(root / "in/a.parquet", b""),
        row_group_size=20,
        data_page_version="2.0",
        use_dictionary=False,
        column_encoding={"s": "DELTA_BYTE_ARRAY"},
    )
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    deltas = {"parquet.writer.version": "PARQUET_2_0", "parquet.enable.dictionary": "false"}
    for name, value in deltas.items():
        settings.set(name, value)
    spark.conf.set("spark.sql.parquet.compression.codec", "none")
    try:
        handle = pipeline.submit(
            "same", input="in/*.parquet", output="out", finish="same", part_size=200
        )
        with pipeline.working(spark):
            must_be_published(handle, root)
    finally:
        spark.conf.unset("spark.sql.parquet.compression.codec")
        for name in deltas:
            settings.unset(name)
    assert handle.progress().parts == 3
    written = pq.read_table(list((root / "out").glob("*.parquet")))
    assert sorted(written["s"].to_pylist()) == sorted(texts)
    assert sorted(row.s for row in handle.read(spark).collect()) == sorted(texts)


def test_an_empty_row_group_is_in_no_piece(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    table = pa.table({"id": range(200)})
    path = put(root / "in/a.parquet", b"")
    with pq.ParquetWriter(path, table.schema) as writer:
        for first, count in ((0, 0), (0, 0), (0, 100), (0, 0), (100, 100), (0, 0)):
            writer.write_table(table.slice(first, count))
    handle = pipeline.submit(
        "same", input="in/*.parquet", output="out", id="out", part_size=300, max_failures=0
    )
    with pipeline.working(spark):
        must_equal(spark, handle, root, spark.read.parquet(str(path)))
    assert handle.progress().parts == 2


def test_a_byte_order_mark_at_the_beginning_of_a_piece_is_content(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    lines = b"".join(b"%s%d,n\n" % (b"\xef\xbb\xbf" * (n % 4), n) for n in range(100))
    put(root / "in/a.txt", lines)
    put(root / "in/a.csv", lines)
    handles = [
        pipeline.submit(
            "same", input=f"in/a.{one}", output=one, id=one, output_format="parquet", part_size=200
        )
        for one in ("txt", "csv")
    ]
    with pipeline.working(spark):
        must_equal(spark, handles[0], root, spark.read.text(str(root / "in/a.txt")))
        must_equal(spark, handles[1], root, spark.read.csv(str(root / "in/a.csv")))
    for handle in handles:
        assert sum(done.rows_out > 0 for _, done in handle.parts() if done) > 2


def test_a_line_is_found_wherever_its_bytes_are_divided() -> None:
    files = Files.__new__(Files)
    for before in (*range(12), *range(_CHUNK - 12, _CHUNK + 4)):
        for marks, ending in itertools.product(range(3), (b"", b"\n")):
            text = b"x" * before + b"\n\xef\xbb\xbfmarked" * marks + b"\nplain" + ending
            stream = Stream(text)
            first = text.index(b"plain")
            assert files._line_at(stream, 0) == 0
            assert files._line_at(stream, 1) == first
            assert files._line_at(stream, first) == first
            assert files._line_at(stream, first + 1) == len(text)
    assert files._line_at(Stream(b"ab\n\xef\xbb"), 1) == 3


class Stream(io.BytesIO):
    """Bytes as Hadoop reads them."""

    def readNBytes(self, count: int) -> bytes:  # noqa: N802
        return self.read(count)


def test_a_directory_replaces_the_column_of_its_files(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    for day in (1, 2):
        path = put(root / f"parquet/ID={day}/a.parquet", b"")
        pq.write_table(pa.table({"id": range(5), "x": range(5)}), path)
        put(root / f"json/day={day}/a.json", b'{"day":7,"id":1}\n')
        put(root / f"csv/day={day}/a.csv", b"id,day,x\n1,9,2\n" * 20)
    asked: dict[Format, tuple[str, dict[str, str], str]] = {
        "parquet": ("parquet", {}, "with_file_name"),
        "json": ("json/day=*/*.json", {"basePath": "json"}, "same"),
        "csv": ("csv", {"header": "true", "mode": "FAILFAST"}, "same"),
    }
    handles = {
        format: pipeline.submit(
            name,
            input=path,
            format=format,
            options=options,
            output=format + ".out",
            output_format="parquet",
            id=format + ".out",
            part_size=100,
            max_failures=0,
        )
        for format, (path, options, name) in asked.items()
    }
    with pipeline.working(spark):
        plain = with_file_name(spark.read.parquet(str(root / "parquet")))
        must_equal(spark, handles["parquet"], root, plain)
        must_equal(spark, handles["json"], root, spark.read.json(str(root / "json")))
        reader = spark.read.options(**asked["csv"][1])
        must_equal(spark, handles["csv"], root, reader.csv(str(root / "csv")))
    assert handles["csv"].progress().parts > 2


def test_what_a_killed_publisher_left_behind_is_not_published(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    put(root / "in/a.txt", b"one\n")
    handle = pipeline.submit("leaving", input="in/a.txt", output="out", params={"root": str(root)})
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert [name for name in names(root / "out") if "tmp" in name] == []
    assert [name for name in names(root / "out/_holdfast") if "tmp" in name] == []


@transform
def leaving(df: DataFrame, *, root: str) -> DataFrame:
    for staging in Path(root).glob(".out.*"):  # There is none yet when the request is planned.
        for name in ("_SUCCESS.x.tmp", "_holdfast/x.json.x.tmp"):
            left = put(staging / "_gathered" / name, b"half")
            put(left.with_name(f".{left.name}.crc"), b"half")
    return df
