"""What a request pins: the code of its transforms, and settings. Deploys mix nothing."""

from __future__ import annotations

import compileall
import importlib
import logging
import os
import shutil
import subprocess
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
from holdfast.spark.pipeline import applying, canonical, pinning, sources, transforms, working
from holdfast.worker import Fail
from spark.pipeline.support import must_be_published, numbers, rows, wait_long

Import = Callable[..., str]

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

    def of(modules: dict[str, str], find: Callable[..., str] = sources.fingerprint) -> str:
        nonlocal number
        number += 1
        forget()
        place = tmp_path / str(number)
        (place / "pinned_package").mkdir(parents=True)
        (place / "pinned_package/__init__.py").touch()
        for name, text in modules.items():
            file = place / f"pinned_package/{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        sys.path.insert(0, str(place))
        importlib.invalidate_caches()
        try:
            module = importlib.import_module("pinned_package.main")
            return find(module.change)
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


RATES = """
from pinned_package import deeper
RATE = 1
OTHER = 2
TABLE = {}
TABLE["a"] = 3

def f(x):
    return deeper.g(x) * RATE

def never(x):
    return x

def __getattr__(name):
    if name == "DYN":
        return len(name)
    raise AttributeError(name)
"""
DEEPER = """
def g(x):
    return x + 1

def never(x):
    return x
"""
IMPORTING = {
    "a name": "from pinned_package.rates import f\n    return f(df)",
    "another name of it": "from pinned_package.rates import f as h\n    return h(df)",
    "a module": "from pinned_package import rates\n    return rates.f(df)",
    "a module by another name": "from pinned_package import rates as q\n    return q.f(df)",
    "a relative name": "from .rates import f\n    return f(df)",
    "a relative module": "from . import rates\n    return rates.f(df)",
    "a full name": "import pinned_package.rates\n    return pinned_package.rates.f(df)",
    "a full name by another": "import pinned_package.rates as r\n    return r.f(df)",
    "in a function": "def u(x):\n        from .rates import f\n        return f(x)\n"
    "    return df.map(u)",
    "for a lambda": "from . import rates as r\n    return df.map(lambda x: r.f(x))",
    "for a comprehension": "from . import rates as r\n    return [r.f(x) for x in df]",
    "if there is one": "try:\n        from .rates import f\n"
    "    except ImportError:\n        f = len\n    return f(df)",
    "through another module": "from .again import h\n    return h(df)",
    "through all of another": "from .everything import f\n    return f(df)",
    "through all of another that shadows": "from .shadowing import round\n    return round(df)",
    "in a wrapper of another package": "return wrapped(df)",
    "in a package below": "from .below import inside\n    return inside.h(df)",
    "in a helper": "return helper(df)",
}
AS_A_WHOLE = {
    "a name of text": "from . import rates\n    return getattr(rates, 'f')(df)",
    "as a value": "from . import rates\n    return df.map(rates)",
    "as a result": "from . import rates\n    return rates",
    "as a default": "from . import rates\n    return df.map(lambda x, r=rates: r.f(x))",
    "what it makes when it is asked": "from . import rates\n    return rates.DYN",
    "a name that it makes when it is asked": "from .rates import DYN\n    return DYN",
    "of a class": "class A:\n        from . import rates\n    return A().rates.f(df)",
    "for what it does": "import pinned_package.rates\n    return df",
    "its name in a call": "import importlib as i\n"
    "    return i.import_module('pinned_package.rates').f(df)",
    "a global": "return getattr(top, 'f')(df)",
    "what a global makes when it is asked": "return top.DYN(df)",
    "a module that is in another": "from . import again\n    return getattr(again, 'rates').f(df)",
}
AROUND = {
    "rates": RATES,
    "deeper": DEEPER,
    "again": "from . import rates\n\ndef h(x):\n    return rates.f(x)\n",
    "everything": "from .rates import *\n",
    "shadowing": "round = len\nfrom .rounding import *\n",
    "rounding": "from .rates import f as round\n",
    "below/__init__": "",
    "below/wrapping": """
import functools

def wrapping(function):
    @functools.wraps(function)
    def wrapper(x):
        from ..rates import f
        return f(function(x))
    return wrapper
""",
    "below/inside": "from ..rates import f\n\ndef h(x):\n    return f(x)\n",
}


def using(body: str) -> dict[str, str]:
    """Return a package whose transform has this body."""
    helper = "def helper(df):\n    from .rates import f\n    return f(df)\n"
    top = "from . import rates as top\n" if "top" in body else ""
    if "wrapped" in body:
        top = "from .below.wrapping import wrapping\n\n@wrapping\ndef wrapped(x):\n    return x\n\n"
    return {**AROUND, "main": f"{top}{helper}\ndef change(df):\n    {body}\n"}


def changed(modules: dict[str, str], module: str, before: str, after: str) -> dict[str, str]:
    assert before in modules[module]
    return {**modules, module: modules[module].replace(before, after)}


def in_a_plan(function: Callable[..., object]) -> str:
    """Return what a plan pins of a function that Spark is given."""
    return canonical.digest(function, "pinned_package")


@pytest.mark.parametrize("find", [sources.fingerprint, in_a_plan])
@pytest.mark.parametrize("kind", [*IMPORTING, *AS_A_WHOLE])
def test_what_is_imported_in_a_body_changes_the_fingerprint(
    fingerprint: Import, kind: str, find: Callable[..., str]
) -> None:
    modules = using({**IMPORTING, **AS_A_WHOLE}[kind])
    before = fingerprint(modules, find)
    assert fingerprint(modules, find) == before
    assert fingerprint(changed(modules, "rates", "RATE = 1", "RATE = 1000"), find) != before
    assert fingerprint(changed(modules, "rates", "deeper.g(x)", "deeper.g(x) - 1"), find) != before
    assert fingerprint(changed(modules, "deeper", "x + 1", "x + 2"), find) != before


ASKING = """
from spark.pipeline.support import numbers
from holdfast.spark.pipeline.sources import fingerprint
print(fingerprint(numbers))
"""


def test_what_an_import_hook_has_rewritten_has_the_fingerprint_of_its_file() -> None:
    """Pytest rewrites the assertions of the tests' helpers; another process does not."""
    loader = getattr(sys.modules[numbers.__module__].__spec__, "loader", None)
    assert not hasattr(loader, "get_source")
    tests = str(Path(__file__).parents[2])
    elsewhere = subprocess.run(
        [sys.executable, "-c", ASKING],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, tests])},
        cwd=tests,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sources.fingerprint(numbers) == elsewhere.stdout.strip()


@pytest.mark.parametrize("find", [sources.fingerprint, in_a_plan])
@pytest.mark.parametrize("kind", IMPORTING)
def test_what_is_not_used_of_an_imported_module_does_not(
    fingerprint: Import, kind: str, find: Callable[..., str]
) -> None:
    modules = using(IMPORTING[kind])
    before = fingerprint(modules, find)
    assert fingerprint(changed(modules, "rates", "return x\n", "return -x\n"), find) == before
    assert fingerprint(changed(modules, "deeper", "return x\n", "return -x\n"), find) == before
    assert fingerprint(changed(modules, "rates", "OTHER = 2", "OTHER = 3"), find) == before


@pytest.mark.parametrize("find", [sources.fingerprint, in_a_plan])
@pytest.mark.parametrize("kind", AS_A_WHOLE)
def test_a_module_that_is_more_than_looked_into_counts_as_a_whole(
    fingerprint: Import, kind: str, find: Callable[..., str]
) -> None:
    modules = using(AS_A_WHOLE[kind])
    before = fingerprint(modules, find)
    assert fingerprint(changed(modules, "rates", "OTHER = 2", "OTHER = 3"), find) != before
    assert fingerprint(changed(modules, "rates", "len(name)", "-len(name)"), find) != before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('TABLE["a"] = 3', 'TABLE["a"] = 4'),
        ("TABLE = {}", "TABLE = {0: 1}"),
        ("def f(x)", "for n in range(3):\n    TABLE[n] = n\n\ndef f(x)"),
        ("def f(x)", "TABLE.update(b=1)\n\ndef f(x)"),
    ],
)
def test_what_a_module_puts_into_a_table_counts_where_the_table_is_imported(
    fingerprint: Import, before: str, after: str
) -> None:
    modules = using("from .rates import TABLE\n    return TABLE[df]")
    assert fingerprint(modules) != fingerprint(changed(modules, "rates", before, after))


def test_ends_of_lines_and_form_feeds_hide_no_change(fingerprint: Import, tmp_path: Path) -> None:
    modules = using(IMPORTING["a name"])
    paged = changed(modules, "rates", "OTHER = 2", "OTHER = 2\n\f\n\f\n\f\n\f\n\f")
    before = fingerprint(paged)
    assert fingerprint(changed(paged, "rates", "deeper.g(x)", "-deeper.g(x)")) != before
    place = written(tmp_path / "ends", modules)
    one = in_a_process(place)
    for file in place.rglob("rates.py"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert in_a_process(place) == one
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", place)
    assert in_a_process(Path(archive)) == one


def test_two_functions_that_change_their_places_change_the_fingerprint(
    fingerprint: Import,
) -> None:
    body = "from .one import f\n    from .other import f as g\n    return f(df) - g(df)"
    one, other = "def f(x):\n    return x\n", "def f(x):\n    return 2 * x\n"
    assert fingerprint({**using(body), "one": one, "other": other}) != fingerprint(
        {**using(body), "one": other, "other": one}
    )


def test_a_module_that_is_missing_or_cannot_be_read_is_another_one(fingerprint: Import) -> None:
    modules = using(IMPORTING["if there is one"])
    missing = {name: text for name, text in modules.items() if name != "rates"}
    broken = {**modules, "rates": "def (:"}
    assert len({fingerprint(one) for one in (modules, missing, broken)}) == 3
    assert fingerprint(missing) == fingerprint(missing)


def test_modules_that_import_each_other_have_a_fingerprint(fingerprint: Import) -> None:
    cycle = changed(using(AS_A_WHOLE["as a value"]), "deeper", "x + 1", "x + 1 + LATER")
    cycle["deeper"] += "from pinned_package.rates import OTHER as LATER\n"
    before = fingerprint(cycle)
    assert fingerprint(changed(cycle, "deeper", "x + 1", "x + 2")) != before


IN_A_PROCESS = """
import sys
sys.path.insert(0, sys.argv[1])
from holdfast.spark.pipeline import canonical, sources
import pinned_package.main as main
if sys.argv[2] == "loaded":
    import pinned_package.below.inside, pinned_package.everything, pinned_package.again
before = {name for name in sys.modules if name.startswith("pinned_package")}
print(sources.fingerprint(main.change), canonical.digest(main.change, "pinned_package"))
assert before == {name for name in sys.modules if name.startswith("pinned_package")}
"""


def in_a_process(place: Path, *, loaded: bool = False, seed: str = "0") -> str:
    """Return what another process finds for the function of a package that is at a place."""
    command = [sys.executable, "-c", IN_A_PROCESS, str(place), "loaded" if loaded else ""]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def written(place: Path, modules: dict[str, str]) -> Path:
    for name, text in {"__init__": "", **modules}.items():
        file = place / f"pinned_package/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


EVERYWHERE = """def u(x):
        from . import rates as q, again
        from .below.inside import h
        from .everything import f
        return q.f(x), getattr(again, "rates"), h, f, {"a", "b", "c"}
    return df.map(u)"""


def test_every_process_finds_the_same_without_importing_more(tmp_path: Path) -> None:
    modules = using(EVERYWHERE)
    one = in_a_process(written(tmp_path / "one", modules), seed="1")
    other = written(tmp_path / "elsewhere", modules)
    assert in_a_process(other, loaded=True, seed="2") == one  # It leaves bytecode behind.
    assert in_a_process(other, seed="3") == one
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "elsewhere")
    assert in_a_process(Path(archive)) == one
    second = changed(modules, "rates", "RATE = 1", "RATE = 2")
    for before, after in zip(
        one.split(), in_a_process(written(tmp_path / "two", second)).split(), strict=True
    ):
        assert before != after


def test_modules_without_source_count_by_their_bytecode(tmp_path: Path) -> None:
    def compiled(name: str, modules: dict[str, str]) -> str:
        place = written(tmp_path / name, modules)
        compileall.compile_dir(place, quiet=1, legacy=True)
        for file in place.rglob("*.py"):
            file.unlink()
        return in_a_process(place)

    modules = using(EVERYWHERE)
    second = changed(modules, "rates", "RATE = 1", "RATE = 2")
    one, other = compiled("one", modules), compiled("two", second)
    assert all(a != b for a, b in zip(one.split(), other.split(), strict=True))


def test_what_has_no_source_has_a_fingerprint_too() -> None:
    made: dict[str, Callable[[int], int]] = {}
    exec("one = lambda n: n + 1\nother = lambda n: n * 2", made)
    assert sources.fingerprint(made["one"]) != sources.fingerprint(made["other"])
    assert sources.fingerprint(len) == sources.fingerprint(len)


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
