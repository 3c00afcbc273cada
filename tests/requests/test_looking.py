"""Why a part is not running, where it stands, and which requests there are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import Clock
from engine_support import ends_within, ids, take
from holdfast import Job, JobNotFound, Queue
from request_support import fill, hearing, work_off
from support import DEADLINE


def shown(queue: Queue, id: str) -> Job:
    job = queue.show(id)
    assert job
    return job


def test_a_part_is_told_what_it_waits_for(queue: Queue) -> None:
    fill(queue.request("r"), 314)
    assert queue.explain("r/0") == "waits in request r, the next of its request"
    assert queue.explain("r/1") == "waits in request r, behind 1 part"
    assert queue.explain("r/312") == "waits in request r, behind 312 parts"
    take(queue)
    assert queue.explain("r/0").startswith("leased under ")
    assert queue.explain("r/313") == "waits in request r, behind 312 parts"


def test_a_part_is_told_that_the_limit_is_full_and_who_has_the_places(
    queue: Queue, other: Queue
) -> None:
    request = fill(queue.request("r", limit=4), 9)
    queue.add(b"", id="plain", priority=99)
    take(queue)
    held = [*queue.lease_many(1, 60), *other.lease_many(3, 60)]
    tokens = {lease.token for lease in held}
    assert len(tokens) == 2
    text = queue.explain("r/4")
    before, _, holders = text.partition(" held by ")
    assert before == "waits in request r, limit full: 4 of 4"
    # A call that leases three jobs has one token for them.
    alone, three = held[0].token, held[1].token
    assert set(holders.split(", ")) == {alone, f"{three} (3)"}
    assert {alone, three} == tokens
    assert queue.explain("r/6").startswith(
        "waits in request r, behind 2 parts, limit full: 4 of 4 held by "
    )
    request.set_limit(2)
    assert "limit full: 4 of 2 held by" in queue.explain("r/4")
    request.set_limit(5)
    assert queue.explain("r/4") == "waits in request r, the next of its request"


def test_no_more_holders_are_named_than_one_can_read(queue: Queue) -> None:
    fill(queue.request("r", limit=12), 13)
    queue.lease_many(12, 60)
    text = queue.explain("r/12")
    assert "limit full: 12 of 12 held by " in text
    assert text.count(queue.holder) == 1
    assert text.endswith(" (10)")


def test_a_part_is_told_that_its_request_is_paused(queue: Queue) -> None:
    request = fill(queue.request("r"), 2)
    request.set_limit(0)
    assert queue.explain("r/0") == "waits in request r, its request is paused: the limit is 0"
    assert queue.explain("r/1") == (
        "waits in request r, behind 1 part, its request is paused: the limit is 0"
    )
    queue.pause()
    assert queue.explain("r/0").endswith("; the queue is paused")
    queue.resume()


def test_a_part_is_told_what_happened_to_it(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", keep_for=60), 3)
    queue.retry(take(queue), error="why", after=60)
    assert queue.explain("r/0").startswith("delayed until ")
    assert queue.explain("r/0").endswith("1 failure and 0 lapses so far, the last: why")
    queue.fail(take(queue), error="why")
    assert queue.explain("r/1").startswith("failed after 1 failure")
    held = take(queue)
    request.cancel()
    assert "it was cancelled and ends when its holder settles it" in queue.explain("r/2")
    queue.release(held)
    assert queue.explain("nobody/0").startswith("no job has this id")


def test_a_cancelled_part_is_remembered_as_long_as_its_request(queue: Queue, clock: Clock) -> None:
    request = fill(queue.request("r", keep_for=60), 2)
    queue.cancel("r/0")
    assert queue.explain("r/0") == "cancelled, remembered as long as its request"
    assert (shown(queue, "r/0").state, shown(queue, "r/0").data) == ("ended", None)
    outcome = queue.result("r/0")
    assert outcome
    assert (outcome.kind, outcome.at) == ("cancelled", clock.ms / 1000)
    request.cancel()
    assert shown(queue, "r/0").at == clock.ms / 1000 + 60
    clock.advance(60)
    queue.tidy()
    assert queue.show("r/0") is None


@pytest.mark.parametrize("result", [None, b"result"])
def test_the_outcome_of_one_part_can_be_asked_for(
    queue: Queue, clock: Clock, result: bytes | None
) -> None:
    """Also by who waits for it, as long as its request is kept."""
    request = fill(queue.request("r", keep_for=60), 2)
    assert queue.result("r/0") is None
    with pytest.raises(JobNotFound):
        queue.result("r/2")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: queue.result("r/0", wait=DEADLINE))
        queue.complete(take(queue), result)
        outcome = waiting.result(DEADLINE)
    assert outcome == queue.result("r/0")
    assert outcome
    assert (outcome.kind, outcome.result) == ("completed", result)
    assert queue.explain("r/0") == "completed, remembered as long as its request"
    with pytest.raises(JobNotFound):
        queue.result("r/00")
    request.cancel()
    clock.advance(60)
    queue.tidy()
    with pytest.raises(JobNotFound):
        queue.result("r/0")


def test_a_part_that_is_left_to_be_cancelled_is_told(queue: Queue) -> None:
    fill(queue.request("r"), 1200)
    assert not ends_within(queue, 1, queue.request("r").cancel)
    assert queue.explain("r/1000") == "waits in request r, its request is being stopped"


def test_a_job_of_a_group_is_told_the_same_in_its_words(queue: Queue) -> None:
    for id in "abc":
        queue.add(b"", id=id, group="g", group_limit=1)
    assert queue.explain("a") == "waits in group g, the next of its group"
    lease = take(queue)
    assert queue.explain("c") == (
        f"waits in group g, behind 1 job, limit full: 1 of 1 held by {lease.token}"
    )
    queue.set_group_limit("g", 0)
    assert queue.explain("b") == "waits in group g, its group is paused: the limit is 0"


def test_a_part_can_be_shown(queue: Queue) -> None:
    request = queue.request("r", priority=80)
    request.open()
    request.add(b"zero", handler="h")
    request.add(b"one", priority=60)
    job = shown(queue, "r/0")
    assert (job.state, job.data, job.behind, job.at) == ("parked", b"zero", 1, None)
    assert (job.facts.request, job.facts.handler, job.priority) == ("r", "h", 50)
    assert shown(queue, "r/1").priority == 60
    lease = take(queue)
    job = shown(queue, "r/1")
    assert (job.state, job.token, job.priority) == ("leased", lease.token, 60)
    assert queue.data("r/0") == b"zero"


def test_parked_jobs_can_be_looked_at(queue: Queue) -> None:
    """By request, each in the order in which they will run."""
    fill(queue.request("b"), 2)
    fill(queue.request("a", limit=0), 2)
    queue.add(b"x", id="of a group", group="c", priority=70)
    queue.add(b"", id="ready")
    found = queue.peek(10, state="parked")
    assert [job.id for job in found] == ["a/0", "a/1", "b/0", "b/1", "of a group"]
    assert [job.data for job in found] == [b"0", b"1", b"0", b"1", b"x"]
    assert {job.state for job in found} == {"parked"}
    assert found[-1].priority == 70
    assert [job.id for job in queue.peek(2, state="parked", first=1)] == ["a/1", "b/0"]
    assert [job.id for job in queue.peek(10)] == ["ready"]


def test_parked_jobs_are_counted_with_what_waits(queue: Queue) -> None:
    fill(queue.request("r", limit=1), 4)
    queue.add(b"", group="g")
    queue.add(b"", id="ready")
    queue.add(b"", delay=60)
    assert (queue.counts().parked, queue.counts().ready, len(queue)) == (5, 1, 7)
    take(queue)
    assert (queue.counts().parked, queue.counts().leased, len(queue)) == (4, 1, 6)


def test_requests_are_listed_the_oldest_first(queue: Queue, clock: Clock) -> None:
    for id in ("z", "a", "m"):
        fill(queue.request(id), 1)
        clock.advance(1)
    take(queue)
    queue.request("m").cancel()
    found = queue.requests()
    assert [status.id for status in found] == ["z", "a", "m"]
    assert found == [queue.request(id).status() for id in ("z", "a", "m")]
    assert [status.running for status in found] == [1, 0, 0]
    assert [status.state for status in found] == ["sealed", "sealed", "cancelled"]


@pytest.mark.parametrize("count", [250, 251, 600])
def test_hundreds_of_requests_are_listed_each_once(queue: Queue, clock: Clock, count: int) -> None:
    for n in range(count):
        queue.request(f"r{n}").open()
        clock.advance(0.001)
    assert [status.id for status in queue.requests()] == [f"r{n}" for n in range(count)]


def test_what_happens_to_a_request_is_told(queue: Queue, clock: Clock) -> None:
    """Once, and by name: of parts by theirs."""
    request = queue.request("r", keep_for=60)
    with hearing(queue) as heard:
        request.open()
        request.open()
        request.add_many([b"", b"", b""])
        request.set_limit(1)
        request.set_priority(1)
        queue.fail(take(queue), error="why")
        queue.revive("r/0")
        running = take(queue)
        request.seal()
        request.seal()
        request.cancel()
        request.cancel()
        queue.complete(running)
        clock.advance(60)
        queue.tidy()
    assert [(event.kind, sorted(event.ids)) for event in heard] == [
        ("opened", ["r"]),
        ("added", ["r/0", "r/1", "r/2"]),
        ("changed", ["r"]),
        ("changed", ["r"]),
        ("leased", ["r/0"]),
        ("failed", ["r/0"]),
        ("revived", ["r/0"]),
        ("leased", ["r/1"]),
        ("sealed", ["r"]),
        ("cancelling", ["r"]),
        ("cancelled", ["r/0", "r/2"]),
        ("cancelled", ["r/1"]),
        ("ended", ["r"]),
        ("forgotten", ["r"]),
    ]


def test_a_repair_of_a_sound_queue_of_requests_does_nothing(queue: Queue, clock: Clock) -> None:
    """Whatever state its requests and their parts are in."""
    request = fill(queue.request("r", limit=5, follow_up=b""), 12, seal=False)
    request.add(b"", delay=60)
    done, plain, failed, retried, held = queue.lease_many(5, 60)
    queue.complete(done, b"result")
    queue.complete(plain)
    queue.fail(failed, error="why")
    queue.retry(retried, error="why")
    queue.cancel("r/7")
    queue.fail(take(queue), error="why")
    handled = queue.lease(60, failed=True)
    assert handled
    fill(queue.request("ended", follow_up=b""), 2).cancel()
    fill(queue.request("stopping"), 2)
    stopping = take(queue)
    queue.request("stopping").cancel()
    queue.add_many([b"", b""], group="g", group_limit=1)
    before = queue.requests()
    assert queue.repair() == []
    assert queue.requests() == before
    assert queue.audit() == []
    queue.complete_many([held, handled, stopping])
    assert ids(queue.lease_many(100, 60))
    work_off(queue)
