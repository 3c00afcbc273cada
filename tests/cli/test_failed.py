"""Failed jobs: shown, in groups, and chosen by what is common to them."""

from __future__ import annotations

import re

import pytest

from cli.support import Commands
from engine_support import take
from holdfast import Queue
from holdfast.cli import failed


def fail(queue: Queue, error: str, *ids: str, handler: str | None = None) -> None:
    for id in ids:
        queue.add(b"x", id=id, handler=handler)
        queue.fail(take(queue), error=error.format(id))


@pytest.fixture
def queue(queue: Queue) -> Queue:
    """A queue with five failed jobs of two handlers."""
    fail(queue, "no connection to {} after 30 s", "job-1", "job-22", "job-333", handler="send")
    full = "disk full: 6ba7b810-9dad-11d1-80b4-00c04fd430c8\nin the store"
    fail(queue, full, "a", handler="store")
    fail(queue, "not an address", "b")
    return queue


def test_each_is_shown_with_its_handler(hf: Commands, queue: Queue) -> None:
    heading, *lines = hf("failed", queue.name).splitlines()
    assert heading.split() == [
        *("id", "handler", "failed", "at", "when", "failures", "lapses", "error", "payload")
    ]
    handlers = {line.split()[0]: line.split()[1] for line in lines}
    assert (handlers["job-22"], handlers["a"]) == ("send", "store")
    assert hf.json("failed", queue.name)[0]["facts"]["failed_at"].endswith("Z")


def test_they_are_counted_by_error_without_numbers_and_ids(hf: Commands, queue: Queue) -> None:
    heading, first, *others = hf("failed", queue.name, "--by", "error").splitlines()
    assert heading.split() == [
        *("jobs", "first", "failed", "last", "failed", "when", "example", "error")
    ]
    assert first.startswith("   3  20")
    assert re.search("  job-[0-9]+ +no connection to job-# after # s$", first)
    assert {line.split("  ")[-1] for line in others} == {"disk full: #", "not an address"}
    told = hf.json("failed", queue.name, "--by", "error")
    assert (told["by"], told["looked_at"], told["failed"]) == ("error", 5, 5)
    assert [group["jobs"] for group in told["groups"]] == [3, 1, 1]
    assert told["groups"][0]["first"] <= told["groups"][0]["last"]


def test_addresses_are_no_difference_and_what_is_shown_chooses(hf: Commands, queue: Queue) -> None:
    for number, text in enumerate(("<a at 0x7f03feedb0>", "<a at 0xdeadbeef>", "bad\tvalue 5")):
        queue.add(b"", id=f"{number}")
        queue.fail(take(queue), error=text)
    shown = hf("failed", queue.name, "--by", "error")
    assert "<a at #>" in shown
    assert "bad\\tvalue #" in shown
    assert hf("revive", queue.name, "--error", "<a at #>") == "2 jobs revived\n"
    assert hf("revive", queue.name, "--error", "bad\\tvalue #") == "1 job revived\n"


def test_an_empty_error_chooses_nothing(hf: Commands, queue: Queue) -> None:
    assert "is empty" in hf.error("revive", queue.name, "--error", "", code=2)


def test_they_are_counted_by_handler(hf: Commands, queue: Queue) -> None:
    told = hf.json("failed", queue.name, "--by", "handler")
    counted = {group["handler"]: group["jobs"] for group in told["groups"]}
    assert counted == {"send": 3, "store": 1, "": 1}
    assert {group["example"] for group in told["groups"]} >= {"a", "b"}


def test_it_says_how_many_it_did_not_look_at(
    hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = hf.ran("failed", queue.name, "--by", "error", "-n", 3)
    assert result.stderr == "looked at 3 of 5 failed jobs: see --count\n"
    assert sum(int(line.split()[0]) for line in result.stdout.splitlines()[1:]) == 3
    monkeypatch.setattr(failed, "GROUPED", 4)
    assert hf.json("failed", queue.name, "--by", "error")["looked_at"] == 4
    assert hf.ran("failed", queue.name, "--by", "error", "-n", 5).stderr == ""
    hf.error("failed", queue.name, "--by", "error", "--raw", code=2)


def ids(queue: Queue) -> set[str]:
    return {job.id for job in queue.failed()}


def test_they_are_revived_by_handler_and_by_error(hf: Commands, queue: Queue) -> None:
    assert hf("revive", queue.name, "--handler", "send", "--error", "job-22") == "1 job revived\n"
    assert hf("revive", queue.name, "--error", "disk full") == "1 job revived\n"
    grouped = "no connection to job-# after # s"
    assert hf("revive", queue.name, "--error", grouped) == "2 jobs revived\n"
    assert hf("revive", queue.name, "--handler", "nobody") == "0 jobs revived\n"
    assert ids(queue) == {"b"}


def test_they_are_cancelled_by_handler_and_by_error(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="waits", handler="send")
    error = hf.error("cancel", queue.name, "--failed", "--handler", "send", code=2)
    assert f"Cancel 3 failed jobs of {queue.name}?" in error
    cancelled = hf("cancel", queue.name, "--failed", "--handler", "send", "--yes")
    assert cancelled == "3 jobs cancelled\n"
    assert hf("cancel", queue.name, "--failed", "--error", "nothing") == "0 jobs cancelled\n"
    assert (ids(queue), queue.counts().ready) == ({"a", "b"}, 1)
    assert hf("cancel", queue.name, "--failed", "--yes") == "2 jobs cancelled\n"


@pytest.mark.parametrize(
    "args",
    [
        ["revive", "--all", "--error", "x"],
        ["revive", "a", "--handler", "x"],
        ["cancel", "--handler", "send"],
        ["cancel", "a", "--error", "x"],
        ["cancel", "--failed", "a"],
    ],
)
def test_what_does_not_go_together_is_a_usage_error(
    hf: Commands, queue: Queue, args: list[str]
) -> None:
    command, *options = args
    hf.error(command, queue.name, *options, code=2)
    assert len(ids(queue)) == 5
