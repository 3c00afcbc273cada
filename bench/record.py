"""The recorded counts of instructions (bench/instructions.json), and what compares with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD = Path(__file__).parent / "instructions.json"
YARDSTICK = "redis-py: SET + LPUSH"
"""Calls that are not ours: if their count changes, the server or the Python is another build."""
ADD = "add"
MOST_GROWTH = 0.03
SAME = 0.02
"""How far the counts of the yardstick may lie apart where nothing is another build."""


@dataclass(frozen=True)
class Counts:
    """Instructions per job of one side."""

    of: str
    """Of which program and version."""
    counts: dict[str, int]

    def compares(self, recorded: Counts | None) -> bool:
        """Whether the record is of the same build of the same program."""
        if recorded is None or recorded.of != self.of:
            return False
        ours, theirs = self.counts.get(YARDSTICK), recorded.counts.get(YARDSTICK)
        return bool(ours and theirs) and abs(growth(ours or 0, theirs or 0)) <= SAME


Both = dict[str, Counts]
"""The counts of `server` and `client`."""


def load(path: Path = RECORD) -> Both:
    """Return what is recorded; nothing where there is no such file."""
    if not path.exists():
        return {}
    stored: dict[str, dict[str, object]] = json.loads(path.read_text())
    return {side: Counts(**one) for side, one in stored.items()}  # type: ignore[arg-type]  # its own


def save(both: Both, path: Path = RECORD) -> None:
    stored = {side: asdict(one) for side, one in both.items()}
    path.write_text(json.dumps(stored, indent=2) + "\n")


def growth(now: int, before: int) -> float:
    return now / before - 1


def moved(both: Both, recorded: Both) -> Iterator[tuple[str, float]]:
    """Give the rows that changed by more than MOST_GROWTH, each with a line that says so."""
    for side, one in both.items():
        before = recorded.get(side)
        if before is None or not one.compares(before):
            continue
        for what, now in one.counts.items():
            then = before.counts.get(what)
            if then and abs(grown := growth(now, then)) > MOST_GROWTH:
                word = "GREW" if grown > 0 else "fell"
                line = f"{word} by {abs(grown):.1%}: {side}, {what}: {then:,} → {now:,}"
                yield f"{line} instructions", grown


def verdict(both: Both, recorded: Both) -> tuple[list[str], bool]:
    """Return what is to be said, a line each, and whether any count grew."""
    changes = list(moved(both, recorded))
    lines = [line for line, _ in changes]
    for side, one in both.items():
        if not one.compares(before := recorded.get(side)):
            known = f"{before.of}, or another build of it" if before else "nothing"
            lines.append(f"not judged: {side}: this is {one.of}, and the record is of {known}")
    if any(grown < 0 for _, grown in changes):
        lines.append("record what fell: make bench-instructions ARGS=--record")
    any_grew = any(grown > 0 for _, grown in changes)
    return lines or ["no count of instructions moved by more than 3 %"], any_grew
