"""Change the engine in one place at a time, and see whether a test notices: `make mutants`.

A mutant is one small change of one Lua file: a statement is left out, a comparison is turned,
a key is mistaken for another. It runs in a copy of the package, against some of the tests. A
test that fails has caught it. One that is not caught is either no change at all in what the
engine does, and is explained in docs/mutants.md, or it shows what no test looks at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from holdfast.engine import library
from holdfast.engine.library import BOUNDS

ROOT: Final = Path(__file__).parents[1]
ENGINE: Final = Path("src/holdfast/engine/lua")
KEYS: Final = ROOT / "src/holdfast/engine/keys.py"
PAGE: Final = ROOT / "docs/mutants.md"

TESTS: Final = ("tests/engine", "tests/requests", "tests/queue/test_events.py", "tests/model")


class Look(NamedTuple):
    """How closely to look at a mutant."""

    tests: int
    """How many tests to run beside the model's."""
    steps: int
    """How many steps of the model."""
    patience: float
    """Seconds after which the mutant counts as caught: it runs in circles."""


# Where nothing else runs the first takes less than 10 s. Only what it does not catch, and the
# page does not explain, gets the second, which takes half a minute.
FIRST_LOOK: Final = Look(tests=320, steps=800, patience=60)
SECOND_LOOK: Final = Look(tests=100_000, steps=5000, patience=240)
TEST_PATIENCE: Final = 20
"""Seconds for one test."""

ENOUGH: Final = 95
"""Per cent of the mutants that must be caught, those aside that are explained."""

NOTHING: Final = "(nothing)"
"""What the page shows in place of a line that was left out."""

ANYTHING: Final = "(anything)"
"""What the page shows for a line where no change is seen, whichever it is."""

# ------------------------------------------------------------------------------- Lua


class Token(NamedTuple):
    """A word of Lua, and where it stands."""

    kind: str
    text: str
    start: int
    end: int


_TOKEN: Final = re.compile(
    r"""
    (?P<comment>--\[\[.*?\]\]|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[\[.*?\]\])
    |(?P<number>0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.\.?|[=~<>]=|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
_FUNCTION: Final = re.compile(r"^(?:local function |function transition\.)(\w+)", re.MULTILINE)
_WHOLE_FUNCTION: Final = re.compile(
    r"^(?:local )?function ([\w.]+)\b.*?^end\n", re.MULTILINE | re.DOTALL
)

KEYWORDS: Final = frozenset(
    [
        "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in",
        "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
    ]
)  # fmt: skip
OPENING: Final = frozenset(["if", "do", "function", "repeat"])
CLOSING: Final = frozenset(["end", "until"])
# After one of these a statement can begin, as far as it begins a line.
BEGINNING: Final = frozenset(["do", "else", "end", "then", "repeat", "nil", "true", "false"])


def read_lua(text: str) -> list[Token]:
    """Return the words of a text, without comments."""
    return [
        Token(found.lastgroup or "", found[0], found.start(), found.end())
        for found in _TOKEN.finditer(text)
        if found.lastgroup != "comment"
    ]


# -------------------------------------------------------------------------- mutations


class Edit(NamedTuple):
    """One change: what stands from start to end becomes something else."""

    kind: str
    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    id: str
    file: str
    kind: str
    before: str
    """The line as it is; the two lines are what the page knows a mutant by."""
    after: str
    """The line as it becomes."""
    text: str
    """The whole file as it becomes."""
    function: str
    """The outermost function that it is in, or the one before."""

    @property
    def diff(self) -> str:
        """Both lines in one."""
        return f"{self.before}  →  {self.after}"


TURNED: Final = {
    "<": ("flip-comparison", "<="),
    "<=": ("flip-comparison", "<"),
    ">": ("flip-comparison", ">="),
    ">=": ("flip-comparison", ">"),
    "==": ("flip-comparison", "~="),
    "~=": ("flip-comparison", "=="),
    "and": ("flip-logic", "or"),
    "or": ("flip-logic", "and"),
    "true": ("flip-boolean", "false"),
    "false": ("flip-boolean", "true"),
    "+": ("swap-sign", "-"),
    "-": ("swap-sign", "+"),
    **{bound: ("nudge-number", f"({bound} - 1)") for bound in BOUNDS},
}
"""What one word becomes, whatever is around it."""


def mutants_of(file: str, text: str, partners: Mapping[str, Sequence[str]]) -> list[Mutant]:
    """Return every mutant of a file; `partners` are the keys that each key is mistaken for."""
    tokens = read_lua(text)
    edits = [*_word_edits(tokens), *_key_edits(text, tokens, partners), *_drops(text, tokens)]
    counts: Counter[str] = Counter()
    mutants = []
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.kind)):
        name = f"{file}:{text.count(chr(10), 0, edit.start) + 1}:{edit.kind}"
        counts[name] += 1
        id = name if counts[name] == 1 else f"{name}-{counts[name]}"
        mutants.append(_mutant(id, file, text, edit))
    return mutants


def _mutant(id: str, file: str, text: str, edit: Edit) -> Mutant:
    changed = text[: edit.start] + edit.new + text[edit.end :]
    functions = [found[1] for found in _FUNCTION.finditer(text, 0, edit.end)]
    return Mutant(
        id,
        file,
        edit.kind,
        _line_at(text, edit.start),
        _line_at(changed, edit.start) or NOTHING,
        changed,
        functions[-1] if functions else "",
    )


def _line_at(text: str, place: int) -> str:
    """Return the code of a line, without its comment."""
    start, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    return re.sub(r"\s*--.*", "", text[start : end if end >= 0 else None]).strip()


def _word_edits(tokens: Sequence[Token]) -> Iterator[Edit]:
    last = Token("sign", ";", 0, 0)
    for i, token in enumerate(tokens):
        if token.kind == "number":
            yield Edit("nudge-number", token.start, token.end, neighbour(token.text))
        elif token.text == "not" and token.kind == "name":
            yield Edit("drop-not", token.start, tokens[i + 1].start, "")
        elif token.text in TURNED and token.kind != "string":
            kind, new = TURNED[token.text]
            if kind != "swap-sign" or _is_value(last):
                yield Edit(kind, token.start, token.end, new)
        last = token


def _is_value(token: Token) -> bool:
    """Tell whether a value ends here, so that a sign after it has two sides."""
    if token.kind == "sign":
        return token.text in (")", "]", "}")
    return token.text not in KEYWORDS


def neighbour(number: str) -> str:
    """Return the number below, and one for zero."""
    value = int(number, 0) if number.isalnum() and "e" not in number.lower() else float(number)
    return str(value - 1 if value else 1)


def _key_edits(
    text: str, tokens: Sequence[Token], partners: Mapping[str, Sequence[str]]
) -> Iterator[Edit]:
    for word, dot, key in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (word.text, dot.text) == ("key", ".") and partners.get(key.text):
            line = _line_at(text, key.start)
            # By the text of the line, so that it stays the same when the line moves.
            other = min(
                partners[key.text],
                key=lambda name: zlib.crc32(f"{line} {key.text} {name}".encode()),
            )
            yield Edit("swap-key", key.start, key.end, other)


def _drops(text: str, tokens: Sequence[Token]) -> Iterator[Edit]:
    """Leave out each statement that is one line."""
    lines: dict[int, list[Token]] = defaultdict(list)
    depths: dict[int, int] = {}
    depth = 0
    for token in tokens:
        number = text.count("\n", 0, token.start)
        depths.setdefault(number, depth)
        lines[number].append(token)
        depth += (token.text in ("(", "{", "[")) - (token.text in (")", "}", "]"))
    following = [*list(lines.values())[1:], [Token("name", "end", 0, 0)]]
    last = Token("name", "do", 0, 0)
    for (number, line), after in zip(lines.items(), following, strict=False):
        if depths[number] == 0 and _is_statement(last, line, after[0]):
            guards = any(token.text == "refuse" for token in line)
            yield Edit("drop-guard" if guards else "drop", line[0].start, line[-1].end, "")
        last = line[-1]


def _is_statement(last: Token, line: Sequence[Token], following: Token) -> bool:
    """Tell whether a line is one whole statement that can be left out."""
    words = [token.text for token in line if token.kind != "string"]
    if line[0].kind != "name" or _goes_on(last) or _continues(following):
        return False
    if sum(word in OPENING for word in words) != sum(word in CLOSING for word in words):
        return False
    if words[0] in ("if", "for", "while"):
        return words[-1] == "end"
    if words[0] in KEYWORDS or words.count("(") != words.count(")"):
        return False
    return (words[-1] == ")" or "=" in words) and not _goes_on(line[-1])


def _continues(token: Token) -> bool:
    """Tell whether a line that begins so belongs to the one before."""
    return token.kind == "sign" or token.text in ("and", "or")


def _goes_on(token: Token) -> bool:
    """Tell whether a statement cannot end here."""
    if token.kind == "sign":
        return token.text not in (")", "]", "}", ";")
    return token.text in KEYWORDS - BEGINNING


def partners_of(kinds: Mapping[str, str], used: Iterable[str]) -> dict[str, list[str]]:
    """Return the keys that each key may be mistaken for: of its kind, and in use."""
    used = sorted(set(used))
    return {
        key: [other for other in used if other != key and kinds.get(other) == kind]
        for key, kind in kinds.items()
    }


def kinds_of_keys(source: str) -> dict[str, str]:
    """Return the kind of every key, as engine/keys.py says beside its name."""
    return dict(re.findall(r'^ +"(\w+)",  # (\w+)', source, re.MULTILINE))


def all_mutants() -> list[Mutant]:
    """Return every mutant of every Lua file of the engine."""
    paths = sorted((ROOT / ENGINE).rglob("*.lua"))
    texts = {str(path.relative_to(ROOT / ENGINE)): path.read_text() for path in paths}
    used = re.findall(r"\bkey\.(\w+)", "".join(texts.values()))
    partners = partners_of(kinds_of_keys(KEYS.read_text()), used)
    return [mutant for file, text in texts.items() for mutant in mutants_of(file, text, partners)]


def sample(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """Return some mutants, of every file and kind about as large a part as of all."""
    shuffled = random.Random(seed).sample(mutants, len(mutants))
    shuffled.sort(key=lambda mutant: (mutant.file, mutant.kind))
    size = min(size, len(mutants))
    chosen = {shuffled[place * len(mutants) // size].id for place in range(size)}
    return [mutant for mutant in mutants if mutant.id in chosen]


# --------------------------------------------------------------------- what is explained

Explained = frozenset[tuple[str, str, str]]


def read_page(text: str) -> Explained:
    """Return file, line before and line after of every mutant that the page explains."""
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| `([^`]+)` → `([^`]+)` \|", text, re.MULTILINE)
    return frozenset(rows)


def is_explained(mutant: Mutant, explained: Explained) -> bool:
    """Tell whether the page says why nobody catches a mutant. Its line may have moved."""
    return any(
        (mutant.file, mutant.before, after) in explained for after in (mutant.after, ANYTHING)
    )


# ----------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    caught: bool
    by: str
    """The test that caught it."""
    seconds: float


class CannotTell(Exception):
    """The tests did not run, so nothing is known."""


def touched_by(file: str, function: str) -> list[str]:
    """Return the transitions that run a function of a file, directly or through others."""
    functions = functions_of(library.code())
    transitions = sorted({function.runs for function in library.FUNCTIONS})
    if f"function transition.{function}()" in (ROOT / ENGINE / file).read_text():
        return [function]
    return [
        name
        for name in transitions
        if function in reached(functions[f"transition.{name}"], functions)
    ] or transitions


def functions_of(text: str) -> dict[str, str]:
    """Return the functions at the outermost level of a text, by name."""
    return {match[1]: match[0] for match in _WHOLE_FUNCTION.finditer(text)}


def reached(text: str, functions: Mapping[str, str]) -> set[str]:
    """Return the functions that a text uses, directly or through others."""
    unseen, found = [text], set[str]()
    while unseen:
        new = functions.keys() & set(re.findall(r"\w+", unseen.pop())) - found
        found |= new
        unseen += [functions[function] for function in new]
    return found


async def run_tests(changed: Mapping[str, str], touched: Sequence[str], look: Look) -> Outcome:
    """Run the tests on a copy of the package in which some Lua files are changed."""
    with tempfile.TemporaryDirectory(prefix="hfm", ignore_cleanup_errors=True) as temporary:
        source = Path(temporary) / "src"
        shutil.copytree(ROOT / "src", source)
        for file, text in changed.items():
            (source / ENGINE.relative_to("src") / file).write_text(text)
        return await _run_pytest(source, touched, look)


async def _run_pytest(source: Path, touched: Sequence[str], look: Look) -> Outcome:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "tools.mutants_plugin"]
    command += ["--timeout", str(TEST_PATIENCE), "--mutant-tests", str(look.tests)]
    command += ["--mutant-source", str(source), "--mutant-touches", ",".join(touched)]
    command += [test for test in TESTS if (ROOT / test).exists()]
    environment = {
        "PYTHONPATH": str(source),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # It saves a second.
        "TMPDIR": str(source.parent),
        "HOLDFAST_MODEL_STEPS": str(look.steps),
    }
    begun = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # So that the servers of its tests end with it.
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), look.patience)
    except TimeoutError:
        return Outcome(caught=True, by=f"no end in {look.patience:.0f} s", seconds=look.patience)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return read_outcome(process.returncode, said.decode(), time.monotonic() - begun)


def read_outcome(code: int | None, said: str, seconds: float) -> Outcome:
    """Return what the end of a run of pytest means."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    if code == 0:
        return Outcome(caught=False, by="", seconds=seconds)
    if code == 1 and failed:
        return Outcome(caught=True, by=failed[1], seconds=seconds)
    raise CannotTell(said)


Verdict = Literal["caught", "explained", "survived"]


async def look_at(mutant: Mutant, looks: Iterable[Look]) -> Outcome:
    """Look at a mutant until it is caught."""
    touched = touched_by(mutant.file, mutant.function)
    seconds = 0.0
    for look in looks:
        outcome = await run_tests({mutant.file: mutant.text}, touched, look)
        seconds += outcome.seconds
        if outcome.caught:
            return replace(outcome, seconds=seconds)
    return Outcome(caught=False, by="", seconds=seconds)


async def judge_all(
    mutants: Sequence[Mutant], explained: Explained, looks: Sequence[Look], jobs: int
) -> dict[str, Verdict]:
    """Judge every mutant, some at a time, and print what becomes of each."""
    verdicts: dict[str, Verdict] = {}
    turns = asyncio.Semaphore(jobs)

    async def judge(mutant: Mutant) -> None:
        known = is_explained(mutant, explained)
        async with turns:
            outcome = await look_at(mutant, looks[:1] if known else looks)
        verdict: Verdict = "caught" if outcome.caught else "explained" if known else "survived"
        verdicts[mutant.id] = verdict
        place = f"{len(verdicts):4}/{len(mutants)}"
        line = f"{place}  {verdict:9} {outcome.seconds:5.1f} s  {mutant.id}  {outcome.by}"
        print(line.rstrip(), flush=True)

    async with asyncio.TaskGroup() as group:
        for mutant in mutants:
            group.create_task(judge(mutant))
    return verdicts


async def slowness() -> float:
    """Return how much longer than 10 s a first look takes here. The tests must pass."""
    outcome = await run_tests({}, touched_by("", ""), FIRST_LOOK._replace(patience=600))
    if outcome.caught:
        raise CannotTell(f"{outcome.by} fails without any mutant")
    print(f"without a mutant the tests pass in {outcome.seconds:.1f} s", flush=True)
    return max(1.0, outcome.seconds / 10)


# ----------------------------------------------------------------------------- telling


def per_cent(verdicts: Iterable[Verdict]) -> float:
    """Return how many were caught of those that are not explained."""
    counts = Counter(verdicts)
    of = counts["caught"] + counts["survived"]
    return 100 * counts["caught"] / of if of else 100.0


def report(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> str:
    """Return a table by kind, and the mutants that nobody caught."""
    columns: tuple[Verdict, ...] = ("caught", "explained", "survived")
    counts = Counter((mutant.kind, verdicts[mutant.id]) for mutant in mutants)
    counts.update(("all", verdict) for verdict in verdicts.values())
    kinds = [*sorted({mutant.kind for mutant in mutants}), "all"]
    return "\n".join(
        [
            f"{'':18}" + "".join(f"{column:>11}" for column in columns),
            *(
                f"{kind:18}" + "".join(f"{counts[kind, column]:11}" for column in columns)
                for kind in kinds
            ),
            f"\ncaught: {per_cent(verdicts.values()):.1f} % of those that are not explained",
            *(
                f"\nsurvived: {mutant.id}\n  - {mutant.before}\n  + {mutant.after}"
                for mutant in mutants
                if verdicts[mutant.id] == "survived"
            ),
        ]
    )


def read_arguments() -> argparse.Namespace:
    """Return what the user wants."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=120, help="run so many (120)")
    parser.add_argument("--all", action="store_true", help="run all")
    parser.add_argument("--only", help="run those that have this in their name, all of them")
    parser.add_argument("--list", action="store_true", help="print them, and run none")
    parser.add_argument("--seed", type=int, default=0, help="take another sample")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--quick", action="store_true", help="no second look at survivors")
    return parser.parse_args()


async def run(mutants: Sequence[Mutant], *, quick: bool, jobs: int) -> int:
    """Judge mutants, print a report, and return how the process shall end."""
    explained = read_page(PAGE.read_text()) if PAGE.exists() else frozenset()
    slow = await slowness()
    looks = [FIRST_LOOK] if quick else [FIRST_LOOK, SECOND_LOOK]
    patient = [look._replace(patience=look.patience * slow) for look in looks]
    verdicts = await judge_all(mutants, explained, patient, jobs)
    print(f"\n{report(mutants, verdicts)}")
    return 0 if per_cent(verdicts.values()) >= ENOUGH else 1


def main() -> int:
    """Do what the user asks for; return how the process shall end."""
    wanted = read_arguments()
    mutants = [mutant for mutant in all_mutants() if (wanted.only or "") in mutant.id]
    if not wanted.all and not wanted.only:
        mutants = sample(mutants, wanted.sample, wanted.seed)
    if wanted.list:
        for mutant in mutants:
            print(f"{mutant.id}\n    {mutant.diff}")
        print(f"{len(mutants)} mutants")
        return 0
    code = 2
    try:
        code = asyncio.run(run(mutants, quick=wanted.quick, jobs=wanted.jobs))
    except* CannotTell as group:
        print(*group.exceptions, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
