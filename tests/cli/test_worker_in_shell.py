"""examples/worker.sh: a worker that needs nothing but a shell and the command line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cli.support import COMMAND, Commands
from holdfast import Queue
from support import DEADLINE, wait_until

LONG = DEADLINE * 4
"""A job is three processes of Python here."""

WORKER = Path(__file__).parents[2] / "examples" / "worker.sh"


@contextmanager
def worker(queue: Queue, command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [WORKER, queue.name, "sh", "-c", command],
        env={**os.environ, "HOLDFAST": shlex.join(COMMAND), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def work_off(queue: Queue, command: str) -> str:
    """Run the worker until there is no job; return what it said."""
    with worker(queue, command, UNTIL_EMPTY="1", WAIT="0") as process:
        out, err = process.communicate(timeout=LONG)
        assert process.returncode == 0, err
        return out + err


def test_each_payload_is_given_as_it_is_and_what_comes_out_is_kept(
    hf: Commands, queue: Queue
) -> None:
    payloads = {"text": b"hello", "bytes": bytes(range(256)), "empty": b"", "odd \n'id": b"\n"}
    for id, data in payloads.items():
        queue.add(data, id=id, result_for=60)
    work_off(queue, "cat")
    for id, data in payloads.items():
        outcome = queue.result(id)
        assert outcome
        assert (outcome.kind, outcome.result) == ("completed", data)


def test_a_command_that_fails_is_tried_again_and_one_that_gives_up_is_not(
    hf: Commands, queue: Queue
) -> None:
    queue.add(b"1", id="again", min_backoff=1000, max_backoff=10_000)
    queue.add(b"100", id="never")
    work_off(queue, 'read code; echo "no luck with $code" >&2; exit "$code"')
    again, never = queue.show("again"), queue.show("never")
    assert again
    assert (again.state, again.failures, again.error) == ("delayed", 1, "no luck with 1")
    assert never
    assert (never.state, never.error) == ("failed", "no luck with 100")


def test_a_job_that_takes_long_is_held(hf: Commands, queue: Queue, tmp_path: Path) -> None:
    queue.add(b"", id="a")
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    with worker(queue, wait, LEASE="30", EVERY="1", UNTIL_EMPTY="1", WAIT="0") as process:
        wait_until(lambda: queue.counts().leased, "the lease")
        job = queue.show("a")
        assert job
        first = job.at
        wait_until(lambda: (queue.show("a") or job).at != first, "an extension")
        (tmp_path / "go").touch()
        assert process.wait(LONG) == 0
    assert queue.show("a") is None


def test_a_job_that_is_cancelled_is_stopped(hf: Commands, queue: Queue) -> None:
    queue.add(b"", id="a")
    with worker(queue, "exec sleep 1000", EVERY="1", UNTIL_EMPTY="1", WAIT="0") as process:
        wait_until(lambda: queue.counts().leased, "the lease")
        queue.cancel("a")
        assert process.wait(LONG) == 0
    assert queue.show("a") is None


def test_a_signal_lets_it_finish_the_job_and_end(
    hf: Commands, queue: Queue, tmp_path: Path
) -> None:
    queue.add_many([b"1", b"2"])
    wait = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    with worker(queue, wait) as process:
        wait_until((tmp_path / "begun").exists, "the job")
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert process.wait(LONG) == 0
    assert queue.counts().ready == 1
    assert queue.counts().leased == 0


def test_a_server_that_is_not_there_is_waited_for(
    hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(queue, "cat", HOLDFAST_URL="redis://127.0.0.1:1") as process:
        assert process.stderr
        assert "Error: redis://127.0.0.1:1" in process.stderr.readline()
        assert process.poll() is None


def test_it_says_how_it_is_called() -> None:
    ran = subprocess.run([WORKER, "q"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: ")
