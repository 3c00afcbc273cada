"""Finished runs to calls: which jobs a call settles, and how. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.engine import calls
from holdfast.engine.call import Call, Failed, Settle, handlings_word
from holdfast.engine.scripts import MAX_JOBS
from holdfast.engine.walks import payload_size
from holdfast.errors import HoldfastError, InvalidArgument, WrongState
from holdfast.failures import retry_ms
from holdfast.worker.job import RunningJob
from holdfast.worker.outcomes import Answer, Way, answer_to

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


def needs_room(job: RunningJob) -> bool:
    """Tell whether a full server refuses to complete a job: it has a result or follow-ups."""
    answer = answer_of(job)
    return answer.way == "complete" and bool(answer.result is not None or job.follow_ups)


def size_of(job: RunningJob) -> int:
    """Return how many bytes a job brings to the server when it is completed."""
    return len(answer_of(job).result or b"") + sum(map(payload_size, job.follow_ups or ()))


def completing(jobs: Sequence[RunningJob]) -> Settlement:
    """Return the call that completes these jobs; one that has follow-ups is by itself."""
    call = calls.complete([settle_of(job) for job in jobs], add=jobs[0].follow_ups or ())
    return Settlement(call, jobs)


def others(jobs: Iterable[RunningJob], *, to_the_back: bool) -> Iterator[Settlement]:
    """Return the calls that settle all other jobs, as few as possible."""
    alike: dict[tuple[Way, int | None, bytes, bytes], list[RunningJob]] = {}
    for job in jobs:
        answer = answer_of(job)
        match answer.way:
            case "complete" if job.follow_ups:
                yield completing([job])
            case "complete":
                pass
            case "release" | "lapse":
                after_ms, handlings = answer.after_ms, b""
                if answer.way == "lapse" and job.lease.failed:
                    after_ms = retry_ms(job.lease.facts, handling=job.handler.handling)
                    handlings = _handlings(job)
                key = answer.way, after_ms, answer.reason, handlings
                alike.setdefault(key, []).append(job)
            case way:
                alike.setdefault((way, None, b"", b""), []).append(job)
    for (way, after_ms, reason, handlings), group in alike.items():
        for first in range(0, len(group), MAX_JOBS):
            some = group[first : first + MAX_JOBS]
            if way in ("retry", "fail"):
                failures = [_failed(job) for job in some]
                call = calls.retry(failures) if way == "retry" else calls.fail(failures)
            else:
                call = calls.release(
                    [settle_of(job) for job in some],
                    after_ms=after_ms,
                    to_the_back=to_the_back,
                    lapsed=reason,
                    handlings=handlings,
                )
            yield Settlement(call, some)


def turn_down(settlement: Settlement, error: HoldfastError) -> bool:
    """Make it the job's failure that its follow-ups are refused; False where they may be taken."""
    for_good = isinstance(error, InvalidArgument | WrongState)
    jobs = [job for job in settlement.jobs if for_good and job.follow_ups]
    for job in jobs:
        job.follow_ups = None
        job.raised = error
        job.answer = answer_to(error, job.lease.facts, job.handler.handling)
    return bool(jobs)


def _failed(job: RunningJob) -> Failed:
    answer = answer_of(job)
    handlings = _handlings(job) if job.lease.failed else b""
    return Failed(job.id, job.token, answer.due, answer.reason, answer.raised, handlings)


def _handlings(job: RunningJob) -> bytes:
    return handlings_word(job.handler.handling.max_failures)


def settle_of(job: RunningJob) -> Settle:
    """Return what completes a job."""
    return job.lease.id, job.lease.token, job.answer.result if job.answer else None


def answer_of(job: RunningJob) -> Answer:
    """Return the answer of a job whose run is over."""
    assert job.answer is not None
    return job.answer
