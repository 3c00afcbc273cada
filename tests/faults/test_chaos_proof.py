"""The proof of the chaos can fail: a story that was doctored is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pytest

from engine_support import own_server, take
from faults.aof import KEPT_AS_COMMANDS, Command, Transaction, transactions
from faults.chaos_proof import Proof, Sent, runs_of
from faults.journal import Began, Ended, Line, Order, Over, Way, encode, now, read_order
from holdfast import Lease, NewJob, Queue
from holdfast.engine.keys import NAMES, queue_keys
from support import wait_until

KEYS = dict(zip(NAMES, queue_keys("small"), strict=True))

GOOD = Order("good", ["return"])
BAD = Order("bad", ["raise", "return"], max_failures=1)
SLOW = Order("slow", ["hang", "return"], max_lapses=1, priority=70)
HOPELESS = Order("hopeless", ["fail"], max_failures=1)
KILLED = Order("killed", ["hang", "return"], max_lapses=1)
LATER = Order("later", ["return"], follow_up=True)


@dataclass
class Story:
    """What the server did, what a worker wrote, and what was asked for."""

    transactions: list[Transaction]
    lines: list[Line]
    sent: list[Sent]

    def problems(self) -> list[str]:
        proof = Proof("small", runs_of([self.lines]))
        proof.replay(self.transactions)
        proof.must_be_whole(self.sent)
        return proof.problems


Doctor: TypeAlias = Callable[[Story], None]


class Scribe:
    """Runs jobs by hand, and writes down what it does."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.lines: list[Line] = []
        self.sent: list[Sent] = []

    def add(self, order: Order, delay: float = 0) -> None:
        self.sent.append(Sent(order.name, order, now() + delay * 1000))
        new = NewJob(
            encode(order),
            id=order.name,
            delay=delay,
            priority=order.priority,
            max_failures=order.max_failures,
            max_lapses=order.max_lapses,
        )
        self._queue.add_many([new])

    def begin(self, seconds: float = 60, *, failed: bool = False) -> Lease:
        lease = self._queue.lease(seconds, wait=5, failed=failed)
        assert lease is not None
        self.lines.append(
            Began(lease.id, lease.token, read_order(lease.data).name, lease.failed, now())
        )
        return lease

    def kill(self, lease: Lease) -> Lease:
        self.lines.append(Ended(lease.id, lease.token, now()))
        return lease

    def end(self, lease: Lease, how: Way) -> Lease:
        self.lines.append(Over(lease.id, lease.token, how, 0.0, now()))
        return lease


@pytest.fixture(scope="module")
def sound() -> Iterator[Story]:
    """One is done at once; others raise, lapse or are killed first, fail, or have to wait."""
    with own_server(*KEPT_AS_COMMANDS) as server, Queue("small", server.url) as queue:
        scribe = Scribe(queue)
        for order in (GOOD, BAD, HOPELESS):
            scribe.add(order)
        queue.release(take(queue))  # Given back before it began.
        queue.complete(scribe.end(scribe.begin(), "return"))
        queue.retry(scribe.end(scribe.begin(), "raise"), error="as the order says", after=0)
        queue.fail(scribe.end(scribe.begin(), "fail"), error="as the order says")
        queue.complete(scribe.end(scribe.begin(), "return"))
        scribe.add(SLOW)
        frozen = scribe.begin(0.05)
        wait_until(lambda: queue.tidy().reclaimed, "the lapse")
        lapsed_at = now()
        wait_until(lambda: now() > lapsed_at + 10, "a later time")
        queue.complete(scribe.end(scribe.begin(), "return"))
        scribe.end(frozen, "return")
        assert not queue.complete(frozen)
        scribe.add(KILLED)
        hanging = scribe.begin()
        wait_until(lambda: now() > scribe.lines[-1].at + 10, "a later time")
        queue.release(scribe.kill(hanging), lapsed="its time was up")
        queue.complete(scribe.end(scribe.begin(), "return"))
        scribe.add(LATER, delay=0.05)
        later = scribe.end(scribe.begin(), "return")
        queue.complete(later, add=[NewJob(encode(LATER.next()), id="later+")])
        queue.complete(scribe.end(scribe.begin(), "return"))
        queue.complete(scribe.end(scribe.begin(failed=True), "return"))
        assert queue.audit() == []
        yield Story(list(transactions(server.directory)), scribe.lines, scribe.sent)


def test_a_story_that_is_sound_has_no_problems(sound: Story) -> None:
    assert sound.problems() == []


# --------------------------------------------------------------------------- doctors


def find(story: Story, word: str, key: str, id: str, nth: int = 0) -> int:
    """Return the number of a transaction with such a command."""
    found = [
        n
        for n, transaction in enumerate(story.transactions)
        if any(is_about(command, word, key, id) for command in transaction)
    ]
    return found[nth]


def is_about(command: Command, word: str, key: str, id: str) -> bool:
    return command[:2] == [word.encode(), KEYS[key]] and id.encode() in command[2:]


def rewrite(story: Story, before: Order, after: Order) -> None:
    """Let an order have been another, also in the queue."""
    for transaction in story.transactions:
        for command in transaction:
            command[:] = [encode(after) if word == encode(before) else word for word in command]
    for one in story.sent:
        one.order = after if one.order == before else one.order


def relate(story: Story, id: str, **changes: object) -> None:
    """Let the first line of a kind that has these fields say something else."""
    at = next(
        n
        for n, line in enumerate(story.lines)
        if getattr(line, "id", "") == id and set(changes) <= set(line.__struct_fields__)
    )
    story.lines[at] = msgspec.structs.replace(story.lines[at], **changes)


def without_an_end(story: Story) -> None:
    story.lines = [x for x in story.lines if not (isinstance(x, Over) and x.id == "good")]


def with_a_run_that_raised_and_was_completed(story: Story) -> None:
    relate(story, "good", how="raise")


def with_a_lease_that_ran_twice(story: Story) -> None:
    story.lines.append(next(x for x in story.lines if isinstance(x, Began) and x.id == "good"))


def with_a_run_that_nobody_leased(story: Story) -> None:
    relate(story, "good", token="nobody.1", failed=False)


def with_a_run_before_its_lease(story: Story) -> None:
    relate(story, "good", failed=False, at=0.0)


def with_a_run_before_its_time(story: Story) -> None:
    story.sent[-1].not_before += 10_000


def with_a_job_that_was_promoted_too_early(story: Story) -> None:
    transaction = story.transactions[find(story, "ZADD", "delayed", "later")]
    (command,) = (one for one in transaction if is_about(one, "ZADD", "delayed", "later"))
    command[2] = b"%d" % (int(command[2]) + 10_000)


def with_a_job_that_is_still_there(story: Story) -> None:
    del story.transactions[find(story, "HDEL", "jobs", "good")]


def with_a_lease_that_was_good(story: Story) -> None:
    """It was taken away in the middle of its run."""
    transaction = story.transactions[find(story, "ZADD", "leased", "slow")]
    (command,) = (one for one in transaction if is_about(one, "ZADD", "leased", "slow"))
    command[2] = b"%d" % (int(command[2]) + 3_600_000)


def with_a_process_that_lives_on(story: Story) -> None:
    story.lines = [x for x in story.lines if not isinstance(x, Ended)]


def with_a_failure_that_was_not_counted(story: Story) -> None:
    at = find(story, "HSET", "facts", "bad", nth=1)
    transaction = story.transactions[at]
    transaction[:] = [one for one in transaction if not is_about(one, "HSET", "facts", "bad")]


def with_something_better_that_waits(story: Story) -> None:
    transaction = story.transactions[find(story, "HSET", "holds", "good")]
    transaction.append([b"ZADD", KEYS["ready"], b"1", b"better"])


def with_a_lease_after_the_end(story: Story) -> None:
    grant = deepcopy(story.transactions[find(story, "HSET", "holds", "good")])
    grant.insert(0, [b"HSET", KEYS["jobs"], b"good", encode(GOOD)])
    story.transactions.append(grant)


def with_two_leases_at_a_time(story: Story) -> None:
    at = find(story, "HSET", "holds", "good")
    story.transactions.insert(at, deepcopy(story.transactions[at]))


def with_another_priority(story: Story) -> None:
    rewrite(story, SLOW, msgspec.structs.replace(SLOW, priority=20))


def with_one_run_too_many(story: Story) -> None:
    rewrite(story, BAD, msgspec.structs.replace(BAD, max_failures=0))


def with_a_failure_too_early(story: Story) -> None:
    relate(story, "hopeless", how="raise")


def with_a_try_too_early(story: Story) -> None:
    relate(story, "bad", how="retry", after=10.0)


def with_a_job_that_nobody_asked_for(story: Story) -> None:
    del story.sent[0]


def with_a_follow_up_that_is_missing(story: Story) -> None:
    rewrite(story, GOOD, msgspec.structs.replace(GOOD, follow_up=True))


def with_a_follow_up_of_nothing(story: Story) -> None:
    rewrite(story, LATER, msgspec.structs.replace(LATER, follow_up=False))


def with_a_failure_that_nobody_handled(story: Story) -> None:
    del story.transactions[find(story, "HDEL", "jobs", "hopeless")]


def with_an_earlier_number(story: Story) -> None:
    transaction = story.transactions[find(story, "ZADD", "ready", "hopeless")]
    (command,) = (one for one in transaction if is_about(one, "ZADD", "ready", "hopeless"))
    command[2] = b"%d" % (int(command[2]) - 2)


DOCTORS: list[tuple[Doctor, str]] = [
    (without_an_end, "good: it ended, and "),
    (with_a_run_that_raised_and_was_completed, "good: it ended, and "),
    (with_a_lease_that_ran_twice, "ran it 2 times"),
    (with_a_run_that_nobody_leased, "leased: False"),
    (with_a_run_before_its_lease, "ms too early"),
    (with_a_run_before_its_time, "ms too early"),
    (with_a_job_that_was_promoted_too_early, "ms before its time"),
    (with_a_job_that_is_still_there, "good: it ended 0 times"),
    (with_a_lease_that_was_good, "who ran it and had a good lease"),
    (with_a_process_that_lives_on, "run it at a time"),
    (with_a_failure_that_was_not_counted, "is not counted"),
    (with_something_better_that_waits, "better: it waits"),
    (with_a_lease_after_the_end, "given out after it had ended"),
    (with_two_leases_at_a_time, " has it"),
    (with_another_priority, "its priority is 20"),
    (with_one_run_too_many, "given out 2 times, and 1 are allowed"),
    (with_a_failure_too_early, "failed, though it may be tried again"),
    (with_a_try_too_early, "it was tried again before"),
    (with_a_job_that_nobody_asked_for, "nobody asked for it"),
    (with_a_follow_up_that_is_missing, "what follows it ended 0 times"),
    (with_a_follow_up_of_nothing, "what follows it ended 1 times"),
    (with_a_failure_that_nobody_handled, "hopeless: it ended 0 times"),
    (with_an_earlier_number, "it was added with the number"),
]


@pytest.mark.parametrize(
    ("doctor", "what"), DOCTORS, ids=lambda case: getattr(case, "__name__", "")
)
def test_a_story_that_was_doctored_is_found_out(sound: Story, doctor: Doctor, what: str) -> None:
    story = deepcopy(sound)
    doctor(story)
    problems = story.problems()
    assert any(what in problem for problem in problems), problems
