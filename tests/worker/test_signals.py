"""Signals, and processes that freeze: a worker leaves in order, and does no harm when it wakes."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Queue, RunningJob, Worker
from support import DEADLINE, TestServer, wait_until
from worker.support import Gate, Heard, at_work, is_done, program, shown, work_off, working

WORKER = """
    import logging, sys, threading, time
    from pathlib import Path
    from holdfast import Hooks, Queue, Worker
    from holdfast.worker.executors.event_loop import EventLoop

    EventLoop.ends_within = 60  # Who is ended has the time to say so.

    class Noting(Hooks):
        def lost(self, job):
            print("lost", job.id)
        def done(self, job):
            print("done", job.id)

    logging.basicConfig(level="INFO")
    name, url, lease = sys.argv[1:]
    worker = Worker(Queue(name, url), concurrency=1, lease=float(lease), ahead=0, hooks=[Noting()])

    @worker.handler
    def handle(job):
        print("begun", job.id)
        while not Path("go on").exists():
            time.sleep(0.005)
        print("finished", job.id)

    @worker.handler("coroutine")
    async def sleep(job):
        import asyncio
        print("begun", job.id)
        while not Path("go on").exists():
            await asyncio.sleep(0.005)
        print("finished", job.id)

    @worker.handler("blocking")
    async def block(job):
        print("begun", job.id)
        while not Path("go on").exists():
            time.sleep(0.005)

    def tell():
        controls = worker._controls
        while not controls or not all(one.leave_at is not None for one in controls.values()):
            time.sleep(0.005)
            controls = dict(worker._controls)
        print("stopping")

    threading.Thread(target=tell, daemon=True).start()
    clean = worker.run()
    print("clean" if clean else "not clean")
    sys.exit(0 if clean else 1)
"""


class Running:
    """A worker in a process of its own, and what it has written."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._go_on = directory / "go on"

    def reads(self, line: str) -> None:
        """Wait for a line that it writes."""
        assert self._process.stdout
        for written in self._process.stdout:
            if written.strip() == line:
                return
        raise AssertionError(f"it ended without {line!r}")

    def let_go(self) -> None:
        self._go_on.touch()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def hears(self, text: str) -> str:
        """Wait for a line in its log that has this text, and return it."""
        assert self._process.stderr
        for written in self._process.stderr:
            if text in written:
                return written
        raise AssertionError(f"it ended without {text!r}")

    def ends(self) -> tuple[int, str, str]:
        out, log = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, out, log


@contextmanager
def worker_process(
    directory: Path, queue: Queue, server: TestServer, lease: float = 15
) -> Iterator[Running]:
    with program(directory, WORKER, queue.name, server.queue_url, str(lease)) as process:
        yield Running(process, directory)


@pytest.fixture
def queue_name(queue_name: str) -> str:
    """One that can be an argument of a program."""
    return queue_name.strip("\0\n")


both_handlers = pytest.mark.parametrize("handler", [None, "coroutine"])


@both_handlers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_worker_finish_what_it_does(
    live_queue: Queue,
    test_server: TestServer,
    tmp_path: Path,
    number: signal.Signals,
    handler: str | None,
) -> None:
    for id in "ab":
        live_queue.add(b"", id=id, handler=handler)
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        worker.send(number)
        worker.hears(f"{number.name}: finishing running jobs")
        worker.reads("stopping")
        worker.let_go()
        code, out, log = worker.ends()
    assert (code, out.split("\n")[0], out.split("\n")[-2]) == (0, "finished a", "clean")
    assert "Traceback" not in log
    job = shown(live_queue, "b")
    assert (job.state, job.failures, job.lapses) == ("ready", 0, 0)
    assert live_queue.show("a") is None


@both_handlers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_lets_it_leave_at_once_and_give_back_what_it_has(
    live_queue: Queue,
    test_server: TestServer,
    tmp_path: Path,
    number: signal.Signals,
    handler: str | None,
) -> None:
    live_queue.add(b"", id="a", handler=handler)
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        worker.send(signal.SIGTERM)
        worker.hears("finishing running jobs; send it again to leave at once")
        worker.reads("stopping")
        worker.send(number)
        code, out, log = worker.ends()
    assert "finished" not in out
    assert (code, out) == ((1, "not clean\n") if handler is None else (0, "clean\n"))
    assert f"{number.name}: leaving at once" in log
    job = shown(live_queue)
    assert (job.state, job.failures, job.lapses) == ("ready", 0, 0)
    assert not any(info.alive for info in live_queue.workers())


def test_sigquit_shows_what_every_thread_does_and_the_worker_goes_on(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a")
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        for _ in range(30):  # One that looks at threads while they run would crash some time.
            worker.send(signal.SIGQUIT)
            worker.hears("in handle")
        worker.let_go()
        worker.reads("done a")
        worker.send(signal.SIGTERM)
        code, _, _ = worker.ends()
    assert code == 0
    assert live_queue.show("a") is None


def test_sigquit_names_the_job_that_a_thread_runs(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a\nforged")
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        worker.send(signal.SIGQUIT)
        line = worker.hears(r"job 'a\nforged'")
        found = re.match(
            r"(Thread 0x[0-9a-f]+): job .* of queue .*, handler handle, for [\d.]+ s", line
        )
        assert found
        assert repr(live_queue.name) in line
        worker.hears(found[1])  # So its stack is found.


def test_sigquit_names_the_job_that_a_coroutine_runs_and_where_it_is(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a", handler="coroutine")
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        worker.send(signal.SIGQUIT)
        assert "Coroutine: job 'a'" in worker.hears("handler sleep, for ")
        assert worker.hears('program.py", line').endswith(" in sleep\n")


def test_sigquit_shows_where_a_coroutine_is_that_does_not_await(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a", handler="blocking")
    with worker_process(tmp_path, live_queue, test_server) as worker:
        worker.reads("begun a")
        worker.send(signal.SIGQUIT)
        worker.hears("handler block, for ")
        assert " line " in worker.hears(" in block\n")


def test_the_job_that_a_process_runs_is_named(live_queue: Queue) -> None:
    heard = Heard()
    live_queue.add(b"", id="a")

    def handle(job: RunningJob) -> None:
        wait_until(lambda: job.cancelled, "it to be told")

    with working(live_queue, handle, executor="process", concurrency=1, hooks=[heard]) as worker:
        wait_until(worker._show_running, "it to run")
        [line] = worker._show_running()
        assert re.match(r"Process \d+: job 'a' of queue .*handle, for [\d.]+ s$", line)
        live_queue.cancel("a")
        wait_until(lambda: is_done(live_queue), "it to end")
        wait_until(lambda: not worker._show_running(), "nothing to run")


def test_of_a_big_batch_some_jobs_are_named(live_queue: Queue, gate: Gate) -> None:
    def handle(jobs: list[RunningJob]) -> None:
        gate(jobs[0])

    live_queue.add_many([b""] * 50)
    worker = Worker(live_queue, concurrency=1)
    worker.handler(batch=50)(handle)
    with at_work(worker):
        gate.wait()
        lines = worker._show_running()
        gate.open.set()
    assert len(lines) == 21
    assert lines[-1].endswith("and 30 more jobs of this batch")


def test_the_signals_are_as_before_when_a_worker_has_run(live_queue: Queue) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    seen: list[object] = []

    def handle(job: object) -> None:
        seen.extend(signal.getsignal(number) for number in numbers)

    live_queue.add(b"")
    assert work_off(live_queue, handle)
    assert [signal.getsignal(number) for number in numbers] == before
    assert not {*seen} & {*before}


HAMMER = """
    import signal, sys, time
    from holdfast import Queue, Worker
    worker = Worker(Queue("q", "unix:///nowhere"))
    signal.signal(signal.SIGALRM, lambda *_: worker.ask_to_stop())
    signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
    for _ in range(20_000):
        worker._stopping.wait(0)
        worker._stopping.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("alive")
"""


def test_a_signal_may_come_at_any_moment(tmp_path: Path) -> None:
    with program(tmp_path, HAMMER) as process:
        out, log = process.communicate(timeout=DEADLINE)
    assert out == "alive\n", log


def test_a_frozen_worker_changes_nothing_when_it_wakes(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a", result_for=60)
    heard = Heard()
    with worker_process(tmp_path, live_queue, test_server, lease=1) as frozen:
        frozen.reads("begun a")
        frozen.send(signal.SIGSTOP)
        with working(live_queue, lambda job: "here", hooks=[heard]):
            heard.wait_for("done")
        frozen.let_go()
        frozen.send(signal.SIGCONT)
        frozen.reads("lost a")
        live_queue.add(b"", id="b")
        frozen.reads("done b")
        frozen.send(signal.SIGTERM)
        code, out, _ = frozen.ends()
    assert code == 0
    assert "done a" not in out
    outcome = live_queue.result("a")
    assert outcome is not None
    assert outcome.result == b"here"
    assert heard.of() == ["started", "done"]


def test_the_jobs_of_a_worker_that_was_killed_go_to_others(
    live_queue: Queue, test_server: TestServer, tmp_path: Path
) -> None:
    live_queue.add(b"", id="a")
    lapses: list[int] = []
    with worker_process(tmp_path, live_queue, test_server, lease=1) as killed:
        killed.reads("begun a")
        killed.send(signal.SIGKILL)
        killed.ends()
        with working(live_queue, lambda job: lapses.append(job.lapses)):
            wait_until(lambda: is_done(live_queue), "it to be done")
    assert lapses == [1]
