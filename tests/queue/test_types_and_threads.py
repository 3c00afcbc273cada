"""msgspec crashes when two threads look at a type for the first time at once: we never let it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCES = Path(holdfast.__file__).parent
LOCKED = "codec.py"
"""Where it is done behind a lock."""

PROGRAM = """
import sys, threading, types
from holdfast import codec

FIELDS = [f"f{n}: 'list[int] | None'" for n in range(12)]
BODY = "\\n".join("    " + field for field in FIELDS)
SOURCE = f'''
from dataclasses import dataclass
from typing import NamedTuple, TypedDict
class Options(TypedDict, total=False):
{BODY}
class Entry(NamedTuple):
{BODY}
@dataclass
class Whole:
    options: Options
    entry: Entry
'''
VALUE = {"options": {}, "entry": [None] * 12}
sys.setswitchinterval(1e-6)

for n in range(150):
    module = sys.modules[f"m{n}"] = types.ModuleType(f"m{n}")
    exec(SOURCE, vars(module))
    together = threading.Barrier(4)

    def look():
        together.wait()
        codec.reader(module.Whole)(codec.encode(VALUE))
        codec.convert(VALUE, module.Whole)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_read_a_new_type_at_once_do_not_crash() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def looks_at_a_type(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    given = {keyword.arg for keyword in node.keywords}
    return (
        called.endswith("Decoder")
        or called == "msgspec.convert"
        or (called.startswith("msgspec.") and called.endswith(".decode") and "type" in given)
    )


def found_in(source: str) -> Iterator[ast.AST]:
    """Return where a function, which may run in any thread, looks at a type."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from (inner for inner in ast.walk(node) if looks_at_a_type(inner))


def test_types_are_looked_at_before_there_are_threads() -> None:
    found = [
        f"{path.relative_to(SOURCES)}: {ast.unparse(node)}"
        for path in SOURCES.rglob("*.py")
        if path.name != LOCKED
        for node in found_in(path.read_text())
    ]
    assert found == []
    assert list(found_in((SOURCES / LOCKED).read_text()))
