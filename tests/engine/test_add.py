from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from conftest import Clock
from engine_support import Behind, engine_calls, ids, take
from holdfast import (
    InvalidArgument,
    JobExists,
    JobOptions,
    NewJob,
    Queue,
    Receipt,
    UnsupportedServer,
)

MIB = 1024 * 1024


def put_into_every_state(queue: Queue, clock: Clock) -> None:
    """Leave one job in each state, named after it."""
    queue.add(b"1", id="failed", max_lapses=0)
    queue.release(take(queue), lapsed="crashed")
    queue.add(b"1", id="ended", remember_for=60)
    assert queue.complete(take(queue))
    queue.add(b"1", id="leased")
    take(queue)
    queue.add(b"1", id="delayed", delay=60)
    queue.add(b"1", id="ready")


def test_a_job_that_is_added_is_ready_with_exactly_its_bytes(queue: Queue, behind: Behind) -> None:
    payload = bytes(range(256)) * 3
    receipt = queue.add(payload, id="a")
    assert receipt == Receipt("a", True, None)
    assert behind("HGET", "jobs", "a") == payload
    assert behind("ZRANGE", "ready", 0, -1) == [b"a"]
    assert queue.counts().ready == 1
    assert take(queue).data == payload


def test_a_plain_job_leaves_no_facts(queue: Queue, behind: Behind) -> None:
    queue.add(b"x", priority=50, max_lapses=3, max_failures=10, result_for=0, keep=False)
    assert behind("EXISTS", "facts") == 0


def test_the_client_makes_an_id_where_none_is_given(queue: Queue) -> None:
    receipts = [queue.add(b"x") for _ in range(3)]
    assert all(receipts)
    assert len({receipt.id for receipt in receipts}) == 3
    assert {len(receipt.id) for receipt in receipts} == {20}


@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "failed", "ended"])
def test_an_id_that_is_taken_is_left_alone_and_the_receipt_says_where_it_stands(
    queue: Queue, clock: Clock, behind: Behind, state: str
) -> None:
    put_into_every_state(queue, clock)
    before = behind.everything()
    receipt = queue.add(b"2", id=state)
    assert not receipt
    assert (receipt.id, receipt.state) == (state, state)
    after = behind.everything()
    assert after.pop("calls") != before.pop("calls")
    assert after == before


@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "failed", "ended"])
def test_an_id_that_is_taken_refuses_the_whole_call_when_asked_to(
    queue: Queue, clock: Clock, behind: Behind, state: str
) -> None:
    put_into_every_state(queue, clock)
    before = behind.everything()
    with pytest.raises(JobExists):
        queue.add_many([b"1", NewJob(b"2", id=state), b"3"], on_conflict="raise")
    assert behind.everything() == before


def test_a_free_id_raises_nothing(queue: Queue) -> None:
    assert queue.add(b"x", id="a", on_conflict="raise")


def test_of_the_same_id_twice_in_one_call_the_first_counts(queue: Queue) -> None:
    receipts = queue.add_many(
        [
            NewJob(b"first", id="a"),
            NewJob(b"second", id="a"),
            NewJob(b"first", id="b", delay=5),
            NewJob(b"second", id="b"),
        ]
    )
    assert [(receipt.id, receipt.created, receipt.state) for receipt in receipts] == [
        ("a", True, None),
        ("a", False, "ready"),
        ("b", True, None),
        ("b", False, "delayed"),
    ]
    assert queue.counts().waiting == 2
    assert take(queue).data == b"first"


def test_the_same_id_twice_in_one_call_is_a_conflict(queue: Queue, behind: Behind) -> None:
    with pytest.raises(JobExists):
        queue.add_many([NewJob(b"", id="a"), NewJob(b"", id="a")], on_conflict="raise")
    assert behind.everything() == {}


def test_a_thousand_jobs_go_in_one_call(queue: Queue, behind: Behind) -> None:
    made = engine_calls(behind.client)
    receipts = queue.add_many(b"%d" % n for n in range(1000))
    assert len({receipt.id for receipt in receipts}) == 1000
    assert engine_calls(behind.client) == made + 1


def test_more_than_a_thousand_go_in_several_calls_and_keep_their_order(
    queue: Queue, behind: Behind
) -> None:
    made = engine_calls(behind.client)
    receipts = queue.add_many(b"%d" % n for n in range(2001))
    assert all(receipts)
    assert engine_calls(behind.client) == made + 3
    leased = [lease.data for _ in range(3) for lease in queue.lease_many(1000, 30)]
    assert leased == [b"%d" % n for n in range(2001)]


def test_more_than_8_mib_go_in_several_calls(queue: Queue, behind: Behind) -> None:
    made = engine_calls(behind.client)
    queue.add_many([b"x" * (4 * MIB)] * 3)
    assert engine_calls(behind.client) == made + 2
    assert queue.counts().ready == 3


def test_an_error_in_the_middle_carries_the_receipts_of_what_was_added(queue: Queue) -> None:
    def jobs() -> Iterator[object]:
        yield from (b"%d" % n for n in range(1500))
        yield NewJob(b"", id="")

    with pytest.raises(InvalidArgument) as raised:
        queue.add_many(jobs())
    assert len(raised.value.receipts) == queue.counts().ready == 1000
    assert raised.value.receipts[0].id == take(queue).id


def test_a_conflict_in_the_second_call_carries_the_receipts_of_the_first(queue: Queue) -> None:
    queue.add(b"", id="taken")
    jobs = [*(b"%d" % n for n in range(1000)), b"not added", NewJob(b"", id="taken")]
    with pytest.raises(JobExists) as raised:
        queue.add_many(jobs, on_conflict="raise")
    assert len(raised.value.receipts) == 1000
    assert queue.counts().ready == 1001


def test_nothing_added_is_no_call(queue: Queue, behind: Behind) -> None:
    assert queue.add_many([]) == []
    assert behind.everything() == {}


def test_a_delayed_job_waits_until_it_is_due_and_not_longer(queue: Queue, clock: Clock) -> None:
    queue.add(b"later", delay=10)
    assert queue.counts().delayed == 1
    clock.advance(9.999)
    assert queue.lease(30) is None
    clock.advance(0.001)
    assert take(queue).data == b"later"


@pytest.mark.parametrize("delay", [0, 0.0, timedelta()])
def test_no_delay_is_ready(queue: Queue, delay: float) -> None:
    queue.add(b"", delay=delay)
    assert queue.counts().ready == 1


def test_the_shortest_delay_is_a_millisecond(queue: Queue, clock: Clock) -> None:
    queue.add(b"", delay=1e-9)
    assert queue.counts().delayed == 1
    clock.advance(0.001)
    assert queue.lease(30)


def test_a_job_can_be_added_for_an_instant(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    queue.add(b"", id="past", at=now - 1)
    queue.add(b"", id="now", at=now)
    queue.add(b"", id="second", at=now + 2)
    queue.add(b"", id="first", at=datetime.fromtimestamp(now + 1, UTC))
    assert ids(queue.lease_many(10, 30)) == ["past", "now"]
    clock.advance(1)
    assert ids(queue.lease_many(10, 30)) == ["first"]
    clock.advance(1)
    assert ids(queue.lease_many(10, 30)) == ["second"]


def test_the_latest_instant_and_the_longest_delay_can_be_stored(
    queue: Queue, behind: Behind
) -> None:
    queue.add(b"", id="at", at=(2**53 - 1) // 1000)
    queue.add(b"", id="delay", delay=(2**53 - 1) // 1000)
    assert float(behind("ZSCORE", "delayed", "at")) == (2**53 - 1) // 1000 * 1000
    assert float(behind("ZSCORE", "delayed", "delay")) == 2**53 - 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"handler": "send"}, {"handler": "send"}),
        ({"timeout": 1.5}, {"timeout_ms": 1500}),
        ({"max_failures": None}, {"max_failures": -1}),
        ({"max_lapses": 0}, {"max_lapses": 0}),
        ({"min_backoff": 1}, {"min_backoff_ms": 1000}),
        ({"max_backoff": timedelta(hours=1)}, {"max_backoff_ms": 3_600_000}),
        ({"result_for": float("inf")}, {"result_for_ms": 2**53 - 1}),
        ({"remember_for": 60}, {"remember_for_ms": 60_000}),
        ({"keep": True}, {"keep": True}),
        ({"priority": 90}, {}),
    ],
)
def test_only_what_differs_from_the_defaults_is_kept(
    queue: Queue, behind: Behind, options: JobOptions, kept: dict[str, object]
) -> None:
    queue.add(b"", id="a", **options)
    assert behind.facts("a") == kept


def test_a_job_says_more_than_the_call_and_the_call_more_than_the_queue(
    queue: Queue, clock: Clock
) -> None:
    defaulting = Queue(
        queue.name, queue.server, defaults={"handler": "queue", "max_lapses": 7}, clock=clock
    )
    defaulting.add(b"", id="plain")
    defaulting.add_many([b"", NewJob(b"", id="own", handler="job")], handler="call")
    handlers = [(lease.facts.handler, lease.facts.max_lapses) for lease in queue.lease_many(9, 30)]
    assert handlers == [("queue", 7), ("call", 7), ("job", 7)]


def test_a_completed_id_is_free_again(queue: Queue) -> None:
    queue.add(b"1", id="a")
    queue.complete(take(queue))
    assert queue.add(b"2", id="a")
    assert take(queue).data == b"2"


def test_a_remembered_id_stays_taken_for_as_long_and_not_longer(queue: Queue, clock: Clock) -> None:
    queue.add(b"1", id="a", remember_for=60)
    queue.complete(take(queue))
    clock.advance(59.999)
    assert queue.add(b"2", id="a").state == "ended"
    clock.advance(0.001)
    assert queue.add(b"3", id="a")
    assert queue.counts().ended == 0
    assert take(queue).data == b"3"


def test_an_id_can_be_remembered_for_ever(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", remember_for=float("inf"))
    queue.complete(take(queue))
    clock.advance(10**9)
    queue.tidy()
    assert not queue.add(b"", id="a")


def test_a_kept_result_does_not_keep_the_id_taken(queue: Queue, behind: Behind) -> None:
    queue.add(b"1", id="a", result_for=60, keep=True)
    queue.complete(take(queue), b"old")
    assert queue.add(b"2", id="a")
    assert behind("HGET", "results", "a") is None
    assert behind.facts("a") == {}
    assert queue.counts().ended == 0
    assert take(queue).data == b"2"


def test_a_result_kept_longer_than_the_id_is_remembered_frees_the_id_in_time(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"1", id="a", result_for=60, remember_for=10)
    queue.complete(take(queue), b"old")
    clock.advance(9.999)
    assert not queue.add(b"2", id="a")
    clock.advance(0.001)
    assert queue.add(b"2", id="a")


def test_a_queue_of_a_newer_layout_is_refused_and_left_alone(queue: Queue, behind: Behind) -> None:
    queue.add(b"")
    assert behind("HGET", "meta", "layout") == b"1"
    behind("HSET", "meta", "layout", 2)
    before = behind.everything()
    for method in (queue.tidy, queue.counts, queue.audit, queue.delete, lambda: queue.add(b"")):
        with pytest.raises(UnsupportedServer, match="newer Holdfast"):
            method()
    assert behind.everything() == before
    behind("HSET", "meta", "layout", 1)


@pytest.mark.parametrize("layout", ["0", "", "abc", "-1", "1.0", "01", " 1", "nan", "\xff"])
def test_a_queue_of_an_unknown_layout_is_refused_and_left_alone(
    queue: Queue, behind: Behind, layout: str
) -> None:
    queue.add(b"")
    behind("HSET", "meta", "layout", layout)
    before = behind.everything()
    for method in (queue.tidy, queue.counts, queue.audit, queue.delete, lambda: queue.add(b"")):
        with pytest.raises(UnsupportedServer, match="layout"):
            method()
    assert behind.everything() == before
    behind("HSET", "meta", "layout", 1)


def test_the_id_of_a_part_is_taken_as_long_as_its_request_is_kept(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    with queue.request("r", keep_for=60) as request:
        request.add_many([b"x"] * 2)
    queue.cancel("r/1")
    queue.complete(take(queue), b"result")
    kept = list(request.results())
    for id in ("r/0", "r/1"):
        assert queue.add(b"y", id=id) == Receipt(id, False, "ended")
        assert queue.add(b"y", id=id, group="g") == Receipt(id, False, "ended")
        with pytest.raises(JobExists):
            queue.add(b"y", id=id, on_conflict="raise")
    assert queue.add(b"y", id="r/0", on_conflict="update") == Receipt("r/0", False, "ended")
    queue.add(b"z", id="z")
    assert queue.complete(take(queue), add=[NewJob(b"y", id="r/0")])
    assert list(request.results()) == kept
    assert queue.counts().waiting == 0
    clock.advance(60)
    queue.tidy()
    assert queue.add(b"y", id="r/0")


@pytest.mark.parametrize(
    "id", ["r/2", "r/00", "r/-1", "r/x", "/0", "s/0", "g/0", "r/end/1", "r/0/0"]
)
def test_an_id_that_only_looks_like_that_of_a_part_is_free(
    queue: Queue, behind: Behind, id: str
) -> None:
    with queue.request("r", limit=0) as request:
        request.add_many([b"x"] * 2)
    queue.add(b"x", group="g", group_limit=0)
    assert queue.add(b"y", id=id)
    assert take(queue).id == id


def test_a_job_that_has_the_id_of_a_part_is_no_part(queue: Queue) -> None:
    queue.add(b"x", id="r/0", delay=60)
    with queue.request("r") as request, pytest.raises(JobExists):
        request.add(b"x")
    assert request.status().total == 0


# ------------------------------------------------------------------- overdue when added


def leased_order(queue: Queue) -> list[str]:
    found = list[str]()
    while lease := queue.lease(30):
        found.append(lease.id)
    return found


def test_jobs_that_are_overdue_when_they_are_added_run_by_their_time(
    queue: Queue, clock: Clock
) -> None:
    now = clock.ms / 1000
    for id, ago in [("b", 20), ("d", 0), ("a", 3600), ("c", 10)]:
        queue.add(b"", id=id, at=now - ago)
    assert leased_order(queue) == ["a", "b", "c", "d"]


def test_overdue_jobs_of_one_call_run_by_their_time(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    ago = {"b": 20, "same": 20, "a": 3600, "c": 10}
    queue.add_many([NewJob(b"", id=id, at=now - seconds) for id, seconds in ago.items()])
    assert leased_order(queue) == ["a", "b", "same", "c"]


def test_priority_comes_before_how_long_a_job_is_overdue(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    queue.add(b"", id="older", at=now - 60)
    queue.add(b"", id="higher", at=now - 1, priority=60)
    assert leased_order(queue) == ["higher", "older"]


def test_overdue_jobs_enter_behind_what_is_ready_when_work_is_next_asked_for(
    queue: Queue, clock: Clock
) -> None:
    queue.add(b"", id="overdue", at=clock.ms / 1000 - 60)
    queue.add(b"", id="plain")
    assert queue.counts().delayed == 1
    queue.tidy()
    queue.add(b"", id="late")
    assert (queue.counts().delayed, queue.counts().ready) == (0, 3)
    assert leased_order(queue) == ["plain", "overdue", "late"]


def test_overdue_parts_and_jobs_of_a_group_run_by_their_time(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    for id, ago in [("b", 20), ("a", 60)]:
        queue.add(b"", id=id, at=now - ago, group="g", priority=60)
    request = queue.request("r")
    request.open()
    for ago in (20, 60):
        request.add(b"", at=now - ago)
    assert leased_order(queue) == ["a", "b", "r/1", "r/0"]


def test_an_overdue_job_that_an_update_adds_runs_by_its_time(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    for id, ago in [("b", 20), ("a", 60)]:
        queue.add(b"", id=id, at=now - ago, on_conflict="update")
    assert leased_order(queue) == ["a", "b"]


@pytest.mark.parametrize("kind", ["job", "part"])
def test_an_overdue_job_wakes_a_sleeper(
    queue: Queue, clock: Clock, behind: Behind, kind: str
) -> None:
    request = queue.request("r")
    request.open()
    behind("DEL", "wake")
    at = clock.ms / 1000 - 60
    if kind == "job":
        queue.add(b"", at=at)
    else:
        request.add(b"", at=at)
    assert behind("LLEN", "wake") == 1


def test_a_retry_at_a_time_that_is_past_is_a_retry_now(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="retried")
    queue.retry(take(queue), error="why", at=clock.ms / 1000 - 60)
    assert queue.counts().ready == 1


def test_explain_says_that_an_overdue_job_is_due(queue: Queue, clock: Clock) -> None:
    queue.add(b"", id="a", at=clock.ms / 1000 - 60)
    assert "due since" in queue.explain("a")
