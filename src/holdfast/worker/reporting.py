"""Reports settled jobs: one log line each, and the hooks."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.codec import MAX_ERROR_BYTES
from holdfast.escaping import visible
from holdfast.worker.outcomes import Answer, Fail, RaisedElsewhere, Retry, spends, trace_of

if TYPE_CHECKING:
    from holdfast.worker.hooks import Hooks
    from holdfast.worker.job import Run, RunningJob

log = logging.getLogger("holdfast")

MOST_LINES: Final = 20
"""The most jobs of one batch to show."""

MOST_LOGGED: Final = 100_000
"""The most bytes of a traceback; of a longer traceback only the end is logged."""

job_log = logging.getLogger("holdfast.worker")
"""Logs one line at INFO for each completed job. Raise its level to switch that off."""


def tell(hooks: Sequence[Hooks], what: str, *about: object) -> None:
    """Call one method of all hooks."""
    for hook in hooks:
        try:
            getattr(hook, what)(*about)
        except BaseException:  # It runs in a thread that must not end.
            log.exception("the hook %r of %r raised", what, hook)


def report(hooks: Sequence[Hooks], job: RunningJob, answer: Answer, *, counted: bool) -> None:
    """Report how a run ended. `counted` says whether the server accepted the answer."""
    if job.stop_reason in ("lost", "cancelled"):
        return  # Reported when it was noticed.
    if not counted:
        log.warning("%s: cancelled or taken back; the outcome of this run does not count", job.id)
        tell(hooks, "lost", job)
        return
    if answer.way == "complete":
        job_log.info("%s: %s completed in %.3f s", job.id, job.handler.name, job.took)
        if hooks:
            tell(hooks, "done", job)
        return
    reason = answer.reason.decode()
    # A deliberate `Retry` or `Fail` needs no traceback.
    raised = None if issubclass(type(job.raised), Retry | Fail) else _loggable(job.raised)
    if answer.way == "fail" or spends(answer, job.lease.facts):
        log.error("%s: failed: %s", job.id, reason, exc_info=raised)
        tell(hooks, "failed", job, reason)
    elif answer.way == "retry":
        log.warning("%s: raised, and will be retried: %s", job.id, reason, exc_info=raised)
        tell(hooks, "retried", job, reason)
    elif answer.way == "lapse":
        log.warning("%s: ended without an answer, and goes to another worker: %s", job.id, reason)
        tell(hooks, "lapsed", job, reason)
    else:
        log.debug("%s: released", job.id)
        tell(hooks, "released", job)


def lines_about(work: Run, where: str) -> Iterator[str]:
    """Yield a line about each job of a run, to find out what hangs."""
    place, *stack = where.split("\n")
    for number, job in enumerate(work.jobs):
        if number == MOST_LINES:
            yield f"{place}: and {len(work.jobs) - number} more jobs of this batch"
            break
        since = work.started_at
        for_long = "about to begin" if since is None else f"for {time.monotonic() - since:.1f} s"
        yield (
            f"{place}: job {job.id!r} of queue {job.queue!r}, "
            f"handler {visible(work.handler.name)}, {for_long}"
        )
    yield from stack


def _loggable(raised: BaseException | None) -> BaseException | None:
    """Return an exception for the log: as text if it is huge or UTF-8 cannot encode it."""
    if raised is None or issubclass(type(raised), RaisedElsewhere):
        return raised
    try:
        fits = len("".join(traceback.format_exception(raised)).encode()) <= MOST_LOGGED
    except BaseException:  # noqa: BLE001  # Formatting an exception may raise.
        fits = False
    return raised if fits else RaisedElsewhere(trace_of(raised))


def fitting(about: Mapping[str, object]) -> dict[str, object]:
    """Return a worker's entry, cut down to the size that the directory accepts."""
    fits = dict(about)
    for name in ("notes", "running", "handlers", "coroutines", "queues"):
        while (listed := fits.get(name)) and len(msgspec.msgpack.encode(fits)) > MAX_ERROR_BYTES:
            assert isinstance(listed, list)
            # List all handlers or none: in a partial list some would seem to be missing.
            all_or_none = name in ("handlers", "coroutines")
            fits[name] = None if all_or_none else listed[: len(listed) // 2]
    return fits
