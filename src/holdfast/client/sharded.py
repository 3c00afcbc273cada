"""Turns the methods of a sharded queue into calls to shards, and merges the answers. No I/O."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, Final, Literal, NoReturn, TypeVar

from msgspec.structs import astuple, replace

from holdfast import arguments
from holdfast.client.asking import Asker, Requeue
from holdfast.client.inputs import Done, adding, id_of, lease_of, only
from holdfast.client.requests import OnFailure, RequestAsker
from holdfast.client.schedules import Missed, Rhythm, Schedule, Ticked
from holdfast.client.sharding import Sharding
from holdfast.engine import walks
from holdfast.engine.call import Call
from holdfast.engine.library import MAX_BYTES, MAX_JOBS
from holdfast.engine.replies import Shown
from holdfast.engine.request_calls import Found
from holdfast.engine.walks import Flow
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.job import (
    Counts,
    Duration,
    Extended,
    Instant,
    Job,
    Lease,
    Leases,
    OnConflict,
    Outcome,
    Problem,
    Receipt,
    State,
    Tidied,
    Totals,
    WorkerInfo,
)
from holdfast.names import new_id

T = TypeVar("T")
A = TypeVar("A")

NEVER_WORK: Final = frozenset({"leased", "result", "pruned", "forgotten", "paused", "sealed"})
"""Events that never make a job available."""


class ShardCall(Call[T]):
    """A call to one shard."""

    __slots__ = ("shard",)

    def __init__(self, shard: int, call: Call[T]) -> None:
        super().__init__(
            call.function,
            call.args,
            call.read,
            wait=call.wait,
            listen=call.listen,
            undo=call.undo,
            ids=call.ids,
        )
        self.shard = shard


def shard_flow(shard: int, flow: Flow[T]) -> Flow[T]:
    """Send all calls of a flow to one shard."""
    try:
        call = next(flow)
        while True:
            try:
                answer = yield ShardCall(shard, call)
            except HoldfastError as error:
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


class ShardedAsker(Asker):
    """Turns the methods of a sharded queue into calls to shards, and merges the answers."""

    def __init__(
        self,
        next_token: Callable[[], str],
        sharding: Sharding,
        defaults: Mapping[str, Any] | None = None,
        requeue: Requeue = "rank",
    ) -> None:
        super().__init__(next_token, defaults, requeue, sharding.namer)
        self._sharding = sharding
        self._shards = [
            Asker(next_token, defaults, requeue, partial(sharding.namer_in, number))
            for number in range(sharding.count)
        ]
        # Start at a random shard: otherwise many short-lived clients would all lease from the same.
        self._turns = count(random.randrange(sharding.count))

    def _home(self, id: str) -> tuple[int, Asker]:
        number = self._sharding.number_of(id)
        return number, self._shards[number]

    def _all(self, ask: Callable[[Asker], Flow[T]]) -> Generator[Call[Any], Any, list[T]]:
        """Run a flow on every shard."""
        answers = []
        for number, shard in enumerate(self._shards):
            answers.append((yield from shard_flow(number, ask(shard))))
        return answers

    # ------------------------------------------------------------------- add

    def add(
        self,
        data: object,
        id: str | None,
        delay: Duration | None,
        at: Instant | None,
        on_conflict: OnConflict,
        options: Mapping[str, Any],
    ) -> Call[Receipt]:
        entry = self.entry(data, id, delay, at, options)
        return ShardCall(self._sharding.number_of(entry.id), only(adding(on_conflict)([entry])))

    def add_many(
        self, jobs: Iterable[object], on_conflict: OnConflict, options: Mapping[str, Any]
    ) -> Flow[list[Receipt]]:
        arguments.several("jobs", jobs)
        entries = self.entries(jobs, options)
        ask = adding(on_conflict)
        receipts: list[Receipt] = []
        shards = self._sharding.count
        try:
            for some in walks.chunks(
                entries, walks.payload_size, MAX_JOBS * shards, MAX_BYTES * shards
            ):
                receipts += yield from self._split(
                    some, attrgetter("id"), lambda _, own: walks.add_many(own, ask), "receipts"
                )
        except HoldfastError as error:
            error.receipts = [*receipts, *error.receipts]
            raise
        return receipts

    def _split(
        self,
        items: Sequence[A],
        id_of_item: Callable[[A], str],
        ask: Callable[[Asker, list[A]], Flow[list[T]]],
        so_far: Literal["receipts", "answers"] = "answers",
    ) -> Flow[list[T]]:
        """Run a flow on each shard with its items. Return the answers in the order of the items.

        An error carries the answers received so far, in that order.
        """
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(self._sharding.number_of(id_of_item(item)), []).append(place)
        answers: dict[int, T] = {}
        for number, own in places.items():
            try:
                told = yield from shard_flow(
                    number, ask(self._shards[number], [items[place] for place in own])
                )
            except HoldfastError as error:
                answers.update(zip(own, getattr(error, so_far), strict=False))
                setattr(error, so_far, [answers[place] for place in sorted(answers)])
                raise
            answers.update(zip(own, told, strict=True))
        return [answers[place] for place in range(len(items))]

    # ----------------------------------------------------------------- lease

    def lease_many(
        self,
        count: int,
        seconds: Duration,
        wait: Duration | None,  # noqa: ARG002  # The shells wait, for all shards at once.
        complete: Iterable[Done],
        failed: bool,
        granted: Leases | None = None,
    ) -> Flow[Leases]:
        """Lease from one shard after another. Leases are added to `granted` as they arrive.

        A shard that fails is skipped if others grant jobs. Once jobs were granted, other shards are
        asked for at most half of the lease time, so that the leases do not lapse meanwhile.
        """
        arguments.whole("count", count, 1, MAX_JOBS)
        enough = arguments.duration_ms("seconds", seconds, least=1) / 2000
        until = math.inf
        done = list(arguments.several("leases", complete))
        riding: dict[int, list[tuple[int, Done]]] = {}
        for place, item in enumerate(done):
            lease = lease_of(item[0] if isinstance(item, tuple) else item)
            number = self._sharding.number_of(lease.id)
            riding.setdefault(number, []).append((place, item))
        completed: dict[int, bool] = {}
        leases = Leases([], []) if granted is None else granted
        trouble: HoldfastError | None = None
        first = next(self._turns)  # Start with the next shard every time.
        for turn in range(self._sharding.count):
            number = (first + turn) % self._sharding.count
            own = riding.get(number, [])
            settles = [item for _, item in own]
            shard, left = self._shards[number], count - len(leases)
            answers: Sequence[int] = ()
            try:
                if left and time.monotonic() < until:
                    more = yield from shard_flow(
                        number, shard.lease_many(left, seconds, None, settles, failed)
                    )
                    if more and not leases:
                        until = time.monotonic() + enough
                    leases += more
                    answers = more.completed
                elif own:
                    answers = yield from shard_flow(number, shard.complete_many(settles))
            except HoldfastError as error:
                answers, trouble = error.answers, error
            completed.update(
                (place, bool(answer)) for (place, _), answer in zip(own, answers, strict=False)
            )
        leases.completed = [completed[place] for place in sorted(completed)]
        if trouble and (not leases or len(completed) < len(done)):
            with suppress(HoldfastError):  # Otherwise they lapse.
                yield from self.release_many(leases, None, None)
            trouble.answers = leases.completed
            raise trouble
        return leases

    # ---------------------------------------------------------------- settle

    def complete(
        self, lease: Lease | str, result: object, add: Iterable[object], force: bool
    ) -> Call[bool]:
        number, shard = self._home(id_of(lease))
        return ShardCall(number, shard.complete(lease, result, add, force))

    def complete_many(self, done: Iterable[Done]) -> Flow[list[bool]]:
        return self._split(
            list(arguments.several("leases", done)),
            lambda item: lease_of(item[0] if isinstance(item, tuple) else item).id,
            Asker.complete_many,
        )

    def release(
        self, lease: Lease, after: Duration | None, lapsed: str | BaseException | None
    ) -> Call[bool]:
        number, shard = self._home(lease_of(lease).id)
        return ShardCall(number, shard.release(lease, after, lapsed))

    def release_many(
        self, leases: Iterable[Lease], after: Duration | None, lapsed: str | BaseException | None
    ) -> Flow[list[bool]]:
        return self._split(
            list(arguments.several("leases", leases)),
            lambda lease: lease_of(lease).id,
            lambda shard, own: shard.release_many(own, after, lapsed),
        )

    def retry(
        self,
        lease: Lease,
        error: str | BaseException,
        after: Duration | None,
        at: Instant | None,
    ) -> Call[bool]:
        number, shard = self._home(lease_of(lease).id)
        return ShardCall(number, shard.retry(lease, error, after, at))

    def fail(self, lease: Lease, error: str | BaseException) -> Call[bool]:
        number, shard = self._home(lease_of(lease).id)
        return ShardCall(number, shard.fail(lease, error))

    def extend(self, lease: Lease, seconds: Duration) -> Call[Extended]:
        number, shard = self._home(lease_of(lease).id)
        return ShardCall(number, shard.extend(lease, seconds))

    def extend_many(self, leases: Iterable[Lease], seconds: Duration) -> Flow[list[Extended]]:
        return self._split(
            list(arguments.several("leases", leases)),
            lambda lease: lease_of(lease).id,
            lambda shard, own: shard.extend_many(own, seconds),
        )

    # ------------------------------------------------------------- one job, by id

    def cancel(self, id: str, running: bool) -> Call[bool]:
        number, shard = self._home(id)
        return ShardCall(number, shard.cancel(id, running))

    def revive(self, id: str) -> Call[bool]:
        number, shard = self._home(id)
        return ShardCall(number, shard.revive(id))

    def set_result(self, id: str, result: object) -> Call[None]:
        number, shard = self._home(id)
        return ShardCall(number, shard.set_result(id, result))

    def show(self, id: str) -> Call[Shown | None]:
        number, shard = self._home(id)
        return ShardCall(number, shard.show(id))

    def outcome(self, id: str) -> Call[Outcome | None]:
        number, shard = self._home(id)
        return ShardCall(number, shard.outcome(id))

    def set_group_limit(self, group: str, limit: int | None) -> Call[None]:
        number = self._sharding.number_of_request(group)
        return ShardCall(number, super().set_group_limit(group, limit))

    def request(
        self,
        id: str | None,
        priority: int,
        limit: int | None,
        on_failure: OnFailure,
        keep_for: Duration,
        open_for: Duration | None,
        follow_up: object,
        append: bool,
    ) -> RequestAsker:
        name = new_id() if id is None else id
        shard = self._shards[self._sharding.number_of_request(name)]
        return shard.request(
            name, priority, limit, on_failure, keep_for, open_for, follow_up, append
        )

    # -------------------------------------------------------------- schedules

    def schedule(
        self,
        known: dict[str, Schedule],
        rhythm: Rhythm,
        data: object,
        name: str | None,
        missed: Missed,
        options: Mapping[str, Any],
    ) -> Schedule:
        declared = super().schedule(known, rhythm, data, name, missed, options)
        try:
            list(self._shard_of(declared).entries([declared.job], {}))
        except HoldfastError:
            del known[declared.name]
            raise
        return declared

    def make(self, schedule: Schedule) -> Flow[Ticked]:
        number = self._sharding.number_of_request(schedule.name)
        return shard_flow(number, self._shards[number].make(schedule))

    def make_all(self, schedules: Mapping[str, Schedule]) -> Flow[list[Receipt]]:
        receipts: list[Receipt] = []
        for name, schedule in list(schedules.items()):
            number = self._sharding.number_of_request(name)
            shard = self._shards[number]
            receipts += yield from shard_flow(number, shard.make_all({name: schedule}))
        return receipts

    def _shard_of(self, schedule: Schedule) -> Asker:
        return self._shards[self._sharding.number_of_request(schedule.name)]

    # ---------------------------------------------------------------- all of them

    def counts(self) -> Flow[Counts]:
        counted = yield from self._all(Asker.counts)
        sums = map(sum, zip(*map(astuple, counted), strict=True))
        told: dict[str, Any] = dict(zip(Counts.__struct_fields__, sums, strict=True))
        return Counts(**{**told, "paused": any(one.paused for one in counted)})

    def totals(self) -> Flow[Totals]:
        told = yield from self._all(Asker.totals)
        return Totals(*map(sum, zip(*map(astuple, told), strict=True)))

    def peek(self, count: int, state: State, first: int) -> Flow[list[Job]]:
        arguments.whole("count", count, 1, MAX_JOBS)
        if arguments.whole("first", first, 0, arguments.NEVER_MS) + count > MAX_JOBS:
            raise InvalidArgument(
                f"a sharded queue shows only its first {MAX_JOBS} jobs: use its shards for more"
            )
        jobs = yield from self._all(lambda shard: shard.peek(first + count, state, 0))
        # Ready jobs have no time to sort by: shards take turns within each priority.
        if state in ("ready", "parked"):
            ranked = [
                (-(job.priority or 0), rank, job) for own in jobs for rank, job in enumerate(own)
            ]
            merged = [job for _, _, job in sorted(ranked, key=lambda ranked: ranked[:2])]
        else:
            merged = sorted((job for own in jobs for job in own), key=attrgetter("at"))
        return merged[first : first + count]

    def cancel_matching(self, data: object, running: bool) -> Flow[int]:
        return sum((yield from self._all(lambda shard: shard.cancel_matching(data, running))))

    def tidy(
        self, force: bool, held_longer_than: Duration | None, failed_longer_than: Duration | None
    ) -> Flow[Tidied]:
        moved = yield from self._all(
            lambda shard: shard.tidy(force, held_longer_than, failed_longer_than)
        )
        return Tidied(*map(sum, zip(*map(astuple, moved), strict=True)))

    def pause(self) -> Flow[None]:
        yield from self._all(Asker.pause)

    def resume(self) -> Flow[None]:
        yield from self._all(Asker.resume)

    def delete(self, idle_for: Duration | None) -> Flow[bool]:
        return all((yield from self._all(lambda shard: shard.delete(idle_for))))

    def audit(self) -> Flow[list[Problem]]:
        return self._problems((yield from self._all(Asker.audit)))

    def repair(self) -> Flow[list[Problem]]:
        return self._problems((yield from self._all(Asker.repair)))

    def _problems(self, found: list[list[Problem]]) -> list[Problem]:
        """Add the shard to each problem."""
        return [
            replace(problem, what=f"{name}: {problem.what}")
            for name, own in zip(self._sharding.names, found, strict=True)
            for problem in own
        ]

    def publish(self) -> Flow[int]:
        return sum((yield from self._all(Asker.publish)))

    def walk(self) -> Flow[list[Found]]:
        return [one for own in (yield from self._all(Asker.walk)) for one in own]

    # ----------------------------------------------------------------- spark

    def write(self, name: str | None) -> NoReturn:  # noqa: ARG002
        raise _of_a_shard("a write is committed by one record")

    def reader(self, name: str, epoch: int | None) -> NoReturn:  # noqa: ARG002
        raise _of_a_shard("the claims of a reader are kept in one place")

    def last_batch(self, writer: str) -> NoReturn:  # noqa: ARG002
        raise _of_a_shard("the batches of a writer are counted in one place")

    # ---------------------------------------------------------------- workers

    def register(self, holder: str, alive_for: Duration, about: Mapping[str, Any]) -> Flow[None]:
        yield from self._all(lambda shard: shard.register(holder, alive_for, about))

    def workers(self) -> Flow[list[WorkerInfo]]:
        seen: dict[str, WorkerInfo] = {}
        for own in (yield from self._all(Asker.workers)):
            for worker in own:
                other = seen.get(worker.holder)
                seen[worker.holder] = _merged(other, worker) if other else worker
        return list(seen.values())

    def fail_worker(self, worker: WorkerInfo | Lease | str) -> Flow[int]:
        return sum((yield from self._all(lambda shard: shard.fail_worker(worker))))


def _of_a_shard(why: str) -> InvalidArgument:
    return InvalidArgument(f"{why}, so it belongs to one shard: use queue.shards[0], for example")


def _merged(one: WorkerInfo, other: WorkerInfo) -> WorkerInfo:
    """Merge the entries of a worker that registered in two shards."""
    last = max(one, other, key=attrgetter("alive_until"))
    running = [*one.about.get("running", ()), *other.about.get("running", ())]
    about = {**last.about, "running": running} if running else last.about
    return replace(last, alive=one.alive or other.alive, about=about)
