"""A queue over many slots of a cluster, for threads. Generated from aio/sharded.py: do not edit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.client.asking import Asker, Requeue
from holdfast.client.inputs import Done
from holdfast.client.sharded import NEVER_WORK, ShardCall, ShardedAsker
from holdfast.client.sharding import Sharding
from holdfast.client.sync.queue import Queue
from holdfast.connection.server import Server
from holdfast.engine.call import Call
from holdfast.errors import HoldfastError, ServerRefused
from holdfast.job import Duration, JobOptions, Lease, Leases

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from holdfast.client.schedules import Schedule

T = TypeVar("T")


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
        self._ask = Asker(
            server.session.next_token, defaults, requeue, partial(sharding.namer_in, number)
        )

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
        self._packers = [shard._packer for shard in self.shards]
        self._asks = ShardedAsker(server.session.next_token, sharding, defaults, requeue)
        self._ask = self._asks

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

    def _run(self, call: Call[T]) -> T:
        assert isinstance(call, ShardCall)
        answer: T = self.shards[call.shard]._run(call)
        return answer

    def _home(self, request: str) -> Queue:
        return self.shards[self.sharding.number_of_request(request)]

    def lease(
        self, seconds: Duration, *, wait: Duration | None = None, failed: bool = False
    ) -> Lease | None:
        """Lease the best job of a shard for `seconds`. The shards take turns.

        Waits up to `wait` seconds for a job in any shard. With `failed`, leases a failed job, for
        its failure handler.
        """
        leases = self.lease_many(1, seconds, wait=wait, failed=failed)
        return leases[0] if leases else None

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
        deadline = time.monotonic() + self._ask.wait(wait)
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
        ask = self._asks.lease_many(count, seconds, None, complete, failed, granted)
        # If the call is cancelled, its caller never gets these leases, so release them.
        with self.server._undone_by(lambda: self.release_many(granted) if granted else None):
            return self._drive(ask)
