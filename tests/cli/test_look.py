from __future__ import annotations

import base64
import json
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import redis

from cli.support import Commands, on_a_terminal
from engine_support import take
from holdfast import Queue, Server
from support import TestServer, command_on, with_login


def test_queues_are_listed_with_their_counts(hf: Commands, queue: Queue, server: Server) -> None:
    queue.add_many([b""] * 3)
    queue.lease(60)
    queue.pause()
    line = next(line for line in hf("ls").splitlines() if queue.name in line)
    assert line.split() == [queue.name, "(paused)", "2", "0", "1", "0", "0", "0"]
    told = {one["queue"]: one for one in hf.json("ls")}
    assert told[queue.name] == {
        "queue": queue.name,
        "ready": 2,
        "delayed": 0,
        "leased": 1,
        "parked": 0,
        "failed": 0,
        "ended": 0,
        "paused": True,
        "staged": 0,
        "claims": 0,
        "waiting": 2,
    }
    assert queue.name in server.queues()
    queue.delete()
    assert queue.name not in hf("ls")


def test_counts(hf: Commands, queue: Queue) -> None:
    queue.add(b"")
    queue.add(b"", delay=60)
    assert hf("counts", queue.name).split()[:4] == ["ready", "1", "delayed", "1"]
    assert hf.json("counts", queue.name)["waiting"] == 2
    queue.pause()
    assert "paused: no lease" in hf("counts", queue.name)


def test_the_next_jobs_are_shown_in_their_order(hf: Commands, queue: Queue) -> None:
    queue.add({"to": "ann"}, id="a")
    queue.add("plain text", id="b", priority=90)
    queue.add(b"\xff\0", id="c", priority=10)
    lines = hf("peek", queue.name).splitlines()
    assert [line.split() for line in lines] == [
        ["id", "handler", "priority", "payload"],
        ["b", "90", "plain", "text"],
        ["a", "50", '{"to":"ann"}'],
        ["c", "10", "\\xff\\x00"],
    ]
    assert len(hf("peek", queue.name, "-n", 1, "--first", 1).splitlines()) == 2
    told = hf.json("peek", queue.name)
    assert [job["id"] for job in told] == ["b", "a", "c"]
    assert json.loads(told[1]["data"]) == {"to": "ann"}
    assert told[2]["data"] is None
    assert base64.b64decode(told[2]["data_base64"]) == b"\xff\0"
    raw = hf.ran("peek", queue.name, "--raw")
    assert raw.stdout_bytes == b'plain text\n{"to":"ann"}\n\xff\0\n'


def test_jobs_of_another_state_have_a_time(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", at=1896076800)
    heading, line = hf("peek", queue.name, "--state", "delayed").splitlines()
    assert heading.split() == ["id", "handler", "priority", "due", "when", "payload"]
    assert "2030-01-31" in line
    assert "  in " in line
    nothing = hf.ran("peek", queue.name, "--state", "leased")
    assert (nothing.stdout, nothing.stderr) == ("", "no leased jobs\n")
    assert hf.json("peek", queue.name, "--state", "leased") == []


def test_all_about_one_job(hf: Commands, queue: Queue) -> None:
    options = {"handler": "send", "timeout": 90, "max_lapses": None}
    queue.add({"to": "ann", "b": [1]}, id="a", **options)  # type: ignore[arg-type]
    queue.retry(take(queue), error="did not work", after=100)
    text = hf("show", queue.name, "a")
    for expected in (
        ["id", "a"],
        ["state", "delayed"],
        ["handler", "send"],
        ["timeout", "1", "min", "30", "s"],
        ["failures", "1", "of", "10"],
        ["lapses", "0", "of", "none"],
        ["error", "did", "not", "work"],
        ["payload", "(20", "bytes)"],
        ['"to":', '"ann",'],
    ):
        assert expected in [line.split() for line in text.splitlines()], expected
    told = hf.json("show", queue.name, "a")
    assert told["facts"]["failures"] == 1
    assert told["facts"]["error"] == "did not work"
    assert set(told) == {
        *("id", "state", "data", "priority", "at", "leased_at", "worker", "token", "behind"),
        *("successor", "facts"),
    }
    assert hf.ran("show", queue.name, "a", "--raw").stdout_bytes == b'{"to":"ann","b":[1]}'


def test_of_a_job_that_ended_only_what_is_kept_is_shown(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60, handler="send", priority=90, max_failures=3)
    queue.complete(take(queue), b"result")
    rows = dict(rows_of(hf("show", queue.name, "a")))
    assert [*rows] == ["id", "state", "remembered until", "outcome", "ended at", "not kept"]
    assert rows["not kept"] == "payload, priority, timeout, handler, failures, lapses"
    told = hf.json("show", queue.name, "a")
    assert told["priority"] is told["facts"]["failures"] is told["facts"]["max_failures"] is None
    heading, line = hf("peek", queue.name, "--state", "ended").splitlines()
    assert heading.split() == [
        *("id", "handler", "priority", "remembered", "until", "when", "payload")
    ]
    assert line.split()[1].startswith("20")
    assert hf("explain", queue.name, "a").startswith("completed, remembered until 20")


def test_a_job_that_is_not_there_is_an_error(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    error = hf.error("show", queue.name, "nobody")
    assert error.startswith("Error: nobody: no job has this id")


def test_why_a_job_is_not_running(hf: Commands, queue: Queue) -> None:
    queue.add(b"", id="a")
    assert hf("explain", queue.name, "a") == "ready, the next to run (priority 50)\n"
    assert hf.json("explain", queue.name, "a") == {
        "id": "a",
        "explanation": "ready, the next to run (priority 50)",
    }


def test_the_id_of_a_request_is_told_as_one(hf: Commands, queue: Queue) -> None:
    with queue.request("report 42") as request:
        request.add(b"x")
    told = hf("explain", queue.name, "report 42")
    assert told == (
        "no job has this id, but a request has: `holdfast request show` tells how far it is. Its "
        "parts are the jobs report 42/0, report 42/1 and so on\n"
    )
    assert told.strip() in hf.error("show", queue.name, "report 42")
    assert hf("explain", queue.name, "report 42/0").startswith("waits in request report 42")
    queue.add(b"x", group="mail", id="a")
    assert hf("explain", queue.name, "mail").startswith("no job has this id: it was never added")


def test_how_a_job_ended(hf: Commands, queue: Queue) -> None:
    queue.add(b"", id="a", result_for=60)
    assert "a has not ended yet" in hf.error("result", queue.name, "a")
    queue.complete(take(queue), {"sent": True})
    assert "completed" in hf("result", queue.name, "a")
    assert hf.ran("result", queue.name, "a", "--raw").stdout_bytes == b'{"sent":true}'
    told = hf.json("result", queue.name, "a", "--wait", "1s")
    assert (told["kind"], told["result"], told["error"]) == ("completed", '{"sent":true}', None)
    queue.add(b"", id="b")
    queue.fail(take(queue), error="why")
    assert "why" in hf("result", queue.name, "b", code=1)
    assert hf.error("result", queue.name, "c").startswith("Error: c: no job has this id")
    queue.cancel("b")


def test_failed_jobs_are_shown_with_their_errors(hf: Commands, queue: Queue) -> None:
    for n in range(3):
        queue.add(f"payload {n}", id=f"job-{n}")
        queue.fail(take(queue), error=f"error {n}")
    result = hf.ran("failed", queue.name, "-n", 2)
    assert "error 0" in result.stdout
    assert "payload 1" in result.stdout
    assert "job-2" not in result.stdout
    assert result.stderr == "… of 3 failed jobs\n"
    told = hf.json("failed", queue.name)
    assert [job["facts"]["error"] for job in told] == ["error 0", "error 1", "error 2"]
    assert (
        hf.ran("failed", queue.name, "--raw").stdout_bytes == b"payload 0\npayload 1\npayload 2\n"
    )


def test_a_line_is_cut_where_a_terminal_ends_and_whole_where_there_is_none(
    hf: Commands, queue: Queue
) -> None:
    queue.add("x" * 500, id="a")
    assert "x" * 500 in hf("peek", queue.name)
    code, screen = on_a_terminal("peek", queue.name, columns=60)
    assert code == 0
    line = screen.replace("\r", "").splitlines()[1]
    assert len(line) == 60
    assert line.endswith("x…")


def test_what_is_in_the_middle_of_a_line_leaves_room_on_a_terminal(
    hf: Commands, queue: Queue
) -> None:
    queue.add("the payload", id="a")
    queue.fail(take(queue), error="e" * 500)
    screen = click.unstyle(on_a_terminal("failed", queue.name, columns=120)[1])
    assert "e" * 29 + "…  the payload" in screen
    assert "e" * 500 in hf("failed", queue.name)


@pytest.mark.parametrize("state", ["parked", "ended", "failed"])
def test_every_state_can_be_looked_at(hf: Commands, queue: Queue, state: str) -> None:
    queue.add(b"x", id="ended", remember_for=60)
    queue.complete(take(queue))
    queue.add(b"x", id="failed")
    queue.fail(take(queue), error="why")
    queue.add_many([b"x"] * 2, group="g", group_limit=1)
    queue.lease(60)
    assert [job["state"] for job in hf.json("peek", queue.name, "--state", state)] == [state]


def test_the_password_may_be_in_a_file(
    hf: Commands,
    queue: Queue,
    test_server: TestServer,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command_on(client, "ACL", "SETUSER", "filed", "on", ">hunter2", "~*", "&*", "+@all")
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    file.chmod(0o600)
    url = with_login(test_server.url, "filed")
    monkeypatch.setenv("HOLDFAST_PASSWORD", "wrong")
    queue.add(b"x")
    told = hf("counts", queue.name, "--url", url, "--password-file", file)
    assert told.splitlines()[0].split() == ["ready", "1"]
    assert os.environ["HOLDFAST_PASSWORD"] == "wrong"
    assert "HOLDFAST_PASSWORD_FILE" not in os.environ
    assert "password" in hf.error("counts", queue.name, "--url", url)
    assert "does not exist" in hf.error("counts", "q", "--password-file", "/no/file", code=2)
    command_on(client, "ACL", "DELUSER", "filed")


def rows_of(text: str) -> list[tuple[str, str]]:
    """Return the names and values of a job that is shown."""
    lines = [line for line in text.splitlines() if not line.startswith((" ", "payload"))]
    return [(name, value) for name, value in (re.split("  +", line, maxsplit=1) for line in lines)]


def test_no_two_rows_have_one_name(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    queue.lease(60)
    names = [name for name, _ in rows_of(hf("show", queue.name, "a"))]
    assert len(set(names)) == len(names)
    assert {"lapses", "lapses at"} <= set(names)


def test_the_failure_that_was_too_many_is_told_as_such(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", max_failures=1, max_lapses=0)
    for _ in range(2):
        queue.retry(take(queue), error="no luck", after=0)
        queue.tidy()
    rows = dict(rows_of(hf("show", queue.name, "a")))
    assert rows["state"] == "failed"
    assert rows["failures"] == "2, and 1 are allowed"
    assert rows["lapses"] == "0 of 0"


def test_times_have_one_form(hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        at = "2100-01-31 13:30:00+05:30"
        queue.add(b"x", id="a", at=datetime(2100, 1, 31, 8, tzinfo=UTC))
        assert dict(rows_of(hf("show", queue.name, "a")))["due"].startswith(f"{at} (in ")
        assert at in hf("peek", queue.name, "--state", "delayed")
        assert hf("explain", queue.name, "a").startswith(f"delayed until {at}")
        hf("add", queue.name, "x", "--id", "b", "--at", at)
        for id in ("a", "b"):
            assert hf.json("show", queue.name, id)["at"] == "2100-01-31T08:00:00.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_groups_are_shown_with_their_limits(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", delay=60)
    assert hf.ran("groups", queue.name).stderr == "no groups have jobs\n"
    queue.add_many([b"x"] * 4, group="mail", group_limit=1)
    queue.add(b"x", group="other")
    queue.lease(60)
    heading, *lines = hf("groups", queue.name).splitlines()
    assert heading.split() == ["group", "running", "limit", "waiting", "jobs"]
    assert [line.split() for line in lines] == [
        ["mail", "1", "1", "3", "4"],
        ["other", "0", "none", "1", "1"],
    ]
    assert hf.json("groups", queue.name)[0] == {
        "name": "mail",
        "limit": 1,
        "jobs": 4,
        "running": 1,
        "parked": 3,
    }


def test_times_in_json_are_in_utc(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    queue.complete(take(queue))
    queue.add(b"x", id="b", remember_for=60)
    take(queue)
    with queue.request("r") as request:
        request.add(b"x")
    form = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    ended, leased = hf.json("show", queue.name, "a"), hf.json("show", queue.name, "b")
    told = [ended["at"], ended["facts"]["ended_at"], leased["at"], leased["leased_at"]]
    told.append(hf.json("result", queue.name, "a")["at"])
    told.append(hf.json("request", "show", queue.name, "r")["opened_at"])
    told.append(hf.json("watch", queue.name, "--times", 1)["at"])
    for time_ in told:
        assert form.fullmatch(time_), told
