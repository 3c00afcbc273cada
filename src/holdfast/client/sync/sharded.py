"""A queue over many slots of a cluster, for threads. Generated from aio/sharded.py: do not edit."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast import arguments
from holdfast.client.inputs import Done, Entries, Requeue, id_of_done
from holdfast.client.schedules import Schedule
from holdfast.client.sharding import NEVER_WORK, Sharding, Spread, merged_jobs, of_a_shard
from holdfast.client.sync.batches import Reader, Write
from holdfast.client.sync.queue import Queue
from holdfast.connection.server import Server
from holdfast.engine import walks
from holdfast.engine.call import Call
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.walks import Flow
from holdfast.errors import HoldfastError, InvalidArgument, ServerRefused
from holdfast.job import Duration, Job, JobOptions, Leases, Problem, State

T = TypeVar("T")
A = TypeVar("A")


class Shard(Queue):
    """One of the queues of a `ShardedQueue`, usable like any other queue.

    Ids that are given here must belong to this shard; generated ids do.
    """

    def __init__(
        self,
        sharding: Sharding,
        number: int,
        server: Server,
        *,
        defaults: JobOptions | None = None,
        requeue: Requeue = "rank",
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.sharding = sharding
        self.number = number
        super().__init__(
            sharding.names[number], server, defaults=defaults, requeue=requeue, clock=clock
        )
        self._entries = Entries(defaults, partial(sharding.namer_in, number))

    @property
    def handlers(self) -> dict[str, Any]:
        """The handlers of all shards."""
        return self.sharding.handlers

    @handlers.setter
    def handlers(self, _: dict[str, Any]) -> None:
        """Ignore the value: a shard has none of its own."""

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules whose ticks are made here."""
        return self.sharding.schedules_of(self.number)

    @schedules.setter
    def schedules(self, _: dict[str, Schedule]) -> None:
        """Ignore the value: a shard has none of its own."""


class ShardedQueue(Queue):
    """A queue split into several queues, its shards, which the nodes of a cluster can share.

    name      1 to 500 bytes or so, not beginning with `}`
    url       the address of the servers, or a `Server` to share; by default HOLDFAST_URL,
              else the embedded server
    shards    how many, 1 to 256; all programs that use the queue must give the same number
    defaults  default options of jobs that are added here
    requeue   where a released or reclaimed job goes: to the "rank" it had, or to the "back" of
              its priority
    clock     for tests: a function that returns the time in milliseconds, instead of the
              servers'

    It has the methods of a `Queue`, except that `write`, `reader` and `last_batch` must be
    called on a shard, such as `queue.shards[0]`. The id of a job determines its shard. A request or
    a group is in one shard. Order and priority hold within a shard; shards take turns.
    """

    def __init__(
        self,
        name: str,
        url: str | Server | None = None,
        *,
        shards: int,
        defaults: JobOptions | None = None,
        requeue: Requeue = "rank",
        clock: Callable[[], int] | None = None,
    ) -> None:
        sharding = Sharding(name, shards)
        server = url if isinstance(url, Server) else Server(url)
        said: Mapping[str, Any] = {"defaults": defaults, "requeue": requeue, "clock": clock}
        self.sharding = sharding
        super().__init__(name, server, **said)
        self.shards = tuple(Shard(sharding, number, server, **said) for number in range(shards))
        self._entries = Entries(defaults, sharding.namer)
        # Start at a random shard: otherwise many short-lived clients would all lease from the same.
        self._turns = count(random.randrange(shards))

    @property
    def handlers(self) -> dict[str, Any]:
        """The functions that run its jobs, by name."""
        return self.sharding.handlers

    @handlers.setter
    def handlers(self, handlers: dict[str, Any]) -> None:
        self.sharding.handlers = handlers

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The declared schedules, by name."""
        return self.sharding.schedules

    @schedules.setter
    def schedules(self, schedules: dict[str, Schedule]) -> None:
        self.sharding.schedules = schedules

    # ------------------------------------------------------------ where calls go

    def _run(self, call: Call[T], of: str = "") -> T:
        return self._shard_of(of)._run(call)

    def _shard_of(self, id: str) -> Queue:
        return self.shards[self.sharding.number_of(id)]

    def _shard_named(self, name: str) -> Queue:
        return self.shards[self.sharding.number_of_request(name)]

    def _all(self) -> Sequence[Queue]:
        return self.shards

    def _spread(
        self, items: Iterable[A], kind: Spread, act: Callable[[Iterable[A]], Flow[list[T]]]
    ) -> list[T]:
        """Return the answers in the order of the items; an error carries those received so far."""
        told: dict[int, T] = {}
        asked: list[int] = []
        before, shards = 0, len(self.shards)
        try:
            for some in walks.chunks(items, kind.size, MAX_JOBS * shards, MAX_BYTES * shards):
                for number, places in self.sharding.places(map(kind.id_of, some)).items():
                    asked = [before + place for place in places]
                    own = act([some[place] for place in places])
                    told |= zip(asked, self.shards[number]._drive(own), strict=True)
                before += len(some)
        except HoldfastError as error:
            told |= zip(asked, getattr(error, kind.so_far), strict=False)
            setattr(error, kind.so_far, [told[place] for place in sorted(told)])
            raise
        return [told[place] for place in range(before)]

    def _in_shards(self, found: list[list[Problem]]) -> list[Problem]:
        return [
            replace(problem, what=f"{name}: {problem.what}")
            for name, problems in zip(self.sharding.names, found, strict=True)
            for problem in problems
        ]

    def lease_many(
        self,
        count: int,
        seconds: Duration,
        *,
        wait: Duration | None = None,
        complete: Iterable[Done] = (),
        failed: bool = False,
    ) -> Leases:
        """Lease up to `count` jobs (at most 1000) from the shards in turn, the best of each first.

        The same calls can complete finished jobs: leases, or pairs of lease and result.
        `.completed` of the return value says which of them counted.
        """
        deadline = time.monotonic() + arguments.seconds("wait", wait, 0)
        leases = self._lease_now(count, seconds, failed, complete)
        completed = leases.completed
        try:
            while not leases and time.monotonic() < deadline:
                leases = self._lease_soon(count, seconds, failed, deadline)
        except HoldfastError as error:
            error.answers = completed
            raise
        leases.completed = completed
        return leases

    def _lease_soon(self, count: int, seconds: Duration, failed: bool, deadline: float) -> Leases:
        """Lease after the next event, or after half a second: no event reports jobs coming due."""
        idle = max(0.001, min(deadline - time.monotonic(), 0.5))
        try:
            with self.events(idle=idle) as events:
                leases = self._lease_now(count, seconds, failed)
                ask_at = time.monotonic() + idle
                while not leases and time.monotonic() < deadline:
                    event = next(events, None)
                    if event is None:
                        break
                    if event.kind not in NEVER_WORK or time.monotonic() > ask_at:
                        leases = self._lease_now(count, seconds, failed)
                        ask_at = time.monotonic() + idle
                if leases:
                    return leases
        except ServerRefused as error:
            if error.word != "NOPERM":
                raise
            time.sleep(idle)  # The ACL forbids SUBSCRIBE.
        return self._lease_now(count, seconds, failed)

    def _lease_now(
        self, count: int, seconds: Duration, failed: bool, complete: Iterable[Done] = ()
    ) -> Leases:
        granted = Leases([], [])
        # If the call is cancelled, its caller never gets these leases, so release them.
        with self.server._undone_by(lambda: self.release_many(granted) if granted else None):
            return self._lease_in_turn(granted, count, seconds, failed, complete)

    def _lease_in_turn(
        self, leases: Leases, count: int, seconds: Duration, failed: bool, complete: Iterable[Done]
    ) -> Leases:
        """Lease from one shard after another. `leases` grows as they answer.

        A shard that fails is skipped if others grant jobs. Once jobs were granted, other shards are
        asked for at most half of the lease time, so that the leases do not lapse meanwhile.
        """
        arguments.whole("count", count, 1, MAX_JOBS)
        enough = arguments.duration_ms("seconds", seconds, least=1) / 2000
        until = math.inf
        done = list(arguments.several("leases", complete))
        riding = self.sharding.places(id_of_done(one) for one in done)
        completed: dict[int, bool] = {}
        trouble: HoldfastError | None = None
        first = next(self._turns)  # Start with the next shard every time.
        for turn in range(len(self.shards)):
            number = (first + turn) % len(self.shards)
            shard, left = self.shards[number], count - len(leases)
            places = riding.get(number, [])
            own = [done[place] for place in places]
            answers: Sequence[int] = ()
            try:
                if left and time.monotonic() < until:
                    more = shard.lease_many(left, seconds, complete=own, failed=failed)
                    if more and not leases:
                        until = time.monotonic() + enough
                    leases += more
                    answers = more.completed
                elif own:
                    answers = shard.complete_many(own)
            except HoldfastError as error:
                answers, trouble = error.answers, error
            completed.update(zip(places, map(bool, answers), strict=False))
        leases.completed = [completed[place] for place in sorted(completed)]
        if trouble and (not leases or len(completed) < len(done)):
            with suppress(HoldfastError):  # Otherwise they lapse.
                self.release_many(leases)
            trouble.answers = leases.completed
            raise trouble
        return leases

    # ---------------------------------------------------------------- otherwise than in one slot

    def peek(self, count: int = 1, *, state: State = "ready", first: int = 0) -> list[Job]:
        """Return jobs of one state in their order, starting at `first`, without leasing them.

        Shows only the first 1000 jobs: use the shards for more.
        """
        arguments.whole("count", count, 1, MAX_JOBS)
        if arguments.whole("first", first, 0, arguments.NEVER_MS) + count > MAX_JOBS:
            raise InvalidArgument(
                f"a sharded queue shows only its first {MAX_JOBS} jobs: use its shards for more"
            )
        found = [one.peek(first + count, state=state) for one in self.shards]
        return merged_jobs(state, found)[first : first + count]

    def write(self, name: str | None = None) -> Write:  # noqa: ARG002
        """Raise `InvalidArgument`: use a shard."""
        raise of_a_shard("a write is committed by one record")

    def reader(self, name: str, *, epoch: int | None = None) -> Reader:  # noqa: ARG002
        """Raise `InvalidArgument`: use a shard."""
        raise of_a_shard("the claims of a reader are kept in one place")

    def last_batch(self, writer: str) -> int | None:  # noqa: ARG002
        """Raise `InvalidArgument`: use a shard."""
        raise of_a_shard("the batches of a writer are counted in one place")
