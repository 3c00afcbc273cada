"""Finished runs to calls: which jobs a call settles, and how. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.engine import calls
from holdfast.engine.call import Call, Settle
from holdfast.engine.script import MAX_JOBS
from holdfast.errors import HoldfastError, InvalidArgument, WrongState
from holdfast.worker.outcomes import Answer, answer_to
from holdfast.worker.running import RunningJob

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of results on one call, where it carries several."""


@dataclass(frozen=True)
class Settlement:
    """A call, and the jobs that it settles, in the order of its answers."""

    call: Call[list[bool]]
    jobs: Sequence[RunningJob]


def completed(jobs: Iterable[RunningJob]) -> list[RunningJob]:
    """Return the jobs that need nothing but to be completed, as many as can ride on a call."""
    done: list[RunningJob] = []
    size = 0
    for job in jobs:
        answer = answer_of(job)
        if answer.way == "complete" and not job.follow_ups:
            size += len(answer.result or b"")
            if len(done) == MAX_JOBS or (done and size > MOST_BYTES):
                break
            done.append(job)
    return done


def others(jobs: Iterable[RunningJob], *, to_the_back: bool) -> Iterator[Settlement]:
    """Return the calls that settle all other jobs, as few as possible."""
    alike: dict[tuple[object, ...], list[RunningJob]] = {}
    for job in jobs:
        answer = answer_of(job)
        match answer.way:
            case "complete" if job.follow_ups:
                yield Settlement(calls.complete([settle_of(job)], add=job.follow_ups), [job])
            case "complete":
                pass
            case "release" | "lapse":
                key = (answer.way, answer.after_ms, answer.reason)
                alike.setdefault(key, []).append(job)
            case way:
                alike.setdefault((way,), []).append(job)
    for group in alike.values():
        for first in range(0, len(group), MAX_JOBS):
            some = group[first : first + MAX_JOBS]
            yield Settlement(_call(some, to_the_back), some)


def turn_down(settlement: Settlement, error: HoldfastError) -> bool:
    """Make it the job's failure that its follow-ups are refused; False where they may be taken."""
    for_good = isinstance(error, InvalidArgument | WrongState)
    jobs = [job for job in settlement.jobs if for_good and job.follow_ups]
    for job in jobs:
        job.follow_ups = None
        job.raised = error
        job.answer = answer_to(error, job.lease.facts)
    return bool(jobs)


def _call(jobs: Sequence[RunningJob], to_the_back: bool) -> Call[list[bool]]:
    answer = answer_of(jobs[0])
    if answer.way in ("retry", "fail"):
        failures = [(job.id, job.token, answer_of(job).due, answer_of(job).reason) for job in jobs]
        return calls.retry(failures) if answer.way == "retry" else calls.fail(failures)
    return calls.release(
        [settle_of(job) for job in jobs],
        after_ms=answer.after_ms,
        to_the_back=to_the_back,
        lapsed=answer.reason,
    )


def settle_of(job: RunningJob) -> Settle:
    """Return what completes a job."""
    return job.lease.id, job.lease.token, job.answer.result if job.answer else None


def answer_of(job: RunningJob) -> Answer:
    """Return the answer of a job whose run is over."""
    assert job.answer is not None
    return job.answer
