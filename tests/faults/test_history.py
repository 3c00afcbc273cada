"""The proof can fail: a history that was doctored is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from engine_support import own_server, pack_record
from faults.aof import KEPT_AS_COMMANDS, Command, Transaction, transactions
from faults.history import History
from holdfast import Queue
from holdfast.engine.keys import NAMES, queue_keys
from holdfast.engine.replies import ENDINGS, read_record

KEYS = dict(zip(NAMES, queue_keys("small"), strict=True))

Story: TypeAlias = list[Transaction]
Change: TypeAlias = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sound() -> Iterator[Story]:
    """A request with four parts whose limit goes from 2 to 3 to 1; one part lapses, one fails."""
    with own_server(*KEPT_AS_COMMANDS) as server, Queue("small", server.url) as queue:
        with queue.request("r", limit=2, follow_up="bye") as request:
            request.add_many(["a", "b", "c", "d"])
        zero, one = queue.lease_many(2, 600)
        (two,) = queue.lease_many(1, 600, complete=[zero])
        request.set_limit(3)
        (three,) = queue.lease_many(2, 600)
        request.set_limit(1)
        queue.extend(three, 600)
        queue.release(three, lapsed="it crashed")
        queue.fail(two, error="never")
        queue.complete(one)
        assert queue.complete_many(queue.lease_many(3, 600)) == [True]  # three
        assert request.status().state == "failed"
        assert queue.complete_many(queue.lease_many(3, 600)) == [True]  # The follow-up.
        assert queue.complete_many(queue.lease_many(3, 600, failed=True)) == [True]  # two
        assert queue.audit() == []
        yield list(transactions(server.directory))


def test_a_history_that_is_sound_has_no_problems(sound: Story) -> None:
    history = History("small")
    history.replay(sound)
    history.must_be_at_rest()
    assert history.problems == []
    seen = history.requests["r"]
    assert seen.limits == [2, 3, 1]
    assert seen.most_leased == {2: 2, 3: 3, 1: 1}
    assert +seen.parts == {"done": 3, "handled": 1}
    assert history.leases == 7
    assert history.transactions == len(sound)


# --------------------------------------------------------------------------- doctors


def find(story: Story, word: str, key: str, id: str = "") -> int:
    """Return the number of the first transaction with such a command."""
    return next(
        n
        for n, transaction in enumerate(story)
        for command in transaction
        if is_about(command, word, key, id)
    )


def is_about(command: Command, word: str, key: str, id: str = "") -> bool:
    about = command[0] == word.encode() and command[1] == KEYS[key]
    return about and (not id or id.encode() in command[2:])


def rewrite(story: Story, change: Change) -> Story:
    """Change what each record says of the request."""
    for transaction in story:
        for command in transaction:
            if is_about(command, "HSET", "requests", "r"):
                at = command.index(b"r") + 1
                record = read_record(command[at])
                assert record is not None
                fields = msgspec.structs.asdict(record)
                change(fields)
                command[at] = pack_record(**fields)
    return story


def put(key: str, id: str, value: bytes) -> Command:
    return [b"HSET", KEYS[key], id.encode(), value]


def with_one_lease_too_many(story: Story) -> Story:
    """The limit was never raised."""
    return rewrite(story, lambda record: record.update(limit=min(2, record["limit"])))


def with_a_lease_for_a_place_that_is_no_more(story: Story) -> Story:
    """One is completed and one is leased, when the limit was lowered: not more than before."""
    at = find(story, "HSET", "holds", "r/2")
    return story[:at] + rewrite(story[at:], lambda record: record.update(limit=1))


def with_a_lease_that_is_not_counted(story: Story) -> Story:
    at = find(story, "HSET", "holds", "r/3")
    story[at] = [command for command in story[at] if command[1] != KEYS["requests"]]
    return story


def with_a_place_freed_twice(story: Story) -> Story:
    """The same part is completed again, as if nobody had looked whether it was leased."""

    def complete_again(record: dict[str, Any]) -> None:
        record.update(running=record["running"] - 1, done=record["done"] + 1)

    at = find(story, "HDEL", "jobs", "r/0")
    again = rewrite(deepcopy(story[at : at + 1]), complete_again)
    return [*story[: at + 1], *again, *story[at + 1 :]]


def with_a_place_never_freed(story: Story) -> Story:
    at = find(story, "HDEL", "jobs", "r/0")
    return story[:at] + rewrite(
        story[at:], lambda record: record.update(running=record["running"] + 1)
    )


def with_a_part_given_out_twice(story: Story) -> Story:
    at = find(story, "HSET", "holds", "r/3")
    return [*story[: at + 1], *deepcopy(story[at : at + 1]), *story[at + 1 :]]


def with_a_part_that_comes_back(story: Story) -> Story:
    facts = msgspec.msgpack.encode({"request": "r"})
    return [*story, [put("jobs", "r/0", b"a"), put("facts", "r/0", facts)]]


def with_a_part_that_is_lost(story: Story) -> Story:
    """Nobody completed it, and no set has it."""
    at = find(story, "HDEL", "jobs", "r/3")
    lost = [[b"HDEL", KEYS["jobs"], b"r/3"], [b"HDEL", KEYS["facts"], b"r/3"]]
    return [*story[: at - 1], lost, *story[at - 1 :]]


def with_a_part_in_two_sets(story: Story) -> Story:
    at = find(story, "ZADD", "failed", "r/2")
    story[at] = [command for command in story[at] if not is_about(command, "ZREM", "leased")]
    return story


def with_a_second_ending(story: Story) -> Story:
    """Who handled the failed part thought that this was the end, again."""
    return [*story[:-1], *rewrite(story[-1:], lambda record: record.update(endings=2))]


def with_a_second_announcement(story: Story) -> Story:
    return [*story, [[b"HINCRBY", KEYS["meta"], b"ended", b"1"]]]


def with_a_second_follow_up(story: Story) -> Story:
    return [*story, [put("jobs", "r/end/1", b"bye")], [[b"HDEL", KEYS["jobs"], b"r/end/1"]]]


def without_the_follow_up(story: Story) -> Story:
    at = find(story, "HSET", "jobs", "r/end/1")
    story[at] = [command for command in story[at] if not is_about(command, "HSET", "jobs")]
    return story


def without_an_announcement(story: Story) -> Story:
    at = find(story, "HSET", "jobs", "r/end/1")
    story[at] = [command for command in story[at] if b"ended" not in command]
    return story


def without_an_ending(story: Story) -> Story:
    at = find(story, "HSET", "jobs", "r/end/1")
    rewrite(story[at : at + 1], lambda record: record.update(outcome=0, endings=0))
    return story


def with_another_outcome(story: Story) -> Story:
    def think_better_of_it(record: dict[str, Any]) -> None:
        if record["handled"]:
            record["outcome"] = ENDINGS.index("completed")

    return rewrite(story, think_better_of_it)


def with_an_early_ending(story: Story) -> Story:
    at = find(story, "ZADD", "failed", "r/2")
    return story[:at] + rewrite(
        story[at:], lambda record: record.update(outcome=ENDINGS.index("failed"), endings=1)
    )


def with_a_lease_at_the_end(story: Story) -> Story:
    return [transaction for transaction in story if not is_last_word(transaction)]


def is_last_word(transaction: Transaction) -> bool:
    return any(is_about(command, "HDEL", "jobs", "r/2") for command in transaction)


DOCTORS: dict[Callable[[Story], Story], str] = {
    with_one_lease_too_many: "given out 1, so 3 are leased: its limit is 2",
    with_a_lease_for_a_place_that_is_no_more: "given out 1, so 2 are leased: its limit is 1",
    with_a_lease_that_is_not_counted: "running is 2 in the record, and really 3",
    with_a_place_freed_twice: "running is 1 in the record, and really 2",
    with_a_place_never_freed: "running is 3 in the record, and really 2",
    with_a_part_given_out_twice: "{} were given out, and {b'r/3': 1} got a holder",
    with_a_part_that_comes_back: "b'r/0' was done, and is waiting",
    with_a_part_that_is_lost: "done is 2 in the record, and really 3",
    with_a_part_in_two_sets: "b'r/2' is leased and failed",
    with_a_second_ending: "it ended 1 times, and says 2",
    with_a_second_announcement: "[] ended, and 1 were announced",
    with_a_second_follow_up: "the follow-ups of [] are [], and [b'r/end/1'] were added",
    without_the_follow_up: "the follow-ups of ['r'] are [b'r/end/1'], and [] were added",
    without_an_announcement: "['r'] ended, and 0 were announced",
    without_an_ending: "its last part is settled, and it has not ended",
    with_another_outcome: "it was failed, and is completed",
    with_an_early_ending: "it ended too early",
    with_a_lease_at_the_end: "still leased: [b'r/2']",
}


@pytest.mark.parametrize("doctor", DOCTORS, ids=lambda doctor: doctor.__name__)
def test_a_history_is_found_out(sound: Story, doctor: Callable[[Story], Story]) -> None:
    history = History("small")
    history.replay(doctor(deepcopy(sound)))
    history.must_be_at_rest()
    assert any(DOCTORS[doctor] in problem for problem in history.problems), history.problems


# ----------------------------------------------------------------------- what cannot be read


def test_a_command_that_cannot_be_replayed_is_not_passed_over(sound: Story) -> None:
    history = History("small")
    with pytest.raises(AssertionError, match="cannot replay"):
        history.replay([*sound, [[b"ZPOPMIN", KEYS["leased"]]]])


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (b"*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r\nx\r\n", "has no end"),
        (b"*2\r\n$3\r\nDEL\r\n$1\r\n", "in the middle of a command"),
    ],
)
def test_a_file_that_is_not_whole_is_no_history(tmp_path: Path, written: bytes, why: str) -> None:
    directory = tmp_path / "appendonlydir"
    directory.mkdir()
    (directory / "a.manifest").write_text("file a.1 seq 1 type i\n")
    (directory / "a.1").write_bytes(written)
    with pytest.raises(AssertionError, match=why):
        list(transactions(tmp_path))
