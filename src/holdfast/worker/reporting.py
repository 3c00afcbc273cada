"""What is told about a job that was settled: one line in the log, and the hooks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.codec import MAX_ERROR_BYTES
from holdfast.worker.outcomes import Answer, Fail, Retry, spends

if TYPE_CHECKING:
    from holdfast.worker.hooks import Hooks
    from holdfast.worker.running import RunningJob

log = logging.getLogger("holdfast")


def tell(hooks: Sequence[Hooks], what: str, *about: object) -> None:
    """Call a hook of all who want to know."""
    for hook in hooks:
        try:
            getattr(hook, what)(*about)
        except BaseException:  # It runs where a worker must not end.
            log.exception("the hook %r of %r raised", what, hook)


def report(hooks: Sequence[Hooks], job: RunningJob, answer: Answer, *, counted: bool) -> None:
    """Tell how a run ended; `counted`: whether the server took the answer."""
    if job.told in ("lost", "cancelled"):
        return  # That was told when it was noticed, and is how it ends.
    if not counted:
        log.warning("%s: cancelled or taken back; how this run ended does not count", job.id)
        tell(hooks, "lost", job)
        return
    if answer.way == "complete":
        if hooks:
            tell(hooks, "done", job)
        return
    reason = answer.reason.decode()
    # What a handler says on purpose needs no traceback.
    raised = None if isinstance(job.raised, Retry | Fail) else job.raised
    if answer.way == "fail" or spends(answer, job.lease.facts):
        log.error("%s: failed: %s", job.id, reason, exc_info=raised)
        tell(hooks, "failed", job, reason)
    elif answer.way == "retry":
        log.warning("%s: raised, and is tried again: %s", job.id, reason, exc_info=raised)
        tell(hooks, "retried", job, reason)
    elif answer.way == "lapse":
        log.warning("%s: did not answer, and goes to another: %s", job.id, reason)
        tell(hooks, "lapsed", job, reason)
    else:
        log.debug("%s: given back", job.id)
        tell(hooks, "released", job)


def fitting(about: Mapping[str, object]) -> dict[str, object]:
    """Return what a worker tells about itself, cut down to what the directory takes."""
    fits = dict(about)
    for name in ("running", "handlers", "queues"):
        while (told := fits.get(name)) and len(msgspec.msgpack.encode(fits)) > MAX_ERROR_BYTES:
            assert isinstance(told, list)
            # Of handlers all or none: whether one is missing is of interest.
            fits[name] = told[: len(told) // 2] if name != "handlers" else None
    return fits
