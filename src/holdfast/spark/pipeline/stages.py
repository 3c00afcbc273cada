"""What Spark says of the jobs of one part: how far they are, how many rows they read and wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

_PATIENCE_SECONDS: Final = 5.0
"""Spark's books are kept by another thread: they are right a moment after a job has ended."""


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
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        stages = list(_stages(context, group))
        if all(str(stage.status()) != "ACTIVE" for stage in stages):
            break
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return Rows(
        sum(stage.inputRecords() for stage in stages),
        sum(stage.outputRecords() for stage in stages),
    )


def _stages(context: SparkContext, group: str) -> Iterator[Any]:
    tracker = context.statusTracker()
    store = context._jsc.sc().statusStore()
    seen = set()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            if stage not in seen:
                seen.add(stage)
                # Spark keeps a thousand stages. It drops skipped ones of a running job as well.
                try:
                    found = store.lastStageAttempt(stage)
                except Py4JJavaError:
                    continue
                yield found
