"""A call about a request whose reply is lost is sent again, and done once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conftest import Clock
from engine_support import own_server
from holdfast import Lease, NewJob, Queue, QueueFull, Server
from proxy import Proxy, Step, cut_reply, cut_request
from request_support import counters, fill

Held = list[Lease]


@pytest.fixture
def distant(proxy: Proxy, queue: Queue, clock: Clock) -> Iterator[Queue]:
    """Another queue, behind a bad connection."""
    server = Server(proxy.url)
    distant = Queue(f"{queue.name} distant", server, clock=clock)
    yield distant
    assert distant.audit() == []
    server.close()


def prepare(queue: Queue) -> Held:
    """Leave something for every call to do."""
    fill(queue.request("open", limit=2, follow_up=b""), 5, seal=False)
    fill(queue.request("ended", follow_up=b"", priority=90), 1)
    lease = queue.lease(60)
    assert lease
    queue.fail(lease, error="why")
    fill(queue.request("last", follow_up=b"", priority=80), 1)
    fill(queue.request("fast", on_failure="fail_fast", priority=70), 1, seal=False)
    queue.add_many([NewJob(b"", id=f"g{n}", group="g", group_limit=1) for n in range(3)])
    queue.cancel("ended/end/1")
    return queue.lease_many(4, 60)


CHANGES: dict[str, Callable[[Queue, Held], object]] = {
    "open": lambda queue, held: queue.request("new", limit=3, priority=7, follow_up=b"").open(),
    "open_again": lambda queue, held: queue.request("open").open(),
    "add": lambda queue, held: queue.request("open").add(b"", number=5),
    "append": lambda queue, held: queue.request("open", append=True).add(b""),
    "append_many": lambda queue, held: queue.request("open", append=True).add_many([b""] * 1500),
    "seal": lambda queue, held: queue.request("open").seal(),
    "cancel": lambda queue, held: queue.request("open").cancel(),
    "set_limit": lambda queue, held: queue.request("open").set_limit(7),
    "set_priority": lambda queue, held: queue.request("open").set_priority(7),
    "lease": lambda queue, held: [lease.id for lease in queue.lease_many(3, 60)],
    "lease_and_complete": lambda queue, held: queue.lease_many(9, 60, complete=held).completed,
    "lease_failed": lambda queue, held: [
        lease.id for lease in queue.lease_many(9, 60, failed=True)
    ],
    "complete": lambda queue, held: queue.complete_many((lease, b"result") for lease in held),
    "fail": lambda queue, held: queue.fail(held[-1], error="why"),
    "fail_fast": lambda queue, held: queue.fail(held[1], error="why"),
    "release": lambda queue, held: queue.release_many(held),
    "revive": lambda queue, held: queue.revive("ended/0"),
    "cancel_part": lambda queue, held: queue.cancel("open/4"),
    "set_result": lambda queue, held: queue.set_result("open/4", b"result"),
    "add_grouped": lambda queue, held: queue.add_many(
        [NewJob(b"", id=f"h{n}", group="h", group_limit=n) for n in range(3)]
    ),
    "update": lambda queue, held: queue.add(b"", id="g2", group="h", on_conflict="update"),
    "set_group_limit": lambda queue, held: queue.set_group_limit("g", 9),
    "tidy": lambda queue, held: queue.tidy(failed_longer_than=0),
}


def all_of(queue: Queue) -> dict[str, object]:
    """Return what can be told of a queue, without what is made by chance."""
    return {
        "requests": [
            (status.id, status.state, status.limit, status.endings, counters(status))
            for status in queue.requests()
        ],
        "results": {
            status.id: list(queue.request(status.id).results()) for status in queue.requests()
        },
        "groups": queue.groups(),
        "counts": queue.counts(),
        "parked": [job.id for job in queue.peek(1000, state="parked")],
        "ready": [job.id for job in queue.peek(1000)],
    }


@pytest.mark.parametrize(
    "cut",
    [cut_request(0.5), cut_reply(0), cut_reply(0.5)],
    ids=["request", "reply", "half the reply"],
)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_call_that_is_sent_again_is_done_once(
    queue: Queue, distant: Queue, proxy: Proxy, clock: Clock, kind: str, cut: Step
) -> None:
    answers = []
    for each in (queue, distant):
        held = prepare(each)
        clock.advance(1)
        if each is distant:
            proxy.plan([cut])
        answers.append(CHANGES[kind](each, held))
        clock.ms -= 1000
    assert answers[0] == answers[1]
    clock.advance(1)
    assert all_of(queue) == all_of(distant)
    assert queue.repair() == distant.repair() == []


def test_a_full_server_takes_no_parts_and_ends_what_is_there() -> None:
    """Whatever frees memory goes on; a part that does not fit is refused, and nothing is added."""
    with own_server() as server, Queue("q", server.url) as queue, server.client() as client:
        request = fill(queue.request("r", limit=2, follow_up=b"x"), 4, seal=False)
        client.config_set("maxmemory", 1)
        for add in (
            lambda: request.add(b""),
            lambda: queue.request("new").open(),
            lambda: queue.add(b"", group="g"),
        ):
            with pytest.raises(QueueFull):
                add()
        assert counters(request.status()) == {"total": 4, "parked": 4}
        assert queue.complete_many(queue.lease_many(2, 60)) == [True, True]
        request.set_limit(1)
        request.seal()
        [third] = queue.lease_many(2, 60, complete=[])
        [fourth] = queue.lease_many(2, 60, complete=[third])
        assert queue.complete(fourth)
        assert request.status().state == "completed"
        [follow_up] = queue.lease_many(9, 60)
        assert follow_up.id == "r/end/1"
        assert queue.audit() == []
