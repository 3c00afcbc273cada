"""Workers in any language: a lease that is taken, held and settled by commands."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from cli.support import COMMAND, Commands, started
from holdfast import NewJob, Queue, Server
from holdfast.codec import MAX_PAYLOAD_BYTES
from support import DEADLINE, TestServer, command_on, wait_until

WAYS = ["complete", "retry", "fail", "release", "extend"]
ODD = "a b\n\x1b[2J\u202e'\"\\{}:/ü\x00"


def leased(hf: Commands, queue: Queue, *args: object) -> dict[str, Any]:
    """Lease one job; return what was written."""
    [line] = hf("lease", queue.name, *args).splitlines()
    told: dict[str, Any] = json.loads(line)
    return told


def as_input(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode()


def test_a_lease_tells_what_a_worker_needs(hf: Commands, queue: Queue) -> None:
    queue.add({"to": "ann"}, id="a", handler="send", timeout=60)
    told = leased(hf, queue, "--seconds", "2m")
    job = queue.show("a")
    assert job
    assert job.token == told.pop("token")
    assert job.at
    assert job.leased_at
    assert round(job.at - job.leased_at) == 120
    assert told == {
        "queue": queue.name,
        "id": "a",
        "data": '{"to":"ann"}',
        "handler": "send",
        "request": None,
        "group": None,
        "timeout": 60.0,
        "failures": 0,
        "lapses": 0,
        "error": None,
        "failed": False,
    }


def test_without_a_job_the_exit_code_says_so(hf: Commands, queue: Queue) -> None:
    assert hf.ran("lease", queue.name, code=3).output == ""
    queue.add(b"x", delay=3600)
    assert hf.ran("lease", queue.name, "--wait", "50ms", code=3).output == ""


def test_it_waits_for_a_job(hf: Commands, queue: Queue, client: redis.Redis) -> None:
    with started("lease", queue.name, "--wait", "1h") as process:
        wait_until(
            lambda: any(one["cmd"] == "blpop" for one in client.client_list()),
            "the command to wait",
        )
        queue.add(b"x", id="a")
        out, _ = process.communicate(timeout=DEADLINE)
    assert json.loads(out)["id"] == "a"


def test_many_are_a_line_each(hf: Commands, queue: Queue) -> None:
    queue.add_many([b"x"] * 3)
    lines = hf("lease", queue.name, "-n", 10).splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 3
    answers = hf("complete", queue.name, input="\n".join(lines).encode()).splitlines()
    assert [json.loads(line)["completed"] for line in answers] == [True] * 3
    assert "is for one job" in hf.error("lease", queue.name, "-n", 2, "--payload-file", "x", code=2)


@pytest.mark.parametrize("id", ["a", ODD, "-7", "ü" * 200])
def test_each_command_may_be_another_process(hf: Commands, queue: Queue, id: str) -> None:
    """The token counts, and neither the connection nor the holder."""
    queue.add(b"x", id=id, result_for=60)

    def process(*args: str, input: bytes = b"") -> bytes:
        done = subprocess.run([*COMMAND, *args], input=input, capture_output=True, check=True)
        return done.stdout

    held = process("lease", queue.name)
    assert json.loads(process("extend", queue.name, "--seconds", "1h", input=held)) == {
        "id": id,
        "extended": True,
    }
    job = queue.show(id)
    assert job
    assert job.at
    assert job.leased_at
    assert job.at - job.leased_at > 1800
    assert json.loads(process("complete", queue.name, "--result", "done", input=held)) == {
        "id": id,
        "completed": True,
    }
    outcome = queue.result(id)
    assert outcome
    assert outcome.result == b"done"


@pytest.mark.parametrize("by", ["stdin", "laid out", "options"])
@pytest.mark.parametrize("way", WAYS)
def test_a_lease_is_given_on_stdin_or_by_options(
    hf: Commands, queue: Queue, way: str, by: str
) -> None:
    queue.add(b"x", id="a")
    told = leased(hf, queue)
    args: list[object] = [way, queue.name]
    input = None
    if by == "options":
        args += ["--id", "a", "--token", told["token"]]
    else:
        input = json.dumps(told, indent=2 if by == "laid out" else None).encode()
    answer = json.loads(hf(*args, input=input))
    word = {"complete": "completed", "retry": "retried", "fail": "failed"}
    word |= {"release": "released", "extend": "extended"}
    assert answer == {"id": "a", word[way]: True}
    states = {"retry": "delayed", "fail": "failed", "release": "ready", "extend": "leased"}
    job = queue.show("a")
    assert (job.state if job else None) == states.get(way)


@pytest.mark.parametrize("way", WAYS)
def test_a_lease_that_is_over_has_an_exit_code_of_its_own(
    hf: Commands, queue: Queue, way: str
) -> None:
    queue.add(b"x", id="a")
    told = leased(hf, queue)
    queue.release(queue_lease(queue, told))
    assert leased(hf, queue)["token"] != told["token"]
    result = hf.ran(way, queue.name, code=4, input=as_input(told))
    assert list(json.loads(result.stdout).values()) == ["a", False]
    assert result.stderr.startswith("a: the lease is over")


def queue_lease(queue: Queue, told: dict[str, Any]) -> Any:
    from holdfast import Lease

    return Lease(told["id"], b"", told["token"])


def test_exactly_one_complete_is_true(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    told = as_input(leased(hf, queue))
    assert json.loads(hf("complete", queue.name, input=told))["completed"] is True
    assert json.loads(hf("complete", queue.name, input=told, code=4))["completed"] is False


def test_a_cancelled_job_is_told_to_who_extends_it(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    told = as_input(leased(hf, queue))
    queue.cancel("a")
    result = hf.ran("extend", queue.name, code=5, input=told)
    assert json.loads(result.stdout) == {"id": "a", "extended": True, "cancelled": True}
    assert "a: cancelled: stop" in result.stderr
    hf("complete", queue.name, input=told, code=4)


def test_of_several_leases_each_is_told_what_became_of_it(hf: Commands, queue: Queue) -> None:
    queue.add_many([NewJob(b"x", id=id) for id in "abc"])
    told = hf("lease", queue.name, "-n", "3").encode()
    queue.cancel("b")
    queue.complete("c", force=True)
    result = hf.ran("extend", queue.name, code=4, input=told)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"id": "a", "extended": True},
        {"id": "b", "extended": True, "cancelled": True},
        {"id": "c", "extended": False},
    ]
    assert "b: cancelled: stop" in result.stderr
    assert "c: the lease is over" in result.stderr


def in_a_shell(
    test_server: TestServer, queue: Queue, rest: str, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Lease a job in a shell that does something to stdout."""
    return subprocess.run(
        ["sh", "-c", f"{shlex.join(COMMAND)} lease {queue.name} {rest}"],
        env={**os.environ, "HOLDFAST_URL": test_server.queue_url, **variables},
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_lease_that_cannot_be_written_whole_is_given_back(
    test_server: TestServer, queue: Queue, unbuffered: str
) -> None:
    queue.add(b"x" * 3_000_000, id="a")
    in_a_shell(test_server, queue, "| head -c 10", PYTHONUNBUFFERED=unbuffered)
    assert queue.counts().ready == 1


def test_a_lease_that_nobody_could_read_is_not_taken(test_server: TestServer, queue: Queue) -> None:
    queue.add(b"x", id="a")
    ran = in_a_shell(test_server, queue, ">&-")
    assert (ran.returncode, b"stdout is closed" in ran.stderr) == (2, True)
    assert queue.counts().ready == 1


def test_who_knows_the_id_can_complete_it_by_force(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    leased(hf, queue)
    assert json.loads(hf("complete", queue.name, "--id", "a", "--force"))["completed"] is True
    assert "--force goes with --id alone" in hf.error(
        "complete", queue.name, "--id", "a", "--token", "b", "--force", code=2
    )


def test_force_says_that_there_is_no_such_job(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="other")
    result = hf.ran("complete", queue.name, "--id", "nobody", "--force", code=4)
    assert json.loads(result.stdout) == {"id": "nobody", "completed": False}
    assert "nobody: no job has this id" in result.stderr
    assert f"`holdfast peek {queue.name}` shows the next jobs" in result.stderr
    assert "lease" not in result.stderr


def test_force_says_that_a_job_has_ended_before(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", remember_for=60)
    hf("complete", queue.name, "--id", "a", "--force")
    result = hf.ran("complete", queue.name, "--id", "a", "--force", code=4)
    assert json.loads(result.stdout) == {"id": "a", "completed": False}
    assert "a: the job has already ended: completed. Nothing was changed" in result.stderr


# ------------------------------------------------------------------------------- retry


def test_a_retry_waits_longer_each_time(hf: Commands, queue: Queue) -> None:
    """What the job says about its backoff counts, though this process never saw it."""
    queue.add(b"x", id="a", min_backoff=1000, max_backoff=100_000, max_failures=2)
    waits = []
    for _ in range(2):
        job = retried(hf, queue, "--error", "no luck")
        assert job.at
        waits.append(job.at - server_time(queue))
        queue.add(b"x", id="a", on_conflict=due_now())
    assert 950 < waits[0] < 1300
    assert 1900 < waits[1] < 2600
    told = as_input(leased(hf, queue))
    hf("retry", queue.name, input=told)
    job = queue.show("a")
    assert job
    assert (job.state, job.failures, job.error) == ("failed", 3, "no reason was given")


def retried(hf: Commands, queue: Queue, *args: object) -> Any:
    hf("retry", queue.name, *args, input=as_input(leased(hf, queue)))
    return queue.show("a")


def server_time(queue: Queue) -> float:
    import time

    return time.time()


def due_now() -> Any:
    from holdfast import Update

    return Update(data=False, due=True, limits=False, counts=False)


def test_a_retry_comes_when_it_is_told_to(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    job = retried(hf, queue, "--at", "2100-01-01T00:00Z", "--error", "tomorrow")
    assert (job.at, job.error) == (4102444800.0, "tomorrow")
    queue.add(b"x", id="a", on_conflict=due_now())
    job = retried(hf, queue, "--after", "0")
    assert job.state in ("ready", "delayed")


def test_the_reason_may_be_the_end_of_a_log(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"line\n" * 10_000 + b"the last \xff line\n")
    queue.add(b"x", id="a")
    told = as_input(leased(hf, queue))
    hf("fail", queue.name, "--error-file", log, input=told)
    job = queue.show("a")
    assert job
    assert job.error
    assert job.error.endswith("line\nthe last \\xff line")
    assert "not both" in hf.error(
        "fail", queue.name, "--error-file", log, "--error", "x", code=2, input=told
    )


def test_a_run_that_did_not_answer_is_a_lapse(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    told = as_input(leased(hf, queue))
    hf("release", queue.name, "--lapsed", "killed", "--after", "1h", input=told)
    job = queue.show("a")
    assert job
    assert (job.state, job.lapses, job.failures) == ("delayed", 1, 0)


def test_failed_jobs_are_leased_by_who_deals_with_them(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a")
    hf("fail", queue.name, "--error", "no luck", input=as_input(leased(hf, queue)))
    told = leased(hf, queue, "--failed")
    assert (told["id"], told["error"], told["failed"]) == ("a", "no luck", True)
    hf("retry", queue.name, input=as_input(told))
    job = queue.show("a")
    assert job
    assert job.state == "failed"
    assert job.at
    assert job.at > server_time(queue) + 5  # The wait of a failure handler.


# ---------------------------------------------------------------------------- payloads


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"\x00\xff\n", bytes(range(256)), "ü€\u202e".encode()],
    ids=["empty", "a line", "bytes", "all bytes", "text"],
)
def test_every_payload_comes_as_it_is(
    hf: Commands, queue: Queue, tmp_path: Path, data: bytes
) -> None:
    queue.add(data, id="a")
    told = leased(hf, queue)
    if told["data"] is None:
        assert base64.b64decode(told["data_base64"]) == data
    else:
        assert told["data"].encode() == data
    hf("release", queue.name, input=as_input(told))
    told = leased(hf, queue, "--payload-file", tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == data
    assert "data" not in told
    assert "data_base64" not in told


def test_results_come_as_they_are(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    data = bytes(range(256)) + b"\n"
    (tmp_path / "r").write_bytes(data)
    for number, args in enumerate([["--result-file", str(tmp_path / "r")], ["--result-file", "-"]]):
        id = str(number)
        queue.add(b"x", id=id, result_for=60)
        told = leased(hf, queue)
        which = ["--id", id, "--token", told["token"]]
        hf("complete", queue.name, *which, *args, input=data)
        outcome = queue.result(id)
        assert outcome
        assert outcome.result == data
    queue.add(b"x", id="a")
    assert "say which job with --id and --token" in hf.error(
        "complete", queue.name, "--result-file", "-", code=2, input=b"x"
    )


def test_the_largest_payload_fits(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    data = os.urandom(1024) * (MAX_PAYLOAD_BYTES // 1024)
    queue.add(data, id="a")
    line = hf("lease", queue.name)
    assert base64.b64decode(json.loads(line)["data_base64"]) == data
    assert json.loads(hf("complete", queue.name, input=line.encode()))["completed"]


def test_a_result_that_is_too_large_is_refused(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="a", result_for=60)
    token = leased(hf, queue)["token"]
    args = ["--id", "a", "--token", token, "--result-file", "-"]
    assert "bytes, more than" in hf.error(
        "complete", queue.name, *args, code=2, input=b"x" * (1024 * 1024 + 1)
    )
    job = queue.show("a")
    assert job
    assert job.state == "leased"


# ------------------------------------------------------------------------- bad input

BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "stdin is empty"),
    "white space": (b" \n\n", "stdin is empty"),
    "no JSON": (b"hello", "broken JSON in the object that begins in line 1"),
    "half an object": (b'{"id": "a", "tok', "broken JSON"),
    "broken after one that is whole": (
        b'{"id": "a", "token": "b"}\n\n{"id": ',
        "broken JSON in the object that begins in line 3",
    ),
    "no object": (b"[1, 2]", "a JSON object with strings id and token is needed"),
    "a number for an id": (b'{"id": 5, "token": "b"}', "strings id and token"),
    "no token": (b'{"id": "a"}', "strings id and token"),
    "an empty id": (b'{"id": "", "token": "b"}', "id must have 1 to 512 bytes"),
    "a surrogate": (b'{"id": "\\ud800", "token": "b"}', "cannot be written as UTF-8"),
    "bytes that are no text": (b'{"id": "\xff"}', "byte 8 is not UTF-8"),
    "a token that is none": (b'{"id": "a", "token": "b\\nc"}', "'b\\nc' is not a token"),
    "nested without end": (b"[" * 100_000, "broken JSON"),
    "another queue": (
        b'{"queue": "of\\u001b others", "id": "a", "token": "b"}',
        "a lease of the queue of\\x1b others, not of",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_lease_is_refused_before_anything_is_sent(
    hf: Commands, queue: Queue, way: str, case: str
) -> None:
    queue.add(b"x", id="a")
    queue.lease(60)
    input, text = BROKEN[case]
    # A server that is not there: it is not asked.
    error = hf.error(way, queue.name, "--url", "redis://127.0.0.1:1", code=2, input=input)
    assert text in error
    assert error.isprintable()


@pytest.mark.parametrize("token", ["x", "a.b.c", "9" * 100])
def test_a_token_that_is_none_is_a_lease_that_is_over(
    hf: Commands, queue: Queue, token: str
) -> None:
    queue.add(b"x", id="a")
    leased(hf, queue)
    hf("complete", queue.name, "--id", "a", "--token", token, code=4)
    hf("retry", queue.name, "--id", "a", "--token", token, code=4)
    assert "--id and --token go together" in hf.error("fail", queue.name, "--id", "a", code=2)


def test_a_payload_file_that_cannot_be_written_costs_no_lease(
    hf: Commands, queue: Queue, tmp_path: Path
) -> None:
    queue.add(b"x", id="a")
    path = tmp_path / "no" / "such" / "place"
    assert "No such file or directory" in hf.error(
        "lease", queue.name, "--payload-file", path, code=2
    )
    job = queue.show("a")
    assert job
    assert job.state == "ready"


@pytest.mark.parametrize("full", ["stdout", "payload"])
def test_a_lease_that_cannot_be_written_is_given_back(
    hf: Commands, queue: Queue, full: str
) -> None:
    queue.add(b"x", id="a")
    with Path("/dev/full").open("w") as device:
        args = ["--payload-file", "/dev/full"] if full == "payload" else []
        options = {} if full == "payload" else {"stdout": device}
        with started("lease", queue.name, *args, **options) as process:
            _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "No space left on device" in err
    job = queue.show("a")
    assert job
    assert (job.state, job.lapses, job.failures) == ("ready", 0, 0)


# ---------------------------------------------------------------------------- garbage


def test_many_short_commands_leave_little_behind(
    hf: Commands, queue: Queue, server: Server, client: redis.Redis
) -> None:
    """Callers are remembered for ten minutes, and no command registers as a worker."""
    queue.add_many([b"x"] * 5)
    for _ in range(5):
        hf("complete", queue.name, input=as_input(leased(hf, queue)))
    assert queue.workers() == []
    assert client.hlen(f"hf:{{{queue.name}}}:calls") <= 2 * 5 + 1
    kept = set(client.scan_iter(match=f"hf:{{{queue.name}}}:*"))
    assert kept <= {f"hf:{{{queue.name}}}:{name}".encode() for name in ("meta", "calls", "wake")}
    assert command_on(client, "PING")
