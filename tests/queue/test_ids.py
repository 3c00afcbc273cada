from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import codec
from holdfast.codec import new_id, random_name

MANY = 10_000

PROCESS = f"""
from holdfast import codec
from holdfast.codec import new_id
print(*(new_id() for _ in range({MANY})))
"""

FORKED = """
import os
from holdfast import codec
from holdfast.codec import new_id, random_name
before = [new_id(), random_name()]
for child in range(3):
    if os.fork() == 0:
        break
else:
    for child in range(3):
        os.wait()
made = [before[0], *(new_id() for _ in range(100)), random_name()]
os.write(1, (" ".join(made) + "\\n").encode())
"""


def run(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")


def test_an_id_has_twenty_characters_that_need_no_quoting() -> None:
    assert all(re.fullmatch(r"[_0-9A-Za-z][-_0-9A-Za-z]{19}", new_id()) for _ in range(MANY))


def test_ids_sort_as_they_were_made() -> None:
    made = [new_id() for _ in range(MANY)]
    assert made == sorted(made)
    assert len(set(made)) == MANY


def test_ids_of_different_milliseconds_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for ms in (1, 63, 64, 65, 4096, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 2**42 - 1):
        monkeypatch.setattr("time.time_ns", lambda ms=ms: ms * 1_000_000)
        made += [new_id() for _ in range(3)]
    assert made == sorted(made)
    assert len({id[:8] for id in made}) == 8


def test_ids_of_many_threads_are_unique() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [new_id() for _ in range(2000)], range(16)))
    assert len({id for batch in made for id in batch}) == 32_000


def test_ids_of_many_processes_are_unique() -> None:
    with ThreadPoolExecutor(2) as pool:
        made = [id for lines in pool.map(run, [PROCESS] * 2) for id in lines[0].split()]
    assert len(set(made)) == 2 * MANY


def test_a_forked_child_makes_ids_of_its_own() -> None:
    lines = [line.split() for line in run(FORKED) if line]
    assert len(lines) == 4
    assert len({line[0] for line in lines}) == 1  # Made before the fork.
    after = [id for line in lines for id in line[1:]]
    assert len(set(after)) == 4 * 101


def test_a_process_that_made_all_of_its_ids_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = codec._Maker()
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(codec, "_IDS", 5)
    made = [maker.new() for _ in range(20)]
    assert len(set(made)) == 20
    assert len({id[8:16] for id in made}) == 4


def test_a_random_name_has_twelve_characters_and_is_never_the_same() -> None:
    names = {random_name() for _ in range(MANY)}
    assert len(names) == MANY
    assert {len(name) for name in names} == {12}
    assert all(re.fullmatch(r"[-_0-9A-Za-z]{12}", name) for name in names)
