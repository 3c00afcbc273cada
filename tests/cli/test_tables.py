"""Tables and colours: on narrow and wide terminals, and where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from cli.support import Commands, on_a_terminal
from engine_support import take
from holdfast import Queue

RED, YELLOW = "\x1b[31m", "\x1b[33m"


@pytest.fixture
def queue(queue: Queue) -> Iterator[Queue]:
    """A queue with something in every table."""
    queue.register(alive_for=60, host="web-1", pid=4242, handlers=["send"], queues=[queue.name])
    queue.add("x" * 300, id="a", handler="send", max_failures=1)
    queue.fail(take(queue), error="no connection " + "e" * 300)
    queue.add("x" * 300, id="b", handler="send", delay=7200)
    queue.add("x" * 300, id="c", handler="send")
    take(queue)
    queue.add_many([b"x"] * 3, group="mail", group_limit=0)
    with queue.request("report", limit=0) as request:
        request.add("x")
    queue.pause()
    yield queue
    queue.cancel("a")


TABLES = [
    ("ls", []),
    ("peek", ["--state", "leased"]),
    ("peek", ["--state", "delayed"]),
    ("failed", []),
    ("failed", ["--by", "error"]),
    ("workers", []),
    ("groups", []),
    ("watch", ["--times", "1"]),
    ("request", []),
]


def words(queue: Queue, command: str, options: list[str]) -> list[str]:
    known = {"ls": ["ls"], "request": ["request", "ls", queue.name]}
    return known.get(command, [command, queue.name, *options])


def shown(queue: Queue, command: str, options: list[str], columns: int) -> str:
    code, screen = on_a_terminal(*words(queue, command, options), columns=columns)
    assert code == 0
    return screen.replace("\r", "")


@pytest.mark.parametrize(("command", "options"), TABLES)
def test_lines_fit_on_a_narrow_terminal_and_nothing_is_left_out_on_a_wide_one(
    hf: Commands, queue: Queue, command: str, options: list[str]
) -> None:
    narrow = click.unstyle(shown(queue, command, options, 60)).splitlines()
    wide = click.unstyle(shown(queue, command, options, 400)).splitlines()
    assert max(map(len, narrow)) <= 60
    assert headings(wide[0]) == headings(hf(*words(queue, command, options)).splitlines()[0])
    assert set(headings(narrow[0])) <= set(headings(wide[0]))


def headings(line: str) -> list[str]:
    return re.split("  +", line)


def test_a_narrow_terminal_shows_what_matters_most(hf: Commands, queue: Queue) -> None:
    heading, line = click.unstyle(shown(queue, "failed", [], 60)).splitlines()
    assert heading.split()[:4] == ["id", "handler", "when", "error"]  # "now" leaves more room.
    assert "no connection" in line
    heading = click.unstyle(shown(queue, "peek", ["--state", "leased"], 60)).splitlines()[0]
    assert heading.split() == ["id", "handler", "priority", "worker", "when", "payload"]


@pytest.mark.parametrize(
    ("command", "options", "colour"),
    [
        ("failed", [], RED),
        ("failed", ["--by", "error"], RED),
        ("show", ["a"], RED),
        ("counts", [], RED),
        ("groups", [], YELLOW),
        ("request", [], YELLOW),
        ("watch", ["--times", "1"], YELLOW),
    ],
)
def test_what_failed_is_red_and_what_waits_for_somebody_is_yellow(
    hf: Commands,
    queue: Queue,
    command: str,
    options: list[str],
    colour: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert colour in shown(queue, command, options, 100)
    monkeypatch.setenv("NO_COLOR", "1")
    args = words(queue, command, options)
    assert "\x1b" not in on_a_terminal(*args, columns=100, colours=False)[1]
    assert "\x1b" not in hf(*args)


def test_long_explanations_are_broken_between_words(hf: Commands, queue: Queue) -> None:
    lines = shown(queue, "explain", ["c"], 60).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).startswith("leased by web-1:4242 under ")
    assert len(hf("explain", queue.name, "c").splitlines()) == 1
