"""docs/seeds.md names methods and tests that exist, and leaves no regression test out."""

from __future__ import annotations

import ast
import re

from docs.pages import DOCS, ROOT, code_in, prose, rows, section
from holdfast import Queue, Worker

PAGE = DOCS / "seeds.md"
SEEDS = ("redis-work-queue", "reliable-worker-queue", "worqr", "queasy", "priority-job-queue")
FILES = {seed: ROOT / "tests" / "seeds" / f"test_{seed.replace('-', '_')}.py" for seed in SEEDS}
TESTS = {
    node.name
    for file in FILES.values()
    for node in ast.parse(file.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
}


def test_every_method_that_the_page_names_exists() -> None:
    named = {name for code in code_in(prose(PAGE)) for name in re.findall(r"\bqueue\.(\w+)", code)}
    assert len(named) > 20
    queue = Queue("never asked")
    assert [name for name in sorted(named) if not hasattr(queue, name)] == []


def test_every_method_of_a_worker_that_the_page_names_exists() -> None:
    named = {name for code in code_in(prose(PAGE)) for name in re.findall(r"\bworker\.(\w+)", code)}
    assert len(named) > 5
    assert [name for name in sorted(named) if not hasattr(Worker, name)] == []


def test_every_test_that_the_page_names_exists() -> None:
    named = {code for code in code_in(prose(PAGE)) if code.startswith("test_")}
    assert named
    assert named <= TESTS


def test_every_bug_that_has_a_test_is_on_the_page() -> None:
    named = code_in(section(PAGE, "What went wrong there"))
    bugs = {re.match(r"test_bug_[a-z]\d+", test) for test in TESTS if test.startswith("test_bug_")}
    shown = {re.match(r"test_bug_[a-z]\d+", test) for test in named}
    assert {bug[0] for bug in bugs if bug} == {bug[0] for bug in shown if bug}


def test_every_seed_has_a_table_of_its_calls() -> None:
    for seed in SEEDS:
        table = list(rows(section(PAGE, seed)))
        assert len(table) > 10
        assert all(len(row) == 3 for row in table), seed
        assert all(row[0] and row[1] for row in table), seed
