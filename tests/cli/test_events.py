"""What happens in a queue, live."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable

import pytest

from cli.support import Commands, interrupted, started
from holdfast import Queue


def test_a_line_per_event_until_ctrl_c(hf: Commands, queue: Queue) -> None:
    queue.resume()
    # What happens before it listens is not seen: so pausing is repeated until it is.
    with started("events", queue.name) as process:
        stop = repeatedly(queue.pause)
        assert process.stdout
        line = process.stdout.readline()
        stop()
        assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  paused +\d", line)
        queue.add_many([b"x"] * 2)
        while "added" not in line:
            line = process.stdout.readline()
        assert re.search(r"  added +2  \S+ \S+$", line)
        assert interrupted(process)[::2] == (0, "")


def repeatedly(act: Callable[[], object]) -> Callable[[], None]:
    """Act ten times a second, until what is returned is called."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.1):
            act()

    thread = threading.Thread(target=run)
    thread.start()

    def stop() -> None:
        over.set()
        thread.join()

    return stop


def test_as_json_every_id_is_there(hf: Commands, queue: Queue) -> None:
    queue.resume()
    with started("events", queue.name, "--json") as process:
        stop = repeatedly(queue.pause)
        assert process.stdout
        told = json.loads(process.stdout.readline())
        stop()
        assert (told["kind"], told["ids"]) == ("paused", [])
        assert told["at"].endswith("Z")
        queue.add_many([b"x"] * 100)
        while told["kind"] != "added":
            told = json.loads(process.stdout.readline())
        assert (told["count"], len(told["ids"])) == (100, 100)


@pytest.mark.parametrize("option", ["--for", "--idle"])
def test_it_ends_by_itself(hf: Commands, queue: Queue, option: str) -> None:
    queue.resume()
    stop = repeatedly(queue.pause) if option == "--for" else lambda: None
    told = hf("events", queue.name, option, "500ms")
    stop()
    assert bool(told) == (option == "--for")
    hf.error("events", queue.name, option, "0", code=2)
