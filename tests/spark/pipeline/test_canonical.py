"""Digests of Python values: equal where the values are, in every process."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.spark.pipeline import canonical


def digest(value: object) -> str:
    return canonical.digest(value, __name__.partition(".")[0])


Point = namedtuple("Point", "x y")  # noqa: PYI024


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def plus(number: int) -> Callable[[int], int]:
    return lambda n: n + number


def recursive(n: int) -> int:
    return n if n <= 0 else recursive(n - 1)


def locally(value: int) -> type:
    class Local:
        one = value

        def get(self) -> int:
            return self.one

    return Local


def accessors(value: int) -> type:
    class Local:
        @property
        def one(self) -> int:
            return value

    return Local


def static(value: int) -> type:
    class Local:
        @staticmethod
        def one() -> int:
            return value

    return Local


def counted(to: int) -> Any:
    counter = itertools.count()
    for _ in range(to):
        next(counter)
    return counter


VALUES: dict[str, Callable[[int], Any]] = {
    "a number": lambda n: n,
    "a text": lambda n: f"text {n}",
    "a float": lambda n: n + 0.5,
    "a decimal": decimal.Decimal,
    "a date": lambda n: dt.date(2026, 1, 1 + n),
    "a time with a zone": lambda n: dt.datetime(2026, 1, 1, n, tzinfo=dt.UTC),
    "bytes": lambda n: bytes([n]),
    "a list": lambda n: [n, [None, True]],
    "a large list": lambda n: [*range(10_000), n],
    "a set": lambda n: {f"a{n}", "b", "c"},
    "a frozen set": lambda n: frozenset({("x", n)}),
    "a dict": lambda n: {"a": n, "b": [n]},
    "a key": lambda n: {f"a{n}": 1},
    "a nested dict": lambda n: {("a", 1): {"b": {n}}},
    "a named tuple": lambda n: Point(n, 2),
    "a member": lambda n: list(Colour)[n],
    "an ordered dict": lambda n: OrderedDict(a=n),
    "an expression": lambda n: re.compile(f"a{n}"),
    "an array": lambda n: np.array([1, 2, n]),
    "an array of objects": lambda n: np.array(["a", n, None], dtype=object),
    "a table": lambda n: pd.DataFrame({"a": [1, n], "b": ["x", str(n)]}),
    "a closure": plus,
    "a partial function": lambda n: functools.partial(plus, n),
    "a method": lambda n: locally(n)().get,
    "a local class": locally,
    "a property": accessors,
    "a static method": static,
    "an object of it": lambda n: locally(n)(),
    "a cached function": lambda n: functools.lru_cache(plus(n)),
    "an iterator": counted,
    "a random generator": np.random.default_rng,
}


@pytest.mark.parametrize("kind", VALUES)
def test_equal_values_have_equal_digests_and_others_have_others(kind: str) -> None:
    make = VALUES[kind]
    assert digest(make(0)) == digest(make(0))
    assert digest(make(0)) != digest(make(1))


def test_the_order_of_a_dict_counts_and_that_of_a_set_does_not() -> None:
    assert digest({"a": 1, "b": 2}) != digest({"b": 2, "a": 1})
    assert digest({"a": [1], "b": 2}) != digest({"b": 2, "a": [1]})
    assert digest([1, 2]) != digest([2, 1])
    assert digest(set("abc")) == digest({"c", "b", "a"})


def test_types_and_bounds_of_values_count() -> None:
    different = [1, True, 1.0, "1", b"1", None, [1], (1,), {1}, {1: None}, [[1]], [1, []], [], ()]
    assert len({digest(one) for one in different}) == len(different)
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest({"a": "b"}) != digest({"b": "a"})
    assert digest([0.0]) != digest([-0.0])


def test_what_leads_back_to_itself_and_what_has_no_value_have_digests() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest(loop)
    assert digest(recursive)
    assert digest(threading.Lock()) == digest(threading.Lock())
    assert digest(json) == digest(json) != digest(re)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep, {}]
    assert digest(deep)


memo: dict[int, int] = {}
table = {"a": 1}


def memoised(n: int) -> int:
    return memo.setdefault(n, n + table["a"])


def test_a_cache_of_a_module_counts_as_it_was_for_functions_that_can_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's processes import them, and do not see what this process has cached."""
    package = __name__.partition(".")[0]
    monkeypatch.setattr(canonical, "_first_seen", {})
    canonical.remember(package)
    before, inner = digest(memoised), digest(lambda n: memoised(n) + 1)
    memoised(5)
    assert digest(memoised) == before
    assert digest(lambda n: memoised(n) + 1) == inner

    def captures(n: int) -> int:  # It is pickled with what is in the cache now.
        return memo.get(n, 0)

    captured = digest(captures)
    memoised(6)
    assert digest(captures) != captured
    monkeypatch.setattr(canonical, "_first_seen", {})
    monkeypatch.setitem(table, "a", 2)
    assert digest(memoised) != before, "a worker that was started with another table"


def test_the_place_of_a_package_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(home: str) -> set[str]:
        monkeypatch.setattr(canonical, "_home_of", lambda _: home)
        return {digest(f"{home}/data.csv"), digest(Path(home) / "data.csv"), digest("/elsewhere")}

    assert of("/venv/a") == of("/venv/b")
    assert len(of("/venv/a")) == 3
    monkeypatch.setattr(canonical, "_home_of", lambda _: "/venv/a")
    assert digest("/venv/a/x") != digest("/venv/a/y")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(values, values)
def test_digests_are_equal_just_where_values_are(one: Any, other: Any) -> None:
    def spelled(value: Any) -> str:
        if isinstance(value, dict):
            return f"{{{[(k, spelled(v)) for k, v in value.items()]}}}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}{[spelled(v) for v in value]}"
        return f"{type(value).__name__}{value!r}"

    assert (digest(one) == digest(other)) == (spelled(one) == spelled(other))


PROGRAM = """
import sys
from spark.pipeline.test_canonical import VALUES, digest
for name, make in sorted(VALUES.items()):
    print(name, digest(make(0)))
"""


def test_another_process_with_another_order_of_sets_finds_the_same_digests() -> None:
    def told(seed: str) -> str:
        tests = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": tests}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout

    first = told("1")
    assert len(first.splitlines()) == len(VALUES)
    assert first == told("2")
