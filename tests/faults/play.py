"""Actors on one queue: to start them, to kill them, and to read what they were told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Self

import redis

from faults.shells import SHELLS, Shell
from faults.stored import payloads
from holdfast import Queue
from support import wait_until


@dataclass
class Told:
    """What actors knew, according to their logs."""

    added: set[str] = field(default_factory=set)
    maybe_added: set[str] = field(default_factory=set)
    completed: Counter[str] = field(default_factory=Counter)
    maybe_completed: set[str] = field(default_factory=set)
    leased: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def must_agree_with(self, waiting: Iterable[str]) -> None:
        """Check that each job was completed once or still waits, and that nothing else waits."""
        completed, waiting = self.completed.keys(), set(waiting)
        assert {id for id, times in self.completed.items() if times > 1} == set(), "ended twice"
        assert completed & waiting == set(), "completed, but not gone"
        assert self.added - completed - self.maybe_completed - waiting == set(), "lost"
        assert (completed | waiting) - self.added - self.maybe_added == set(), "never added"


class Cast:
    """All actors of one play. Whoever still plays at its end is killed."""

    def __init__(self, directory: Path, url: str, queue: str) -> None:
        self._directory = directory
        self._url = url
        self._queue = queue
        self._numbers = count()
        self._playing: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()
        directory.mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._playing.values():
            process.kill()
        for process in self._playing.values():
            process.communicate()

    def start(self, part: str, shell: Shell | None = None) -> str:
        """Start an actor, of alternating shells unless told, and return its name."""
        number = next(self._numbers)
        name = f"{part}-{number}"
        shell = shell or SHELLS[number % 2]
        arguments = [part, str(self._directory), name, shell, self._url, self._queue]
        with (self._directory / f"{name}.errors").open("wb") as errors:
            self._playing[name] = subprocess.Popen(
                [sys.executable, "-m", "faults.actors", *arguments],
                stdin=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        return name

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._playing[name]

    def kill(self, name: str) -> None:
        """End an actor with kill -9."""
        process = self._playing.pop(name)
        process.kill()
        process.communicate()
        self._killed.add(name)

    def kill_one(self, part: str, dice: random.Random) -> None:
        """Kill any actor of this part, and let another one take it."""
        self.kill(dice.choice([name for name in self._playing if name.startswith(part)]))
        self.start(part)

    def stop(self) -> None:
        """Let everybody come to an end by themselves."""
        (self._directory / "stop").touch()
        for name in list(self._playing):
            self.join(name)

    def join(self, name: str) -> None:
        """Wait until an actor has ended well."""
        wait_until(lambda: self._playing[name].poll() is not None, f"the end of {name}")
        process = self._playing.pop(name)
        process.communicate()
        assert process.returncode == 0, self._errors_of(name)

    def wait_for_more(self, lines: int) -> None:
        """Wait until the actors have written so many more lines, whoever they are."""
        self.wait_for_lines(self._lines() + lines)

    def wait_for_lines(self, lines: int) -> None:
        """Wait until the actors have written so many lines in all."""
        wait_until(lambda: self._all_well() and self._lines() >= lines, f"{lines} lines")

    def wait_for_all(self) -> None:
        """Wait until every actor has begun."""
        wait_until(lambda: self._all_well() and all(map(self._log, self._playing)), "all actors")

    def told(self) -> Told:
        """Read all logs. What an actor was not told before it was killed may be either way."""
        told = Told()
        for path in sorted(self._directory.glob("*.log")):
            adding, completing = set[str](), Counter[str]()
            for word, id, *answer in self._log(path.stem):
                match word:
                    case "adding":
                        adding.add(id)
                    case "added":
                        told.added.add(id)
                    case "completing":
                        completing[id] += 1
                    case "completed":
                        completing[id] -= 1
                        if answer == ["True"]:
                            told.completed[id] += 1
                        else:
                            told.refused.append(id)
                    case "leased" | "lost" | "held":
                        getattr(told, word).append(id)
            unanswered = {id for id, times in completing.items() if times}
            if path.stem in self._killed:
                told.maybe_added |= adding
                told.maybe_completed |= unanswered
            else:
                assert not unanswered, f"{path.stem} was not told about {unanswered}"
        return told

    def _log(self, name: str) -> list[list[str]]:
        path = self._directory / f"{name}.log"
        if not path.exists():
            return []
        whole, _, _ = path.read_text().rpartition("\n")
        return [line.split("\t") for line in whole.split("\n") if line]

    def _lines(self) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self._directory.glob("*.log"))

    def _all_well(self) -> bool:
        for name, process in self._playing.items():
            assert process.poll() in (None, 0), self._errors_of(name)
        return True

    def _errors_of(self, name: str) -> str:
        return f"{name}: {(self._directory / f'{name}.errors').read_text()[-3000:]}"


def kill_and_carry_on(
    cast: Cast, kills: Counter[str], dice: random.Random, kill_server: Callable[[], None]
) -> None:
    """Let everybody work, and kill one after the other at any moment."""
    victims = list(kills.elements())
    dice.shuffle(victims)
    for part in ("producer", "holder", "holder", "producer"):
        cast.start(part)
    cast.wait_for_all()
    for victim in victims:
        cast.wait_for_more(
            dice.randrange(1, dice.choice((5, 50, 300)))
        )  # Often in quick succession.
        if victim == "server":
            kill_server()
        else:
            cast.kill_one(victim, dice)
    cast.wait_for_more(200)
    cast.stop()


def must_be_all_there(told: Told, queue: Queue, client: redis.Redis) -> None:
    """Check that no job is lost and none ended twice; then complete what is left, and check again.

    What holders had leased when they were killed comes back when it has lapsed.
    """
    assert queue.audit() == []
    told.must_agree_with(payloads(client, queue))
    while queue.counts().waiting or queue.counts().leased:
        leases = queue.lease_many(100, 30, wait=10)
        assert all(queue.complete_many(leases))
        told.completed.update(lease.id for lease in leases)
    told.must_agree_with(())
    assert payloads(client, queue) == {}
    assert queue.counts().failed == 0
    assert queue.audit() == []
