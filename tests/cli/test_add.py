from __future__ import annotations

import math
import subprocess
import time
from pathlib import Path

import pytest

from cli.support import Commands, interrupted, on_a_terminal, started
from holdfast import Job, NewJob, Queue
from support import DEADLINE, wait_until


def shown(queue: Queue, id: str) -> Job:
    job = queue.show(id)
    assert job
    return job


def test_a_payload_is_added_as_it_is_and_its_id_is_written(hf: Commands, queue: Queue) -> None:
    id = hf("add", queue.name, '{"to": "ann"}').strip()
    assert shown(queue, id).data == b'{"to": "ann"}'


def test_bytes_that_are_no_text_go_through_an_argument_unharmed(hf: Commands, queue: Queue) -> None:
    hf("add", queue.name, "\udcff\udc80ü", "--id", "a")
    assert shown(queue, "a").data == b"\xff\x80" + "ü".encode()


def test_a_file_is_one_payload(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "letter"
    file.write_bytes(b"a\n\0\xff\n")
    hf("add", queue.name, "--file", file, "--id", "a")
    hf("add", queue.name, "--file", "-", "--id", "b", input=b"from\nstdin")
    assert shown(queue, "a").data == b"a\n\0\xff\n"
    assert shown(queue, "b").data == b"from\nstdin"


def test_each_line_is_a_job(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    lines = b"one\r\n\n\xff two\n" + b"".join(b"%d\n" % n for n in range(2500)) + b"the end"
    assert hf("add", queue.name, "--lines", "--priority", 7, input=lines) == "2,503 jobs added\n"
    jobs = queue.peek(1000)
    assert [job.data for job in jobs[:3]] == [b"one", b"\xff two", b"0"]
    assert jobs[0].priority == 7
    file = tmp_path / "lines"
    file.write_bytes(b"x\ny\n")
    told = hf.json("add", queue.name, "--lines", "--file", file, "--delay", "1h")
    assert told == {"added": 2}
    assert queue.counts().delayed == 2


def test_all_options_of_a_job_can_be_said(hf: Commands, queue: Queue) -> None:
    options = "--priority 90 --handler send --timeout 1m --max-failures 0 --max-lapses none"
    options += " --min-backoff 500ms --max-backoff 2h --result-for forever --keep"
    options += " --remember-for 1d --group g --group-limit 2 --id a --delay 1h30m"
    before = time.time() - 0.001  # The server counts whole milliseconds.
    hf("add", queue.name, "x", *options.split())
    job = shown(queue, "a")
    assert job.state == "delayed"
    assert job.at
    assert before + 5400 <= job.at <= time.time() + 5401
    facts = job.facts
    assert (facts.priority, facts.handler, facts.timeout_ms) == (90, "send", 60_000)
    assert (facts.max_failures, facts.max_lapses) == (0, -1)
    assert (facts.min_backoff_ms, facts.max_backoff_ms) == (500, 7_200_000)
    assert (facts.result_for_ms, facts.keep, facts.remember_for_ms) == (2**53 - 1, True, 86_400_000)
    assert facts.group == "g"
    assert queue.groups()[0].limit == 2


def test_every_option_of_the_library_is_there(hf: Commands) -> None:
    text = hf("add", "--help")
    for option in set(NewJob.__struct_fields__) - {"data"}:
        assert f"--{option.replace('_', '-')} " in text, option


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("2030-01-31T08:00Z", 1896076800.0),
        ("2030-01-31 09:00+01:00", 1896076800.0),
        ("1896076800", 1896076800.0),
        ("2030-01-31T08:00", time.mktime((2030, 1, 31, 8, 0, 0, 0, 0, -1))),
    ],
)
def test_a_time_is_local_where_it_names_no_zone(
    hf: Commands, queue: Queue, said: str, at: float
) -> None:
    hf("add", queue.name, "x", "--id", "a", "--at", said)
    assert shown(queue, "a").at == at


def test_a_job_that_is_there_is_left_alone_and_that_is_said(hf: Commands, queue: Queue) -> None:
    hf("add", queue.name, "x", "--id", "a")
    again = hf.ran("add", queue.name, "y", "--id", "a")
    assert again.stdout == "a\n"
    assert again.stderr == "a already exists and is ready: nothing was added\n"
    assert shown(queue, "a").data == b"x"


def test_or_it_is_changed_or_that_is_an_error(hf: Commands, queue: Queue) -> None:
    hf("add", queue.name, "x", "--id", "a")
    told = hf.json("add", queue.name, "y", "--id", "a", "--on-conflict", "update")
    assert told == {"id": "a", "created": False, "updated": True, "state": "ready"}
    assert shown(queue, "a").data == b"y"
    error = hf.error("add", queue.name, "z", "--id", "a", "--on-conflict", "raise")
    assert error == "Error: a: there is a job with this id; nothing was added"


def test_only_what_is_named_is_replaced(hf: Commands, queue: Queue) -> None:
    hf("add", queue.name, "x", "--id", "a", "--handler", "h", "--priority", "70", "--delay", "1h")
    due = shown(queue, "a").at
    change = ("add", queue.name, "y", "--id", "a", "--on-conflict", "update", "--max-failures", "3")
    hf(*change, "--replace", "max-failures")
    job = shown(queue, "a")
    assert (job.data, job.priority, job.at, job.facts.handler) == (b"x", 70, due, "h")
    assert job.facts.max_failures == 3
    hf(*change, "--replace", "data", "--replace", "due=later")
    job = shown(queue, "a")
    assert (job.data, job.priority, job.at, job.facts.handler) == (b"y", 70, due, "h")
    hf(*change, "--replace", "due", "--replace", "handler")
    job = shown(queue, "a")
    assert (job.state, job.priority, job.facts.handler) == ("ready", 70, None)


def test_what_is_replaced_needs_an_update(hf: Commands, queue: Queue) -> None:
    error = hf.error("add", queue.name, "y", "--replace", "data", code=2)
    assert "--replace needs --on-conflict update" in error


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give a PAYLOAD, or --file, or --lines (which reads stdin)"),
        (["x", "--lines"], "give a PAYLOAD, or --file, or --lines"),
        (["x", "--file", "-"], "give a PAYLOAD, or --file, or --lines"),
        (["--lines", "--id", "a"], "--id names one job"),
        (["x", "--delay", "soon"], "'soon' is not a duration: 90, 1.5s, 5m"),
        (["x", "--delay", "5m!"], "is not a duration"),
        (["x", "--delay", ""], "is not a duration"),
        (["x", "--delay", "-5"], "is not a duration"),
        (["x", "--at", "tomorrow"], "'tomorrow' is not a time: 2030-01-31T08:00"),
        (["x", "--at", "nan"], "at must be 0 or more seconds"),
        (["x", "--at", "1", "--delay", "1"], "give delay or at, not both"),
        (["x", "--max-failures", "-1"], "'-1' is neither a number nor none"),
        (["x", "--priority", "100"], "priority must be 0 to 99, not 100"),
        (["x", "--group-limit", "2"], "group_limit needs a group"),
        (["x", "--id", ""], "id must have 1 to 512 bytes"),
        (["x", "--file", "not there"], "No such file"),
    ],
)
def test_what_is_not_understood_is_said_before_anything_is_written(
    hf: Commands, queue: Queue, args: list[str], says: str
) -> None:
    assert says in hf.ran("add", queue.name, *args, code=2).stderr
    assert queue.counts().ready == 0


def test_a_wrong_name_of_a_queue_is_a_usage_error(hf: Commands) -> None:
    assert "must not begin with '}'" in hf.error("add", "}x", "x", code=2)
    assert "url must begin with redis://" in hf.error("add", "q", "x", "--url", "ftp://x", code=2)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("90", 90),
        ("1.5s", 1.5),
        ("5m", 300),
        ("2min", 120),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1d", 86400),
        ("1w", 604800),
        ("1h 30s", 3630),
        (".5", 0.5),
        ("0", 0),
    ],
)
def test_durations(said: str, seconds: float) -> None:
    from holdfast.cli.options import duration

    assert math.isclose(duration(said), seconds)


def test_what_was_added_before_an_error_is_said(hf: Commands, queue: Queue) -> None:
    lines = b"x\n" * 1500 + b"y" * (8 * 1024 * 1024 + 1) + b"\n"
    result = hf.ran("add", queue.name, "--lines", input=lines, code=2)
    first, last = result.stderr.splitlines()
    assert first == "1,000 jobs added before this error:"
    assert "payload has more than 8388608 bytes" in last
    assert queue.counts().ready == 1000


@pytest.mark.parametrize("how", ["--lines", "--file"])
def test_what_never_ends_is_not_read_to_the_end(hf: Commands, queue: Queue, how: str) -> None:
    args = [how] if how == "--lines" else [how, "-"]
    with started("add", queue.name, *args, stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write("y" * (8 * 1024 * 1024 + 2))
        process.stdin.flush()  # and is not closed
        assert process.wait(DEADLINE) == 2
        assert process.stderr
        assert "payload has more than 8388608 bytes" in process.stderr.read()


def test_the_longest_line_is_added(hf: Commands, queue: Queue) -> None:
    longest = b"y" * (8 * 1024 * 1024)
    hf("add", queue.name, "--lines", input=longest + b"\r\nx\n")
    assert queue.counts().ready == 2
    assert queue.peek(1)[0].data == longest


def test_on_a_terminal_there_is_a_bar(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 1500)
    code, screen = on_a_terminal("add", queue.name, "--lines", "--file", str(file))
    assert code == 0
    assert "█ 1,500 jobs\r" in screen
    assert screen.endswith("\x1b[K1,500 jobs added\r\n")


def test_ctrl_c_says_how_many_are_there(hf: Commands, queue: Queue) -> None:
    with started("add", queue.name, "--lines", stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write("x\n" * 20_000)
        process.stdin.flush()
        wait_until(lambda: queue.counts().ready >= 10_000, "half of the lines")
        code, out, err = interrupted(process)
    assert (code, out) == (130, "")
    assert err.endswith(" jobs added, and perhaps some of the next batch\n")
    told = int(err.split()[0].replace(",", ""))
    assert told <= queue.counts().ready <= told + 1000
