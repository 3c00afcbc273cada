"""Every changing call of the API, each with a queue that gives it something to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from conftest import Clock
from holdfast import Lease, NewJob, Queue, Row, Staged, Update
from holdfast.client.inputs import Done, Requeue
from holdfast.engine import calls, request_calls, write_calls


@dataclass
class Stage:
    """What a scenario plays with: the queue, somebody else on the same queue, and the time."""

    queue: Queue
    other: Queue
    clock: Clock
    held: list[Lease] = field(default_factory=list)
    """Leases of the queue, for the call to settle."""
    held_by_other: list[Lease] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    """Staged by somebody else, for the call to commit."""


Play: TypeAlias = Callable[[Stage], object]


def nothing(stage: Stage) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    """A call, and what has to be there before."""

    name: str
    call: Play
    prepare: Play = nothing
    meanwhile: Play | None = None
    """What somebody else does while the last request of the call is on its way."""
    requests: int = 1
    requeue: Requeue = "rank"
    loose: frozenset[str] = frozenset()
    """Keys that may differ: a wake is a hint, and one who waits may ask once more."""

    def __str__(self) -> str:
        return self.name


# ------------------------------------------------------------- what is there before


def three_jobs(stage: Stage) -> None:
    stage.queue.add_many(
        [
            NewJob("first", id="first", priority=60),
            NewJob("second", id="second", result_for=100, keep=True, handler="some"),
            NewJob("third", id="third", priority=40, remember_for=100),
        ]
    )


def three_leases(stage: Stage) -> None:
    three_jobs(stage)
    stage.held += stage.queue.lease_many(3, 30)


def one_lost_of_three(stage: Stage) -> None:
    three_jobs(stage)
    stage.held += stage.queue.lease_many(1, 1)
    stage.held += stage.queue.lease_many(2, 30)
    stage.clock.advance(2)
    stage.held_by_other += stage.other.lease_many(1, 30)
    assert [lease.id for lease in stage.held_by_other] == ["first"]


def one_lost(stage: Stage) -> None:
    one_lost_of_three(stage)
    stage.other.complete_many(stage.held_by_other)


def one_reclaimed(stage: Stage) -> None:
    stage.queue.add("first", id="first")
    stage.held += stage.queue.lease_many(1, 1)
    stage.clock.advance(2)
    assert stage.other.tidy().reclaimed == 1


def one_completed(stage: Stage) -> None:
    three_leases(stage)
    stage.queue.complete(stage.held[0])


def one_with_other(stage: Stage) -> None:
    stage.queue.add("first", id="first")
    stage.held_by_other += stage.other.lease_many(1, 30)


def one_lapse_left(stage: Stage) -> None:
    stage.queue.add("first", id="first", priority=70, max_lapses=0)
    stage.held += stage.queue.lease_many(1, 30)


def all_to_tidy(stage: Stage) -> None:
    """One job is due, one lapsed, one ending is over; one waits."""
    stage.queue.add("ended", id="ended", remember_for=1)
    stage.other.complete_many(stage.other.lease_many(1, 30))
    stage.queue.add("lapsed", id="lapsed")
    stage.held_by_other += stage.other.lease_many(1, 1)
    stage.queue.add("due", id="due", delay=2, priority=60)
    stage.queue.add("ready", id="ready")
    stage.clock.advance(3)


def all_silent(stage: Stage) -> None:
    all_to_tidy(stage)
    stage.clock.advance(10)


def one_failed(stage: Stage) -> None:
    stage.queue.add("first", id="first", priority=70, result_for=100)
    stage.queue.fail(stage.queue.lease_many(1, 30)[0], error="broken")


def one_handled(stage: Stage) -> None:
    one_failed(stage)
    stage.held += stage.queue.lease_many(1, 30, failed=True)


def one_marked(stage: Stage) -> None:
    three_leases(stage)
    stage.other.cancel("second")


def one_replaced(stage: Stage) -> None:
    three_leases(stage)
    stage.other.add("new", id="first", on_conflict="update", delay=5, handler="h")


def one_failure_left(stage: Stage) -> None:
    stage.queue.add("first", id="first", max_failures=0)
    stage.held += stage.queue.lease_many(1, 30)
    stage.other.add("new", id="first", on_conflict="update")


def four_states(stage: Stage) -> None:
    """One job is leased, one failed, one delayed, one ready: all with the same payload."""
    stage.queue.add("same", id="failed")
    stage.queue.fail(stage.queue.lease_many(1, 30)[0], error="broken")
    stage.queue.add("same", id="leased")
    stage.held += stage.queue.lease_many(1, 30)
    stage.queue.add("same", id="delayed", delay=60, result_for=100)
    stage.queue.add("same", id="ready")


def a_request(stage: Stage) -> None:
    """An open request without a free place: two parts run, two wait, one is for later."""
    request = stage.other.request("r", limit=2, follow_up=NewJob("over", priority=60))
    request.open()
    request.add_many(["0", "1", "2", "3"], max_failures=0)
    request.add("later", delay=60)
    stage.held += stage.queue.lease_many(9, 30)
    assert [lease.id for lease in stage.held] == ["r/0", "r/1"]


def a_request_with_a_turn(stage: Stage) -> None:
    a_request(stage)
    stage.queue.complete(stage.held.pop(), "result")
    stage.queue.add("equal", id="equal")


def the_last_part(stage: Stage) -> None:
    with stage.other.request("r", follow_up=NewJob("over", group="g")) as request:
        request.add("0")
    stage.held += stage.queue.lease_many(1, 30)


def an_unsealed_end(stage: Stage) -> None:
    stage.other.request("r", follow_up="over").open()


def a_part_that_stops_the_others(stage: Stage) -> None:
    request = stage.other.request("r", limit=1, on_failure="fail_fast")
    request.open()
    request.add_many(["0", "1", "2"])
    request.add("later", delay=60)
    stage.held += stage.queue.lease_many(1, 30)


def a_failed_request(stage: Stage) -> None:
    the_last_part(stage)
    stage.queue.fail(stage.held.pop(), error="why")


def requests_to_tend(stage: Stage) -> None:
    """One request is open for too long, one is to be forgotten."""
    late = stage.other.request("late", limit=0, open_for=2)
    late.open()
    late.add_many(["0", "1"])
    with stage.other.request("forgotten", keep_for=2) as forgotten:
        forgotten.add("0")
    stage.queue.complete(stage.queue.lease_many(1, 30)[0], "result")
    stage.clock.advance(10)


def a_group(stage: Stage) -> None:
    stage.queue.add_many([NewJob(id, id=id) for id in "abc"], group="g", group_limit=1)
    stage.held += stage.queue.lease_many(9, 30)
    assert [lease.id for lease in stage.held] == ["a"]


def three_staged(stage: Stage) -> None:
    """Two attempts of a write, and one that was in vain; an open request."""
    stage.other.request("r", limit=1).open()
    write = stage.other.write("w")
    for partition, attempt in ((0, 0), (1, 0), (1, 1)):
        rows = [Row("x", id=f"{partition}"), Row("y", priority=90), Row("z", request="r")]
        stage.staged.append(write.stage(rows, partition=partition, attempt=attempt))


def one_committed(stage: Stage) -> None:
    """Somebody died after the commit, and before anything was published."""
    three_staged(stage)
    winners = [(f"w/{partition}.0", 1) for partition in range(2)]
    stage.other._run(write_calls.adopt("w", "stream", 3, 0, winners, keep_for_ms=60_000))
    stage.other._run(write_calls.commit("w", "stream", 3, 1, keep_for_ms=60_000))


def one_expired(stage: Stage) -> None:
    three_staged(stage)
    stage.clock.advance(86400)


def a_reader(stage: Stage) -> None:
    """A reader with a claim: a job with facts, one that was cancelled, a part of a full request."""
    three_jobs(stage)
    with stage.other.request("r", limit=1, priority=90) as request:
        request.add_many(["0", "1"])
    reader = stage.other.reader("reader")
    reader.open()
    assert reader.claim(0, 9).jobs == 4
    stage.other.cancel("third")
    stage.other.add("new", id="first", on_conflict="update", delay=5)
    stage.queue.add("more", id="more")


def a_lapsed_claim(stage: Stage) -> None:
    a_reader(stage)
    stage.clock.advance(3601)
    stage.other.register()  # The silence is over,
    stage.clock.advance(5)  # and so is the time in which it can renew.


def a_claim_given_back(stage: Stage) -> None:
    a_reader(stage)
    stage.other.reader("reader", epoch=1).give_back(0)


def read(stage: Stage) -> object:
    reader = stage.queue.reader("reader", epoch=1)
    return reader.look(0), list(reader.read(0, 0)), reader.renew()


def paused(stage: Stage) -> None:
    three_jobs(stage)
    stage.queue.pause()


# --------------------------------------------------------------------------- calls


def add_many_kinds(stage: Stage) -> object:
    return stage.queue.add_many(
        [
            b"made",
            {"made": 2},
            NewJob("a", id="a"),
            NewJob("b", id="a"),
            NewJob("c", id="first"),
            NewJob("d", id="d", delay=5, priority=90),
        ],
        max_lapses=1,
    )


def lease_and_complete(stage: Stage) -> object:
    done: list[Done] = [stage.held[0], (stage.held[1], "result"), stage.held[2]]
    return stage.queue.lease_many(2, 30, complete=done)


def three_leases_and_two_jobs(stage: Stage) -> None:
    one_lost_of_three(stage)
    stage.queue.add_many([NewJob("x", id="x"), NewJob("y", id="y"), NewJob("z", id="z")])


def complete_with_follow_ups(stage: Stage) -> object:
    follow_ups = ["made", NewJob("a", id="a", priority=80), NewJob("b", id="third")]
    return stage.queue.complete(stage.held[1], {"some": "result"}, add=follow_ups)


def lost_complete_with_follow_ups(stage: Stage) -> object:
    return stage.queue.complete(stage.held[0], "late", add=[NewJob("a", id="a")])


def add_by_other(stage: Stage) -> None:
    stage.other.add("waited for", id="waited for")


def update_many_kinds(stage: Stage) -> object:
    return stage.queue.add_many(
        [
            NewJob("a", id="leased", priority=60),
            NewJob("b", id="leased", delay=9),
            NewJob("c", id="failed"),
            NewJob("d", id="delayed", handler="h"),
            NewJob("e", id="ready", delay=5),
            NewJob("f", id="new"),
        ],
        on_conflict=Update(due="later"),
    )


def a_whole_request(stage: Stage) -> object:
    request = stage.queue.request("new", limit=1, follow_up="over", append=True)
    before = request.open()
    added = request.add_many(["0", {"n": 1}])
    request.seal()
    return before, added


def count_anew(stage: Stage) -> object:
    stamp = stage.other._run(calls.audit()).stamp
    return stage.queue._run(request_calls.recount(stamp, {"r": (2, 0, 2, 1, 0, 0, 0)}))


def a_schedule(stage: Stage) -> None:
    for queue in (stage.queue, stage.other):
        queue.every("1m", "some", name="refresh", group="g")
    stage.other.tick()
    stage.clock.advance(60)


def begin_a_schedule(stage: Stage) -> object:
    stage.queue.every("1h", "some", name="hourly")
    return stage.queue.tick()


def add_to_groups(stage: Stage) -> object:
    return stage.queue.add_many(
        [
            NewJob("made", group="g", group_limit=2),
            NewJob("a", id="a", group="g"),
            NewJob("d", id="d", group="new", delay=60),
            NewJob("plain", id="plain"),
        ]
    )


EMPTY = Scenario("nothing", nothing)

SCENARIOS = (
    Scenario("add", lambda s: s.queue.add({"n": 1}, id="a", priority=70)),
    Scenario("add with a made id", lambda s: s.queue.add("some"), three_jobs),
    Scenario("add with a taken id", lambda s: s.queue.add("again", id="first"), three_leases),
    Scenario(
        "add with a taken id that raises",
        lambda s: s.queue.add("again", id="first", on_conflict="raise"),
        three_jobs,
    ),
    Scenario(
        "add with a delay and options",
        lambda s: s.queue.add("late", id="a", delay=60, priority=90, max_lapses=1, handler="h"),
    ),
    Scenario(
        "add with an id that is no longer remembered",
        lambda s: s.queue.add("anew", id="ended"),
        all_to_tidy,
    ),
    Scenario("add_many", add_many_kinds, three_jobs),
    Scenario(
        "add_many in two calls",
        lambda s: s.queue.add_many(NewJob("x", id=f"job {n}") for n in range(1001)),
        requests=2,
    ),
    Scenario("lease", lambda s: s.queue.lease(30), three_jobs),
    Scenario("lease of nothing", lambda s: s.queue.lease(30)),
    Scenario("lease of a paused queue", lambda s: s.queue.lease(30), paused),
    Scenario("lease that tidies", lambda s: s.queue.lease_many(2, 30), all_to_tidy),
    Scenario("lease_many", lambda s: s.queue.lease_many(10, 30), three_jobs),
    Scenario("lease_many that completes", lease_and_complete, three_leases_and_two_jobs),
    Scenario(
        "lease that waits for a job",
        lambda s: s.queue.lease(30, wait=20),
        meanwhile=add_by_other,
        requests=2,
        loose=frozenset({"wake", "calls", "holds"}),
    ),
    Scenario(
        "lease that waits for nothing",
        lambda s: s.queue.lease(30, wait=0.05),
        requests=2,
        loose=frozenset({"wake", "calls"}),
    ),
    Scenario("extend", lambda s: s.queue.extend(s.held[0], 60), three_leases),
    Scenario("extend of a lost lease", lambda s: s.queue.extend(s.held[0], 60), one_lost),
    Scenario("extend_many", lambda s: s.queue.extend_many(s.held, 60), one_lost_of_three),
    Scenario("complete", lambda s: s.queue.complete(s.held[0]), three_leases),
    Scenario("complete of a lost lease", lambda s: s.queue.complete(s.held[0]), one_lost),
    Scenario("complete after a reclaim", lambda s: s.queue.complete(s.held[0]), one_reclaimed),
    Scenario("complete once more", lambda s: s.queue.complete(s.held[0]), one_completed),
    Scenario("complete with result and follow-ups", complete_with_follow_ups, three_leases),
    Scenario("complete too late with follow-ups", lost_complete_with_follow_ups, one_lost),
    Scenario("complete by force", lambda s: s.queue.complete("first", force=True), one_with_other),
    Scenario(
        "complete_many",
        lambda s: s.queue.complete_many([s.held[0], (s.held[1], "result"), s.held[2]]),
        one_lost_of_three,
    ),
    Scenario("release", lambda s: s.queue.release(s.held[0]), three_leases),
    Scenario("release of a lost lease", lambda s: s.queue.release(s.held[0]), one_lost),
    Scenario(
        "release to the back", lambda s: s.queue.release(s.held[0]), three_leases, requeue="back"
    ),
    Scenario("release after", lambda s: s.queue.release(s.held[0], after=60), three_leases),
    Scenario("release lapsed", lambda s: s.queue.release(s.held[0], lapsed="why"), three_leases),
    Scenario(
        "release lapsed, the last time",
        lambda s: s.queue.release(s.held[0], lapsed="why"),
        one_lapse_left,
    ),
    Scenario(
        "release_many",
        lambda s: s.queue.release_many(s.held, lapsed="why"),
        one_lost_of_three,
        requeue="back",
    ),
    Scenario("update", update_many_kinds, four_states),
    Scenario("add with a cancelled id", lambda s: s.queue.add("new", id="second"), one_marked),
    Scenario(
        "lease of a failed job", lambda s: s.queue.lease_many(2, 30, failed=True), four_states
    ),
    Scenario("extend of a cancelled job", lambda s: s.queue.extend_many(s.held, 60), one_marked),
    Scenario("complete a cancelled job", lambda s: s.queue.complete_many(s.held), one_marked),
    Scenario("complete a replaced job", lambda s: s.queue.complete(s.held[0]), one_replaced),
    Scenario("release a replaced job", lambda s: s.queue.release(s.held[0]), one_replaced),
    Scenario("retry", lambda s: s.queue.retry(s.held[0], error="why", after=5), three_leases),
    Scenario("retry of a lost lease", lambda s: s.queue.retry(s.held[0], error="why"), one_lost),
    Scenario(
        "retry, the last time", lambda s: s.queue.retry(s.held[0], error="why"), one_failure_left
    ),
    Scenario(
        "retry of a failure handler",
        lambda s: s.queue.retry(s.held[0], error="why", after=5),
        one_handled,
    ),
    Scenario("fail", lambda s: s.queue.fail(s.held[0], error="why"), three_leases),
    Scenario("fail of a replaced job", lambda s: s.queue.fail(s.held[0], error="no"), one_replaced),
    Scenario("cancel", lambda s: s.queue.cancel("first"), three_jobs),
    Scenario("cancel a running job", lambda s: s.queue.cancel("first"), one_replaced),
    Scenario("cancel_matching", lambda s: s.queue.cancel_matching("same"), four_states),
    Scenario("revive", lambda s: s.queue.revive("first"), one_failed),
    Scenario("set_result", lambda s: s.queue.set_result("first", "some"), one_failed),
    Scenario("fail_worker", lambda s: s.queue.fail_worker(s.held[0]), one_replaced),
    Scenario("register", lambda s: s.queue.register(alive_for=60, queues=["some"])),
    Scenario("repair", lambda s: s.queue.repair(), four_states, requests=19),
    Scenario("repair of requests", lambda s: s.queue.repair(), a_request, requests=19),
    Scenario("recount", count_anew, a_request),
    Scenario("open a request", lambda s: s.queue.request("r", limit=1, open_for=60).open()),
    Scenario("open a request again", lambda s: s.queue.request("r").open(), a_request),
    Scenario("a whole request", a_whole_request, a_request, requests=3),
    Scenario("add a part", lambda s: s.queue.request("r").add("some", number=5), a_request),
    Scenario("add a part again", lambda s: s.queue.request("r").add("some"), a_request),
    Scenario(
        "add a part with a number too high",
        lambda s: s.queue.request("r").add("some", number=7),
        a_request,
    ),
    Scenario(
        "add a part for later",
        lambda s: s.queue.request("r").add("some", number=5, delay=60, priority=90),
        a_request,
    ),
    Scenario(
        "add parts in two calls",
        lambda s: s.queue.request("r").add_many(["x"] * 501),
        a_request,
        requests=2,
    ),
    Scenario("add a part to nothing", lambda s: s.queue.request("r").add("some")),
    Scenario("seal", lambda s: s.queue.request("r").seal(), a_request),
    Scenario("seal a request that is over", lambda s: s.queue.request("r").seal(), an_unsealed_end),
    Scenario("cancel a request", lambda s: s.queue.request("r").cancel(), a_request),
    Scenario("set_limit", lambda s: s.queue.request("r").set_limit(3), a_request),
    Scenario("set_priority", lambda s: s.queue.request("r").set_priority(90), a_request),
    Scenario("lease of parts", lambda s: s.queue.lease_many(9, 30), a_request_with_a_turn),
    Scenario(
        "lease of parts that completes one",
        lambda s: s.queue.lease_many(1, 30, complete=[(s.held[0], "result")]),
        a_request,
    ),
    Scenario("complete a part", lambda s: s.queue.complete(s.held[0], "result"), a_request),
    Scenario("complete the last part", lambda s: s.queue.complete(s.held[0]), the_last_part),
    Scenario("release a part", lambda s: s.queue.release(s.held[0]), a_request),
    Scenario("retry a part", lambda s: s.queue.retry(s.held[0], error="why", after=5), a_request),
    Scenario("fail a part", lambda s: s.queue.fail(s.held[0], error="why"), a_request),
    Scenario("fail the last part", lambda s: s.queue.fail(s.held[0], error="why"), the_last_part),
    Scenario(
        "fail a part that stops the others",
        lambda s: s.queue.fail(s.held[0], error="why"),
        a_part_that_stops_the_others,
    ),
    Scenario("cancel a part", lambda s: s.queue.cancel("r/3"), a_request),
    Scenario("revive a part", lambda s: s.queue.revive("r/0"), a_failed_request),
    Scenario("set_result of a part", lambda s: s.queue.set_result("r/3", "some"), a_request),
    Scenario("tidy requests", lambda s: s.queue.tidy(), requests_to_tend),
    Scenario("add to groups", add_to_groups, a_group),
    Scenario("complete a job of a group", lambda s: s.queue.complete(s.held[0]), a_group),
    Scenario("set_group_limit", lambda s: s.queue.set_group_limit("g", None), a_group),
    Scenario("tick", lambda s: s.queue.tick(), a_schedule, requests=2),
    Scenario("tick for the first time", begin_a_schedule, requests=2),
    Scenario("tidy", lambda s: s.queue.tidy(), all_to_tidy),
    Scenario(
        "tidy by rules",
        lambda s: s.queue.tidy(held_longer_than=0, failed_longer_than=0),
        four_states,
        requests=2,
    ),
    Scenario("tidy by force", lambda s: s.queue.tidy(force=True), all_silent, requeue="back"),
    Scenario(
        "stage",
        lambda s: s.queue.write("w").stage(
            [b"made", {"n": 1}, Row("a", id="a", delay=5), Row("r", request="r")],
            partition=0,
            attempt=0,
        ),
    ),
    Scenario(
        "stage in two calls",
        lambda s: s.queue.write("w").stage([b"x"] * 1001, partition=0, attempt=0),
        requests=2,
    ),
    Scenario(
        "commit a write",
        lambda s: s.queue.write("w").commit(s.staged[:2], on_conflict="update"),
        three_staged,
        requests=4,
    ),
    Scenario(
        "commit a batch again",
        lambda s: s.queue.write("w").commit(s.staged[::2], writer="stream", batch=3),
        one_committed,
        requests=3,
    ),
    Scenario(
        "commit what is gone",
        lambda s: (s.queue.tidy(), s.queue.write("w").commit(s.staged[:1])),
        one_expired,
        requests=4,
    ),
    Scenario("abort", lambda s: s.queue.write("w").abort(s.staged), three_staged),
    Scenario("publish", lambda s: s.queue.publish(), one_committed),
    Scenario("lease that publishes", lambda s: s.queue.lease_many(9, 30), one_committed),
    Scenario("tidy that publishes", lambda s: s.queue.tidy(), one_committed, requests=2),
    Scenario("open a reader", lambda s: s.queue.reader("reader").open(), a_reader),
    Scenario(
        "claim",
        lambda s: s.queue.reader("reader", epoch=1).claim(1, 9),
        a_reader,
        requests=1,
    ),
    Scenario(
        "claim in two calls",
        lambda s: s.queue.reader("reader", epoch=1).claim(0, 3000),
        lambda s: (
            s.other.add_many([NewJob("x", id=f"job {n}") for n in range(1001)]),
            s.other.reader("reader").open(),
        ),
        requests=2,
    ),
    Scenario("claim again", lambda s: s.queue.reader("reader", epoch=1).claim(0, 9), a_reader),
    Scenario(
        "claim what lapsed",
        lambda s: s.queue.reader("reader", epoch=1).claim(0, 9),
        a_claim_given_back,
    ),
    Scenario(
        "claim for another", lambda s: s.queue.reader("reader", epoch=7).claim(1, 9), a_reader
    ),
    Scenario("read a claim", read, a_reader, requests=3),
    Scenario("settle claims", lambda s: s.queue.reader("reader", epoch=1).settle(1), a_reader),
    Scenario(
        "settle claims that lapsed",
        lambda s: s.queue.reader("reader", epoch=1).settle(1),
        a_claim_given_back,
    ),
    Scenario(
        "give a claim back", lambda s: s.queue.reader("reader", epoch=1).give_back(0), a_reader
    ),
    Scenario("lease that takes a claim back", lambda s: s.queue.lease_many(9, 30), a_lapsed_claim),
    Scenario("tidy that takes a claim back", lambda s: s.queue.tidy(), a_lapsed_claim, requests=2),
    Scenario("pause", lambda s: s.queue.pause(), three_jobs),
    Scenario("resume", lambda s: s.queue.resume(), paused),
    Scenario("delete", lambda s: s.queue.delete(), three_leases),
)
