"""`holdfast work`: what it may be given, what it says, whose logging counts, --reload."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.support import COMMAND, Commands, started
from holdfast import Queue, ShardedQueue
from support import DEADLINE, TestServer, wait_until

STARTING = re.compile(r"^\S+ \S+ INFO    starting: (.*)$", re.MULTILINE)


@pytest.fixture
def place(tmp_path: Path, hf: Commands, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the user's modules, on the server of the tests."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # Files change within a second here.
    return tmp_path


def write(place: Path, name: str, text: str) -> None:
    """Have a module, all of it at once: who looks at files sees no half of one."""
    (place / "half").write_text(textwrap.dedent(text))
    (place / "half").replace(place / f"{name}.py")


def ran(place: Path, *args: str, code: int = 0) -> tuple[str, str]:
    """Run `holdfast work` to its end; return what it wrote."""
    with started("work", *args, cwd=place) as process:
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == code, err
        return out, err


def refused(place: Path, *args: str) -> str:
    _, err = ran(place, *args, code=2)
    assert "Traceback" not in err
    return " ".join(err.split())


TWO = """
    import os  # For os.write: lines of threads stay whole.
    from holdfast import Queue, Worker

    mail, reports, bare = Queue("q mail"), Queue("q reports"), Queue("q bare")

    @mail.handler
    def send(to): os.write(1, f"sent to {to}\\n".encode())

    @reports.handler
    def render(page): os.write(1, f"rendered {page}\\n".encode())
"""

PLAIN = """
    from holdfast import Fail

    def handle(job):
        raise Fail(f"no {job.data.decode()}")

    def handle_failure(job):
        print("dealt with", job.id, job.error, flush=True)
"""


@pytest.fixture
def two(place: Path, test_server: TestServer) -> Iterator[tuple[Queue, Queue]]:
    """Two queues with a job each, and a module that has handlers for them."""
    write(place, "two", TWO)
    with Queue("q mail", test_server.url) as mail, Queue("q reports", test_server.url) as reports:
        mail.add({"to": "ann"}, handler="send")
        reports.add({"page": 7}, handler="render")
        yield mail, reports
        mail.delete()
        reports.delete()


# ---------------------------------------------------------------- what it may be given


def test_several_queues_have_one_worker(place: Path, two: tuple[Queue, Queue]) -> None:
    out, err = ran(place, "two:mail", "two:reports", "--until-empty", "--concurrency", "4")
    assert sorted(out.splitlines()) == ["rendered 7", "sent to ann"]
    [told] = STARTING.findall(err)
    assert told.startswith("queues q mail, q reports on ")
    assert told.endswith("; handlers: render, send; concurrency 4, executor thread, lease 15 s")


def test_a_module_with_one_worker_is_enough(place: Path, two: tuple[Queue, Queue]) -> None:
    write(place, "one", "from two import mail, reports\nfrom holdfast import Worker\n"
          "worker = Worker([mail, reports])\nthe_same = worker\n")  # fmt: skip
    out, _ = ran(place, "one", "--until-empty")
    assert sorted(out.splitlines()) == ["rendered 7", "sent to ann"]


def test_a_module_with_one_queue_that_has_handlers_is_enough(
    place: Path, two: tuple[Queue, Queue]
) -> None:
    write(place, "one", "from two import mail, bare")
    assert ran(place, "one", "--until-empty")[0] == "sent to ann\n"


def test_a_plain_module_with_a_failure_handler_is_enough(
    place: Path, queue: Queue, hf: Commands
) -> None:
    write(place, "plain", PLAIN)
    queue.add(b"luck", id="a")
    out, err = ran(place, "plain", "--queue", queue.name, "--until-empty")
    assert out == "dealt with a no luck\n"
    assert "handlers: jobs without a name, failed jobs;" in STARTING.findall(err)[0]
    assert queue.show("a") is None


def test_what_a_module_has_is_told_where_it_is_not_clear(
    place: Path, two: tuple[Queue, Queue]
) -> None:
    assert (
        "two has 2 queues with handlers, two:mail and two:reports: name one of them, or several: "
        "holdfast work two:mail two:reports" in refused(place, "two")
    )
    write(place, "workers", TWO + "    a, b, c = Worker(mail), Worker(mail), Worker(reports)\n")
    assert (
        "workers has 3 workers, workers:a, workers:b and workers:c: name the one to run"
        in refused(place, "workers")
    )
    write(place, "beside", TWO + "    worker = Worker(mail)\n")
    assert (
        "beside has a Worker, beside:worker, and handlers of a queue that it does not work on, "
        "beside:reports: name the one to run" in refused(place, "beside")
    )
    write(place, "nothing", "from two import bare\n")
    assert (
        "nothing has no Worker, no Queue with handlers and no function handle; nothing:bare has no "
        "handlers" in refused(place, "nothing")
    )
    write(place, "plain", PLAIN)
    assert "plain has a function handle: name the queue" in refused(place, "plain")
    assert "has no function handle: name the one to run" in refused(place, "-q", "x", "two")


def test_what_cannot_be_worked_on_together_is_refused(
    place: Path, two: tuple[Queue, Queue]
) -> None:
    write(place, "more", TWO + "    worker = Worker(mail)\n")
    assert "more:worker is a Worker: only queues can share a worker" in refused(
        place, "two:mail", "more:worker"
    )
    assert "a name is given twice" in refused(place, "two:mail", "two:mail")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("two.py:mail", "'two.py' is a file: name the module, 'two'"),
        ("./two.py:mail", "is a file: name the module, 'two'"),
        ("app/two.py:mail", "is a file: name the module, 'app.two'"),
        ("app/two", "is a file: name the module, 'app.two'"),
        ("two:mial", "'two' has no 'mial': did you mean 'mail'?"),
    ],
)
def test_what_is_nearly_right_gets_a_hint(
    place: Path, two: tuple[Queue, Queue], said: str, hint: str
) -> None:
    assert hint in refused(place, said)


@pytest.mark.parametrize(
    ("said", "meant"),
    [("worker x", "workers or work"), ("count x", "counts"), ("request shwo x y", "show")],
)
def test_a_misspelt_command_gets_a_hint(hf: Commands, said: str, meant: str) -> None:
    error = hf.error(*said.split(), code=2)
    assert "No such command" in error
    assert f"Did you mean {meant}" in error


# ------------------------------------------------------------------------- what it says


def test_it_says_what_it_works_on_and_that_it_stopped(
    place: Path, two: tuple[Queue, Queue], test_server: TestServer
) -> None:
    write(place, "both", TWO + """
    worker = Worker([mail, reports], concurrency="auto", lease=5)

    @worker.handler
    def any(job): ...

    @worker.failure_handler
    def failed(job): ...
    """)  # fmt: skip
    _, err = ran(place, "both", "--until-empty")
    lines = [line for line in err.splitlines() if " INFO " in line]
    [told] = STARTING.findall(lines[0])
    assert told == (
        f"queues q mail, q reports on {test_server.url}; handlers: render, send, jobs without a "
        "name, failed jobs; concurrency auto (1 to 64), executor thread, lease 5 s"
    )
    assert lines[-1].endswith("INFO    stopped: all started jobs were finished")


def test_passwords_are_not_logged(place: Path, test_server: TestServer) -> None:
    write(place, "plain", PLAIN)
    url = "redis://mail:hunter2@127.0.0.1:1/0"
    with started("work", "-q", "x", "--url", url, "plain", cwd=place) as process:
        assert process.stderr
        line = process.stderr.readline()
        assert "starting: queue x on redis://mail:***@127.0.0.1:1/0;" in line
        assert "hunter2" not in line


def test_a_sharded_queue_is_one_name(place: Path, test_server: TestServer) -> None:
    write(place, "shards", """
    import os
    from holdfast import ShardedQueue
    queue = ShardedQueue("q shards", shards=4)

    @queue.handler
    def send(to): os.write(1, f"sent to {to}\\n".encode())
    """)  # fmt: skip
    with ShardedQueue("q shards", test_server.url, shards=4) as queue:
        queue.add({"to": "ann"}, handler="send")
        out, err = ran(place, "shards", "--until-empty")
        assert out == "sent to ann\n"
        assert "queue q shards (4 shards) on " in STARTING.findall(err)[0]
        queue.delete()


def test_what_had_to_be_given_back_is_said(place: Path, queue: Queue) -> None:
    write(place, "slow", """
    import time
    def handle(job):
        print("begun", flush=True)
        while True: time.sleep(0.01)
    """)  # fmt: skip
    queue.add(b"")
    args = ("work", "-q", queue.name, "slow", "--grace", "0")
    with started(*args, cwd=place) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE)
    assert "WARNING stopped: unfinished jobs were given back" in err


def test_each_job_is_told_where_it_is_asked_for(place: Path, two: tuple[Queue, Queue]) -> None:
    mail, _ = two
    mail.add({"to": "bob"}, handler="send", id="a")
    _, err = ran(place, "two:mail", "--until-empty", "-v")
    assert re.search(r"INFO    a: send completed in \d+\.\d+ s$", err, re.MULTILINE)


def test_ids_and_errors_forge_no_line_of_the_log(place: Path, queue: Queue) -> None:
    nasty = "x\n2030-01-31 08:00:00,000 INFO    all is well\x1b[2J\u2028\u202e"
    write(place, "raises", """
    def handle(job):
        raise ValueError(job.data.decode() + "\\udc80")
    """)  # fmt: skip
    queue.add(nasty, id=f"id {nasty}")
    _, err = ran(place, "raises", "-q", queue.name, "--until-empty")
    shown = r"x\n2030-01-31 08:00:00,000 INFO    all is well\x1b[2J\u2028\u202e"
    assert f"WARNING id {shown}: raised, and will be retried: ValueError: {shown}\\udc80" in err
    for line in err.split("\n"):
        assert line.isprintable(), ascii(line)
        assert not line.startswith("2030")


# ------------------------------------------------------------------ whose logging counts

LOGS = """
    import logging
    from holdfast import Queue
    logging.getLogger("early").info("before it is set up")
    logging.getLogger("early").warning("a warning before it is set up")
    {setup}
    log = logging.getLogger("app")
    log.info("of the import")
    log.debug("in detail")

    def handle(job):
        log.info("of the job")
        logging.getLogger("holdfast").warning("of holdfast")
"""


DICT_CONFIG = (
    "import logging.config as c; c.dictConfig({'version': 1, 'root': {'level': 'INFO', "
    "'handlers': ['h']}, 'formatters': {'f': {'format': 'APP %(message)s'}}, 'handlers': "
    "{'h': {'class': 'logging.StreamHandler', 'formatter': 'f'}}})"
)


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ('logging.basicConfig(level="INFO", format="APP %(message)s")', "APP of the {}"),
        (DICT_CONFIG, "APP of the {}"),
    ],
    ids=["basicConfig", "dictConfig"],
)
def test_the_logging_of_the_application_counts(
    place: Path, queue: Queue, setup: str, line: str
) -> None:
    write(place, "logs", LOGS.format(setup=setup))
    queue.add(b"")
    _, err = ran(place, "logs", "-q", queue.name, "--until-empty")
    lines = err.splitlines()
    assert {line.format("import"), line.format("job"), "APP of holdfast"} <= set(lines)
    assert all(found.startswith("APP ") for found in lines), lines
    assert any(found.startswith("APP starting: ") for found in lines)
    assert "APP a warning before it is set up" in lines
    assert "APP in detail" not in lines


def test_where_it_sets_none_up_there_is_one_and_nothing_is_lost(place: Path, queue: Queue) -> None:
    write(place, "logs", LOGS.format(setup=""))
    queue.add(b"")
    _, err = ran(place, "logs", "-q", queue.name, "--until-empty")
    found = [line.split(" ", 2)[-1] for line in err.splitlines()]
    expected = ["INFO    before it is set up", "WARNING a warning before it is set up"]
    expected += ["INFO    of the import"]
    assert found[:3] == expected
    assert "INFO    of the job" in found
    assert "in detail" not in err
    _, err = ran(place, "logs", "-q", queue.name, "--until-empty", "-v")
    assert "in detail" in err


def test_a_level_that_is_said_counts_for_holdfast(place: Path, queue: Queue) -> None:
    setup = 'logging.basicConfig(format="APP %(message)s")'  # Which means from warnings on.
    write(place, "logs", LOGS.format(setup=setup))
    queue.add(b"", id="a")
    args = ("logs", "-q", queue.name, "--until-empty")
    _, err = ran(place, *args)
    assert "starting" not in err
    assert "of the job" not in err
    queue.add(b"", id="a")
    _, err = ran(place, *args, "--log-level", "debug")
    assert "APP starting: " in err
    assert "APP a: handle completed in " in err
    assert "of the job" not in err


def test_what_was_logged_before_an_import_failed_is_not_lost(place: Path) -> None:
    write(place, "breaks", LOGS.format(setup="raise RuntimeError('on purpose')"))
    with started("work", "breaks", cwd=place) as process:
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert "WARNING a warning before it is set up" in err
    assert "RuntimeError: on purpose" in err


# -------------------------------------------------------------------------- --reload


@contextmanager
def reloading(place: Path, queue: Queue, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker that starts again when a file changes; stderr goes to a file."""
    with (place / "err").open("w") as err:
        process = subprocess.Popen(
            [*COMMAND, "work", "--reload", "-q", queue.name, name],
            cwd=place, stdin=subprocess.DEVNULL, stdout=err, stderr=err, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def said(place: Path) -> str:
    return (place / "err").read_text()


HANDLE = """
import helper
def handle(job):
    print(helper.WORD, job.data.decode(), flush=True)
"""


def test_a_worker_starts_again_when_a_file_changes(place: Path, queue: Queue) -> None:
    write(place, "helper", "WORD = 'first'\n")
    write(place, "hands", HANDLE)
    with reloading(place, queue, "hands") as process:
        queue.add(b"1")
        wait_until(lambda: "first 1" in said(place), "the first job")
        write(place, "helper", "WORD = 'second'\n")
        wait_until(lambda: said(place).count("starting: ") == 2, "a new start")
        assert "helper.py changed: restarting" in said(place)
        queue.add(b"2")
        wait_until(lambda: "second 2" in said(place), "the second job")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
    assert said(place).count("stopped: ") == 1


def test_a_mistake_is_shown_and_its_correction_waited_for(place: Path, queue: Queue) -> None:
    write(place, "helper", "WORD = 'first'\n")
    write(place, "hands", HANDLE)
    with reloading(place, queue, "hands") as process:
        wait_until(lambda: "starting: " in said(place), "a start")
        write(place, "helper", "WORD = 'never ended\n")
        wait_until(lambda: "waiting for a file to change" in said(place), "a word about it")
        assert "SyntaxError" in said(place)
        write(place, "helper", "WORD = 'mended'\n")
        queue.add(b"1")
        wait_until(lambda: "mended 1" in said(place), "the job")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("import sys; sys.exit('DATABASE_URL is not set')", "SystemExit: DATABASE_URL is not set"),
        ("raise SystemExit", "SystemExit"),
        ("import asyncio; raise asyncio.CancelledError('of a loop')", "CancelledError: of a loop"),
        ("class Stop(BaseException): pass\nraise Stop('here')", "Stop: here"),
    ],
)
def test_a_module_that_exits_on_import_is_waited_for(
    place: Path, queue: Queue, mistake: str, told: str
) -> None:
    write(place, "helper", f"{mistake}\n")
    write(place, "hands", HANDLE)
    with reloading(place, queue, "hands") as process:
        wait_until(lambda: "waiting for a file to change" in said(place), "a word about it")
        assert told in said(place)
        assert "helper.py" in said(place)  # The traceback says where.
        write(place, "helper", "WORD = 'mended'\n")
        queue.add(b"1")
        wait_until(lambda: "mended 1" in said(place), "the job")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0


def test_ctrl_c_during_an_import_ends_it(place: Path, queue: Queue) -> None:
    write(place, "hands", """
    import time
    print("begun", flush=True)
    while True:
        time.sleep(0.005)
    """)  # fmt: skip
    with reloading(place, queue, "hands") as process:
        wait_until(lambda: "begun" in said(place), "the import")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130
    assert "waiting for a file to change" not in said(place)


def test_a_signal_while_it_finishes_ends_it(place: Path, queue: Queue) -> None:
    write(place, "hands", """
    from pathlib import Path
    import time
    def handle(job):
        print("begun", flush=True)
        while not Path("go on").exists():
            time.sleep(0.005)
    """)  # fmt: skip
    queue.add(b"")
    with reloading(place, queue, "hands") as process:
        wait_until(lambda: "begun" in said(place), "the job")
        (place / "hands.py").touch()
        os.utime(place / "hands.py", (1, 1))
        wait_until(lambda: "changed: restarting" in said(place), "a word about it")
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in said(place), "the signal")
        (place / "go on").touch()
        assert process.wait(DEADLINE) == 0
    assert said(place).count("starting: ") == 1
