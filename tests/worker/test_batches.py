"""Batch handlers: one call for several jobs, an answer for each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast import Fail, NewJob, Queue, Release, Retry, RunningJob, Worker
from support import wait_until
from worker.support import Gate, Heard, Kind, as_handler, both_kinds, is_done, shown, working

Jobs = list[RunningJob]


def run_batch(queue: Queue, kind: Kind, body: Any, *, batch: int = 10, **options: Any) -> Heard:
    heard = Heard()
    worker = Worker(queue, hooks=[heard], **options)
    worker.handler(as_handler(kind, body), batch=batch)
    assert worker.run(until_empty=True)
    return heard


@both_kinds
def test_a_batch_handler_gets_a_list_of_jobs_in_their_order(queue: Queue, kind: Kind) -> None:
    seen: list[list[bytes]] = []
    queue.add_many(b"%d" % n for n in range(5))
    run_batch(queue, kind, lambda jobs: seen.append([job.data for job in jobs]), concurrency=1)
    assert seen == [[b"0", b"1", b"2", b"3", b"4"]]


@both_kinds
def test_none_completes_all(queue: Queue, kind: Kind) -> None:
    queue.add_many(NewJob(b"", id=id, result_for=60) for id in "abc")
    heard = run_batch(queue, kind, lambda jobs: None)
    assert sorted(heard.ids("done")) == ["a", "b", "c"]
    outcomes = [queue.result(id) for id in "abc"]
    assert [one and (one.kind, one.result) for one in outcomes] == [("completed", None)] * 3


@both_kinds
def test_results_that_are_too_much_for_one_call_are_all_kept(queue: Queue, kind: Kind) -> None:
    ids = [str(n) for n in range(12)]
    queue.add_many(NewJob(b"", id=id, result_for=60) for id in ids)
    run_batch(queue, kind, lambda jobs: [bytes(1_000_000) for _ in jobs], batch=12, concurrency=1)
    outcomes = [queue.result(id) for id in ids]
    assert [one and len(one.result or b"") for one in outcomes] == [1_000_000] * 12


@both_kinds
@pytest.mark.parametrize("sequence", [list, tuple])
def test_each_job_has_its_own_answer(
    queue: Queue, kind: Kind, sequence: type[list[object] | tuple[object, ...]]
) -> None:
    answers: dict[str, object] = {
        "a": {"fine": True},
        "b": ValueError("no"),
        "c": Fail("never"),
        "d": Release(after=60),
        "e": Retry("busy", after=60),
        "f": None,
        "g": object(),
    }
    queue.add_many(NewJob(b"", id=id, result_for=60) for id in answers)
    heard = run_batch(queue, kind, lambda jobs: sequence(answers[job.id] for job in jobs))
    results = {id: outcome for id in "af" if (outcome := queue.result(id))}
    assert results["a"].json() == {"fine": True}
    assert results["f"].result is None
    states = {
        job.id: (job.state, job.failures, job.error) for job in (shown(queue, id) for id in "bcde")
    }
    assert states == {
        "b": ("delayed", 1, "ValueError: no"),
        "c": ("failed", 1, "never"),
        "d": ("delayed", 0, None),
        "e": ("delayed", 1, "busy"),
    }
    assert "result cannot be written" in str(shown(queue, "g").error)
    told = {what: heard.ids(what) for what in ("done", "retried", "failed", "released")}
    assert {what: sorted(ids) for what, ids in told.items()} == {
        "done": ["a", "f"],
        "retried": ["b", "e", "g"],
        "failed": ["c"],
        "released": ["d"],
    }


@both_kinds
def test_a_batch_handler_that_raises_has_all_its_jobs_tried_again(queue: Queue, kind: Kind) -> None:
    def handle(jobs: Jobs) -> None:
        raise OSError("unplugged")

    for id in "abc":
        queue.add(b"", id=id)
    run_batch(queue, kind, handle)
    assert {(shown(queue, id).failures, shown(queue, id).error) for id in "abc"} == {
        (1, "OSError: unplugged")
    }


@both_kinds
def test_a_batch_can_be_given_back_as_a_whole(queue: Queue, kind: Kind) -> None:
    def handle(jobs: Jobs) -> None:
        raise Release(after=60)

    queue.add_many([b"", b""])
    run_batch(queue, kind, handle)
    assert [(job.failures, job.lapses) for job in queue.peek(9, state="delayed")] == [(0, 0)] * 2


@both_kinds
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([1], "returned 1 answers for 2 jobs"),
        ([], "returned 0 answers for 2 jobs"),
        ([1, 2, 3], "returned 3 answers for 2 jobs"),
        ("ab", "returned str"),
        (b"ab", "returned bytes"),
        ({"a": 1, "b": 2}, "returned dict"),
        (True, "returned bool"),
        (2, "returned int"),
    ],
)
def test_answers_that_fit_no_job_are_an_error_of_all(
    queue: Queue, kind: Kind, wrong: object, why: str
) -> None:
    queue.add(b"", id="a", result_for=60)
    queue.add(b"", id="b", result_for=60)
    run_batch(queue, kind, lambda jobs: wrong, concurrency=1)
    for id in "ab":
        job = shown(queue, id)
        assert (job.state, job.failures) == ("delayed", 1)
        assert why in str(job.error)


@both_kinds
@pytest.mark.parametrize(("batch", "jobs"), [(1, 3), (7, 7), (7, 20), (1000, 1000)])
def test_a_batch_is_never_bigger_than_said(queue: Queue, kind: Kind, batch: int, jobs: int) -> None:
    sizes: Counter[int] = Counter()

    def handle(jobs: Jobs) -> None:
        sizes[len(jobs)] += 1

    queue.add_many([b""] * jobs)
    run_batch(queue, kind, handle, batch=batch, concurrency=1, ahead=0)
    assert sizes == Counter([batch] * (jobs // batch) + [jobs % batch] * bool(jobs % batch))


@both_kinds
def test_batches_of_several_handlers_are_settled_whatever_their_sizes(
    queue: Queue, kind: Kind
) -> None:
    """One round takes over the answers of many: more than one call may carry."""
    worker = Worker(queue, concurrency=4)
    worker.handler("small", batch=499)(as_handler(kind, lambda jobs: None))
    worker.handler("big", batch=1000)(as_handler(kind, lambda jobs: None))
    queue.add_many([b""] * 998, handler="small")
    queue.add_many([b""] * 2000, handler="big")
    assert worker.run(until_empty=True)
    assert queue.counts().waiting == 0


def test_jobs_of_a_batch_that_are_alone_do_not_wait_for_others(live_queue: Queue) -> None:
    sizes: list[int] = []
    heard = Heard()

    def handle(jobs: Jobs) -> None:
        sizes.append(len(jobs))

    worker = Worker(live_queue, hooks=[heard])
    worker.handler(handle, batch=100)
    with worker:
        live_queue.add(b"", id="a")
        heard.wait_for("done")
    assert sizes == [1]


def test_what_comes_while_a_small_batch_runs_is_left_to_others(
    live_queue: Queue, gate: Gate
) -> None:
    heard = Heard()
    worker = Worker(live_queue, hooks=[heard], concurrency=1)
    worker.handler(lambda jobs: gate(jobs[0]), batch=10)
    live_queue.add(b"")
    with worker:
        gate.wait()
        heard.unbegun.clear()
        live_queue.add_many([b""] * 20)
        (job,) = gate.jobs
        later = job.lapses_at + 1
        wait_until(lambda: job.lapses_at > later, "its lease to be extended several times")
        assert live_queue.counts().leased == 1
        assert heard.unbegun == []
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "all")


def test_a_handler_of_single_jobs_beside_one_of_batches_has_no_more_than_it_can_run(
    live_queue: Queue, gate: Gate
) -> None:
    worker = Worker(live_queue, concurrency=2, ahead=0)
    worker.handler("many", batch=100)(lambda jobs: None)
    worker.handler(gate)
    live_queue.add_many([b""] * 20)
    with worker:
        gate.wait(2)
        assert live_queue.counts().leased == 2
        gate.open.set()
        wait_until(lambda: is_done(live_queue), "all")


def test_a_handler_without_batch_gets_no_list(live_queue: Queue) -> None:
    seen: list[object] = []
    heard = Heard()
    live_queue.add(b"", id="a")
    with working(live_queue, seen.append, hooks=[heard]):
        heard.wait_for("done")
    assert [type(one) for one in seen] == [RunningJob]
