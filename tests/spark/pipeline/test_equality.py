"""What a pipeline publishes is what one plain Spark job over the same input gives.

The cases at the end are random: each follows from its number. `make equality CASES=5000` runs more
of them, from another SEED on if you like.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.spark import Pipeline, transform
from holdfast.spark.pipeline import applying, rowwise
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.gate import Gate, behind_a_gate
from holdfast.spark.pipeline.logical import LogicalPlan
from holdfast.spark.pipeline.order import Order, Plan
from holdfast.spark.pipeline.pinning import difference, own_session
from holdfast.spark.pipeline.reading import divide, read
from holdfast.spark.pipeline.roots import Roots
from holdfast.spark.pipeline.splitting import split
from holdfast.spark.pipeline.transforms import Transform
from holdfast.worker import Fail
from spark.pipeline.random_plans import ZONES, Builder, write_input
from spark.pipeline.support import big_enough, must_be_published, numbers, rows

LINES = 3000
TRIED_AGAIN = 300
"""Cases that are refused, in which a hole in the check is to be noticed."""


@dataclass
class Case:
    make: Callable[[SparkSession, Path], object]
    input: str
    format: Any = None
    options: dict[str, bool] = field(default_factory=dict)
    part_size: int | str = "128 MB"
    parts: Callable[[int], bool] = lambda parts: parts == 1
    output_options: dict[str, bool] = field(default_factory=dict)


def csv_lines(lines: int = LINES) -> str:
    """Make lines with letters of two bytes, and fields with commas and quotes."""
    return "".join(f'{n},"{"ü" * (n % 7)}, said ""{n}""",\n' for n in range(lines))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def small_csvs(spark: SparkSession, root: Path) -> None:
    for number in range(6):
        write(root / f"in/{number}.csv", "n,name,none\n" + csv_lines(number * 3))
    write(root / "in/empty.csv", "")
    write(root / "in/_hidden.csv", "n,name,none\n1,2,3\n")


def big_csv(spark: SparkSession, root: Path) -> None:
    write(root / "in/big.csv", "n,name,none\n" + csv_lines())


def gzipped_csv(spark: SparkSession, root: Path) -> None:
    (root / "in").mkdir()
    with gzip.open(root / "in/big.csv.gz", "wt") as file:
        file.write("n,name,none\n" + csv_lines())


def csv_over_lines(spark: SparkSession, root: Path) -> None:
    text = "".join(f'{n},"two\nlines",\n' for n in range(LINES))
    write(root / "in/big.csv", "n,name,none\n" + text)


def big_json(spark: SparkSession, root: Path) -> None:
    line = '{{"n": {n}, "tags": ["ü", "{n}"], "deep": {{"a": {n}.5, "b": null}}}}\n'
    write(root / "in/big.jsonl", "".join(line.format(n=n) for n in range(LINES)))
    write(root / "in/other.jsonl", '{"n": 5, "late": true}\n')


def odd_names(spark: SparkSession, root: Path) -> None:
    for name in ("with space", "100%", "[a]", "a,b", "ü{x}*", "plus+&=q?"):
        write(root / f"in/{name}.csv", "n,name,none\n" + csv_lines(20))


def big_parquet(spark: SparkSession, root: Path) -> None:
    frame = spark.range(60_000).select(F.col("id").alias("n"), F.uuid(F.lit(1)).alias("name"))
    frame.coalesce(1).write.option("parquet.block.size", 200_000).option(
        "parquet.page.size.row.check.min", 100
    ).parquet(str(root / "in"))


def nested_parquet(spark: SparkSession, root: Path) -> None:
    spark.range(500).select(
        F.col("id").alias("n"),
        F.struct(F.col("id").alias("a"), F.array(F.col("id"), F.lit(None)).alias("b")).alias("s"),
        F.create_map(F.lit("k"), F.struct(F.lit("v").alias("x"))).alias("m"),
        (F.col("id") / 7).cast("decimal(20,6)").alias("d"),
        F.timestamp_seconds(F.col("id") * 1000).alias("t"),
        F.date_add(F.lit("2026-01-01"), F.col("id").cast("int")).alias("day"),
        F.encode(F.lit("\x00ü"), "utf-8").alias("raw"),
        F.when(F.col("id") % 2 == 0, F.col("id")).alias("sometimes"),
    ).repartition(3).write.parquet(str(root / "in"))


def partitioned(spark: SparkSession, root: Path) -> None:
    frame = spark.range(300).select(
        F.col("id").alias("n"),
        (F.col("id") % 3).alias("kind"),
        F.concat(F.lit("a b%"), F.col("id") % 2).alias("day"),
    )
    frame.repartition(1).write.partitionBy("day", "kind").parquet(str(root / "in"))


HEADER: dict[str, bool] = {"header": True}
TYPED: dict[str, bool] = {"header": True, "inferSchema": True}

CASES = {
    "many small parquet files": Case(
        lambda spark, root: numbers(spark, root / "in"), "in/*.parquet"
    ),
    "small files in several parts": Case(
        lambda spark, root: numbers(spark, root / "in"),
        "in",
        "parquet",
        part_size=5000,
        parts=lambda parts: parts > 2,
    ),
    "a big parquet file by row groups": Case(
        big_parquet, "in", "parquet", part_size="400 KB", parts=lambda parts: parts > 2
    ),
    "nested types": Case(nested_parquet, "in", "parquet"),
    "directories that are columns": Case(
        partitioned, "in", "parquet", part_size=2000, parts=lambda parts: parts > 2
    ),
    "many small csv files, one empty, one with a header only": Case(
        small_csvs, "in/*.csv", options=TYPED, output_options=HEADER
    ),
    "a big csv file by lines": Case(
        big_csv,
        "in/big.csv",
        options=TYPED,
        part_size=20_000,
        parts=lambda parts: parts > 4,
        output_options=HEADER,
    ),
    "a compressed file is not divided": Case(
        gzipped_csv, "in/*.csv.gz", options=TYPED, part_size=1000, output_options=HEADER
    ),
    "records over several lines are not divided": Case(
        csv_over_lines,
        "in",
        "csv",
        options={**TYPED, "multiLine": True},
        part_size=1000,
        output_options={**HEADER, "multiLine": True},
    ),
    "a big file of json lines": Case(
        big_json, "in/*.jsonl", part_size=40_000, parts=lambda parts: parts > 4
    ),
    "odd names": Case(
        odd_names,
        "in",
        "csv",
        options=TYPED,
        output_options=HEADER,
        part_size=2000,
        parts=lambda parts: parts == 2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_that_of_the_plain_job(
    spark: SparkSession, pipeline: Pipeline, root: Path, name: str
) -> None:
    case = CASES[name]
    case.make(spark, root)
    handle = pipeline.submit(
        "big_enough",
        params={"least": 7},
        input=case.input,
        output="out",
        format=case.format,
        options=case.options,
        part_size=case.part_size,
        output_options=case.output_options,
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    progress = handle.progress()
    assert case.parts(progress.parts), progress

    read_as = case.format or told_format(case.input)
    reader = spark.read.format(read_as).options(**case.options)
    expected = big_enough(reader.load(str(root / case.input)), least=7)
    plain = root.parent / "plain"
    expected.write.format(read_as).options(**case.output_options).save(str(plain))
    back = {**case.output_options, "inferSchema": True} if read_as == "csv" else {}
    again = spark.read.format(read_as).options(**back)
    published, wanted = rows(again.load(str(root / "out"))), rows(again.load(str(plain)))
    assert published == wanted
    assert wanted
    assert progress.rows_out == wanted.total()


def told_format(path: str) -> str:
    return {"parquet": "parquet", "csv": "csv", "gz": "csv", "jsonl": "json"}[
        path.rpartition(".")[2]
    ]


def test_an_input_without_rows_has_an_output_without_rows(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    numbers(spark, root / "in", rows=0, files=1)
    handle = pipeline.submit("same", input="in", format="parquet", output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
    back = spark.read.parquet(str(root / "out"))
    assert back.columns == ["n", "name"]
    assert back.count() == 0


@pytest.mark.parametrize("kind", ["text", "orc"])
def test_other_formats_go_as_they_came(
    spark: SparkSession, pipeline: Pipeline, root: Path, kind: Any
) -> None:
    frame = spark.range(100).select(F.col("id").cast("string").alias("value"))
    frame.repartition(3).write.format(kind).save(str(root / "in"))
    handle = pipeline.submit("same", input="in", format=kind, output="out")
    with pipeline.working(spark):
        must_be_published(handle, root)
    assert rows(spark.read.format(kind).load(str(root / "out"))) == rows(frame)


def test_one_format_may_become_another(spark: SparkSession, pipeline: Pipeline, root: Path) -> None:
    big_csv(spark, root)
    schema = "n LONG, name STRING, none STRING"
    handle = pipeline.submit(
        "same",
        input="in/*.csv",
        options=HEADER,
        schema=schema,
        output="out",
        output_format="parquet",
        part_size="20 KB",
    )
    with pipeline.working(spark):
        must_be_published(handle, root)
    expected = spark.read.csv(str(root / "in"), header=True, schema=schema)
    assert rows(handle.read(spark)) == rows(expected)


# ---------------------------------------------------------------------- random cases

DEFAULT_CASES = 220
CASES_ASKED = int(os.environ.get("HOLDFAST_EQUALITY_CASES", DEFAULT_CASES))
FIRST_SEED = int(os.environ.get("HOLDFAST_EQUALITY_SEED", "1"))
THROUGH_THE_QUEUE = 12


class RandomCase:
    """An input, a split and a plan, all from one number."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.folder = folder / str(seed)
        self.schema = write_input(rng, self.folder)
        self.part_size = rng.choice((1, 1, 1, 6000))
        self.risky = rng.random() < 0.5
        self.builder = Builder(seed, risky=self.risky)
        self.tried: tuple[DataFrame | None, Gate] | None = None
        self.session = own_session(spark)
        self.session.conf.set("spark.sql.session.timeZone", rng.choice(ZONES))
        self.session.conf.set("spark.sql.ansi.enabled", rng.choice(("true", "false")))
        self.session.conf.set(
            "spark.sql.autoBroadcastJoinThreshold", rng.choice(("10MB", "10MB", "-1"))
        )

    def __repr__(self) -> str:
        return f"case {self.seed}: {', '.join(self.builder.steps)}"

    @property
    def acts(self) -> bool:
        """Whether its plan cannot even be built behind a gate."""
        return any("action" in step for step in self.builder.steps)

    def whole(self) -> DataFrame:
        return self.session.read.schema(self.schema).parquet(str(self.folder))

    def parts(self, files: Files) -> list[DataFrame]:
        """Divide the input as the planner does."""
        order = Order(
            id="it",
            transform="it",
            input=[str(self.folder)],
            output=f"{self.folder}.out",
            format="parquet",
            output_format="parquet",
            part_size=self.part_size,
        )
        plan = Plan(
            order=order,
            schema=self.whole().schema.json(),
            output="",
            whole_files=False,
            settings={},
            code="",
            spark="",
        )
        pieces = split(
            files.find(str(self.folder)), self.part_size, lambda file: divide(files, plan, file)
        )
        return [
            read(self.session, files, plan, one, f"{self.folder}.piece{number}")
            for number, one in enumerate(one for together in pieces for one in together)
        ]


def verdict(case: RandomCase, files: Files) -> str | None:
    """Compare parts with the plain job; return why it was refused, or None where they are equal."""
    found = Transform("it", case.builder)
    results: list[tuple[DataFrame, Gate]] = []
    for part in case.parts(files):
        gated, gate = behind_a_gate(part)
        try:
            results.append((applying.called(found, {}, gated, gate, "open").frame, gate))
        except Fail as refused:
            return str(refused)
    must_be_equal(case, results)
    return None


def must_be_equal(case: RandomCase, results: Iterable[tuple[DataFrame, Gate]]) -> None:
    plain = case.builder(case.whole())
    together = [tagged(plain, 0)]
    for result, gate in results:
        gate.state = "open"
        assert difference(plain.schema, result.schema) is None, case
        together.append(tagged(result, 1))
    seen: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for row in functools.reduce(DataFrame.union, together).collect():
        seen[row[0]][repr(row[1])] += 1
    assert seen[0] == seen[1], case


def tagged(frame: DataFrame, tag: int) -> DataFrame:
    return frame.select(F.lit(tag), F.struct("*"))


def buildable(case: RandomCase) -> bool:
    """Tell whether Spark takes the plan at all."""
    try:
        case.builder(case.whole())
    except AnalysisException:
        return False
    return True


def random_cases(spark: SparkSession, folder: Path, seeds: Iterable[int]) -> Iterator[RandomCase]:
    for seed in seeds:
        case = RandomCase(spark, folder, seed)
        if buildable(case):
            yield case


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@dataclass
class Seen:
    """What became of all cases."""

    equal: int = 0
    refusals: int = 0
    refused: list[RandomCase] = field(default_factory=list)
    """The first ones: each holds memory of Java."""
    wrong: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def seen(spark: SparkSession, folder: Path) -> Seen:
    """Run the cases, once for all tests of them."""
    files = Files(spark, Roots(folder))
    seen = Seen()
    for case in random_cases(spark, folder, range(FIRST_SEED, FIRST_SEED + CASES_ASKED)):
        try:
            why = verdict(case, files)
        except AssertionError as error:
            why = f"unequal: {error}"
        if why is None:
            seen.equal += 1
        elif case.builder.may_be_refused and not why.startswith("unequal"):
            seen.refusals += 1
            seen.refused += [case] if seen.refusals <= TRIED_AGAIN else []
        else:
            print(f"{case!r}: {why}")
            seen.wrong.append(repr(case))
    print(f"{seen.equal} equal, {seen.refusals} refused of {CASES_ASKED}")
    return seen


@pytest.mark.timeout(0)
def test_random_plans_are_equal_in_parts_or_refused(seen: Seen) -> None:
    assert not seen.wrong
    assert seen.equal > CASES_ASKED * 0.4
    assert seen.refusals > CASES_ASKED * 0.3
    assert seen.equal + seen.refusals > CASES_ASKED * 0.9


# --------------------------------------------------------------- holes in the check


def nothing(*_: object) -> None:
    """Refuse nothing."""


def allow(*kinds: str) -> dict[str, Any]:
    return {"ROW_WISE": rowwise.ROW_WISE | set(kinds)}


BOTH_SIDES = dict.fromkeys([*rowwise.JOINS, "FullOuter"], ("left", "right"))
MUTANTS: dict[str, dict[str, Any]] = {
    "unions": allow("Union"),
    "groups": allow("Aggregate"),
    "distinct": allow("Deduplicate", "Distinct"),
    "limits": allow("GlobalLimit", "LocalLimit", "Tail"),
    "offsets": allow("Offset"),
    "windows": allow("Window"),
    "set operations": allow("Intersect", "Except"),
    "joins on any side": {"JOINS": {**BOTH_SIDES, "FullOuter": ()}},
    "full joins": {"JOINS": {**rowwise.JOINS, "FullOuter": ("left", "right")}},
    "self-joins": {"_refuse_twice": nothing},
    "subqueries": {"_refuse_subquery": nothing},
    "chance": {"_refuse_moments": nothing, **allow("Sample")},
    "whole partitions": {"BY_PARTITION": frozenset()},
    "every operator": {"_refuse_operator": nothing},
    "the whole way": {"_refuse_way": nothing},
}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("hole", MUTANTS)
def test_a_hole_in_the_check_is_noticed(
    spark: SparkSession, folder: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch, hole: str
) -> None:
    for name, value in MUTANTS[hole].items():
        monkeypatch.setattr(rowwise, name, value)
    files = Files(spark, Roots(folder))
    for tried, case in enumerate(seen.refused):
        if passes_now(case, files) and is_wrong(case, files):
            print(f"{hole}: noticed by {case!r}, number {tried + 1} of those that are refused")
            return
    pytest.fail(f"no case notices it when the check lets {hole} pass")


def is_wrong(case: RandomCase, files: Files) -> bool:
    """Tell whether a case that is let through gives other rows than the plain job."""
    try:
        return verdict(case, files) is not None
    except AssertionError:
        return True
    except PySparkException:
        return False  # Without the check such a plan may not even run.


def passes_now(case: RandomCase, files: Files) -> bool:
    if case.tried is None:
        gated, gate = behind_a_gate(case.parts(files)[0])
        case.tried = (None if case.acts else case.builder(gated), gate)
    result, gate = case.tried
    if result is None:
        return False
    try:
        rowwise.refuse_unequal("it", LogicalPlan(result, gate))
    except Fail:
        return False
    return True


@pytest.mark.timeout(0)
def test_a_gate_that_is_open_too_soon_is_noticed(
    spark: SparkSession, folder: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gate, "listFiles", lambda gate, *given: gate._index.listFiles(*given))
    files = Files(spark, Roots(folder))
    assert any(is_wrong(case, files) for case in seen.refused if case.acts)


# ------------------------------------------------------------------ through the queue


@transform
def random_plan(df: DataFrame, *, seed: int) -> DataFrame:
    return Builder(seed, risky=False)(df)


def test_random_plans_are_published_as_one_job_would_write_them(
    spark: SparkSession, pipeline: Pipeline, root: Path
) -> None:
    seeds = range(FIRST_SEED + 1_000_000, FIRST_SEED + 1_000_100)
    cases = (case for case in random_cases(spark, root, seeds) if not case.builder.may_be_refused)
    row_wise = list(itertools.islice(cases, THROUGH_THE_QUEUE))
    handles = [
        pipeline.submit(
            "random_plan",
            params={"seed": case.seed},
            input=str(case.seed),
            format="parquet",
            schema=case.schema,
            output=f"out{case.seed}",
            part_size=case.part_size,
            max_failures=0,
        )
        for case in row_wise
    ]
    with pipeline.working(spark):
        for case, handle in zip(row_wise, handles, strict=True):
            must_be_published(handle, root, f"out{case.seed}")
            whole = spark.read.schema(case.schema).parquet(str(case.folder))
            plain, published = random_plan(whole, seed=case.seed), handle.read(spark)
            assert difference(plain.schema, published.schema) is None, case
            assert counted(published) == counted(plain), case


def counted(frame: DataFrame) -> Counter[str]:
    return Counter(repr(row) for row in frame.collect())
