"""Looking at jobs without taking them: peek, show, explain."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Clock
from engine_support import Behind, engine_calls, take
from holdfast import EndedFacts, Facts, InvalidArgument, NewJob, Queue
from holdfast.engine import calls


def test_the_next_jobs_are_shown_in_the_order_in_which_they_run(queue: Queue) -> None:
    queue.add_many(NewJob(b"%d" % n, id=f"{n}", priority=50 + n % 2) for n in range(4))
    jobs = queue.peek(10)
    assert [(job.id, job.data, job.priority, job.state) for job in jobs] == [
        ("1", b"1", 51, "ready"),
        ("3", b"3", 51, "ready"),
        ("0", b"0", 50, "ready"),
        ("2", b"2", 50, "ready"),
    ]
    assert [job.id for job in queue.peek(2, first=1)] == ["3", "0"]
    assert [lease.id for lease in queue.lease_many(4, 30)] == [job.id for job in jobs]
    assert queue.peek() == []


def test_jobs_of_every_state_can_be_seen(queue: Queue, clock: Clock) -> None:
    queue.add(b"x", id="ended", result_for=60, keep=True)
    queue.complete(take(queue))
    queue.add(b"x", id="failed")
    queue.fail(take(queue), error="why")
    queue.add(b"x", id="leased", priority=70)
    lease = take(queue, 30)
    queue.add(b"x", id="delayed", delay=60, priority=20)
    queue.add(b"x", id="ready")
    queue.add(b"x", id="parked", group="g", group_limit=0, priority=60)
    now = clock.ms / 1000
    for state, at in (
        ("ended", 60),
        ("failed", 0),
        ("leased", 30),
        ("delayed", 60),
        ("ready", None),
        ("parked", None),
    ):
        [job] = queue.peek(5, state=state)  # type: ignore[arg-type]
        shown = queue.show(state)
        assert shown is not None
        assert (
            (job.id, job.state, job.data)
            == (shown.id, shown.state, shown.data)
            == (state, state, b"x")
        )
        assert job.at == shown.at == (None if at is None else now + at)
    leased = queue.show("leased")
    assert leased is not None
    assert (leased.token, leased.leased_at, leased.priority) == (lease.token, now, 70)
    delayed = queue.show("delayed")
    assert delayed is not None
    assert delayed.priority == 20
    [parked] = queue.peek(state="parked")
    assert (parked.priority, parked.facts.group) == (60, "g")


def test_looking_changes_nothing(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", id="a")
    queue.add(b"x", id="b", group="g", group_limit=0)
    request = queue.request("r", limit=1)
    request.open()
    request.add_many([b"x"] * 3)
    queue.lease_many(2, 30)
    before = behind.everything()
    assert request.status().running == 1
    assert len(list(request.results())) == 3
    assert len(queue.requests()) == 1
    assert len(queue.groups()) == 1
    queue.explain("r/1")
    queue.explain("b")
    queue.peek(10, state="parked")
    queue.peek(10)
    queue.show("a")
    queue.explain("a")
    queue.data("a")
    queue.failed()
    queue.workers()
    assert behind.everything() == before


def test_a_page_has_as_many_big_payloads_as_fit(queue: Queue) -> None:
    queue.add_many(b"x" * 3_000_000 for _ in range(4))
    assert len(queue._run(calls.peek("ready", 0, 10))) == 2
    assert len(queue._run(calls.peek("ready", 2, 10))) == 2


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"count": 1001}, {"state": "gone"}, {"state": None}, {"first": -1}]
)
def test_what_cannot_be_shown_is_refused(queue: Queue, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        queue.peek(**wrong)  # type: ignore[arg-type]


def test_parts_are_shown_request_by_request_in_the_order_in_which_they_run(queue: Queue) -> None:
    for name in ("b", "aa", "a"):
        request = queue.request(name, limit=0)
        request.open()
        request.add(b"", priority=10)
        request.add_many([b""] * 10)
    jobs = queue.peek(100, state="parked")
    assert [job.id for job in jobs] == [
        f"{name}/{number}" for name in ("a", "b", "aa") for number in (*range(1, 11), 0)
    ]
    assert [job.id for job in queue.peek(2, state="parked", first=10)] == ["a/0", "b/1"]
    shown = queue.show("b/0")
    assert shown is not None
    assert (shown.state, shown.behind, shown.priority) == ("parked", 10, 10)


def test_big_parts_are_shown_in_pages(queue: Queue) -> None:
    request = queue.request("r", limit=0)
    request.open()
    request.add_many(b"x" * 3_000_000 for _ in range(4))
    page = queue._run(calls.peek("parked", 0, 10))
    assert [job.id for job in page] == ["r/0", "r/1"]
    assert [job.id for job in queue.peek(3, state="parked")] == ["r/0", "r/1", "r/2"]
    assert len(queue.peek(10, state="parked", first=1)) == 3


def test_it_is_told_how_many_go_before(queue: Queue) -> None:
    queue.add_many(NewJob(b"", id=f"{n}") for n in range(313))
    assert queue.explain("0") == "ready, the next to run (priority 50)"
    assert queue.explain("1") == "ready, behind 1 job (priority 50)"
    assert queue.explain("312") == "ready, behind 312 jobs (priority 50)"


def test_it_is_told_why_a_job_does_not_run(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", delay=90)
    assert queue.explain("a").startswith(
        "delayed until 2023-11-14T22:14:50+00:00, 1 min 30 s from now"
    )
    queue.pause()
    assert queue.explain("a").endswith("; the queue is paused")
    queue.resume()
    clock.advance(90)
    lease = take(queue, 15)
    assert queue.explain("a") == (
        f"leased under {lease.token} since 2023-11-14T22:14:50+00:00, the lease lapses in 15 s"
    )
    queue.register(alive_for=60, host="web-1", pid=4242)
    assert queue.explain("a").startswith(f"leased by web-1:4242 under {lease.token} since ")
    queue.retry(lease, error=ValueError("no"), after=5)
    assert "1 failure and 0 lapses so far, the last: ValueError: no" in queue.explain("a")
    clock.advance(5)
    queue.fail(take(queue), error="enough")
    assert queue.explain("a") == (
        "failed after 2 failures and 0 lapses: enough. Revive or cancel it"
    )
    assert queue.lease(30, failed=True)
    assert queue.explain("a").startswith("its failure is handled by web-1:4242 under ")
    assert queue.explain("nobody").startswith("no job has this id")


def test_it_is_told_that_no_worker_takes_jobs_without_a_handler(queue: Queue) -> None:
    nobody = "; no live worker runs jobs that name no handler"
    queue.add(b"", id="a")
    queue.register(alive_for=60, handlers=["send"])
    assert not queue.explain("a").endswith(nobody)  # It was made before workers said so.
    queue.register(alive_for=60, handlers=["send"], unnamed=False)
    assert queue.explain("a").endswith(nobody)
    queue.register(alive_for=60, handlers=["send"], unnamed=True)
    assert not queue.explain("a").endswith(nobody)
    take(queue)
    queue.register(alive_for=60, handlers=[], unnamed=False)
    assert not queue.explain("a").endswith(nobody)


@pytest.mark.parametrize("handler", [None, "send"])
def test_it_is_told_that_a_timeout_ends_nothing_in_threads(
    queue: Queue, handler: str | None
) -> None:
    why = "; its timeout of 1.5 s ends no run: live workers only run it in threads"
    queue.add(b"", id="a", handler=handler, timeout=1.5)
    queue.add(b"", id="b", handler=handler)
    common: Any = {"alive_for": 60, "handlers": ["send"], "unnamed": True}
    queue.register(**common)
    assert why not in queue.explain("a")  # It was made before workers said so.
    queue.register(**common, executor="process")
    assert why not in queue.explain("a")
    queue.register(**common, executor="thread", coroutines=[handler])
    assert why not in queue.explain("a")
    queue.register(**common, executor="thread")
    assert why in queue.explain("a")
    assert why not in queue.explain("b")
    take(queue)
    assert why in queue.explain("a")


def test_it_is_told_that_no_worker_has_its_handler(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", handler="send")
    assert (
        queue.explain("a") == "ready, the next to run (priority 50)"
    )  # Who is there, nobody knows.
    queue.register(alive_for=60, handlers=["other"])
    assert queue.explain("a").endswith("; no live worker has a handler 'send'")
    clock.advance(60)
    assert queue.explain("a").endswith("; no worker is alive")
    for said in (["other", "send"], None, "send"):
        queue.register(alive_for=60, handlers=said)
        assert queue.explain("a") == "ready, the next to run (priority 50)"
    queue.register(alive_for=60, handlers=[])
    assert "no live worker" in queue.explain("a")
    take(queue)
    assert "live worker" not in queue.explain("a")


def test_an_ending_is_explained(queue: Queue) -> None:
    queue.add(b"", id="a", remember_for=60)
    queue.add(b"", id="b", result_for=float("inf"))
    for lease in queue.lease_many(2, 30):
        queue.complete(lease)
    assert queue.explain("a") == "completed, remembered until 2023-11-14T22:14:20+00:00"
    assert queue.explain("b") == "completed, remembered until for ever"


def test_a_big_job_hides_no_others(queue: Queue) -> None:
    """A page has at most 8 MiB: peek goes on behind it."""
    sizes = [5, 8 << 20, 5, 5 << 20, 4 << 20, 5, 5]
    for n, size in enumerate(sizes):
        queue.add(b"x" * size, id=f"{n}")
    assert [job.id for job in queue.peek(10)] == [f"{n}" for n in range(7)]
    assert [job.id for job in queue.peek(4, first=1)] == ["1", "2", "3", "4"]
    assert [len(job.data or b"") for job in queue.peek(7)] == sizes


def test_a_look_at_small_jobs_is_one_call(queue: Queue, behind: Behind) -> None:
    queue.add_many([b""] * 3)
    before = engine_calls(behind.client)
    assert len(queue.peek(10)) == 3
    assert len(queue.peek(2)) == 2
    assert engine_calls(behind.client) == before + 2


def test_of_an_ended_job_nothing_is_told_that_is_not_kept(queue: Queue, clock: Clock) -> None:
    options = {"handler": "send", "priority": 90, "max_failures": 3}
    queue.add(b"x", id="a", group="g", result_for=60, **options)  # type: ignore[arg-type]
    queue.retry(take(queue), error="why", after=0)
    queue.complete(take(queue), b"result")
    with queue.request("r") as request:
        request.add(b"x", **options)  # type: ignore[arg-type]
    queue.complete(take(queue))
    [listed] = queue.peek(state="ended")
    for job in (queue.show("a"), listed, queue.show("r/0")):
        assert job is not None
        assert (job.state, job.priority, job.failures, job.lapses) == ("ended", None, None, None)
        facts = job.facts
        assert isinstance(facts, EndedFacts)
        assert (facts.handler, facts.max_failures, facts.max_lapses) == (None, None, None)
        assert (facts.min_backoff_ms, facts.result_for_ms, facts.group) == (None, None, None)
    assert (listed.facts.outcome, listed.facts.ended_at) == ("completed", clock.ms)


def test_an_ending_has_the_same_facts_as_a_job() -> None:
    assert EndedFacts.__struct_fields__ == Facts.__struct_fields__
    told = {name for name in Facts.__struct_fields__ if getattr(EndedFacts(), name) is not None}
    assert told == {"keep"}
