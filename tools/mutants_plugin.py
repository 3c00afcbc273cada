"""What pytest needs to know to run some of the tests on a mutant; see mutants.py.

Which tests run depends on which transitions the mutant touches, and on nothing else: the
same mutant meets the same tests, and the same histories of the model, every time.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase, stateful

import holdfast
from holdfast.engine.library import FUNCTIONS

MODEL = "tests/model/"
BY_FILE, BY_PARAMETERS, GENERAL, FAR = range(4)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what mutants.py says about a mutant."""
    group = parser.getgroup("mutants")
    group.addoption("--mutant-source", help="the directory that holdfast must come from")
    group.addoption("--mutant-touches", help="the transitions that differ, joined by commas")
    group.addoption("--mutant-tests", type=int, help="how many tests to run beside the model's")


def pytest_configure(config: pytest.Config) -> None:
    """Make sure that it is the mutant that is tested."""
    source, found = Path(config.getoption("--mutant-source")), Path(holdfast.__file__)
    if not found.is_relative_to(source):
        raise pytest.UsageError(f"holdfast comes from {found}, not from {source}")
    _play_the_same_histories()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that most likely catch the mutant, those first that bear its name."""
    touched = set(config.getoption("--mutant-touches").split(","))
    others = {function.runs for function in FUNCTIONS} - touched
    by_id = {item.nodeid: item for item in items}
    chosen = choose(list(by_id), touched, others, config.getoption("--mutant-tests"))
    config.hook.pytest_deselected(items=[by_id[id] for id in by_id.keys() - set(chosen)])
    items[:] = [by_id[id] for id in chosen]


def choose(tests: list[str], touched: set[str], others: set[str], most: int) -> list[str]:
    """Return the tests to run, in their order; of the model's all, and last.

    First comes one of every test, then what its parameters make of it where they name a
    transition that is touched: many parameters do not crowd out other tests. What is about
    other transitions comes after that.
    """
    near = {test: nearness(test, touched, others) for test in tests}
    families = defaultdict(list)
    for test in tests:
        families[test.partition("[")[0]].append(test)
    ranks: dict[str, tuple[int, int]] = {}
    for family in families.values():
        # Neither the first nor the last of the parameters: some of all.
        family.sort(key=lambda test: (near[test], zlib.crc32(test.encode())))
        for place, test in enumerate(family):
            far = near[test] == FAR if place == 0 else near[test] > BY_PARAMETERS
            ranks[test] = (2 * far + (place > 0), place)
    plain = [test for test in tests if not test.startswith(MODEL)]
    kept = set(sorted(plain, key=ranks.__getitem__)[:most])
    in_order = sorted((test for test in plain if test in kept), key=near.__getitem__)
    return in_order + [test for test in tests if test.startswith(MODEL)]


def nearness(test: str, touched: set[str], others: set[str]) -> int:
    """Tell how near a test is to what is touched, from 0: by its file, by its parameters."""
    file, _, rest = test.partition("::")
    subject = _words(Path(file).stem)
    if touched & subject:
        return BY_FILE
    if touched & _words(rest.partition("[")[2]):
        return BY_PARAMETERS
    return FAR if others & subject else GENERAL


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text))


def _play_the_same_histories() -> None:
    """Let the model play the same histories every time, and not shorten one that differs."""
    run = stateful.run_state_machine_as_test
    seeds = itertools.count()

    def run_the_same(factory: Any, *, settings: hypothesis.settings) -> None:
        hypothesis.seed(next(seeds))(factory)
        run(factory, settings=hypothesis.settings(settings, phases=[Phase.generate]))

    stateful.run_state_machine_as_test = run_the_same  # type: ignore[assignment]
