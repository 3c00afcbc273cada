"""docs/guarantees.md names tests that exist, one at least for every promise."""

from __future__ import annotations

import ast
import re

from docs.pages import DOCS, ROOT, rows, section

PAGE = DOCS / "guarantees.md"
GUARDS = list(rows(section(PAGE, "Which test guards what")))


def named_in(cell: str) -> list[tuple[str, str]]:
    """Return file and test for each test in a cell; a file stands before its tests."""
    named, file = [], ""
    for word in re.findall(r"`([^`]+)`", cell):
        if word.endswith(".py"):
            file = word
        else:
            named.append((file, word))
    return named


def test_every_test_that_the_page_names_exists() -> None:
    for _, cell in GUARDS:
        for file, test in named_in(cell):
            tree = ast.parse((ROOT / file).read_text())
            tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert test in tests, f"{file} has no {test}"


def test_every_promise_has_a_test() -> None:
    promises = re.findall(r"^- \*\*(I\d+) ", section(PAGE, "The promises"), re.MULTILINE)
    guarded = [promise.partition(" ")[0] for promise, cell in GUARDS if named_in(cell)]
    assert len(promises) > 10
    assert guarded == promises


def test_nothing_is_ever_unpickled_or_evaluated() -> None:
    forbidden = {"pickle", "marshal", "shelve", "eval", "exec", "__import__"}
    own_functions = ROOT / "src/holdfast/spark/pipeline/canonical.py"
    """Reads back what the same process has just pickled for Spark, and nothing that was stored."""
    for path in (ROOT / "src").rglob("*.py"):
        if path == own_functions:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    used = {name.name for name in names}
                case ast.ImportFrom(module=str(module)):
                    used = {module}
                case ast.Call(func=ast.Name(id=function)):
                    used = {function}
                case _:
                    continue
            assert not used & forbidden, f"{path.name}:{node.lineno} uses {', '.join(used)}"
    for path in (ROOT / "src").rglob("*.lua"):
        assert not re.search(r"\b(loadstring|load|dofile)\s*\(", path.read_text()), path.name
