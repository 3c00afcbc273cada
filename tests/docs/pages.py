"""The Markdown pages: their Python blocks, shell sessions, tables, headings and links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Queue
from support import DEADLINE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
NOT_RUN = "python no-run"
_ARROW = "# → "


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block and the line of its page on which its code begins."""

    info: str
    code: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that it is, where it begins with one."""
        named = _FILE.match(self.code) if self.info == "python" else None
        return named[1] if named else None


def blocks(page: Path, *infos: str) -> list[Block]:
    """Return the fenced blocks of these kinds, or of all where none is named."""
    text = page.read_text()
    return [
        Block(found["info"], found["code"], text.count("\n", 0, found.start("code")) + 1)
        for found in _FENCE.finditer(text)
        if not infos or found["info"] in infos
    ]


def run(page: Path) -> dict[str, Any]:
    """Run the Python blocks of a page as one program; `# → x` must be what an expression gives."""
    names: dict[str, Any] = {"__name__": page.stem}
    try:
        for block in blocks(page, "python"):
            if not block.file:
                _run_block(page, block, names)
        return names
    finally:
        _close(names)


def program_of(page: Path, heading: str) -> tuple[str, str]:
    """Return the Python under a heading as one program, and what the page says that it prints."""
    start = page.read_text().index(f"\n## {heading}\n")
    first = page.read_text().count("\n", 0, start)
    last = first + section(page, heading).count("\n") + 1
    under = [block for block in blocks(page, "python", "text") if first < block.line <= last]
    code, text = ([b.code for b in under if b.info == info] for info in ("python", "text"))
    return "\n".join(code), "".join(text)


def play(page: Path, folder: Path, environment: dict[str, str]) -> int:
    """Type what a page shows into a shell, in order; return how many commands that were.

    Blocks that are files are written first; other Python blocks run in between, as one program.
    """
    names: dict[str, Any] = {"__name__": page.stem}
    ran = 0
    try:
        for block in blocks(page, "python", "console"):
            if block.file:
                (folder / block.file).write_text(block.code)
            elif block.info == "python":
                _run_block(page, block, names)
            else:
                for command, shown in _steps(block):
                    _type(page, command, shown, folder, environment)
                    ran += 1
    finally:
        _close(names)
    return ran


def _steps(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a block, and what it is said to write."""
    for step in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, output = step.partition("\n")
        yield command, output


def _type(page: Path, command: str, shown: str, folder: Path, environment: dict[str, str]) -> None:
    typed = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    written = typed.stdout if typed.stdout.endswith("\n") else typed.stdout + "\n"
    fits = re.fullmatch(re.escape(shown).replace("…", ".*"), written if typed.stdout else "")
    assert fits, f"{name_of(page)}: {command}\n{typed.stdout}"


def _close(names: dict[str, Any]) -> None:
    for value in names.values():
        if isinstance(value, Queue):
            value.close()


def _run_block(page: Path, block: Block, names: dict[str, Any]) -> None:
    # The empty lines make a traceback point into the page.
    code = "\n" * (block.line - 1) + block.code
    lines = code.splitlines()
    for statement in ast.parse(code, str(page)).body:
        assert statement.end_lineno is not None
        expected = lines[statement.end_lineno - 1].partition(_ARROW)[2]
        if isinstance(statement, ast.Expr) and expected:
            expression = compile(ast.Expression(statement.value), page, "eval", dont_inherit=True)
            given = repr(eval(expression, names))
            where = f"{name_of(page)}:{statement.lineno}"
            assert given == expected, f"{where} says {expected}, but it is {given}"
        else:
            module = ast.Module([statement], type_ignores=[])
            exec(compile(module, page, "exec", dont_inherit=True), names)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in words}


def section(page: Path, heading: str) -> str:
    """Return what stands under a heading, up to the next one of its rank."""
    text = page.read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{name_of(page)} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", _without_code(rest), re.MULTILINE)
    return rest[: end.start()] if end else rest


def _without_code(text: str) -> str:
    """Blank out fenced blocks, keeping every position."""
    return _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of the rows of the tables in a text, without the headings."""
    for table in re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split(" |")]


def code_of(text: str) -> list[str]:
    """Return what stands in backticks on one line."""
    return re.findall(r"`([^`\n]+)`", text)


def code_in(text: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", text)
