"""Rows are staged by many and become jobs all together, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, adopted, take
from holdfast import (
    Committed,
    InvalidArgument,
    Lease,
    NewJob,
    Queue,
    QueueFull,
    Row,
    Staged,
    Update,
    WrongState,
)
from holdfast.client import inputs
from holdfast.engine import calls, walks, write_calls
from holdfast.engine.call import Call, Entry, frame, join_words

DAY = 86400


def payloads(queue: Queue, count: int = 1000) -> list[bytes]:
    return [lease.data for lease in queue.lease_many(count, 60)]


def stage(queue: Queue, rows: list[Any], *, write: str = "w", partition: int = 0) -> Staged:
    return queue.write(write).stage(rows, partition=partition, attempt=0)


# -------------------------------------------------------------------- stage and commit


def test_what_is_staged_is_no_job_before_the_commit(queue: Queue) -> None:
    staged = stage(queue, [b"a", "b", {"c": 1}])
    assert staged == Staged("w", 0, 0, 1, 3)
    assert queue.lease(30) is None
    assert len(queue) == 0
    assert queue.counts().staged == 1
    assert queue.write("w").commit([staged]) == Committed(new=True, rows=3)
    assert payloads(queue) == [b"a", b"b", b'{"c":1}']
    assert queue.counts().staged == 0


def test_rows_have_ids_priorities_delays_and_options(queue: Queue, clock: Clock) -> None:
    rows = [
        Row(b"0", id="first", priority=99),
        NewJob(b"1", id="later", delay=5, handler="mail"),
        Row(b"2", id="then", at=clock.ms / 1000 + 9),
        Row(b"3", id="plain"),
    ]
    staged = queue.write("w").stage(rows, partition=0, attempt=0, max_failures=2)
    clock.advance(1)
    queue.write("w").commit([staged])
    first, plain = queue.lease_many(9, 60)
    assert (first.id, plain.id, first.facts.max_failures) == ("first", "plain", 2)
    later, then = queue.peek(9, state="delayed")
    # A delay begins when the row becomes a job.
    assert (later.id, later.at, later.facts.handler) == ("later", clock.ms / 1000 + 5, "mail")
    assert (then.id, then.at) == ("then", clock.ms / 1000 + 8)


def test_rows_are_staged_in_chunks_of_a_thousand_or_a_megabyte(queue: Queue) -> None:
    assert stage(queue, [b""] * 2001).chunks == 3
    assert stage(queue, [b"x" * 600_000] * 3, partition=1).chunks == 3
    assert stage(queue, [b"x" * 3_000_000, b"x"], partition=2).chunks == 2
    assert stage(queue, [], partition=3) == Staged("w", 3, 0, 0, 0)


def test_rows_are_taken_as_they_come(queue: Queue) -> None:
    def rows() -> Any:
        for n in range(1500):
            if n == 1400:
                assert queue.counts().staged == 1
            yield b"%d" % n

    staged = queue.write("w").stage(rows(), partition=0, attempt=0)
    assert queue.write("w").commit([staged]).rows == 1500
    assert payloads(queue) == [b"%d" % n for n in range(1000)]


def test_only_the_winners_are_committed(queue: Queue, clock: Clock) -> None:
    write = queue.write()
    winners = [write.stage([b"%d" % n], partition=n, attempt=n) for n in range(3)]
    write.stage([b"in vain"], partition=0, attempt=7)
    nothing = write.stage([], partition=9, attempt=9)
    assert write.commit([*winners, nothing])
    assert payloads(queue) == [b"0", b"1", b"2"]
    assert queue.counts().staged == 1
    clock.advance(DAY)
    queue.tidy(force=True)
    assert queue.counts().staged == 0


def test_a_thousand_and_one_attempts_are_committed_at_once(queue: Queue) -> None:
    write = queue.write()
    winners = [write.stage([b"%d" % n], partition=n, attempt=0) for n in range(1001)]
    assert write.commit(winners) == Committed(new=True, rows=1001)
    assert queue.counts().ready == 1001


def test_a_write_of_nothing_is_committed_too(queue: Queue) -> None:
    assert queue.write("w").commit([]) == Committed(new=True, rows=0)
    assert queue.write("w").commit([]) == Committed(new=False, rows=0)


def test_a_write_is_committed_once(queue: Queue, clock: Clock) -> None:
    staged = stage(queue, [b"a"])
    assert queue.write("w").commit([staged])
    assert not queue.write("w").commit([staged])
    assert queue.counts().ready == 1
    clock.advance(DAY)
    queue.tidy()
    with pytest.raises(WrongState, match="the staged rows are gone"):
        queue.write("w").commit([staged])
    assert queue.counts().ready == 1


def test_a_write_is_forgotten_a_day_after_it_was_published(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    queue.write("w").commit([stage(queue, [b"a"])])
    clock.advance(DAY - 1)
    queue.tidy()
    assert behind("HKEYS", "ledger") == [b"commit w"]
    clock.advance(1)
    queue.tidy()
    assert behind("HLEN", "ledger") == behind("ZCARD", "staging") == 0


# ------------------------------------------------------------------------- streams


def test_a_batch_of_a_writer_is_committed_once(queue: Queue) -> None:
    first = stage(queue, [b"a"])
    assert queue.last_batch("stream") is None
    assert queue.write("w").commit([first], writer="stream", batch=0)
    assert queue.last_batch("stream") == 0
    replayed = stage(queue, [b"a"], write="another run")
    assert not queue.write("another run").commit([replayed], writer="stream", batch=0)
    assert queue.counts().staged == 0, "what was staged in vain is dropped"
    assert queue.counts().ready == 1
    following = stage(queue, [b"b"], partition=1)
    assert queue.write("w").commit([following], writer="stream", batch=1)
    assert queue.last_batch("stream") == 1
    assert queue.write("v").commit([], writer="other", batch=0)


def test_a_batch_below_the_last_one_is_committed_before(queue: Queue) -> None:
    assert queue.write("w").commit([], writer="stream", batch=7)
    assert not queue.write("w").commit([], writer="stream", batch=6)
    assert queue.last_batch("stream") == 7


def test_a_writer_is_remembered_for_a_hundred_days_after_its_last_commit(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    for batch in (6, 7):
        queue.write("w").commit([], writer="stream", batch=batch)
        clock.advance(100 * 86_400 - 0.001)
        queue.tidy()
        assert not queue.write("w").commit([], writer="stream", batch=batch)
    clock.advance(0.001)
    queue.tidy()
    assert behind("HLEN", "ledger") == behind("ZCARD", "staging") == 0
    assert queue.write("w").commit([], writer="stream", batch=7)


# ------------------------------------------------------------------ ids that are taken


def test_an_id_that_is_taken_is_ignored(queue: Queue) -> None:
    queue.add(b"before", id="a")
    rows = [Row(b"new", id="a"), Row(b"1", id="b"), Row(b"2", id="b")]
    queue.write("w").commit([stage(queue, rows)])
    assert payloads(queue) == [b"before", b"1"]


def test_an_id_that_is_taken_is_changed_where_the_write_says_so(queue: Queue) -> None:
    queue.add(b"before", id="a")
    queue.add(b"leased", id="l", priority=90)
    lease = take(queue)
    with queue.request("r") as request:
        request.add(b"part")
    rows = [Row(b"new", id="a"), Row(b"next", id="l"), Row(b"x", id="r/0"), Row(b"b", id="b")]
    queue.write("w").commit([stage(queue, rows)], on_conflict="update")
    queue.complete(lease)
    # Parts are what was asked for: they are not changed.
    assert sorted(payloads(queue)) == [b"b", b"new", b"next", b"part"]


def test_an_update_says_what_it_changes(queue: Queue) -> None:
    queue.add(b"before", id="a", priority=1)
    rows = [Row(b"new", id="a", priority=9)]
    queue.write("w").commit([stage(queue, rows)], on_conflict=Update(data=False))
    [job] = queue.peek(2)
    assert (job.data, job.priority) == (b"before", 9)


def test_an_update_says_which_options_it_changes(queue: Queue) -> None:
    queue.add(b"before", id="a", priority=1, handler="h")
    rows = [Row(b"new", id="a", priority=9, handler="other")]
    queue.write("w").commit([stage(queue, rows)], on_conflict=Update(limits=["priority"]))
    [job] = queue.peek(2)
    assert (job.data, job.priority, job.facts.handler) == (b"new", 9, "h")


# ------------------------------------------------------------------------ requests


def test_rows_become_the_next_parts_of_a_request(queue: Queue) -> None:
    request = queue.request("r", limit=2)
    request.open()
    request.add(b"0")
    rows = [Row(b"%d" % n, request="r", max_failures=1) for n in range(1, 4)]
    staged = stage(queue, [*rows, Row(b"later", request="r", delay=9)])
    assert staged.requests == ("r",)
    queue.write("w").commit([staged])
    assert request.status().total == 5
    leases = queue.lease_many(9, 60)
    assert [(lease.id, lease.data) for lease in leases] == [("r/0", b"0"), ("r/1", b"1")]
    assert leases[1].facts.max_failures == 1
    assert leases[1].request == "r"


def test_a_row_for_a_request_that_is_not_open_refuses_the_commit(queue: Queue) -> None:
    with queue.request("sealed", limit=0) as sealed:
        sealed.add(b"")
    with queue.request("ended"):
        pass
    queue.add(b"", group="group")
    for name in ("sealed", "ended", "group", "nobody"):
        staged = stage(queue, [b"a", Row(b"b", request=name)], write=name)
        with pytest.raises(WrongState, match=f"^{name}: .*not open"):
            queue.write(name).commit([staged])
        assert queue.counts().ready == 0
        queue.write(name).abort([staged])
    assert queue.counts().staged == 0


def committed(queue: Queue, rows: list[Any]) -> None:
    """Commit rows, and die."""
    adopted(queue, "w", rows)
    assert queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))


def test_a_request_that_was_sealed_since_the_commit_takes_its_rows(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    request.add(b"0")
    committed(queue, [Row(b"1", request="r")])
    request.seal()
    assert queue.publish() == 1
    leases = queue.lease_many(9, 60)
    assert [lease.id for lease in leases] == ["r/0", "r/1"]
    queue.complete_many(leases)
    assert request.status().state == "completed"


def test_a_request_that_has_ended_since_the_commit_goes_on(queue: Queue) -> None:
    with queue.request("r", follow_up=b"over") as request:
        committed(queue, [Row(b"0", request="r")])
    assert request.status().state == "completed"
    queue.publish()
    assert (request.status().state, request.status().total) == ("sealed", 1)
    leases = queue.lease_many(9, 60)
    queue.complete_many(leases)
    assert sorted(lease.id for lease in leases) == ["r/0", "r/end/1"]
    assert request.status().state == "completed"
    assert [lease.id for lease in queue.lease_many(9, 60)] == ["r/end/2"]


def test_rows_of_a_request_that_was_stopped_since_the_commit_are_cancelled(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    request.add(b"0")
    committed(queue, [Row(b"1", request="r"), Row(b"2", request="r", delay=9)])
    lease = take(queue)
    request.cancel()
    queue.publish()
    queue.complete(lease)
    status = request.status()
    assert (status.state, status.total, status.cancelled) == ("cancelled", 3, 3)


def test_what_a_failure_handler_gives_back_does_not_stop_its_request_again(queue: Queue) -> None:
    request = queue.request("r", on_failure="fail_fast")
    request.open()
    request.add(b"0")
    lease = take(queue)
    committed(queue, [Row(b"1", request="r")])
    queue.fail(lease, error="why")
    assert request.status().state == "failed"
    queue.publish()
    handled = queue.lease(60, failed=True)
    assert handled
    queue.release(handled)
    assert request.status().state == "sealed"
    assert queue.complete(take(queue))
    assert (request.status().state, request.status().reason) == ("failed", None)


def test_rows_of_a_request_that_is_gone_are_jobs_of_their_own(queue: Queue, clock: Clock) -> None:
    with queue.request("r", keep_for=1):
        committed(queue, [Row(b"%d" % n, request="r", handler="h") for n in range(3)])
    clock.advance(10)
    queue._run(calls.tidy())
    assert queue.requests() == []
    queue.publish()
    leases = queue.lease_many(9, 60)
    assert [(lease.data, lease.request, lease.facts.handler) for lease in leases] == [
        (b"0", None, "h"), (b"1", None, "h"), (b"2", None, "h"),
    ]  # fmt: skip


def test_a_row_has_the_id_of_a_part_whose_request_is_forgotten_in_the_same_call(
    queue: Queue, clock: Clock
) -> None:
    with queue.request("r", keep_for=10) as request:
        request.add(b"part")
    lease = take(queue)
    assert queue.complete(lease)
    committed(queue, [NewJob(b"row", id="r/0")])
    clock.advance(60)
    assert payloads(queue) == [b"row"]


def test_rows_whose_number_a_foreign_job_has_are_jobs_of_their_own(queue: Queue) -> None:
    queue.add(b"foreign", id="r/1")
    request = queue.request("r")
    request.open()
    queue.write("w").commit([stage(queue, [Row(b"%d" % n, request="r") for n in range(2)])])
    assert request.status().total == 0
    assert sorted(payloads(queue)) == [b"0", b"1", b"foreign"]


def test_rows_of_groups_keep_to_their_limit(queue: Queue) -> None:
    rows = [Row(b"%d" % n, group="g", group_limit=2) for n in range(5)]
    queue.write("w").commit([stage(queue, rows)])
    assert payloads(queue) == [b"0", b"1"]
    assert queue.counts().parked == 3


def test_a_group_whose_name_a_request_has_taken_since_is_left_out(queue: Queue) -> None:
    committed(queue, [Row(b"0", group="r")])
    queue.request("r").open()
    queue.publish()
    assert payloads(queue) == [b"0"]


# ------------------------------------------------------------------ who goes on with it


def test_whoever_leases_goes_on_where_somebody_died(queue: Queue, other: Queue) -> None:
    committed(queue, [b"%d" % n for n in range(2500)])
    assert len(other.lease_many(1000, 60)) == 1000
    assert len(other.lease_many(1000, 60)) == 1000
    assert len(other.lease_many(1000, 60)) == 500
    assert other.publish() == 0


def test_a_lease_publishes_no_more_than_it_needs(queue: Queue) -> None:
    queue.add_many([b"ready", b"ready"])
    committed(queue, [b"x"] * 1001)
    take(queue)
    assert queue.counts().staged == 2
    assert len(queue.lease_many(2, 60)) == 2
    assert queue.counts().staged == 1
    assert queue.counts().ready == 999


def test_who_waits_for_work_is_roused_by_a_commit(queue: Queue, behind: Behind) -> None:
    adopted(queue, "w", [b"a"])
    assert behind("LLEN", "wake") == 0
    queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    assert behind("LLEN", "wake") == 1
    assert take(queue).data == b"a"


def test_a_lease_that_finds_nothing_to_give_publishes_on(queue: Queue) -> None:
    committed(queue, [*(Row(b"", delay=60) for _ in range(2000)), b"now"])
    lease = queue.lease(30)
    assert lease is not None
    assert lease.data == b"now"


def test_whoever_tidies_goes_on_where_somebody_died(queue: Queue, other: Queue) -> None:
    committed(queue, [b"x"] * 1001)
    assert other.tidy().published == 1001
    assert queue.counts().ready == 1001


def test_the_oldest_commit_is_published_first(queue: Queue, clock: Clock) -> None:
    for name in ("z", "a"):
        adopted(queue, name, [Row(name, id=name)])
        queue._run(write_calls.commit(name, "", 0, 1, keep_for_ms=1000))
        clock.advance(1)
    queue._run(write_calls.publish())
    assert [job.id for job in queue.peek(9)] == ["z"]


def test_small_chunks_are_published_together(queue: Queue, behind: Behind) -> None:
    write = queue.write("w")
    winners = [write.stage([b"x"] * 10, partition=n, attempt=0) for n in range(30)]
    attempts = [(f"w/{n}.0", 1) for n in range(30)]
    queue._run(write_calls.adopt("w", "", 0, 0, attempts, keep_for_ms=1000))
    queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    assert queue._run(write_calls.publish()) == (300, False)
    assert len(winners) == 30


def test_no_call_publishes_more_than_a_thousand_rows(queue: Queue) -> None:
    write = queue.write("w")
    for n in range(3):
        write.stage([b""] * 400, partition=n, attempt=0)
    attempts = [(f"w/{n}.0", 1) for n in range(3)]
    queue._run(write_calls.adopt("w", "", 0, 0, attempts, keep_for_ms=1000))
    queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    assert queue._run(write_calls.publish()) == (800, True)
    assert queue._run(write_calls.publish()) == (400, False)


def test_a_full_server_is_tidied_without_publishing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(queue, [b"x"])

    def full(write: str = "") -> Any:
        raise QueueFull("full")
        yield  # a flow

    monkeypatch.setattr(walks, "publish", full)
    assert queue.tidy().published == 0
    assert queue.counts().staged == 1


# ------------------------------------------------------------------- what is forgotten


def test_what_is_not_committed_is_forgotten(queue: Queue, clock: Clock, behind: Behind) -> None:
    staged = queue.write("w").stage([b"x"] * 1001, partition=0, attempt=0, keep_for=5)
    clock.advance(4.999)
    queue.tidy()
    assert queue.counts().staged == 2
    clock.advance(0.001)
    assert queue.lease(30) is None
    assert queue.counts().staged == 0
    assert behind("ZCARD", "staging") == 0
    with pytest.raises(WrongState, match="gone"):
        queue.write("w").commit([staged])


def test_every_chunk_gives_an_attempt_more_time(queue: Queue, clock: Clock) -> None:
    def rows() -> Any:
        for _ in range(3):
            clock.advance(4)
            yield from [b"x"] * 1000

    queue.write("w").stage(rows(), partition=0, attempt=0, keep_for=5)
    queue.tidy()
    assert queue.counts().staged == 3


@pytest.mark.parametrize("chunks", [15, 16, 17, 40])
def test_chunks_are_forgotten_a_few_at_a_time(queue: Queue, clock: Clock, chunks: int) -> None:
    rows = [b"x" * 1_048_000] * chunks
    queue.write("w").stage(rows, partition=0, attempt=0, keep_for=1)
    clock.advance(1)
    queue._run(calls.tidy())
    assert queue.counts().staged == max(0, chunks - 16)
    assert queue.audit() == []
    queue.tidy()
    assert queue.counts().staged == 0


def test_what_is_half_forgotten_cannot_be_gone_on_with(queue: Queue, clock: Clock) -> None:
    chunk = frame([Entry("a", b"x", False, 50, b"", b"")])
    for number in range(20):
        queue._run(write_calls.stage("w/0.0", number, 1000, chunk))
    clock.advance(1)
    queue._run(calls.tidy())
    with pytest.raises(WrongState, match=r"^w/0\.0: the staged rows are gone"):
        queue._run(write_calls.stage("w/0.0", 20, 1000, chunk))
    with pytest.raises(WrongState, match="gone"):
        queue.write("w").commit([Staged("w", 0, 0, 20, 20)])


def test_what_was_adopted_and_not_committed_is_forgotten(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    staged = adopted(queue, "w", [b"x"], keep_for_ms=5000)
    clock.advance(5)
    queue.tidy()
    assert behind("HLEN", "ledger") == queue.counts().staged == 0
    with pytest.raises(WrongState, match="gone"):
        queue.write("w").commit([staged])


def test_what_is_committed_is_never_forgotten(queue: Queue, clock: Clock) -> None:
    queue.pause()
    committed(queue, [b"x"])
    clock.advance(1000 * DAY)
    queue._run(calls.tidy())
    queue.resume()
    assert take(queue).data == b"x"


def test_what_is_aborted_is_gone_at_once(queue: Queue, behind: Behind) -> None:
    write = queue.write("w")
    staged = [write.stage([b"x" * 1_048_000] * 20, partition=n, attempt=0) for n in range(2)]
    write.abort([*staged, None])
    assert behind("HLEN", "ledger") == queue.counts().staged == 0
    write.abort(staged)
    with pytest.raises(WrongState, match="gone"):
        write.commit(staged)


def test_what_is_aborted_after_it_was_adopted_cannot_be_committed(
    queue: Queue, behind: Behind
) -> None:
    """A commit whose reply was lost may arrive after the abort that followed it."""
    staged = adopted(queue, "w", [b"x"])
    queue.write("w").abort([staged])
    with pytest.raises(WrongState, match="gone"):
        queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    assert behind("HLEN", "ledger") == queue.counts().staged == 0


def test_an_abort_does_not_touch_what_is_committed(queue: Queue) -> None:
    staged = adopted(queue, "w", [b"x"])
    queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    queue.write("w").abort([staged])
    assert queue.publish() == 1


# ---------------------------------------------------------------------- asked again


def test_a_chunk_that_is_staged_again_counts_once(queue: Queue) -> None:
    chunk = frame([Entry("a", b"x", False, 50, b"", b"")])
    other = frame([Entry("b", b"x", False, 50, b"", b"")])
    assert queue._run(write_calls.stage("w/0.0", 0, 1000, chunk)) == 1
    assert queue._run(write_calls.stage("w/0.0", 0, 1000, other)) == 1
    assert queue._run(write_calls.stage("w/0.0", 1, 1000, other)) == 2
    queue.write("w").commit([Staged("w", 0, 0, 2, 2)])
    assert [job.id for job in queue.peek(9)] == ["a", "b"]


def test_nothing_is_staged_under_what_is_adopted(queue: Queue) -> None:
    adopted(queue, "w", [b"x"])
    with pytest.raises(WrongState, match="about to be committed"):
        stage(queue, [b"y"])


def test_adopting_again_changes_nothing(queue: Queue, behind: Behind) -> None:
    adopted(queue, "w", [b"x"])
    before = behind.everything()
    queue._run(write_calls.adopt("w", "", 0, 0, [("w/0.0", 1)], keep_for_ms=60_000))
    after = behind.everything()
    assert (after["staged"], after["staging"]) == (before["staged"], before["staging"])
    kept = {"chunks": 1, "of": "winners 0 w"}
    assert msgspec.msgpack.decode(after["ledger"][1][b"attempt w/0.0"]) == kept


def test_what_another_write_has_adopted_is_not_committed_twice(queue: Queue) -> None:
    staged = adopted(queue, "w", [b"x"])
    with pytest.raises(WrongState, match="gone"):
        queue.write("v").commit([staged])
    assert queue.write("w").commit([staged])


def test_winners_that_are_replaced_by_others_are_forgotten(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    write = queue.write("w")
    adopted(queue, "w", [b"first"])
    second = write.stage([b"second"], partition=0, attempt=1)
    write.commit([second])
    queue.tidy()
    assert queue.counts().staged == 0
    assert payloads(queue) == [b"second"]


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Row(b"", id="a", request="r")], "give no id"),
        ([Row(b"", request="r", result_for=5)], "result_for"),
        ([Row(b"", request="r", group="g")], "group"),
        ([Row(b"", request="r/end")], "/end"),
        ([Row(b"", request="")], "request"),
        ([Row(b"", priority=100)], "priority"),
        ([Row(b"", delay=1, at=1)], "not both"),
        ([Row(b"", delay=-1)], "delay"),
        ([Row(b"", id="")], "id"),
        ([float("nan")], "NaN"),
        ("text", "rows"),
        (7, "rows"),
    ],
)
def test_a_bad_row_is_refused_before_anything_is_sent(
    queue: Queue, behind: Behind, rows: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stage(queue, rows)
    assert behind.everything() == {}


@pytest.mark.parametrize("name", ["", "x" * 441, 7, b"w"])
def test_a_name_that_cannot_be_is_refused(queue: Queue, name: Any) -> None:
    with pytest.raises(InvalidArgument):
        queue.write(name)
    with pytest.raises(InvalidArgument):
        queue.last_batch(name)
    with pytest.raises(InvalidArgument):
        queue.write("w").commit([], writer=name, batch=1)


@pytest.mark.parametrize("number", [-1, 2**53, 1.5, True, "0", None])
def test_a_number_that_cannot_be_is_refused(queue: Queue, number: Any) -> None:
    for numbers in ({"partition": number, "attempt": 0}, {"partition": 0, "attempt": number}):
        with pytest.raises(InvalidArgument):
            queue.write("w").stage([b""], **numbers)
    with pytest.raises(InvalidArgument):
        queue.write("w").commit([], writer="stream", batch=number)


@pytest.mark.parametrize(
    "options",
    [
        {"winners": [None]},
        {"winners": Staged("w", 0, 0, 1, 1)},
        {"winners": [], "writer": "stream"},
        {"winners": [], "batch": 1},
        {"winners": [], "on_conflict": "raise"},
        {"winners": [], "on_conflict": None},
    ],
)
def test_a_commit_that_cannot_be_is_refused(queue: Queue, behind: Behind, options: Any) -> None:
    with pytest.raises(InvalidArgument):
        queue.write("w").commit(**options)
    assert behind.everything() == {}


def test_a_row_of_a_request_is_not_just_added(queue: Queue, behind: Behind) -> None:
    with pytest.raises(InvalidArgument, match="staged"):
        queue.add_many([Row(b"", request="r")])
    assert behind.everything() == {}
    assert queue.add_many([Row(b"", id="a")])


def _words(*words: bytes) -> bytes:
    return join_words(words)


GARBLED = {
    "nothing": b"",
    "no words": _words(),
    "too few words": _words(b"", b"1", b"50", b"", b"", b"1", b"a"),
    "a word too many": _words(b"", b"1", b"50", b"", b"", b"1", b"a", b"x", b"y"),
    "no more bytes": frame([Entry("a", b"x", False, 50, b"", b"")])[:-1],
    "a byte too many": frame([Entry("a", b"x", False, 50, b"", b"")]) + b"x",
    "more words than there are": b"\xff\xff\0\0" + b"\0" * 100,
    "a word without end": b"\x08\0\0\0" + b"\xff\xff\xff\xff" * 8,
    "no priority": _words(b"", b"1", b"100", b"", b"", b"1", b"a", b"x"),
    "no id": _words(b"", b"1", b"50", b"", b"", b"1", b"", b"x"),
    "no options": _words(b"", b"1", b"50", b"", b"\xc1", b"1", b"a", b"x"),
    "no due": _words(b"", b"1", b"50", b"nan", b"", b"1", b"a", b"x"),
    "no count": _words(b"", b"1", b"50", b"", b"", b"0", b"a", b"x"),
    "no request": _words(b"r/end", b"1", b"50", b"", b"", b"1", b"a", b"x"),
    "a request with too long a name": _words(b"r" * 481, b"1", b"50", b"", b"", b"1", b"a", b"x"),
    "a part with a group": _words(b"r", b"1", b"50", b"", b"\x81\xa5group\xa1g", b"1", b"a", b"x"),
    "more rows than a call may add": frame(
        [Entry(str(n), b"", False, 50, b"", b"") for n in range(1001)]
    ),
}


@pytest.mark.parametrize("what", GARBLED)
def test_a_chunk_that_could_not_be_published_is_not_staged(
    queue: Queue, behind: Behind, what: str
) -> None:
    with pytest.raises(InvalidArgument):
        queue._run(write_calls.stage("w/0.0", 0, 1000, GARBLED[what]))
    assert behind.everything() == {}


@pytest.mark.parametrize("name", ["w", "w/0", "w/0.0/0", "w/a.b", "w/0.", "x" * 510 + "/0.0"])
def test_an_attempt_has_a_name_that_no_chunk_has(queue: Queue, behind: Behind, name: str) -> None:
    chunk = frame([Entry("a", b"x", False, 50, b"", b"")])
    asked: list[Call[Any]] = [
        write_calls.stage(name, 0, 1000, chunk),
        write_calls.adopt("w", "", 0, 0, [(name, 1)], keep_for_ms=1000),
        write_calls.abort([name]),
    ]
    for call in asked:
        with pytest.raises(InvalidArgument):
            queue._run(call)
    assert behind.everything() == {}


def test_as_many_groups_as_rows_can_be_staged(queue: Queue) -> None:
    rows = [Row(b"", id=str(n), delay=n + 1) for n in range(1000)]
    assert queue.write("w").commit([stage(queue, rows)]).rows == 1000
    assert queue.counts().delayed == 1000


def test_a_write_may_have_any_name(queue: Queue, clock: Clock) -> None:
    for name in ("a/0.0", "a/0.0/0", "winners 0 a", "a b", "\0\n{}", "a/winners/0", "ü" * 220):
        staged = stage(queue, [Row(b"", id=name)], write=name)
        assert queue.write(name).commit([staged])
    assert len(queue.lease_many(99, 60)) == 7
    clock.advance(DAY)
    queue.tidy(force=True)
    assert queue.counts().staged == 0


def test_the_bounds_are_those_that_are_promised() -> None:
    assert (inputs.MAX_CHUNK_BYTES, inputs.KEEP_MS) == (2**20, 86_400_000)
    assert issubclass(Row, NewJob)
    assert Lease("a", b"", "t.1").holder == "t"


def test_a_tidy_makes_overdue_rows_ready_by_their_time(queue: Queue, clock: Clock) -> None:
    now = clock.ms / 1000
    rows = [Row(b"%d" % n, at=now - n) for n in range(1100)]
    committed(queue, rows)
    tidied = queue.tidy()
    assert (tidied.published, tidied.promoted) == (1100, 1100)
    assert queue.counts().ready == 1100
    assert take(queue).data == b"1099"
