"""What a source does while Spark works: settle, and claim ahead. Nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from holdfast import Fenced, Queue, ServerUnavailable
from holdfast.engine import claim_calls as engine
from holdfast.spark import ahead, claiming
from holdfast.spark.claiming import BEFORE_ALL, Claiming
from holdfast.spark.options import source_options
from holdfast.spark.source import StreamSource
from spark.support import Options
from support import wait_until

Open = Callable[[], Claiming]


@pytest.fixture
def open_claims(options: Options) -> Iterator[Open]:
    """Open the reader, as a start of the stream does."""
    opened: list[Claiming] = []

    def open_claims() -> Claiming:
        opened.append(Claiming(source_options({**options, "reader": "r"})))
        return opened[-1]

    yield open_claims
    for claims in opened:
        claims._ahead = None
        claims.stop()


def add(queue: Queue, count: int) -> None:
    queue.add_many(f"{number}" for number in range(count))


def ids(queue: Queue, claims: Claiming, n: int) -> list[str]:
    reader = queue.reader("r", epoch=claims.epoch)
    return [job.id for chunk in range(len(claims.chunks(n))) for job in reader.read(n, chunk)]


def held(queue: Queue, leased: int, ready: int) -> None:
    """Wait until so many jobs are leased, and so many ready."""

    def is_so() -> bool:
        counts = queue.counts()
        return (counts.leased, counts.ready) == (leased, ready)

    wait_until(is_so, f"{leased} leased and {ready} ready")


def one_ahead(queue: Queue, open_claims: Open) -> Claiming:
    """Claim ten of fifty, and ten more; then ten are claimed ahead, and the first are settled."""
    add(queue, 50)
    claims = open_claims()
    assert claims.after(BEFORE_ALL, 10) == 0
    assert claims.after(0, 10) == 1
    held(queue, 20, 20)
    return claims


def drain(queue: Queue, claims: Claiming, start: int) -> list[str]:
    """Go on after a claim until there is nothing more; return the ids that came."""
    seen: list[str] = []
    while (n := claims.after(start, 10)) is not None:
        seen += ids(queue, claims, n)
        start = n
    return seen


def test_the_next_batch_is_claimed_while_spark_works_on_this_one(
    live_queue: Queue, open_claims: Open
) -> None:
    claims = one_ahead(live_queue, open_claims)
    first = ids(live_queue, claims, 1)
    assert claims.after(1, 10) == 2
    held(live_queue, 20, 10)
    seen = first + ids(live_queue, claims, 2) + drain(live_queue, claims, 2)
    assert len(set(seen)) == len(seen) == 40
    held(live_queue, 0, 0)
    assert live_queue.audit() == []


def test_without_a_backlog_nothing_is_claimed_ahead(live_queue: Queue, open_claims: Open) -> None:
    add(live_queue, 15)
    claims = open_claims()
    assert claims.after(BEFORE_ALL, 10) == 0
    assert claims.after(0, 10) == 1
    add(live_queue, 10)
    claims.settle(0)
    held(live_queue, 5, 10)


def test_a_stream_whose_batches_take_long_claims_nothing_ahead(
    live_queue: Queue, open_claims: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "AHEAD_SECONDS", 0)
    add(live_queue, 50)
    claims = open_claims()
    assert claims.after(BEFORE_ALL, 10) == 0
    assert claims.after(0, 10) == 1
    claims._catch_up()
    held(live_queue, 10, 30)


def test_what_is_not_asked_for_soon_is_given_back(
    live_queue: Queue, open_claims: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "AHEAD_SECONDS", 0.01)
    add(live_queue, 50)
    claims = open_claims()
    claims.limit_to_waiting()
    assert claims.after(BEFORE_ALL, 10) == 0
    assert claims.after(0, 10) == 1
    seen = ids(live_queue, claims, 1)
    wait_until(lambda: claims._ahead and claims._ahead.is_given_back, "it to go back")
    held(live_queue, 10, 30)
    assert claims.after(1, 10) == 3
    monkeypatch.undo()
    seen += ids(live_queue, claims, 3) + drain(live_queue, claims, 3)
    assert len(set(seen)) == len(seen) == 40
    held(live_queue, 0, 0)


def test_what_was_claimed_ahead_goes_back_when_the_stream_stops(
    live_queue: Queue, open_claims: Open
) -> None:
    claims = one_ahead(live_queue, open_claims)
    seen = ids(live_queue, claims, 1)
    claims.stop()
    held(live_queue, 10, 30)
    assert all(job.lapses == 0 for job in live_queue.peek(50))
    # What Spark has heard of is replayed, and what comes after it comes again.
    again = open_claims()
    assert ids(live_queue, again, 1) == seen
    seen += drain(live_queue, again, 1)
    assert len(set(seen)) == len(seen) == 40
    held(live_queue, 0, 0)
    assert live_queue.audit() == []


def test_it_goes_back_too_when_the_stream_ends_while_it_waits_for_it(
    live_queue: Queue, open_claims: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = one_ahead(live_queue, open_claims)

    def end(_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(ahead.Ahead, "ask", end)
        with pytest.raises(SystemExit):
            claims.after(1, 10)
    claims.stop()
    held(live_queue, 10, 30)


def test_what_was_claimed_ahead_of_a_kill_is_found_again(
    live_queue: Queue, open_claims: Open
) -> None:
    killed = one_ahead(live_queue, open_claims)
    seen = ids(live_queue, killed, 1)
    again = open_claims()
    again.limit_to_waiting()
    assert again.after(1, 10) == 2
    seen += ids(live_queue, again, 2) + drain(live_queue, again, 2)
    assert len(set(seen)) == len(seen) == 40
    held(live_queue, 0, 0)


def test_a_claim_that_was_begun_ahead_of_a_kill_goes_back(
    live_queue: Queue, open_claims: Open
) -> None:
    add(live_queue, 5000)
    killed = open_claims()
    assert killed.after(BEFORE_ALL, 1000) == 0
    live_queue._run(engine.claim("r", killed.epoch, 1, 0, 1000, claim_ms=3_600_000))
    held(live_queue, 2000, 3000)
    again = open_claims()
    held(live_queue, 1000, 4000)
    assert again.after(0, 1000) == 1


def test_the_older_of_two_readers_is_fenced_with_a_claim_ahead(
    live_queue: Queue, open_claims: Open
) -> None:
    older = one_ahead(live_queue, open_claims)
    newer = open_claims()
    assert newer.after(1, 10) == 2
    with pytest.raises(Fenced):
        older.after(1, 10)
    older.stop()
    seen = ids(live_queue, newer, 2) + drain(live_queue, newer, 2)
    assert len(set(seen)) == len(seen) == 30
    held(live_queue, 0, 0)


def test_a_reader_that_is_fenced_stops_in_peace(live_queue: Queue, open_claims: Open) -> None:
    older = one_ahead(live_queue, open_claims)
    newer = open_claims()
    older.stop()
    assert newer.after(1, 10) == 2


def test_a_stream_that_takes_what_waits_claims_no_more_ahead(
    live_queue: Queue, open_claims: Open
) -> None:
    add(live_queue, 35)
    claims = open_claims()
    claims.limit_to_waiting()
    add(live_queue, 20)
    seen = drain(live_queue, claims, BEFORE_ALL)
    assert len(set(seen)) == len(seen) == 35
    held(live_queue, 0, 20)


def test_what_went_wrong_meanwhile_is_told_by_the_next_question(
    live_queue: Queue, open_claims: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(live_queue, 50)
    claims = open_claims()
    assert claims.after(BEFORE_ALL, 10) == 0

    def fail(below: int) -> int:
        raise ServerUnavailable("gone")

    assert claims.after(0, 10) == 1
    claims._catch_up()
    monkeypatch.setattr(claims._reader, "settle", fail)
    assert claims.after(1, 10) == 2
    with pytest.raises(ServerUnavailable, match="gone"):
        claims.after(2, 10)


def test_a_claim_that_has_half_gone_back_is_not_settled_for_the_other_half(
    live_queue: Queue, open_claims: Open
) -> None:
    add(live_queue, 3500)
    older = open_claims()
    assert older.after(BEFORE_ALL, 3500) == 0
    live_queue._run(engine.return_claim("r", older.epoch, 0))
    claims = open_claims()
    assert claims.after(BEFORE_ALL, 1000) == 1
    held(live_queue, 1000, 2500)
    claims.settle(1)
    held(live_queue, 0, 2500)


# ------------------------------------------------------------------- Spark ends it


@pytest.fixture
def source(options: Options, live_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> StreamSource:
    """A source of whose claims Spark knows one, and one is claimed ahead."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    source = StreamSource(source_options({**options, "reader": "r"}))
    add(live_queue, 50)
    source.latestOffset({"claim": BEFORE_ALL}, ReadMaxRows(10))
    source.latestOffset({"claim": 0}, ReadMaxRows(10))
    held(live_queue, 20, 20)
    return source


def test_a_signal_ends_the_source_once(source: StreamSource) -> None:
    frame = sys._getframe()
    with pytest.raises(SystemExit):
        source._end(signal.SIGTERM, frame)
    source._end(signal.SIGTERM, frame)
    source._ending = False
    source.stop()


def test_a_signal_that_is_heard_as_the_source_begins_to_stop_keeps_it_from_nothing(
    source: StreamSource, live_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)

    def hear(frame: FrameType, _event: str, _what: object) -> None:
        if frame.f_code is StreamSource.stop.__code__:
            sys.settrace(None)
            source._end(signal.SIGTERM, frame)

    sys.settrace(hear)
    try:
        source.stop()
    finally:
        sys.settrace(None)
    held(live_queue, 10, 30)
    assert left == [0]
