"""The two sample programs of the priority queue of tokens: requests from a file, and workers."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from proxy import HOLD, PASS, Proxy
from support import DEADLINE, TestServer, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
FILE = """\
# limit, then the parts
1:a:b:c

2@10:one:two
-:last
"""
LINES = "1:a:b:c", "2@10:one:two", "-:last"
_numbers = itertools.count()


class Programs:
    """Both programs, as processes on one queue."""

    def __init__(self, url: str, file: Path) -> None:
        self.queue = Queue(f"programs {os.getpid()} {next(_numbers)}", url)
        self.file = file
        self.started: list[subprocess.Popen[str]] = []

    def start(self, program: str, *words: object, url: str = "") -> subprocess.Popen[str]:
        url = url or str(self.queue.server.address)
        said = [*map(str, words), "--queue", self.queue.name, "--url", url]
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / program), *said],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, program: str, *words: object) -> str:
        process = self.start(program, *words)
        out, error = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, error
        return out

    def create(self, *words: object) -> list[str]:
        return self.run("create_requests.py", self.file, *words).splitlines()

    def id(self, line: str) -> str:
        """Return the id of the request that a line of the file makes."""
        return f"{self.file.name}-{hashlib.sha256(line.encode()).hexdigest()[:12]}"


@pytest.fixture
def programs(test_server: TestServer, tmp_path: Path) -> Iterator[Programs]:
    file = tmp_path / "requests.txt"
    file.write_text(FILE)
    programs = Programs(test_server.queue_url, file)
    yield programs
    for process in programs.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert programs.queue.audit() == []
    programs.queue.delete()
    programs.queue.close()


def test_every_line_is_a_request_with_a_priority_and_a_limit(programs: Programs) -> None:
    first, second, last = map(programs.id, LINES)
    assert programs.create() == [
        f"line 2: {first}: 3 parts, priority 99, limit 1",
        f"line 4: {second}: 2 parts, priority 10, limit 2",
        f"line 5: {last}: 1 parts, priority 97, no limit",
    ]
    found = {
        (one.id, one.priority, one.limit, one.total, one.state) for one in programs.queue.requests()
    }
    assert found == {
        (first, 99, 1, 3, "sealed"),
        (second, 10, 2, 2, "sealed"),
        (last, 97, None, 1, "sealed"),
    }


def test_workers_that_come_later_make_objects_of_the_parts_by_priority(programs: Programs) -> None:
    programs.file.write_text(FILE.replace("1:a", "3:a"))  # A worker leases ahead.
    first, second, last = map(programs.id, ("3:a:b:c", *LINES[1:]))
    programs.create()
    out = programs.run("worker_manager.py", "-n", 1, "--until-empty")
    made: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert [(one["request"], one["part"], one["text"], one["letters"]) for one in made] == [
        (first, 0, "A", 1),
        (first, 1, "B", 1),
        (first, 2, "C", 1),
        (last, 0, "LAST", 4),
        (second, 0, "ONE", 3),
        (second, 1, "TWO", 3),
    ]
    results = [part.json() for part in programs.queue.request(second).results()]
    assert [result["text"] for result in results] == ["ONE", "TWO"]


def test_a_producer_hears_of_the_end_from_workers_that_waited(programs: Programs) -> None:
    manager = programs.start("worker_manager.py", "-n", 3)
    wait_until(programs.queue.workers, "the workers")
    first, second, last = map(programs.id, LINES)
    assert programs.create("--wait")[3:] == [
        f"{first}: completed, 3 of 3 parts done",
        f"{second}: completed, 2 of 2 parts done",
        f"{last}: completed, 1 of 1 parts done",
    ]
    manager.send_signal(signal.SIGTERM)
    out, error = manager.communicate(timeout=DEADLINE)
    assert manager.returncode == 0, error
    texts = sorted(json.loads(line)["text"] for line in out.splitlines())
    assert texts == ["A", "B", "C", "LAST", "ONE", "TWO"]


def test_a_file_that_is_given_again_doubles_nothing(programs: Programs) -> None:
    half = programs.queue.request(programs.id(LINES[0]), priority=99, limit=1)
    half.open()
    half.add_many(["a", "b"])  # … and its producer dies.
    assert programs.create()[0] == f"line 2: {half.id}: 3 parts, priority 99, limit 1"
    for line, told in zip((2, 4, 5), programs.create(), strict=True):
        assert told.startswith(f"line {line} is already there: {programs.file.name}-")
        assert "sealed" in told
    assert sorted(one.total for one in programs.queue.requests()) == [1, 2, 3]


def test_a_line_that_was_edited_is_a_request_of_its_own(programs: Programs) -> None:
    programs.create()
    programs.file.write_text(FILE.replace("1:a:b:c", "# another first line\n1:a:b:changed"))
    changed, *others = programs.create()
    assert changed == f"line 3: {programs.id('1:a:b:changed')}: 3 parts, priority 99, limit 1"
    assert [told.partition(":")[0] for told in others] == [
        "line 5 is already there",
        "line 6 is already there",
    ]
    parts = {bytes(job.data or b"") for job in programs.queue.peek(100, state="parked")}
    parts |= {bytes(job.data or b"") for job in programs.queue.peek(100)}
    assert {b"c", b"changed"} <= parts


def test_two_lines_that_are_alike_are_two_requests(programs: Programs) -> None:
    programs.file.write_text("1:a\n1:a\n2:b\n1:a\n")
    for _ in range(2):
        programs.create()
        ids = {one.id for one in programs.queue.requests()}
        alike = programs.id("1:a")
        assert ids == {alike, f"{alike}-2", f"{alike}-3", programs.id("2:b")}


def test_a_program_that_is_interrupted_leaves_a_request_to_go_on_with(
    programs: Programs, proxy: Proxy
) -> None:
    parts = ":".join(map(str, range(100_000)))
    programs.file.write_text(f"1:{parts}\n")
    proxy.plan([PASS] * 4 + [HOLD] * 9)  # It is in the midst of it, however long we take.
    process = programs.start("create_requests.py", programs.file, url=proxy.url)
    request = programs.queue.request(programs.id(f"1:{parts}"))
    wait_until(lambda: any(one.total for one in programs.queue.requests()), "the first parts")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode
    assert request.status().state == "open"
    assert programs.create()[0].endswith("100000 parts, priority 99, limit 1")
    assert request.status().state == "sealed"


def test_a_file_that_is_no_utf_8_is_refused(programs: Programs) -> None:
    programs.file.write_bytes("1:a\n2:Köln\n".encode("latin-1"))
    process = programs.start("create_requests.py", programs.file)
    _, error = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert error == f"{programs.file}: line 2 is not UTF-8: save the file as UTF-8 and try again\n"
    assert programs.queue.requests() == []


@pytest.mark.parametrize("line", ["x:a", ":a", "1@high:a", "two"])
def test_a_line_that_is_no_request_is_refused_before_anything_is_added(
    programs: Programs, line: str
) -> None:
    programs.file.write_text(f"1:a\n{line}\n")
    process = programs.start("create_requests.py", programs.file)
    _, error = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "line 2" in error
    assert "is no limit: write 2:first:second" in error
    assert programs.queue.requests() == []


def test_a_limit_or_priority_that_cannot_be_is_refused_before_anything_is_added(
    programs: Programs,
) -> None:
    programs.file.write_text("1:a\n1@100:b\n")
    process = programs.start("create_requests.py", programs.file)
    _, error = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "priority must be 0 to 99" in error
    assert programs.queue.requests() == []
