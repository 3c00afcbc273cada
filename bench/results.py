"""What was measured, as plain values: kept as JSON, so that a run can be made in parts."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NEAR = "AOF off"
EVERYSEC = "AOF everysec"
ALWAYS = "AOF always"
FAR = "2 ms away"
CONDITIONS = (NEAR, EVERYSEC, ALWAYS, FAR)

ADD = "add"
BULK = "bulk add"
DRAIN = "drain"
TWO = "drain by two"
LATENCY = "latency"
BYTES = "bytes"
TRIPS = "trips"
SERVER = "server"
RECOVERY = "recovery"
INSTRUCTIONS = "instructions"


FILE = Path(__file__).parent.parent / ".bench" / "results.json"


@dataclass
class Growth:
    """Server time per job as something grows."""

    what: str
    sizes: list[int]
    microseconds: list[list[float]]
    """The rounds of each size."""
    most: float
    """How much dearer the largest may be than the smallest."""
    remark: str = ""

    @property
    def ratio(self) -> float:
        return statistics.median(self.microseconds[-1]) / statistics.median(self.microseconds[0])


@dataclass
class Results:
    """The values of every round, by condition, measure and contender."""

    machine: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    settings: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """What each contender was fastest with, by condition."""
    troubles: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each contender could not do, and what it said."""
    growth: list[Growth] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    """What other benches measured, by the row of the targets."""
    busy: dict[str, str] = field(default_factory=dict)
    """How busy the machine was, by part of the run."""

    def add(self, condition: str, measure: str, name: str, value: float) -> None:
        measures = self.values.setdefault(condition, {})
        measures.setdefault(measure, {}).setdefault(name, []).append(value)

    def forget(self, condition: str, measure: str, name: str) -> None:
        """Drop what an earlier run measured."""
        self.values.get(condition, {}).get(measure, {}).pop(name, None)

    def rounds(self, condition: str, measure: str, name: str) -> list[float]:
        return self.values.get(condition, {}).get(measure, {}).get(name, [])

    def median(self, condition: str, measure: str, name: str) -> float | None:
        rounds = self.rounds(condition, measure, name)
        return statistics.median(rounds) if rounds else None

    def trouble(self, name: str, doing: str, said: str) -> None:
        self.troubles.setdefault(name, {})[doing] = said

    def cured(self, name: str, doing: str) -> None:
        """Forget that a contender could not do this in an earlier run."""
        self.troubles.get(name, {}).pop(doing, None)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read what was measured so far; nothing when there is no such file."""
        if not path.exists():
            return cls()
        stored = json.loads(path.read_text())
        stored["growth"] = [Growth(**one) for one in stored["growth"]]
        return cls(**stored)


def keep(row: str, ratio: float) -> None:
    """Keep a ratio for the table of targets."""
    results = Results.load(FILE)
    results.ratios[row] = ratio
    results.save(FILE)


def spread(values: list[float]) -> float:
    """Half the range of the rounds as a share of their median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def fastest(rates: list[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """Return the setting of a sweep that drains fastest; of equals the first, the smallest."""
    if not rates:
        raise ValueError("a sweep needs a setting that works")
    return max(rates, key=lambda one: one[1])[0]
