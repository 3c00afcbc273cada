"""What a request pins: the code of its transforms, and settings. Deploys mix nothing."""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying, pinning, transforms, working
from holdfast.worker import Fail
from spark.pipeline.support import must_be_published, numbers, rows, wait_long

Import = Callable[[dict[str, str]], str]

MAIN = """
from pinned_package import prices
from pinned_package.names import clean as cleaned
from . import names

LIMIT = 3
UNUSED = 4
if True:
    FACTOR = [1, 2]

def helper(df):
    return df.where(df.n > LIMIT)

def unrelated(df):
    return df

class Rule:
    least = FACTOR

def change(df):
    # Why it is so.
    def inner(row):
        return cleaned(row), prices.of(row), Rule
    return helper(df).rdd.map(inner)
"""
PRICES = """
import json

TAX = 0.2

def of(row):
    return row * TAX

def never(row):
    return json.dumps(row)
"""
NAMES = """
def clean(row):
    return row.strip()

def never(row):
    return row
"""
GOOD = {"main": MAIN, "prices": PRICES, "names": NAMES}


@pytest.fixture
def fingerprint(tmp_path: Path) -> Iterator[Import]:
    """Return the fingerprint of a function whose package has these modules."""
    number = 0

    def of(modules: dict[str, str]) -> str:
        nonlocal number
        number += 1
        forget()
        place = tmp_path / str(number)
        (place / "pinned_package").mkdir(parents=True)
        (place / "pinned_package/__init__.py").touch()
        for name, text in modules.items():
            (place / f"pinned_package/{name}.py").write_text(text)
        sys.path.insert(0, str(place))
        importlib.invalidate_caches()
        try:
            module = importlib.import_module("pinned_package.main")
            return pinning.fingerprint(module.change)
        finally:
            sys.path.remove(str(place))
            shutil.rmtree(place)

    def forget() -> None:
        for name in [name for name in sys.modules if name.startswith("pinned_package")]:
            del sys.modules[name]

    yield of
    forget()


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("main", "inner(row):\n", "inner(row):\n        print(row)\n"),
        ("main", "LIMIT = 3", "LIMIT = 4"),
        ("main", "FACTOR = [1, 2]", "FACTOR = [1, 3]"),
        ("main", "df.n > LIMIT", "df.n >= LIMIT"),
        ("prices", "TAX = 0.2", "TAX = 0.3"),
        ("prices", "row * TAX", "row + TAX"),
        ("names", "row.strip()", "row.lstrip()"),
    ],
)
def test_code_that_a_transform_uses_changes_its_fingerprint(
    fingerprint: Import, module: str, before: str, after: str
) -> None:
    assert before in GOOD[module]
    changed = {**GOOD, module: GOOD[module].replace(before, after)}
    assert fingerprint(GOOD) != fingerprint(changed)


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("main", "", ""),
        ("main", "UNUSED = 4", "UNUSED = 5"),
        ("main", "def unrelated(df):\n", "def unrelated(df):\n    print(df)\n"),
        ("main", "LIMIT = 3", "\n\nLIMIT = 3"),
        ("prices", "json.dumps(row)", "json.dumps([row])"),
        ("names", "    return row\n", "    return [row]\n"),
    ],
)
def test_other_code_and_other_places_do_not(
    fingerprint: Import, module: str, before: str, after: str
) -> None:
    assert before in GOOD[module]
    changed = {**GOOD, module: GOOD[module].replace(before, after) if before else GOOD[module]}
    assert fingerprint(GOOD) == fingerprint(changed)


def test_what_has_no_source_has_a_fingerprint_too() -> None:
    made: dict[str, Callable[[int], int]] = {}
    exec("one = lambda n: n + 1\nother = lambda n: n * 2", made)
    assert pinning.fingerprint(made["one"]) != pinning.fingerprint(made["other"])
    assert pinning.fingerprint(len) == pinning.fingerprint(len)


# ------------------------------------------------------------------------- workers


@transform
def plain(df):  # type: ignore[no-untyped-def]
    return df


@pytest.mark.parametrize("finish", [None, "plain"])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("code", "the code of 'plain' or of its finish differs from the code that planned it"),
        ("spark", "it was planned on Spark 4.2.9"),
        ("name", "unknown transform 'plain'"),
    ],
)
def test_a_worker_that_is_unlike_the_planner_gives_parts_back_and_says_so_once(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    said: str,
    finish: str | None,
) -> None:
    expected = numbers(spark, root / "in", files=3)
    monkeypatch.setattr(applying, "GIVEN_BACK_SECONDS", 0.05)
    handle = pipeline.submit(
        "plain", input="in/*.parquet", output="out", part_size=1, limit=0, finish=finish
    )
    real = working.unlike  # type: ignore[attr-defined]
    given_back = 0
    one_at_a_time = threading.Lock()  # Two who patch the same would leave it patched.

    def unlike(plan, spark):  # type: ignore[no-untyped-def]
        nonlocal given_back
        with one_at_a_time, pytest.MonkeyPatch.context() as patch:
            given_back += 1
            if what == "code":
                patch.setattr(pinning, "fingerprint", lambda function: "another")
            if what == "spark":
                patch.setattr(type(spark), "version", "4.3.0")
                plan = type(plan)(
                    **{
                        name: getattr(plan, name)
                        for name in plan.__struct_fields__
                        if name != "spark"
                    },
                    spark="4.2.9",
                )
            if what == "name":
                patch.delitem(transforms._known, "plain")
            return real(plan, spark)

    with pipeline.working(spark), caplog.at_level(logging.WARNING, "holdfast"):
        wait_long(lambda: handle.progress().parts == 3, "the plan")
        monkeypatch.setattr(working, "unlike", unlike)
        handle.set_limit(None)
        wait_long(lambda: given_back >= 6, "parts to be given back")
        assert handle.progress().done == 0
        monkeypatch.setattr(working, "unlike", real)
        must_be_published(handle, root)
    assert rows(handle.read(spark)) == rows(expected)
    warned = [record for record in caplog.records if "given back" in record.getMessage()]
    assert len(warned) == 1
    assert handle.id in warned[0].getMessage()
    assert said in warned[0].getMessage()


@transform
def as_text(df):  # type: ignore[no-untyped-def]
    return df.select(F.udf(str, useArrow=False)("n").alias("text"))


@transform
def as_text_in_spark(df):  # type: ignore[no-untyped-def]
    return df.select(F.col("n").cast("string").alias("text"))


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Move this worker to another time zone, and back."""

    def move(there: bool) -> None:
        if there:
            monkeypatch.setenv("TZ", "Asia/Tokyo")
        else:
            monkeypatch.undo()
        time.tzset()

    yield move
    move(False)


@pytest.mark.parametrize(
    ("name", "last"), [("as_text", None), ("as_text_in_spark", None), ("plain", "as_text")]
)
def test_a_worker_in_another_time_zone_gives_parts_back(
    spark: SparkSession,
    pipeline: Pipeline,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_tokyo: Callable[[bool], None],
    name: str,
    last: str | None,
) -> None:
    numbers(spark, root / "in", rows=10, files=2)
    monkeypatch.setattr(applying, "GIVEN_BACK_SECONDS", 0.05)
    handle = pipeline.submit(name, input="in/*.parquet", output="out", limit=0, finish=last)
    with pipeline.working(spark):
        wait_long(lambda: handle.progress().parts, "the plan")
        in_tokyo(True)
        handle.set_limit(None)
        wait_long(lambda: "the same TZ" in (handle.progress().waiting_because or ""), "the reason")
        assert "JST" in (handle.progress().waiting_because or "")
        in_tokyo(False)
        must_be_published(handle, root)
    assert handle.read(spark).count() == 10


# -------------------------------------------------------------------------- finish


@transform
def unknown_column(df):  # type: ignore[no-untyped-def]
    return df.select("nothing")


@transform
def as_map(df):  # type: ignore[no-untyped-def]
    return df.select(F.create_map("name", "n").alias("pairs"))


@transform
def share_of_all(df):  # type: ignore[no-untyped-def]
    total = df.agg(F.sum("n")).first()[0]
    return df.select((F.col("n") / total).alias("share"))


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("unknown_column", "unknown_column: [UNRESOLVED_COLUMN"),
        ("as_map", "as_map cannot be written to the output"),
    ],
)
def test_a_mistake_in_a_finish_fails_the_request_before_the_first_part(
    spark: SparkSession, pipeline: Pipeline, root: Path, last: str, said: str
) -> None:
    numbers(spark, root / "in", rows=10, files=1)
    handle = pipeline.submit(
        "plain", input="in/*.parquet", output="out", output_format="csv", finish=last
    )
    with pipeline.working(spark):
        progress = handle.wait(60)
    assert progress.state == "failed"
    assert progress.parts == 0
    assert said in (progress.error or "")
    assert [path.name for path in root.iterdir()] == ["in"]


def test_a_finish_may_run_queries(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    expected = numbers(spark, root / "in", files=3)
    handle = pipeline.submit(
        "plain", input="in/*.parquet", output="out", part_size=1, finish="share_of_all"
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    total = sum(row.n for row in expected.collect())
    assert rows(handle.read(spark)) == rows(expected.select((F.col("n") / total).alias("share")))


# ------------------------------------------------------------------------ settings


def test_only_settings_that_are_pinned_can_be_set(spark: SparkSession) -> None:
    with pytest.raises(Fail, match=r"spark\.driver\.memory is not one of"):
        pinning.own_session(spark, {"spark.driver.memory": "1g"})


def test_what_only_this_worker_was_told_to_do_as_older_versions_did_is_undone(
    spark: SparkSession,
) -> None:
    name = "spark.sql.legacy.negativeIndexInArrayInsert"
    settings = pinning.settings_of(spark)
    assert name not in settings
    spark.conf.set(name, "true")
    try:
        assert pinning.settings_of(spark)[name] == "true"
        session = pinning.own_session(spark, settings)
        assert session.conf.get(name) == "false"
        assert spark.conf.get(name) == "true"
    finally:
        spark.conf.unset(name)


def test_schemas_differ_in_names_order_and_types_and_not_in_nullability() -> None:
    one = StructType().add("a", LongType()).add("b", ArrayType(StringType()))
    same = StructType().add("a", LongType(), False).add("b", ArrayType(StringType(), False))
    assert pinning.difference(one, same) is None
    other = StructType().add("a", LongType()).add("b", ArrayType(LongType()))
    said = "column 'b' is array<bigint>, and was array<string> when it was planned"
    assert pinning.difference(one, other) == said
    turned = StructType().add("b", ArrayType(StringType())).add("a", LongType())
    assert pinning.difference(one, turned) == ("column 1 is 'b', and was 'a' when it was planned")
    fewer = StructType().add("a", LongType())
    assert pinning.difference(one, fewer) == "there are 1 columns, and were 2: b"
