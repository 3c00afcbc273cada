from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from cli.support import Commands, interrupted, on_a_terminal, started
from engine_support import opened, take
from holdfast import JobNotFound, Queue
from holdfast.cli.text import fitted, progress_bar


def test_requests_are_listed(hf: Commands, queue: Queue) -> None:
    opened(queue, "report-42", 3, limit=2, priority=80)
    queue.lease(60)
    heading, line = hf("request", "ls", queue.name).splitlines()
    assert dict(zip(heading.split(), line.split(), strict=True)) == {
        "done": "0",
        "failed": "0",
        "running": "1",
        "total": "3",
        "limit": "2",
        "priority": "80",
        "state": "open",
        "request": "report-42",
    }
    [told] = hf.json("request", "ls", queue.name)
    assert (told["id"], told["running"], told["ended"], told["ends_at"]) == (
        "report-42",
        1,
        False,
        None,
    )


def test_a_request_is_shown_with_its_parts(hf: Commands, queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x"] * 3)
    queue.complete(take(queue), {"n": 1})
    queue.fail(take(queue), error="did not work")
    text = hf("request", "show", queue.name, "r", "--parts")
    lines = [line.split() for line in text.splitlines()]
    assert ["parts", "3"] in lines
    assert ["0", "done", '{"n":1}'] in lines
    assert ["1", "failed", "did", "not", "work"] in lines
    assert ["2", "waiting"] in lines
    told = hf.json("request", "show", queue.name, "r", "--parts")
    assert (told["state"], told["done"], told["settled"]) == ("sealed", 1, 2)
    assert told["parts"][0] == {
        "number": 0,
        "id": "r/0",
        "state": "done",
        "error": None,
        "result": '{"n":1}',
    }
    assert "parts" not in hf.json("request", "show", queue.name, "r")


def test_a_request_is_followed_to_its_end(hf: Commands, queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x"] * 4)
    with started("request", "progress", queue.name, "r", "--every", "10ms") as process:
        assert process.stdout
        assert process.stdout.readline() == f"{'░' * 30} 0 of 4, sealed, 0 running\n"
        for lease in queue.lease_many(4, 60):
            queue.complete(lease)
        out, _ = process.communicate()
    assert process.returncode == 0
    assert out.splitlines()[-1] == f"{'█' * 30} 4 of 4, completed"


def test_a_line_that_is_drawn_over_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{progress_bar(1, 2)} {click.style('1 failed', fg='red')}"
    monkeypatch.setenv("COLUMNS", "39")
    assert fitted(line) == line
    monkeypatch.setenv("COLUMNS", "38")
    assert fitted(line) == f"{progress_bar(1, 2)} 1 fail…"


def test_what_did_not_complete_is_a_failure(hf: Commands, queue: Queue) -> None:
    with queue.request("r") as request:
        request.add(b"x")
    queue.fail(take(queue), error="did not work")
    code, screen = on_a_terminal("request", "progress", queue.name, "r")
    assert code == 1
    assert "1 of 1, failed" in screen
    assert "1 failed" in screen
    [line] = hf("request", "progress", queue.name, "r", "--json", code=1).splitlines()
    assert json.loads(line)["state"] == "failed"


def test_following_ends_with_ctrl_c(hf: Commands, queue: Queue) -> None:
    opened(queue, "r", 1)
    with started("request", "progress", queue.name, "r", "--every", "10ms") as process:
        assert process.stdout
        process.stdout.readline()
        assert interrupted(process)[::2] == (130, "")


def test_a_request_is_steered(hf: Commands, queue: Queue) -> None:
    request = opened(queue, "r", 3, limit=1)
    hf("request", "set-limit", queue.name, "r", 8)
    hf("request", "set-priority", queue.name, "r", 99)
    assert (request.status().limit, request.status().priority) == (8, 99)
    hf("request", "set-limit", queue.name, "r", "none")
    assert request.status().limit is None
    hf("request", "seal", queue.name, "r")
    assert request.status().sealed
    assert "Cancel r with 3 parts to go? Confirm" in hf.error(
        "request", "cancel", queue.name, "r", code=2
    )
    hf("request", "cancel", queue.name, "r", "--yes")
    assert request.status().state == "cancelled"
    assert "it has ended" in hf.error("request", "cancel", queue.name, "r", "--yes")


def test_failed_parts_are_revived(hf: Commands, queue: Queue) -> None:
    with queue.request("r") as request:
        request.add_many([b"x"] * 3)
    queue.complete(take(queue))
    for _ in range(2):
        queue.fail(take(queue), error="why")
    assert hf("request", "revive", queue.name, "r") == "2 parts revived\n"
    assert request.status().state == "sealed"


@pytest.mark.parametrize(
    "command",
    [("show",), ("progress",), ("seal",), ("cancel", "--yes"), ("revive",)],
    ids=lambda command: str(command[0]),
)
def test_a_request_that_is_not_there_is_an_error(
    hf: Commands, queue: Queue, command: tuple[str, ...]
) -> None:
    queue.add(b"x")
    name, *options = command
    error = hf.error("request", name, queue.name, "nobody", *options)
    assert error.startswith("Error: nobody: no request has this id")
    with pytest.raises(JobNotFound):
        queue.request("nobody").status()


def test_wrong_values_are_usage_errors(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    assert "neither a number nor none" in hf.error(
        "request", "set-limit", queue.name, "r", "many", code=2
    )
    assert "priority must be 0 to 99" in hf.error(
        "request", "set-priority", queue.name, "r", 100, code=2
    )
    assert "more than 0" in hf.error("request", "progress", queue.name, "r", "--every", "0", code=2)


# ----------------------------------------------------------------------------- create


def test_a_request_is_created_from_lines(hf: Commands, queue: Queue) -> None:
    result = hf.ran(
        *("request", "create", queue.name, "r", "--limit", 2, "--priority", 80),
        *("--handler", "render", "--on-failure", "fail_fast"),
        input=b"one\n\ntwo\r\n\xff three",
    )
    assert (result.stdout, result.stderr) == ("r\n", "3 parts added\n")
    status = queue.request("r").status()
    assert (status.total, status.limit, status.priority, status.sealed) == (3, 2, 80, True)
    jobs = queue.peek(10, state="parked")
    assert [job.data for job in jobs] == [b"one", b"two", b"\xff three"]
    assert {job.facts.handler for job in jobs} == {"render"}
    assert "r: " in hf.error("request", "create", queue.name, "r", input=b"again")


def test_a_request_may_be_given_no_id_and_a_file(
    hf: Commands, queue: Queue, tmp_path: Path
) -> None:
    (tmp_path / "parts").write_text("one\ntwo\n")
    told = hf.json("request", "create", queue.name, "--file", tmp_path / "parts")
    assert (told["added"], told["sealed"]) == (2, True)
    assert queue.request(told["id"]).status().total == 2


def test_an_open_request_takes_more_until_it_is_sealed(hf: Commands, queue: Queue) -> None:
    create = ("request", "create", queue.name, "r", "--open", "--limit", 3)
    hf(*create, input=b"one\n")
    hf(*create, input=b"one\ntwo\n")  # Begun again: the first is there already.
    assert queue.request("r").status().total == 2
    assert hf("request", "add", queue.name, "r", input=b"three\nfour") == "2 parts added\n"
    status = queue.request("r").status()
    assert (status.total, status.limit, status.sealed) == (4, 3, False)
    hf("request", "seal", queue.name, "r")
    assert "r: " in hf.error("request", "add", queue.name, "r", input=b"five")


def test_what_goes_wrong_while_it_is_created_cancels_it(hf: Commands, queue: Queue) -> None:
    lines = b"one\n" * 600 + b"x" * (8 * 1024 * 1024 + 1)
    error = hf.error("request", "create", queue.name, "r", input=lines, code=2)
    assert "payload has more than" in error
    assert queue.request("r").status().state == "cancelled"


def test_nothing_is_opened_where_an_option_is_wrong(hf: Commands, queue: Queue) -> None:
    assert "priority must be" in hf.error(
        "request", "create", queue.name, "r", "--priority", 100, input=b"x", code=2
    )
    assert "does not exist" in hf.error("request", "show", queue.name, "r")
