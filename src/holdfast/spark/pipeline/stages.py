"""What Spark says of the jobs of one part: how far they are, how many rows they read and wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark import SparkContext

_PATIENCE_SECONDS: Final = 5.0
"""Spark's books are kept by another thread: they are right a moment after a job has ended. A task
that is cancelled takes a moment too."""


class Rows(NamedTuple):
    """Rows that were read, and written."""

    read: int
    written: int


def progress(context: SparkContext, group: str) -> float | None:
    """Return which part of their tasks is done; None when there are none yet."""
    done = total = 0
    for stage in _stages(context, group):
        done += stage.numCompleteTasks()
        total += stage.numTasks()
    return done / total if total else None


def rows(context: SparkContext, group: str) -> Rows:
    """Return the rows of jobs that have ended."""
    stages = ended(context, group)
    return Rows(
        sum(stage.inputRecords() for stage in stages),
        sum(stage.outputRecords() for stage in stages),
    )


def ended(context: SparkContext, group: str) -> list[Any]:
    """Wait for the last task of jobs that have ended, or were cancelled; return their stages."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        stages = list(_stages(context, group))
        at_work = (str(one.status()) == "ACTIVE" or one.numActiveTasks() for one in stages)
        if not any(at_work) or time.monotonic() > deadline:
            return stages
        time.sleep(0.01)


def _stages(context: SparkContext, group: str) -> Iterator[Any]:
    tracker = context.statusTracker()
    store = context._jsc.sc().statusStore()
    seen = set()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if stage not in seen:
                seen.add(stage)
                yield store.lastStageAttempt(stage)
