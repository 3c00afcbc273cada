"""Workers and producers of release 0.1 and of this one share a queue, back and forth.

Release 0.1 comes from the history of the repository. Without that the tests are skipped.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

import holdfast
from engine_support import own_server
from faults.rolling import REQUEST
from holdfast import Queue
from support import DEADLINE, TestServer, wait_until

OLD = "c40111aa8623e9deb78a540825eee337af2cd784"
"""The last commit of release 0.1."""
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("rolling.py")
PRESENT = Path(holdfast.__file__).parents[1]
ROLES = ("work", "work", "work", "add", "add")
PROGRESS = 40
"""The jobs that end between two changes."""


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Release 0.1, as a directory for PYTHONPATH."""
    there = tmp_path_factory.mktemp("former")
    command = ["git", "-C", str(ROOT), "archive", OLD, "src"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the repository has no history, so release 0.1 cannot be had")
    subprocess.run(["tar", "-x", "-C", str(there)], input=archive, check=True)
    return there / "src"


@dataclass
class Member:
    """A process of one release, and what it writes."""

    role: str
    release: int
    """0 for the former release, 1 for the present one."""
    journal: Path
    process: subprocess.Popen[bytes]

    def is_at_work(self) -> bool:
        """Return whether it has done more than start: from then on it handles SIGTERM."""
        return self.journal.exists() and self.journal.read_bytes().count(b"\n") > 1

    def end(self, how: signal.Signals) -> None:
        """Send a signal, unless that was done, and wait for the end."""
        with suppress(ProcessLookupError):
            self.process.send_signal(how)
        status = self.process.wait(DEADLINE)
        assert how is signal.SIGKILL or status == 0, f"{self.role} ended with {status}"


class Crew:
    """Processes of both releases. Each is replaced by one of the other release, in turn."""

    def __init__(self, server: TestServer, queue: str, releases: tuple[Path, Path]) -> None:
        self._server = server
        self._queue = queue
        self._releases = releases
        self._numbers = count()
        self._members: list[Member] = []
        self._errors = server.directory / "errors"
        self.killed = 0

    def start(self, role: str, release: int) -> None:
        """Start a process of a release."""
        journal = self._server.directory / f"journal.{next(self._numbers)}"
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", PROGRAM, role, self._server.url, self._queue, journal],
                env={**os.environ, "PYTHONPATH": str(self._releases[release])},
                stdout=errors,
                stderr=errors,
            )
        self._members.append(Member(role, release, journal, process))

    def replace_one(self, *, cruelly: bool) -> None:
        """End the oldest process, and start one of the other release in its place."""
        oldest = self._members[0]
        wait_until(oldest.is_at_work, f"{oldest.role} to begin")
        self.start(oldest.role, 1 - oldest.release)
        self.killed += cruelly
        oldest.end(signal.SIGKILL if cruelly else signal.SIGTERM)
        self._members.remove(oldest)

    def dismiss(self, role: str) -> None:
        """End all processes of a role."""
        for member in [member for member in self._members if member.role == role]:
            wait_until(member.is_at_work, f"{role} to begin")
            member.end(signal.SIGTERM)
            self._members.remove(member)

    def lines(self) -> Iterator[list[str]]:
        """Yield what all have written."""
        for path in self._server.directory.glob("journal.*"):
            for line in path.read_text().splitlines():
                yield line.split("\t")

    def errors(self) -> str:
        """Return what they have written to stderr."""
        return self._errors.read_text()

    def close(self) -> None:
        """Kill those who are left."""
        for member in self._members:
            member.end(signal.SIGKILL)


@contextmanager
def rolling(former: Path, rolls: int, seed: int) -> Iterator[tuple[Queue, Crew]]:
    """Replace each process by one of the other release, `rolls` times, and let all jobs end."""
    dice = random.Random(seed)
    with ExitStack() as stack:
        server = stack.enter_context(own_server())
        queue = stack.enter_context(Queue("rolling", server.url))
        crew = Crew(server, queue.name, (former, PRESENT))
        stack.callback(crew.close)
        for role in ROLES:
            crew.start(role, 0)
        for _ in range(rolls):
            for _ in ROLES:
                await_progress(queue)
                crew.replace_one(cruelly=dice.random() < 0.3)
        await_progress(queue)
        crew.dismiss("add")
        queue.request(REQUEST).seal()
        wait_until(lambda: is_done(queue), "all jobs to end")
        crew.dismiss("work")
        yield queue, crew


def await_progress(queue: Queue) -> None:
    """Wait until more jobs have ended, and see that the limit of the request holds meanwhile."""
    wanted = queue.totals().completed + PROGRESS

    def is_reached() -> bool:
        assert all(one.running <= 3 for one in queue.requests())
        return queue.totals().completed >= wanted

    wait_until(is_reached, f"{PROGRESS} more jobs to end")


def is_done(queue: Queue) -> bool:
    counts = queue.counts()
    return not (counts.waiting or counts.leased)


def must_be_whole(queue: Queue, crew: Crew) -> None:
    lines = list(crew.lines())
    kinds = Counter(line[0] for line in lines)
    print(dict(kinds), f"{crew.killed} killed", crew.errors()[-2000:], sep="\n")
    released = {line[1] for line in lines if line[0] == "release"}
    assert len(released) == 2, "both releases took part"
    over = {(line[1], line[2]) for line in lines if line[0] == "over"}
    for _, id in (line for line in lines if line[0] == "added"):
        outcome = queue.result(id)
        assert outcome is not None, f"{id} is lost"
        assert outcome.kind == "completed", outcome
        assert (id, (outcome.result or b"").decode()) in over, "its result is that of a whole run"
    status = queue.request(REQUEST).status()
    assert (status.state, status.done) == ("completed", status.total)
    assert status.done >= kinds["part"] > 0
    assert queue.counts().failed == 0
    assert "unexpected" not in crew.errors()
    assert queue.audit() == []


def test_two_releases_share_a_queue(former: Path) -> None:
    with rolling(former, rolls=2, seed=1) as (queue, crew):
        must_be_whole(queue, crew)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_upgrade_is_rolled_back_and_forth_ten_times(former: Path) -> None:
    with rolling(former, rolls=20, seed=2) as (queue, crew):
        must_be_whole(queue, crew)
        assert crew.killed >= 10
