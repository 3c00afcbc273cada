"""What the tests of requests share: requests that are filled, worked off, and listened to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import Event, Part, Queue, Request, RequestStatus
from support import DEADLINE


def fill(request: Request, parts: int, *, seal: bool = True) -> Request:
    """Open a request and add parts that say their numbers."""
    request.open()
    request.add_many(b"%d" % n for n in range(parts))
    if seal:
        request.seal()
    return request


def work_off(queue: Queue, count: int = 1000) -> list[str]:
    """Lease and complete until nothing comes any more; return the ids in their order."""
    done: list[str] = []
    while leases := queue.lease_many(count, 60):
        assert queue.complete_many(leases) == [True] * len(leases)
        done += [lease.id for lease in leases]
    return done


def order(queue: Queue, count: int) -> str:
    """Lease one after the other and hold them; return what they are of, a letter each."""
    letters = ""
    for _ in range(count):
        lease = queue.lease(60)
        if lease is None:
            break
        letters += lease.id[0]
    return letters


def counters(status: RequestStatus) -> dict[str, int]:
    """Return the counters of a request that are not zero."""
    names = ("total", "done", "failed", "cancelled", "running", "parked", "delayed")
    return {name: count for name in names if (count := getattr(status, name))}


def states(request: Request) -> list[str]:
    return [part.state for part in request.results()]


def parts_of(request: Request) -> list[Part]:
    return list(request.results())


@contextmanager
def hearing(queue: Queue) -> Iterator[list[Event]]:
    """Collect what the queue tells of the block; complete once the block is over."""
    heard: list[Event] = []
    with queue.events(idle=DEADLINE) as events:
        yield heard
        queue.add(b"", id="the last word", priority=0)
        for event in events:
            if "the last word" in event.ids:
                break
            heard.append(event)
        queue.cancel("the last word")


def endings(heard: list[Event]) -> list[str]:
    """Return the requests whose ending was announced, as often as it was."""
    return [id for event in heard if event.kind == "ended" for id in event.ids]
