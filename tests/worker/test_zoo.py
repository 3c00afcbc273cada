"""The zoo: jobs that exit, crash, hang, hide and shout, with a thousand good ones beside them.

Those that end their process are delivered `max_lapses + 1` times, and then failed with the reason.
The others are settled as they answered, or killed when their time is up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import psutil

from holdfast import Fail, Queue, RunningJob, Worker
from support import DEADLINE, wait_until
from worker.support import at_work, is_done

MAX_LAPSES: Final = 2
TIMEOUT: Final = 1.5
MEGABYTES: Final = 300
GOOD: Final = 1000


HIDDEN: Final = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(999)
"""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


# --------------------------------------------------- those that end their process


def leave(job: RunningJob) -> NoReturn:
    os._exit(7)


def crash(job: RunningJob) -> None:
    ctypes.string_at(0)


def be_killed(job: RunningJob) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(job: RunningJob) -> None:
    time.sleep(2 * DEADLINE)


def be_greedy(job: RunningJob) -> None:
    """Have twice as much as it may, and not all that there is."""
    kept = bytearray(os.urandom(2**20)) * 2 * MEGABYTES
    time.sleep(2 * DEADLINE)
    kept.clear()


def ignore_sigterm(job: RunningJob) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(2 * DEADLINE)


def hide(job: RunningJob) -> None:
    """Fork twice, each time with a session of its own, and let the last ones stay."""
    subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, time\nif os.fork() == 0:\n os.setsid(); time.sleep(999)",
        ],
        start_new_session=True,
    )
    time.sleep(2 * DEADLINE)


DEADLY: Final[dict[str, tuple[Callable[[RunningJob], None], str]]] = {
    "leave": (leave, "its process exited with 7"),
    "crash": (crash, "its process was killed by SIGSEGV"),
    "be_killed": (be_killed, "its process was killed by SIGKILL"),
    "hang": (hang, f"timeout: it ran for {TIMEOUT:g} s"),
    "be_greedy": (be_greedy, f"it used more than {MEGABYTES} MB"),
    "ignore_sigterm": (ignore_sigterm, f"timeout: it ran for {TIMEOUT:g} s"),
    "hide": (hide, f"timeout: it ran for {TIMEOUT:g} s"),
}


# ------------------------------------------------------------ those that answer


def shout(job: RunningJob) -> str:
    """Print a gigabyte."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    piece = b"A" * 2**20
    for _ in range(1024):
        os.write(1, piece)
    return "said"


def start_daemon(job: RunningJob) -> str:
    subprocess.Popen(["sleep", "999"], start_new_session=True, stdin=subprocess.DEVNULL)
    return "started"


def close_all(job: RunningJob) -> str:
    os.closerange(0, 4096)
    return "closed"


def raise_unspeakable(job: RunningJob) -> str:
    raise Fail from Unspeakable()


HARMLESS: Final[dict[str, tuple[Callable[[RunningJob], str], str | None]]] = {
    "shout": (shout, "said"),
    "start_daemon": (start_daemon, "started"),
    "close_all": (close_all, "closed"),
    "raise_unspeakable": (raise_unspeakable, None),
}


def test_the_zoo(live_queue: Queue, tmp_path: Path) -> None:
    visits = tmp_path / "visits"
    worker = Worker(live_queue, executor="process", concurrency=4, max_megabytes=MEGABYTES)

    def noted(handler: Callable[[RunningJob], object]) -> Callable[[RunningJob], object]:
        def handle(job: RunningJob) -> object:
            with visits.open("a") as file:
                file.write(f"{job.id}\n")
            return handler(job)

        return handle

    for name, (handler, _) in {**DEADLY, **HARMLESS}.items():
        worker.handler(name)(noted(handler))
    worker.handler("good")(lambda job: "good")

    beasts = [*DEADLY, *HARMLESS]
    good = [f"good {n}" for n in range(GOOD)]
    for n, id in enumerate(good):
        live_queue.add(b"", id=id, handler="good", result_for=600)
        if n % 50 == 0 and beasts:
            beast = beasts.pop()
            late = beast in DEADLY and "timeout" in DEADLY[beast][1]
            live_queue.add(
                b"",
                id=beast,
                handler=beast,
                timeout=TIMEOUT if late else DEADLINE,
                max_lapses=MAX_LAPSES,
                result_for=600,
            )
    assert not beasts

    with at_work(worker):
        wait_until(lambda: live_queue.counts().ended >= GOOD, "the good ones")
        wait_until(lambda: is_done(live_queue), "all to end")
        mine = psutil.Process().children(recursive=True)
    wait_until(lambda: not any(map(is_alive, mine)), "all processes to be gone")

    assert all(live_queue.result(id) for id in good)
    delivered = Counter(visits.read_text().split())
    failed = {job.id: job.error for job in live_queue.failed()}
    for name, (_, reason) in DEADLY.items():
        assert delivered[name] == MAX_LAPSES + 1, name
        assert failed.pop(name) == reason
    for name, (_, result) in HARMLESS.items():
        assert delivered[name] == 1, name
        if result is None:
            assert "Unspeakable" in (failed.pop(name) or "")
        else:
            outcome = live_queue.result(name)
            assert outcome
            assert outcome.result == result.encode()
    assert failed == {}
    assert live_queue.audit() == []


def is_alive(process: psutil.Process) -> bool:
    try:
        return "valkey" not in process.name() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
