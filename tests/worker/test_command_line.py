"""`holdfast work`: a worker in the foreground."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from engine_support import own_server
from holdfast import Queue
from support import DEADLINE, TestServer
from worker.support import is_done, shown

MODULE = """
    import os, time
    from pathlib import Path
    from holdfast import Fail, Queue, Worker

    queue = Queue("q command", os.environ["URL"])
    worker = Worker(queue)

    @queue.handler
    def send(to):
        print("sent to", to, flush=True)

    @worker.handler
    def handle(job):
        print("worker", job.id, job.data.decode(), flush=True)

    def function(job):
        os.write(1, f"function {job.queue} {job.id}\\n".encode())  # Whole lines, from threads.

    async def coroutine(job):
        print("coroutine", job.queue, job.id, flush=True)

    def slow(job):
        print("begun", job.id, flush=True)
        while not Path("go on").exists():
            time.sleep(0.005)

    def fail(job):
        raise Fail("on purpose")

    class Some:
        class Where:
            handle = staticmethod(function)

    number = 5
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a module of the user's."""
    (tmp_path / "jobs.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "missing.py").write_text("import m_that_nobody_has\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken on purpose')\n")
    return tmp_path


@pytest.fixture
def queue(test_server: TestServer) -> Iterator[Queue]:
    with Queue("q command", test_server.queue_url) as queue:
        yield queue
        assert queue.audit() == []
        queue.delete()


@contextmanager
def started(place: Path, server: TestServer, *args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *args],
        cwd=place,
        env={**os.environ, "URL": server.queue_url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ran(place: Path, server: TestServer, *args: str) -> tuple[int, str, str]:
    """Return the exit code of a command, and what it wrote."""
    with started(place, server, *args) as process:
        out, err = process.communicate(timeout=DEADLINE)
        return process.returncode, out, err


def test_a_worker_of_a_module_is_run(place: Path, queue: Queue, test_server: TestServer) -> None:
    queue.add(b"x", id="a")
    code, out, err = ran(place, test_server, "work", "--until-empty", "jobs:worker")
    assert (code, out) == (0, "worker a x\n")
    assert "Traceback" not in err
    assert is_done(queue)


def test_a_queue_that_has_handlers_is_worked_on(
    place: Path, queue: Queue, test_server: TestServer
) -> None:
    queue.add({"to": "ann"}, handler="send")
    code, out, _ = ran(place, test_server, "work", "--until-empty", "--grace", "1", "jobs:queue")
    assert (code, out) == (0, "sent to ann\n")


@pytest.mark.parametrize("name", ["function", "coroutine", "Some.Where.handle"])
def test_a_function_is_run_for_the_queues_that_are_said(
    place: Path, queue: Queue, test_server: TestServer, name: str
) -> None:
    with Queue("q other", test_server.queue_url) as other:
        queue.add(b"", id="a")
        other.add(b"", id="b")
        options = ["--url", test_server.queue_url, "--concurrency", "2", "--strict", "--lease", "5"]
        code, out, _ = ran(
            place,
            test_server,
            *("work", "-q", queue.name, "--queue", other.name, *options, "--until-empty"),
            f"jobs:{name}",
        )
        kind = "coroutine" if name == "coroutine" else "function"
        expected = [f"{kind} q command a", f"{kind} q other b"]
        assert (code, sorted(out.splitlines())) == (0, expected)
        other.delete()


def test_a_job_that_fails_is_no_error_of_the_worker(
    place: Path, queue: Queue, test_server: TestServer
) -> None:
    queue.add(b"", id="a")
    options = ["-q", queue.name, "--url", test_server.queue_url, "--until-empty"]
    code, _, err = ran(place, test_server, "work", *options, "jobs:fail")
    assert code == 0
    assert "ERROR   a: failed: on purpose" in err
    assert shown(queue).state == "failed"


def test_how_much_is_logged_can_be_said(place: Path, queue: Queue, test_server: TestServer) -> None:
    queue.add(b"", id="a", handler="elsewhere")
    options = ["-q", queue.name, "--url", test_server.queue_url, "--until-empty"]
    _, _, err = ran(place, test_server, "work", *options, "--log-level", "error", "jobs:fail")
    assert err == ""


@pytest.mark.parametrize(
    ("options", "code"), [([], 0), (["--grace", "0"], 1), (["--grace", "0.01"], 1)]
)
def test_it_ends_with_a_signal_and_says_whether_all_was_finished(
    place: Path, queue: Queue, test_server: TestServer, options: list[str], code: int
) -> None:
    queue.add(b"", id="a")
    command = ["work", "-q", queue.name, "--url", test_server.queue_url, *options, "jobs:slow"]
    with started(place, test_server, *command) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun a\n"
        process.send_signal(signal.SIGTERM)
        if not code:
            (place / "go on").touch()
        process.communicate(timeout=DEADLINE)
        assert process.returncode == code
    if code:
        job = shown(queue)
        assert (job.state, job.failures, job.lapses) == ("ready", 0, 0)
    else:
        assert queue.show("a") is None


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no target": ([], 2, "Missing argument 'MODULE[:NAME]...'"),
    "no module": ([":worker"], 2, "should look like myapp.jobs, or myapp.jobs:worker"),
    "an empty name": (["jobs:"], 2, "should look like myapp.jobs, or myapp.jobs:worker"),
    "a relative module": ([".jobs:worker"], 2, "should look like myapp.jobs, or myapp.jobs:worker"),
    "a module that is not there": (["nojobs:worker"], 2, "module 'nojobs' was not found"),
    "a module of one that is none": (["jobs.more:worker"], 2, "module 'jobs.more' was not found"),
    "a name that is not there": (["jobs:nobody"], 2, "'jobs' has no 'nobody'"),
    "a name in one that is not there": (["jobs:Some.More"], 2, "'jobs' has no 'Some.More'"),
    "neither of both": (["jobs:number"], 2, "jobs:number is int, neither a Worker, a Queue nor a"),
    "a function without a queue": (
        ["jobs:function"],
        2,
        "name the queue it works on with --queue",
    ),
    "a queue with a queue": (["-q", "x", "jobs:queue"], 2, "give neither --queue nor --url"),
    "a handler of a queue": (
        ["-q", "x", "jobs:send"],
        2,
        "jobs:send is a handler of a queue: name that",
    ),
    "a worker with a queue": (
        ["-q", "x", "jobs:worker"],
        2,
        "jobs:worker is a Worker, which gets its options where it is made",
    ),
    "a worker with a grace": (
        ["--grace", "0", "jobs:worker"],
        2,
        "set --grace there, or name its queue instead",
    ),
    "a bad number": (["-q", "x", "--lease", "long", "jobs:function"], 2, "is not a duration"),
    "a bad concurrency": (
        ["-q", "x", "--concurrency", "many", "jobs:function"],
        2,
        "a number, or auto",
    ),
    "a number that is too small": (
        ["-q", "x", "--concurrency", "0", "jobs:function"],
        2,
        "Error: concurrency must be 1 to 10000, not 0",
    ),
    "a lease that is too short": (
        ["-q", "x", "--lease", "0.1", "jobs:function"],
        2,
        "Error: lease",
    ),
    "a queue of no name": (["-q", "", "jobs:function"], 2, "Error: queue name"),
    "a queue twice": (["-q", "x", "-q", "x", "jobs:function"], 2, "Error: queues must be diff"),
    "a url that is none": (["-q", "x", "--url", "nonsense", "jobs:function"], 2, "Error: "),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_wrong_is_said_in_one_line(place: Path, test_server: TestServer, case: str) -> None:
    args, code, text = ERRORS[case]
    found, out, err = ran(place, test_server, "work", *args)
    assert (found, out) == (code, "")
    assert text in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("module", "text"),
    [("missing", "No module named 'm_that_nobody_has'"), ("broken", "broken on purpose")],
)
def test_what_is_wrong_in_the_module_is_shown_as_python_does(
    place: Path, test_server: TestServer, module: str, text: str
) -> None:
    code, _, err = ran(place, test_server, "work", f"{module}:worker")
    assert code == 1
    assert "Traceback" in err
    assert f"{module}.py" in err
    assert text in err


def test_a_server_that_refuses_is_told_in_one_line(place: Path, test_server: TestServer) -> None:
    url = test_server.queue_url.replace("unix://", "unix://nobody:wrong@")
    code, _, err = ran(place, test_server, "work", "-q", "x", "--url", url, "jobs:function")
    assert code == 1
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["work", "--help"], ["work", "-h"]])
def test_help_is_there(place: Path, test_server: TestServer, args: list[str]) -> None:
    code, out, _ = ran(place, test_server, *args)
    assert code == 0
    assert "Usage: " in out
    if "work" in args:
        assert "holdfast work --queue emails myapp.jobs:send" in out


def test_the_version_is_told(place: Path, test_server: TestServer) -> None:
    code, out, _ = ran(place, test_server, "--version")
    assert (code, metadata.version("holdfast-queue") in out) == (0, True)


def test_until_empty_waits_for_a_server_that_is_not_there_yet(place: Path) -> None:
    with own_server("--appendonly", "yes") as server:
        with Queue("x", server.url) as queue:
            queue.add(b"", id="a")
        server.kill()
        command = ["work", "-q", "x", "--url", server.url, "--until-empty", "jobs:function"]
        with started(place, server, *command) as process:
            assert process.poll() is None
            server.start()
            out, _ = process.communicate(timeout=DEADLINE)
            assert (process.returncode, out) == (0, "function x a\n")
