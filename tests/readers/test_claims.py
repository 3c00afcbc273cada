"""A reader claims jobs in numbered batches, which it can read again until they are settled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, adopted, ids, take
from holdfast import (
    Claim,
    Fenced,
    InvalidArgument,
    LeaseLost,
    NewJob,
    Opened,
    Queue,
    Reader,
    WrongState,
)
from holdfast.engine import calls, claim_calls, write_calls


@pytest.fixture
def reader(queue: Queue) -> Reader:
    reader = queue.reader("etl")
    reader.open()
    return reader


def fill(queue: Queue, count: int, **options: Any) -> None:
    queue.add_many([NewJob(b"%d" % n, id=f"{n}") for n in range(count)], **options)


def lapse(queue: Queue, clock: Clock, seconds: float = 3600) -> None:
    """Let so much time pass, with somebody around all the time."""
    clock.advance(seconds)
    queue.register()
    clock.advance(5)


# ------------------------------------------------------------------------ claim and read


def test_a_claim_takes_the_best_jobs_in_chunks(queue: Queue, reader: Reader) -> None:
    fill(queue, 2500)
    queue.add(b"best", id="best", priority=99)
    claim = reader.claim(0, 2100)
    assert claim == Claim(0, (1000, 1000, 100))
    assert claim.jobs == 2100
    first = reader.read(0, 0)
    assert ids(first)[:3] == ["best", "0", "1"]
    assert first[0].data == b"best"
    assert [lease.data for lease in reader.read(0, 2)] == [b"%d" % n for n in range(1999, 2099)]
    assert queue.counts().leased == 2100
    assert queue.counts().claims == 3


def test_a_claim_takes_what_there_is(queue: Queue, reader: Reader) -> None:
    fill(queue, 3)
    assert reader.claim(0, 5000) == Claim(0, (3,))
    assert reader.claim(1, 5000) == Claim(1, ())
    fill(queue, 1, on_conflict="ignore")
    queue.add(b"more")
    assert reader.claim(1, 5000) == Claim(1, (1,))


def test_a_claim_that_is_held_is_told_as_it_is(queue: Queue, reader: Reader) -> None:
    fill(queue, 5)
    claim = reader.claim(0, 3)
    assert reader.claim(0, 5) == claim == reader.look(0)
    assert queue.counts().leased == 3
    assert reader.read(0, 0) == reader.read(0, 0)


def test_the_jobs_of_a_claim_carry_what_is_known_of_them(queue: Queue, reader: Reader) -> None:
    with queue.request("r", limit=1) as request:
        request.add_many([b"0", b"1"])
    queue.add(b"x", id="x", handler="mail", priority=9)
    assert reader.claim(0, 9).jobs == 2, "the limit of a request holds for claims too"
    part, job = reader.read(0, 0)
    assert (part.id, part.request) == ("r/0", "r")
    assert (job.id, job.facts.handler, job.token) == ("x", "mail", "claim:etl.0")
    assert reader.settle(1) == 2
    assert ids([take(queue)]) == ["r/1"]


def test_claims_have_numbers_one_after_the_other(queue: Queue, reader: Reader) -> None:
    fill(queue, 9)
    for n in range(3):
        assert reader.claim(n, 2).jobs == 2
    with pytest.raises(WrongState, match="the next claim is another"):
        reader.claim(4, 2)
    with pytest.raises(WrongState, match="claim 3 does not exist yet"):
        reader.look(3)
    with pytest.raises(WrongState):
        reader.read(3, 0)
    with pytest.raises(WrongState, match="no such chunk"):
        reader.read(2, 1)


def test_a_paused_queue_gives_nothing(queue: Queue, reader: Reader) -> None:
    fill(queue, 3)
    queue.pause()
    assert reader.claim(0, 5).jobs == 0
    queue.resume()
    assert reader.claim(0, 5).jobs == 3


def test_a_claim_promotes_and_publishes_first(queue: Queue, clock: Clock, reader: Reader) -> None:
    queue.add(b"later", id="later", delay=1)
    adopted(queue, "w", [b"row"] * 1500)
    queue._run(write_calls.commit("w", "", 0, 1, keep_for_ms=1000))
    clock.advance(1)
    assert reader.claim(0, 5000).jobs == 1501


def test_a_chunk_is_not_more_than_fits_into_a_reply(queue: Queue, reader: Reader) -> None:
    queue.add_many([b"x" * 3_000_000] * 5)
    assert reader.claim(0, 9) == Claim(0, (2, 2, 1))
    assert sum(len(reader.read(0, chunk)) for chunk in range(3)) == 5


def test_two_readers_claim_other_jobs(queue: Queue, reader: Reader) -> None:
    fill(queue, 4)
    second = queue.reader("other")
    second.open()
    assert reader.claim(0, 2).jobs == second.claim(0, 9).jobs == 2
    assert ids(second.read(0, 0)) == ["2", "3"]
    assert reader.settle(1) == second.settle(1) == 2


def test_what_is_claimed_is_leased_to_everybody_else(queue: Queue, reader: Reader) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    assert queue.lease(30) is None
    job = queue.show("0")
    assert job is not None
    assert (job.state, job.token) == ("leased", "claim:etl.0")
    assert "under claim:etl.0" in queue.explain("0")
    assert "the lease never lapses" in queue.explain("0")


# --------------------------------------------------------------------------- settle


def test_settling_completes_everything_below(queue: Queue, reader: Reader) -> None:
    fill(queue, 2500, result_for=60)
    reader.claim(0, 1500)
    reader.claim(1, 10)
    reader.claim(2, 10)
    assert reader.settle(2) == 1510
    assert queue.counts().leased == 10
    assert queue.counts().ended == 1510
    assert reader.settle(2) == 0
    for n in (0, 1):
        for ask in (lambda n=n: reader.read(n, 0), lambda n=n: reader.look(n)):
            with pytest.raises(WrongState, match=f"claim {n} is settled"):
                ask()
        with pytest.raises(WrongState, match="settled"):
            reader.claim(n, 5)
    assert len(reader.read(2, 0)) == 10


def test_nothing_is_settled_that_was_not_claimed(queue: Queue, reader: Reader) -> None:
    fill(queue, 2)
    reader.claim(0, 1)
    with pytest.raises(WrongState, match="no such claim yet"):
        reader.settle(2)
    assert queue.counts().leased == 1


def test_who_settles_in_part_can_be_followed(queue: Queue, reader: Reader) -> None:
    fill(queue, 2500)
    reader.claim(0, 2500)
    assert queue._run(claim_calls.settle_claims("etl", 1, 1)) == (1000, True)
    with pytest.raises(WrongState, match="settled"):
        reader.read(0, 0)
    assert len(reader.read(0, 1)) == 1000
    following = queue.reader("etl")
    assert following.open() == Opened(2, 0, 1)
    assert following.settle(1) == 1500
    assert queue.counts().leased == 0


def test_a_job_that_was_cancelled_meanwhile_ends_as_that(queue: Queue, reader: Reader) -> None:
    fill(queue, 2, result_for=60)
    reader.claim(0, 2)
    assert queue.cancel("0")
    assert ids(reader.read(0, 0)) == ["0", "1"], "a replay is the same all the same"
    assert reader.settle(1) == 1
    outcome = queue.result("0")
    assert outcome is not None
    assert outcome.kind == "cancelled"


def test_a_job_that_was_changed_meanwhile_reads_as_before(queue: Queue, reader: Reader) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    queue.add(b"new", id="0", on_conflict="update")
    assert reader.read(0, 0)[0].data == b"0"
    reader.settle(1)
    assert take(queue).data == b"new"


def test_a_job_that_was_taken_away_by_force_is_told(queue: Queue, reader: Reader) -> None:
    fill(queue, 2)
    reader.claim(0, 2)
    queue.complete("0", force=True)
    with pytest.raises(WrongState, match="a job of the claim was taken away"):
        reader.read(0, 0)
    assert reader.settle(1) == 1


def test_a_claim_settles_the_last_part_of_a_request(queue: Queue, reader: Reader) -> None:
    with queue.request("r", follow_up=b"over") as request:
        request.add(b"0")
    reader.claim(0, 1)
    reader.settle(1)
    assert request.status().state == "completed"
    assert take(queue).id == "r/end/1"


# ---------------------------------------------------------------------------- lapses


def test_a_claim_that_lapses_is_given_back_whole_at_no_cost(
    queue: Queue, clock: Clock, reader: Reader
) -> None:
    fill(queue, 1500, max_lapses=0)
    reader.claim(0, 1500, claim_for=60)
    lapse(queue, clock, 59.999 - 5)
    queue.tidy()
    assert queue.counts().leased == 1500
    clock.advance(0.001)
    queue.tidy()
    assert (queue.counts().ready, queue.counts().claims) == (1500, 0)
    leases = queue.lease_many(1000, 60)
    assert {lease.lapses for lease in leases} == {0}
    assert ids(leases) == [f"{n}" for n in range(1000)], "at the rank that they had"


def test_a_claim_that_lapsed_is_never_read_again(
    queue: Queue, clock: Clock, reader: Reader
) -> None:
    fill(queue, 1500)
    reader.claim(0, 1500)
    lapse(queue, clock)
    queue._run(calls.tidy())
    assert queue.counts().leased == 500, "one chunk has gone back"
    for ask in (
        lambda: reader.read(0, 1), lambda: reader.look(0), lambda: reader.claim(0, 9),
    ):  # fmt: skip
        with pytest.raises(LeaseLost, match="etl: claim 0 no longer exists: it lapsed"):
            ask()
    assert reader.renew() == 0
    queue.tidy()
    assert queue.counts().ready == 1500
    with pytest.raises(LeaseLost):
        reader.read(0, 0)
    assert reader.claim(1, 10).jobs == 10
    assert reader.settle(2) == 10
    with pytest.raises(WrongState, match="settled"):
        reader.read(0, 0)


def test_what_is_left_of_a_claim_that_lapses_can_be_settled(
    queue: Queue, clock: Clock, reader: Reader
) -> None:
    fill(queue, 1500)
    reader.claim(0, 1500)
    lapse(queue, clock)
    queue._run(calls.tidy())
    assert reader.settle(1) == 500
    assert queue.counts().ready == 1000


def test_a_reader_that_lives_keeps_its_claims(queue: Queue, clock: Clock, reader: Reader) -> None:
    fill(queue, 3)
    reader.claim(0, 1)
    reader.claim(1, 1)
    for _ in range(3):
        clock.advance(3000)
        assert reader.renew() == 2
        queue.tidy()
    assert queue.counts().leased == 2
    clock.advance(3000)
    reader.renew(claim_for=7)
    lapse(queue, clock, 7)
    queue.tidy()
    assert queue.counts().leased == 0


def test_to_claim_again_is_a_sign_of_life(queue: Queue, clock: Clock, reader: Reader) -> None:
    fill(queue, 1)
    reader.claim(0, 1, claim_for=10)
    clock.advance(9)
    reader.claim(0, 1, claim_for=10)
    lapse(queue, clock, 4)
    queue.tidy()
    assert len(reader.read(0, 0)) == 1


def test_silence_of_everybody_is_not_a_lapse(queue: Queue, clock: Clock, reader: Reader) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    clock.advance(7200)
    queue.tidy()
    assert queue.counts().leased == 1
    assert reader.renew() == 1
    clock.advance(7200)
    queue.tidy(force=True)
    assert queue.counts().leased == 0


def test_asking_for_work_gives_lapsed_claims_back(
    queue: Queue, clock: Clock, reader: Reader
) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    lapse(queue, clock)
    assert take(queue).id == "0"


def test_a_claim_that_was_never_sealed_goes_back_and_its_number_is_free(
    queue: Queue, clock: Clock, reader: Reader, behind: Behind
) -> None:
    fill(queue, 3)
    queue._run(claim_calls.claim("etl", 1, 0, 0, 2, claim_ms=1000))
    with pytest.raises(WrongState):
        reader.look(0)
    lapse(queue, clock)
    queue.tidy()
    assert queue.counts().ready == 3
    assert reader.claim(0, 3) == Claim(0, (3,))
    assert behind("HLEN", "claims") == 1


def test_a_claim_that_was_begun_is_gone_on_with(queue: Queue, reader: Reader) -> None:
    fill(queue, 9)
    queue._run(claim_calls.claim("etl", 1, 0, 0, 2, claim_ms=1000))
    following = queue.reader("etl")
    following.open()
    assert following.claim(0, 5) == Claim(0, (2, 3))


def test_a_claim_does_not_lapse_while_it_grows(queue: Queue, clock: Clock, reader: Reader) -> None:
    fill(queue, 9)
    queue._run(claim_calls.claim("etl", 1, 0, 0, 2, claim_ms=1000))
    clock.advance(2)
    found = queue._run(claim_calls.claim("etl", 1, 0, 1, 2, claim_ms=1000, seal=True))
    assert found == claim_calls.Claiming(sealed=True, sizes=[2, 2])
    assert queue.counts().leased == 4


def test_a_worker_that_fails_takes_no_claim_with_it(
    queue: Queue, clock: Clock, reader: Reader
) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    clock.advance(60)
    assert queue.tidy(held_longer_than=1).reclaimed == 0
    assert queue.fail_worker("claim:etl") == 0
    assert len(reader.read(0, 0)) == 1


# ------------------------------------------------------------------------- give back


def test_a_claim_is_given_back_at_no_cost(queue: Queue, reader: Reader) -> None:
    fill(queue, 1500, max_lapses=0)
    reader.claim(0, 1500)
    assert reader.give_back(0) == 1500
    assert queue.counts().ready == 1500
    with pytest.raises(LeaseLost, match="it was given back"):
        reader.read(0, 0)
    assert reader.give_back(0) == 0
    assert reader.settle(1) == 0
    with pytest.raises(WrongState, match="settled"):
        reader.give_back(0)


def test_what_is_given_back_goes_to_the_back_where_the_queue_says_so(
    queue: Queue, clock: Clock
) -> None:
    back = Queue(queue.name, queue.server, requeue="back", clock=clock)
    fill(queue, 3)
    reader = back.reader("etl")
    reader.open()
    reader.claim(0, 1)
    reader.give_back(0)
    assert ids(queue.lease_many(3, 60)) == ["1", "2", "0"]


def test_a_cancelled_job_that_is_given_back_is_gone(queue: Queue, reader: Reader) -> None:
    fill(queue, 2)
    reader.claim(0, 2)
    queue.cancel("0")
    reader.give_back(0)
    assert ids(queue.lease_many(9, 60)) == ["1"]


# ----------------------------------------------------------------------------- fences


def test_a_newer_reader_fences_the_older_one_off(queue: Queue, reader: Reader) -> None:
    fill(queue, 9)
    reader.claim(0, 3)
    newer = queue.reader("etl")
    assert newer.open() == Opened(epoch=2, settled=0, next=1)
    for ask in (
        lambda: reader.claim(1, 1),
        lambda: reader.claim(0, 1),
        lambda: reader.read(0, 0),
        reader.renew,
        lambda: reader.settle(1),
        lambda: reader.give_back(0),
    ):
        with pytest.raises(Fenced, match="a newer reader"):
            ask()
    assert newer.claim(0, 9).jobs == len(newer.read(0, 0)) == 3
    assert newer.settle(1) == 3


def test_those_who_read_for_a_reader_present_its_epoch(queue: Queue, reader: Reader) -> None:
    fill(queue, 1)
    reader.claim(0, 1)
    assert len(queue.reader("etl", epoch=reader.epoch).read(0, 0)) == 1
    with pytest.raises(Fenced):
        queue.reader("etl", epoch=7).read(0, 0)


def test_a_reader_that_is_not_open_says_so(queue: Queue) -> None:
    reader = queue.reader("etl")
    for ask in (
        lambda: reader.claim(0, 1), lambda: reader.read(0, 0), reader.renew,
        lambda: reader.settle(1), lambda: reader.give_back(0), lambda: reader.epoch,
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="open this reader first"):
            ask()
    with pytest.raises(WrongState, match="claim 0 does not exist yet"):
        reader.look(0)


def test_readers_of_a_deleted_queue_are_fenced_off(queue: Queue, reader: Reader) -> None:
    queue.delete()
    with pytest.raises(Fenced, match="the queue was deleted"):
        reader.claim(0, 1)


def test_an_epoch_is_never_given_twice(queue: Queue, clock: Clock, reader: Reader) -> None:
    clock.advance(1e6)
    queue.tidy()
    assert [queue.reader("etl").open().epoch for _ in range(3)] == [2, 3, 4]


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", ["", "x" * 441, "two words", "a\tb", "a\u2003b", 7, b"r"])
def test_a_name_that_cannot_be_is_refused(queue: Queue, name: Any) -> None:
    with pytest.raises(InvalidArgument):
        queue.reader(name)


@pytest.mark.parametrize("number", [-1, 2**53, 1.5, True, "0", None])
def test_a_number_that_cannot_be_is_refused(queue: Queue, reader: Reader, number: Any) -> None:
    for ask in (
        lambda: reader.claim(number, 1),
        lambda: reader.claim(0, number),
        lambda: reader.look(number),
        lambda: reader.read(number, 0),
        lambda: reader.read(0, number),
        lambda: reader.settle(number),
        lambda: reader.give_back(number),
    ):
        with pytest.raises(InvalidArgument):
            ask()
    if number is not None:
        with pytest.raises(InvalidArgument):
            queue.reader("etl", epoch=number)


@pytest.mark.parametrize("seconds", [0, -1, "1", None, float("nan")])
def test_a_time_that_cannot_be_is_refused(reader: Reader, seconds: Any) -> None:
    with pytest.raises(InvalidArgument):
        reader.claim(0, 1, claim_for=seconds)
    with pytest.raises(InvalidArgument):
        reader.renew(claim_for=seconds)


def test_a_thousand_claims_may_be_open_and_no_more(queue: Queue, reader: Reader) -> None:
    fill(queue, 1001)
    for n in range(1000):
        reader.claim(n, 1)
    with pytest.raises(WrongState, match="settle claims first"):
        reader.claim(1000, 1)
    assert reader.renew() == 1000
    assert reader.settle(1) == 1
    assert reader.claim(1000, 1).jobs == 1


def test_a_reader_may_have_any_name_without_spaces(queue: Queue, clock: Clock) -> None:
    names = ("a", "a.0", "0/0", "claim:a", "ü{}\0", "x" * 440)
    for name in names:
        queue.add(b"", id=name)
        reader = queue.reader(name)
        reader.open()
        assert reader.claim(0, 1).jobs == 1
    assert queue.audit() == []
    for name in names:
        reader = queue.reader(name, epoch=1)
        assert ids(reader.read(0, 0)) == [name]
        assert reader.settle(1) == 1


# ------------------------------------------------------------------- broken by somebody


@pytest.mark.parametrize(
    "command",
    [
        ("HDEL", "ledger", "claim 0 etl"),
        ("HDEL", "claims", "0/0 etl"),
        ("HSET", "claims", "7/0 nobody", "x"),
        ("ZREM", "staging", "claim 0 etl"),
        ("ZREM", "staging", "reader etl"),
        ("HSET", "ledger", "claim 0 etl", "garbage"),
        ("HSET", "meta", "staging", 2**53 - 1),
    ],
)
def test_what_is_broken_is_found_and_mended(
    queue: Queue, reader: Reader, behind: Behind, command: tuple[Any, ...]
) -> None:
    fill(queue, 3)
    reader.claim(0, 2)
    behind(*command)
    assert queue.audit() != []
    queue.repair()
    if command[:2] != ("HDEL", "claims"):
        assert queue.audit() == []
    reader.settle(1)
    assert queue.lease_many(9, 60)
    queue.delete()


def test_the_jobs_of_a_chunk_that_was_lost_are_not_lost(
    queue: Queue, reader: Reader, behind: Behind
) -> None:
    fill(queue, 3)
    reader.claim(0, 3)
    behind("HDEL", "claims", "0/0 etl")
    queue.repair()
    assert reader.settle(1) == 0
    queue.repair()
    assert queue.counts().ready == 3


@pytest.mark.parametrize("sizes", [5, [], ["x"], {"a": 1}, None])
def test_a_garbled_claim_stops_nobody(
    queue: Queue, clock: Clock, reader: Reader, spoiled: Behind, sizes: Any
) -> None:
    fill(queue, 2)
    reader.claim(0, 1)
    garbled = msgspec.msgpack.encode({"sizes": sizes, "sealed": True})
    spoiled("HSET", "ledger", "claim 0 etl", garbled)
    reader.settle(1)
    lapse(queue, clock)
    queue.tidy()
    assert queue.lease_many(9, 60)


@pytest.mark.parametrize("end", ["lapse", "settle"])
@pytest.mark.parametrize("garbage", [[True], [{}], [["a"]], [None, "a"], [7], ["a"] * 9000])
def test_garbage_in_a_chunk_stops_neither_the_queue_nor_a_repair(
    queue: Queue, clock: Clock, reader: Reader, spoiled: Behind, garbage: list[object], end: str
) -> None:
    queue.add(b"", id="a")
    reader.claim(0, 9)
    [chunk] = spoiled("HKEYS", "claims")
    spoiled("HSET", "claims", chunk, msgspec.msgpack.encode(garbage))
    queue.add(b"", id="b")
    if end == "lapse":
        clock.advance(3600)
        queue.tidy(force=True)
    else:
        reader.settle(1)
    assert take(queue).id == "b"
    queue.repair()
    assert queue.audit() == []
    assert take(queue).id == "a"


# --------------------------------------------------------------- readers that are gone

DAY = 86_400


def test_a_reader_of_whom_nothing_is_heard_for_a_hundred_days_is_forgotten(
    queue: Queue, reader: Reader, clock: Clock, behind: Behind
) -> None:
    fill(queue, 3)
    reader.claim(0, 3, claim_for=60)
    clock.advance(100 * DAY - 0.001)
    queue.tidy(force=True)
    assert queue.counts().ready == 3
    assert behind("HEXISTS", "ledger", "reader etl")
    clock.advance(0.001)
    queue.tidy()
    assert behind("HLEN", "ledger") == behind("ZCARD", "staging") == 0
    with pytest.raises(Fenced):
        reader.renew(claim_for=60)
    assert queue.reader("etl").open() == Opened(1, 0, 0)


@pytest.mark.parametrize("how", ["claim", "renew", "open"])
def test_a_reader_that_finds_nothing_to_do_is_kept(
    queue: Queue, reader: Reader, clock: Clock, how: str
) -> None:
    for _ in range(5):
        clock.advance(99 * DAY)
        queue.tidy()
        if how == "claim":
            assert reader.claim(0, 3).jobs == 0
        elif how == "renew":
            assert reader.renew(claim_for=60) == 0
        else:
            reader.open()
    clock.advance(99 * DAY)
    queue.tidy()
    assert reader.renew(claim_for=60) == 0


def test_a_reader_with_an_open_claim_is_kept(
    queue: Queue, reader: Reader, clock: Clock, behind: Behind
) -> None:
    fill(queue, 3)
    reader.claim(0, 3, claim_for=365 * DAY)
    for _ in range(3):
        clock.advance(101 * DAY)
        queue.tidy()
    assert reader.settle(1) == 3


def test_readers_that_are_gone_leave_nothing(queue: Queue, clock: Clock, behind: Behind) -> None:
    for n in range(50):
        fill(queue, 3)
        name = queue.reader(f"r{n}")
        name.open()
        name.claim(0, 3, claim_for=60)
        name.settle(1)
    clock.advance(101 * DAY)
    queue.tidy()
    assert behind("HLEN", "ledger") == behind("ZCARD", "staging") == 0


def test_a_reader_that_an_older_release_left_is_forgotten_after_it_was_used_again(
    queue: Queue, reader: Reader, clock: Clock, behind: Behind
) -> None:
    behind("ZADD", "staging", 2**53 - 1, "reader etl")
    reader.renew(claim_for=60)
    clock.advance(101 * DAY)
    queue.tidy()
    assert behind("HLEN", "ledger") == 0
