"""What somebody else wrote into the keys of writes is found, mended, and stops nobody."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from conftest import Clock
from engine_support import Behind, adopted, pack
from holdfast import Problem, Queue, Row, WrongState
from holdfast.engine import calls, write_calls

Break = Callable[[Behind], object]


@pytest.fixture
def full(queue: Queue, behind: Behind) -> Behind:
    """One attempt is staged, one adopted, one committed."""
    queue.write("a").stage([b"x"] * 1001, partition=0, attempt=0)
    adopted(queue, "b", [b"x"])
    adopted(queue, "c", [b"x"] * 1001)
    queue._run(write_calls.commit("c", "stream", 1, 1, keep_for_ms=1000))
    assert queue.audit() == []
    return behind


BREAKS: dict[str, tuple[Break, str]] = {
    "a chunk is lost": (lambda b: b("HDEL", "staged", "a/0.0/1"), "chunks of rows"),
    "a chunk too many": (lambda b: b("HSET", "staged", "z/0.0/1", "x"), "chunks of rows"),
    "a record is lost": (lambda b: b("HDEL", "ledger", "attempt a/0.0"), "not in the ledger"),
    "a record too many": (
        lambda b: b("HSET", "ledger", "attempt z/0.0", pack(chunks=0)),
        "records of the ledger",
    ),
    "a list is lost": (lambda b: b("HDEL", "ledger", "winners 0 b"), "adopted by nobody"),
    "a time is lost": (lambda b: b("ZREM", "staging", "attempt a/0.0"), "records of the ledger"),
    "a commit gets a time": (
        lambda b: b("ZADD", "staging", 5, "commit c"),
        "committed, but not to be published",
    ),
    "a winner gets a time": (
        lambda b: b("ZADD", "staging", 5, "attempt c/0.0"),
        "adopted, but to be forgotten",
    ),
    "it is to be seen to later": (
        lambda b: b("HSET", "meta", "staging", 2**53 - 1),
        "seen to too late",
    ),
    "it is to be seen to never": (lambda b: b("HDEL", "meta", "staging"), "seen to too late"),
    "a record of nothing": (
        lambda b: b("HSET", "ledger", "attempt a/0.0", "garbage"),
        "not in the ledger",
    ),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_is_found_and_mended(queue: Queue, full: Behind, what: str) -> None:
    breaks, word = BREAKS[what]
    breaks(full)
    assert any(word in problem.what for problem in queue.audit())
    assert queue.repair() != []
    assert queue.audit() == []
    queue.delete()


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_stops_nobody(queue: Queue, clock: Clock, full: Behind, what: str) -> None:
    BREAKS[what][0](full)
    for _ in range(5):
        queue.complete_many(queue.lease_many(1000, 60))
    clock.advance(86400 * 2)
    queue.repair()
    queue.tidy(force=True)
    queue.complete_many(queue.lease_many(1000, 60))
    queue.publish()
    assert queue.add(b"x")
    queue.delete()


def test_a_time_that_was_lost_is_found_again(queue: Queue, full: Behind) -> None:
    names = ("attempt a/0.0", "winners 0 b", "commit c", "winners 0 c", "writer stream")
    before = {name: full("ZSCORE", "staging", name) for name in names}
    full("ZREM", "staging", *names)
    assert {problem.what for problem in queue.repair()} == {"seen to again"}
    after = {name: full("ZSCORE", "staging", name) for name in names}
    assert queue.audit() == []
    assert after["commit c"] < 0
    assert after["attempt a/0.0"] == before["attempt a/0.0"]
    assert after["writer stream"] == before["writer stream"]
    assert after["winners 0 c"] == 2**53 - 1
    assert queue.publish() == 1001


def test_a_chunk_that_was_lost_refuses_the_commit_or_is_passed_over(
    queue: Queue, full: Behind
) -> None:
    full("HDEL", "staged", "c/0.0/0")
    assert queue.publish() == 1
    full("HSET", "ledger", "attempt a/0.0", pack(chunks=1))
    with pytest.raises(WrongState, match="gone"):
        queue._run(write_calls.adopt("a", "", 0, 0, [("a/0.0", 2)], keep_for_ms=1000))
    queue.delete()


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\x08\0\0\0" + b"\xff" * 40])
def test_a_garbled_chunk_is_passed_over(queue: Queue, full: Behind, garbage: bytes) -> None:
    full("HSET", "staged", "c/0.0/0", garbage)
    assert queue.publish() == 1
    assert queue.audit() == []


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"lists": "x"},
        {"lists": -1},
        {"lists": 1.5, "list": 0},
        {"lists": 9, "list": 0, "place": 0, "how": 5},
        {"lists": 1, "list": 0, "place": 7, "keep_ms": "x"},
    ],
)
def test_a_garbled_commit_stops_nobody(
    queue: Queue, full: Behind, record: dict[str, object]
) -> None:
    full("HSET", "ledger", "commit c", msgspec.msgpack.encode(record))
    queue.publish()
    queue.lease_many(9, 60)
    queue.tidy()
    queue.delete()


@pytest.mark.parametrize("listed", [[], [5], ["c/0.0"], ["c/0.0", "x"], [{}, 1], {"a": 1}])
def test_a_garbled_list_stops_nobody(queue: Queue, full: Behind, listed: object) -> None:
    full("HSET", "ledger", "winners 0 c", msgspec.msgpack.encode(listed))
    queue.publish()
    queue.tidy()
    queue.delete()


def test_what_a_newer_release_enters_is_left_alone(
    queue: Queue, clock: Clock, behind: Behind
) -> None:
    behind("HSET", "ledger", "dream of sheep", pack(electric=True))
    behind("ZADD", "staging", clock.ms, "dream of sheep")
    queue.tidy()
    assert behind("ZSCORE", "staging", "dream of sheep") == 2**53 - 1
    assert queue.audit() == []


def test_a_repair_of_what_is_in_order_changes_nothing(queue: Queue, full: Behind) -> None:
    before = full.everything()
    assert queue.repair() == []
    after = full.everything()
    for name in ("staged", "staging", "ledger"):
        assert after[name] == before[name]


def test_an_audit_sees_what_moved_meanwhile(queue: Queue, full: Behind) -> None:
    stamp = queue._run(calls.audit()).stamp
    queue.write("a").stage([b"x"], partition=1, attempt=0)
    assert queue._run(calls.audit()).stamp != stamp


def test_nothing_of_a_write_is_left_when_the_queue_is_deleted(queue: Queue, full: Behind) -> None:
    queue.delete()
    assert full.everything() == {}


def test_problems_name_what_is_broken(queue: Queue, full: Behind) -> None:
    full("HDEL", "ledger", "winners 0 b")
    assert Problem("attempt b/0.0", "adopted by nobody") in queue.audit()
    queue.repair()
    with pytest.raises(WrongState, match="gone"):
        queue._run(write_calls.commit("b", "", 0, 1, keep_for_ms=1000))
    assert queue.write("b").commit([]).new
    assert Row(b"x").request is None
