"""The schedules that workers declare, with their ticks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest

from cli.support import Commands
from holdfast import Queue, Worker
from support import wait_until


@contextmanager
def working(queue: Queue) -> Iterator[None]:
    """A worker of this queue, in a thread."""
    worker = Worker(queue)
    worker.handler(lambda job: None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: any(one.alive for one in queue.workers()), "the worker")
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def test_the_schedules_of_workers_are_shown_with_their_next_ticks(
    hf: Commands, queue: Queue
) -> None:
    queue.every("1h", name="hourly", handler="refresh")
    queue.cron("0 3 1 1 *", name="yearly", tz="Europe/Berlin", missed="all")
    queue.cron("0 3 * * *", name="own", tz=timezone(timedelta(hours=2), "ours"))
    with working(queue):
        wait_until(lambda: all(queue.last_tick(name) for name in queue.schedules), "a first look")
        heading, *lines = hf("schedules", queue.name).splitlines()
        told = hf.json("schedules", queue.name)
    assert heading.split() == [
        *("schedule", "handler", "rule", "next", "due", "last", "made", "missed")
    ]
    assert [line.split()[0] for line in lines] == ["hourly", "own", "yearly"]
    assert lines[0].startswith("hourly    refresh  every 1h")
    hourly, own, yearly = told
    next_hour = datetime.fromisoformat(hourly["next"])
    assert timedelta(0) < next_hour - datetime.now(UTC) <= timedelta(hours=1)
    assert (next_hour.minute, next_hour.second) == (0, 0)
    # It has begun, which is no tick.
    assert (hourly["last"], hourly["missed"], hourly["on_missed"]) == (None, 0, "skip")
    assert (yearly["rule"], yearly["on_missed"]) == ("0 3 1 1 * Europe/Berlin", "all")
    assert yearly["next"].endswith("-01-01T02:00:00.000Z")
    # Only its program knows this time zone.
    assert (own["rule"], own["next"]) == ("0 3 * * * ours", None)


def test_ticks_that_nobody_made_are_counted(hf: Commands, queue: Queue) -> None:
    now = time.time()
    made = now // 3600 * 3600 - 3 * 3600
    queue.every("1h", name="hourly")
    for at in (made - 1, made):
        queue.clock = lambda at=at: round(at * 1000)
        queue.tick()
    queue.clock = None
    queue.register(alive_for=60, schedules=[["hourly", None, "skip", "every 1h"]], schedule_count=7)
    result = hf.ran("schedules", queue.name)
    last = datetime.fromtimestamp(made).astimezone().isoformat(" ", "seconds")
    assert last in result.stdout
    assert "declares 7, but only 1 fit in its entry" in result.stderr
    [told] = hf.json("schedules", queue.name)
    # The tick of this hour is not too late in its first minute.
    assert told["missed"] in ({3} if now % 3600 > 120 else {2, 3})
    assert result.stdout.splitlines()[1].split()[-1] == str(told["missed"])
    queue.cancel(f"hourly@{datetime.fromtimestamp(made, UTC):%Y-%m-%dT%H:%M:%SZ}")


def test_without_a_worker_there_is_no_schedule(hf: Commands, queue: Queue) -> None:
    queue.add(b"")
    result = hf.ran("schedules", queue.name)
    assert result.stdout == ""
    assert result.stderr == (
        "no worker declares a schedule\nno worker is alive, so no ticks are made\n"
    )
    assert hf.json("schedules", queue.name) == []


@pytest.mark.parametrize(
    "rows",
    [
        "x",
        [1],
        [["a"]],
        [["", None, "skip", "every 5m"]],
        [["a", None, "skip", 5]],
        [["a", None, "skip", "every 0s"]],
    ],
)
def test_an_entry_that_makes_no_sense_is_no_trouble(
    hf: Commands, queue: Queue, rows: object
) -> None:
    queue.register(alive_for=60, schedules=rows, schedule_count="x")
    queue.add(b"")
    assert all(one["next"] is None for one in hf.json("schedules", queue.name))
