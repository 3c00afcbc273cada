"""Whatever happens to a connection, a call is done once and its caller hears the one answer.

Each call is made twice, on two equal queues: once on a good connection and once on a bad one.
The answers must be equal, and so must all that is stored, to the last counter.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from faults.scenarios import EMPTY, Scenario, nothing, three_jobs, three_leases
from faults.shells import Shell, open_queue
from faults.stored import payloads
from faults.theatre import Theatre, both_shells, every_call, every_call_by_turns, few_calls
from holdfast import AsyncQueue, Lease, NewJob, Queue, ServerUnavailable
from proxy import (
    DRIP,
    DRIPS,
    GARBLE,
    HALF_OPEN,
    HOLD,
    PASS,
    TRICKLE,
    Proxy,
    Step,
    cut_reply,
    cut_request,
)
from support import TestServer, await_replies_for, wait_until

CUTS = {
    "the reply is cut": [cut_reply()],
    "the request is cut": [cut_request()],
    "both are cut in the middle, in a row": [cut_reply(0.5), cut_request(0.5), cut_reply(-1)],
}
SILENCE = [HALF_OPEN, HOLD]


# ---------------------------------------------------- every call, every kind of loss


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@every_call
@both_shells
def test_a_cut_changes_neither_the_answer_nor_what_is_stored(
    theatre: Theatre, scenario: Scenario, cuts: list[Step]
) -> None:
    theatre.must_be_the_same(scenario, cuts)


@few_calls
@both_shells
def test_a_silence_changes_neither_the_answer_nor_what_is_stored(
    theatre: Theatre, scenario: Scenario, impatient: None
) -> None:
    """To the server it is a cut, and to the client it is the same for every call."""
    theatre.must_be_the_same(scenario, SILENCE)


@pytest.mark.slow
@every_call_by_turns
def test_a_silence_under_any_call_changes_nothing(
    theatre: Theatre, scenario: Scenario, impatient: None
) -> None:
    theatre.must_be_the_same(scenario, SILENCE)


@every_call_by_turns
def test_a_request_that_arrives_in_drips_is_a_request_like_any_other(
    theatre: Theatre, scenario: Scenario
) -> None:
    theatre.must_be_the_same(scenario, [DRIP])


# --------------------------------------------------------------------- patience spent


@every_call_by_turns
def test_when_no_request_arrives_the_caller_is_told_and_nothing_has_changed(
    theatre: Theatre, scenario: Scenario
) -> None:
    with theatre.stage(scenario, "bad", patience=0.03) as stage:
        before = theatre.stored(scenario, stage)
        theatre.proxy.plan(itertools.repeat(cut_request()))
        assert theatre.outcome(scenario, stage)[0] is ServerUnavailable
        theatre.proxy.plan()
        assert theatre.stored(scenario, stage) == before
        works_on(stage.queue)


@every_call_by_turns
def test_when_no_reply_arrives_the_caller_is_told_and_the_call_was_made_once(
    theatre: Theatre, scenario: Scenario
) -> None:
    _, left = theatre.on_a_good_connection(scenario)
    with theatre.stage(scenario, "bad", patience=0.03) as stage:
        theatre.proxy.plan(itertools.repeat(cut_reply()))
        assert theatre.outcome(scenario, stage)[0] is ServerUnavailable
        theatre.proxy.plan()
        if scenario.requests == 1:  # Of more than one, only the first was made.
            assert theatre.stored(scenario, stage) == left
        works_on(stage.queue)


def works_on(queue: Queue) -> None:
    """The same object carries jobs from add to complete once the server is there again."""
    queue.resume()
    assert queue.add("after", id="after", priority=99)
    lease = queue.lease(30)
    assert lease is not None
    assert (lease.id, lease.data) == ("after", b"after")
    assert queue.complete(lease)


@both_shells
def test_add_many_says_what_was_added_before_the_server_was_gone(
    proxy: Proxy, shell: Shell, queue_name: str
) -> None:
    with open_queue(shell, queue_name, proxy.url, patience=0.03) as queue:
        queue.counts()
        proxy.plan(itertools.chain([PASS], itertools.repeat(cut_request())))
        with pytest.raises(ServerUnavailable) as error:
            queue.add_many(NewJob("x", id=f"job {n}") for n in range(1001))
        proxy.plan()
        assert [receipt.id for receipt in error.value.receipts] == [f"job {n}" for n in range(1000)]
        assert all(error.value.receipts)
        assert queue.counts().ready == 1000


# ------------------------------------------------------------- other moments to be cut


@pytest.mark.parametrize("cuts", [*CUTS.values(), SILENCE], ids=[*CUTS, "silence"])
@both_shells
def test_a_cut_while_the_library_is_loaded_is_a_cut_like_any_other(
    theatre: Theatre, cuts: list[Step], impatient: None
) -> None:
    """The server has lost the library, and the connection breaks under the first to bring it."""
    scenario = Scenario("add after a flush", lambda s: s.queue.add("some", id="a"))
    answer, left = theatre.on_a_good_connection(scenario)
    with theatre.stage(scenario, "flushed") as stage:
        theatre.client.function_flush()
        theatre.proxy.plan([PASS, *cuts])
        assert theatre.outcome(scenario, stage) == answer
        assert theatre.proxy.made == [step.kind for step in cuts]
        assert theatre.stored(scenario, stage) == left


@both_shells
def test_a_server_that_loses_the_library_again_and_again_is_given_it_again(
    theatre: Theatre,
) -> None:
    """It loses it twice under one call: before it was brought, and after."""
    scenario = Scenario("add after a flush", lambda s: s.queue.add("some", id="a"))
    answer, left = theatre.on_a_good_connection(scenario)

    with theatre.stage(scenario, "flushed") as stage:
        theatre.client.function_flush()
        theatre.proxy.plan([PASS, replace(cut_reply(), after=theatre.client.function_flush)])
        assert theatre.outcome(scenario, stage) == answer
        assert theatre.proxy.requests == 4
        assert theatre.stored(scenario, stage) == left


@pytest.mark.parametrize("cuts", [*CUTS.values(), SILENCE], ids=[*CUTS, "silence"])
@both_shells
def test_a_cut_while_connecting_is_a_cut_like_any_other(
    proxy: Proxy, shell: Shell, queue_name: str, cuts: list[Step], impatient: None
) -> None:
    with open_queue(shell, queue_name, proxy.url) as queue:
        proxy.plan(cuts)
        assert queue.add("some", id="a")
        assert proxy.made == [step.kind for step in cuts]
        assert queue.counts().ready == 1


@both_shells
def test_a_connection_that_was_cut_while_idle_is_opened_again(
    proxy: Proxy, shell: Shell, queue_name: str
) -> None:
    with open_queue(shell, queue_name, proxy.url) as queue:
        for n in range(5):
            assert queue.add(n, id=f"job {n}")
            proxy.cut_all()
        assert queue.counts().ready == 5


@both_shells
def test_a_sleeper_whose_connection_is_cut_still_gets_the_job_it_waits_for(
    theatre: Theatre,
) -> None:
    with theatre.stage(EMPTY, "asleep") as stage:

        def sleepers() -> int:
            return int(theatre.client.info("clients")["blocked_clients"])

        def cut_the_sleeper() -> None:
            wait_until(lambda: sleepers() == 1, "the sleeper")
            theatre.proxy.cut_all()
            stage.other.add("waited for", id="waited for")

        wait_until(lambda: sleepers() == 0, "nobody else")
        with ThreadPoolExecutor(1) as pool:
            cutting = pool.submit(cut_the_sleeper)
            lease = stage.queue.lease(30, wait=20)
            cutting.result()
        assert lease is not None
        assert lease.id == "waited for"
        assert stage.queue.counts().leased == 1


@both_shells
def test_a_reply_that_comes_slowly_but_steadily_is_waited_for(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large replies on slow lines take longer than silence may last."""
    monkeypatch.setattr("proxy.TRICKLE_SECONDS", 0.2)
    await_replies_for(DRIPS * 0.2 * 0.7, monkeypatch)
    with theatre.stage(Scenario("slow", nothing, three_jobs), "slow") as stage:
        theatre.proxy.plan([TRICKLE])
        assert len(stage.queue.lease_many(3, 30)) == 3
        assert theatre.proxy.requests == 1, "it asked again for what was on its way"


def test_a_lease_that_is_cancelled_on_a_bad_connection_is_given_back(
    proxy: Proxy, queue_name: str
) -> None:
    async def lease_and_cancel() -> None:
        async with AsyncQueue(queue_name, proxy.url) as queue:
            await queue.add_many([NewJob("x", id="x"), NewJob("y", id="y")])
            proxy.plan([HOLD, cut_reply(), cut_request(), PASS, cut_reply()])
            leasing = asyncio.create_task(queue.lease(600))
            await asyncio.to_thread(wait_until, lambda: proxy.made, "the lease")
            leasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leasing
            await queue.close()  # What was cancelled is undone by then.
            assert len(proxy.made) == 4
            proxy.plan()
            counts = await queue.counts()
            assert (counts.ready, counts.leased) == (2, 0)
            assert [lease.lapses for lease in await queue.lease_many(2, 600)] == [0, 0]
            assert await queue.audit() == []

    asyncio.run(lease_and_cancel())


@both_shells
def test_a_reply_that_is_none_is_a_lost_reply(theatre: Theatre) -> None:
    """Somebody between client and server answers in a language of their own."""
    call = Scenario("garbled", lambda s: s.queue.complete(s.held[0]), three_leases)
    theatre.must_be_the_same(call, [GARBLE])


@both_shells
def test_a_frozen_server_makes_the_call_once_when_it_thaws(
    theatre: Theatre, test_server: TestServer, impatient: None
) -> None:
    """Every copy that the client sent meanwhile lies in the server's sockets."""

    def thaw_after_three_requests() -> None:
        try:
            wait_until(lambda: theatre.proxy.requests >= 3, "the third request")
        finally:
            test_server.thaw()

    with theatre.stage(Scenario("frozen", nothing, three_jobs), "frozen") as stage:
        theatre.proxy.plan()
        test_server.freeze()
        with ThreadPoolExecutor(1) as pool:
            thawing = pool.submit(thaw_after_three_requests)
            stage.held += stage.queue.lease_many(1, 30)
            thawing.result()
        assert [lease.id for lease in stage.held] == ["first"]
        assert stage.queue.counts().leased == 1
        assert theatre.hidden(stage) == 0


# ---------------------------------------------------------------- a connection that is bad


def bad_steps(seed: int) -> Iterator[Step]:
    """About every third request is cut, somewhere."""
    dice = random.Random(seed)
    cuts = [cut_request(), cut_request(0.5), cut_reply(), cut_reply(0.5), DRIP]
    while True:
        yield dice.choice(cuts) if dice.random() < 0.3 else PASS


@pytest.mark.parametrize("seed", range(2))
@both_shells
def test_many_clients_on_a_bad_connection_complete_every_job_once(
    proxy: Proxy, client: redis.Redis, shell: Shell, queue_name: str, seed: int
) -> None:
    names, rounds = ("A", "B", "C", "D"), 15

    def work(name: str) -> list[tuple[str, bool]]:
        answers: list[tuple[str, bool]] = []
        with open_queue(shell, queue_name, proxy.url) as queue:
            done: list[Lease] = []
            for n in range(rounds):
                assert queue.add(name, id=f"{name} {n}")
                assert all(queue.add_many([NewJob(name, id=f"{name} {n} {m}") for m in "xy"]))
                leases = queue.lease_many(4, 600, complete=done)
                answers += zip([lease.id for lease in done], leases.completed, strict=True)
                queue.extend_many(leases, 600)
                if leases and n % 3 == 0:
                    queue.release(leases.pop())
                if leases and n % 3 == 1:
                    answers.append((leases[0].id, queue.complete(leases.pop(0))))
                done = leases
            answers += zip([lease.id for lease in done], queue.complete_many(done), strict=True)
        return answers

    proxy.plan(bad_steps(seed))
    with ThreadPoolExecutor(len(names)) as pool:
        answers = [answer for answers in pool.map(work, names) for answer in answers]
    assert len(proxy.made) > len(names) * rounds
    proxy.plan()

    with open_queue("Queue", queue_name, proxy.url) as queue:
        assert queue.audit() == []
        rest = queue.lease_many(1000, 600)
        assert {lease.lapses for lease in rest} <= {0}
        answers += zip([lease.id for lease in rest], queue.complete_many(rest), strict=True)
        added = {
            f"{name} {n}{m}" for name in names for n in range(rounds) for m in ("", " x", " y")
        }
        assert sorted(answers) == sorted((id, True) for id in added)
        assert payloads(client, queue) == {}
        assert queue.counts().leased == 0
