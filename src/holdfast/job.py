"""The values that the queue takes and returns: frozen, compared by content, without behaviour.

They are msgspec structs because a lease makes one per job: creating one costs a tenth of a frozen
dataclass.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar
from zlib import crc32

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple, replace

from holdfast import codec
from holdfast.errors import CodecError

Duration: TypeAlias = int | float | timedelta
"""Seconds, or a timedelta."""

Instant: TypeAlias = datetime | int | float
"""A datetime with a time zone, or seconds since the epoch."""

State: TypeAlias = Literal["ready", "leased", "delayed", "failed", "ended", "parked"]


class Update(Struct, frozen=True, repr_omit_defaults=True):
    """What `add` changes about a job that already has the id; `"update"` means `Update()`.

    data    replace the payload
    due     replace the time when it may run: True, False, or only by a "later" or "earlier" time
    limits  replace all its other options: True, False, or the names of the options to replace,
            such as ["max_failures", "priority"]
    counts  reset failures and lapses to 0; by default, when the payload is replaced
    """

    data: bool = True
    due: bool | Literal["later", "earlier"] = True
    limits: bool | Collection[str] = True
    counts: bool | None = None


OnConflict: TypeAlias = Literal["ignore", "raise", "update"] | Update


class JobOptions(TypedDict, total=False):
    """The options of a job. An option that is not given has the queue's default.

    priority      0 to 99, higher runs sooner; default 50
    handler       the name of the function that runs the job
    timeout       seconds that one run may take; a handler in a thread is only notified
    max_failures  runs that may raise before the job is failed; default 10, None = no limit
    max_lapses    runs that may end without an answer; default 3, None = no limit
    min_backoff   seconds before the first retry; default 2, doubled with each failure
    max_backoff   the longest wait between two retries; default 300
    result_for    seconds for which the result can be read; default 0, math.inf = for ever
    keep          keep the payload as long as the result
    remember_for  seconds for which the id stays taken after the job has completed
    group         the name of a group: jobs that share a limit
    group_limit   sets how many jobs of the group may run at a time; None = any number
    """

    priority: int
    handler: str | None
    timeout: Duration | None
    max_failures: int | None
    max_lapses: int | None
    min_backoff: Duration
    max_backoff: Duration
    result_for: Duration
    keep: bool
    remember_for: Duration
    group: str | None
    group_limit: int | None


class NewJob(
    Struct, frozen=True, repr_omit_defaults=True, tag_field=codec.JOB_FIELD, tag=codec.JOB_TAG
):
    """A job to add with `add_many`, as a part or as a follow-up, with options of its own."""

    data: Any
    id: str | None = None
    delay: Duration | None = None
    at: Instant | None = None
    priority: int | UnsetType = UNSET
    handler: str | UnsetType | None = UNSET
    timeout: Duration | UnsetType | None = UNSET
    max_failures: int | UnsetType | None = UNSET
    max_lapses: int | UnsetType | None = UNSET
    min_backoff: Duration | UnsetType = UNSET
    max_backoff: Duration | UnsetType = UNSET
    result_for: Duration | UnsetType = UNSET
    keep: bool | UnsetType = UNSET
    remember_for: Duration | UnsetType = UNSET
    group: str | UnsetType | None = UNSET
    group_limit: int | UnsetType | None = UNSET


def own_options(job: NewJob) -> dict[str, Any]:
    """Return the options that were given for a job."""
    return {
        name: value
        for name in JobOptions.__annotations__
        if (value := getattr(job, name)) is not UNSET
    }


class Row(NewJob, frozen=True, repr_omit_defaults=True):
    """A row to stage: a job, or the next part of an open request (numbered when published)."""

    request: str | None = None


class Staged(Struct, frozen=True):
    """What one attempt of one task has staged. The task passes it to the process that commits."""

    write: str
    partition: int
    attempt: int
    chunks: int
    rows: int
    requests: tuple[str, ...] = ()
    """The requests that its rows are parts of."""


class Committed(Struct, frozen=True):
    """The outcome of a commit. True if this call committed the write."""

    new: bool
    rows: int
    """How many rows became jobs in this call."""

    def __bool__(self) -> bool:
        return self.new


class Opened(Struct, frozen=True):
    """The answer to opening a reader."""

    epoch: int
    """The reader presents it with every call; a newer reader has a higher one."""
    settled: int
    """All claims with a lower number are settled."""
    next: int
    """The number of the next claim."""


class Claim(Struct, frozen=True):
    """A batch of leases that a reader holds together, and can read again."""

    n: int
    chunks: tuple[int, ...] = ()
    """How many jobs each chunk has."""

    @property
    def jobs(self) -> int:
        """How many jobs it has; 0 if there was nothing to claim."""
        return sum(self.chunks)


class Facts(Struct, frozen=True, repr_omit_defaults=True):
    """What the queue stores about a job beside its payload."""

    priority: int = 50
    handler: str | None = None
    timeout_ms: int | None = None
    failures: int = 0
    lapses: int = 0
    max_failures: int = 10
    max_lapses: int = 3
    min_backoff_ms: int = 2_000
    max_backoff_ms: int = 300_000
    result_for_ms: int = 0
    remember_for_ms: int = 0
    keep: bool = False
    request: str | None = None
    group: str | None = None
    error: str | None = None
    raised: str | None = None
    cancelled: bool = False
    failed_at: int | None = None
    handlings: int = 0
    max_handlings: int = 100
    outcome: str | None = None
    ended_at: int | None = None
    taken_until: int | None = None


NO_FACTS = Facts()


class Failure(Struct, frozen=True, repr_omit_defaults=True):
    """An exception that a run raised, as values. The type is text, never turned into a class."""

    type: str
    """The class with its module, such as `urllib.error.HTTPError`; built-in types without."""
    message: str = ""
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    """Attributes of the instance that have a JSON form and fit."""


class _Raised(Struct):
    of: int
    type: str
    message: str
    attributes: dict[str, Any]


_decode_raised = msgspec.json.Decoder(_Raised).decode


def read_failure(raised: str | None, error: str | None) -> Failure | None:
    """Return the exception that is stored beside this error.

    None if there is none, if it cannot be read, or if it belongs to an earlier run: clients of
    release 0.1 replace the error alone.
    """
    try:
        kept = _decode_raised(raised) if raised else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    if kept is None or kept.of != crc32((error or "").encode()):
        return None
    return Failure(kept.type, kept.message, kept.attributes)


class EndedFacts(Struct, frozen=True, repr_omit_defaults=True):
    """What the queue stores about a job that has ended. None means that a value is not kept."""

    priority: int | None = None
    handler: str | None = None
    timeout_ms: int | None = None
    failures: int | None = None
    lapses: int | None = None
    max_failures: int | None = None
    max_lapses: int | None = None
    min_backoff_ms: int | None = None
    max_backoff_ms: int | None = None
    result_for_ms: int | None = None
    remember_for_ms: int | None = None
    keep: bool = False
    request: str | None = None
    group: str | None = None
    error: str | None = None
    raised: str | None = None
    cancelled: bool | None = None
    failed_at: int | None = None
    handlings: int | None = None
    max_handlings: int | None = None
    outcome: str | None = None
    ended_at: int | None = None
    taken_until: int | None = None


NO_ENDED_FACTS = EndedFacts()


class Receipt(Struct, frozen=True, repr_omit_defaults=True):
    """What became of one job given to `add`. True if this call created it."""

    id: str
    created: bool = True
    state: State | None = None
    """The state in which the job with this id was, or is now; None if this call created it."""
    updated: bool = False
    """Whether the job with this id was changed, or will be when its lease ends."""

    def __bool__(self) -> bool:
        return self.created


class Lease(Struct, frozen=True, repr_omit_defaults=True):
    """The right to run one job until the lease lapses."""

    id: str
    data: bytes
    token: str
    """Names this lease. Use it to guard effects outside the queue."""
    facts: Facts = NO_FACTS

    @property
    def holder(self) -> str:
        """The holder of the lease: one session of one client."""
        return self.token.rpartition(".")[0]

    @property
    def failures(self) -> int:
        """How many runs of this job raised."""
        return self.facts.failures

    @property
    def lapses(self) -> int:
        """How many runs of this job ended without an answer."""
        return self.facts.lapses

    @property
    def error(self) -> str | None:
        """Why the last run failed or lapsed."""
        return self.facts.error

    @property
    def failure(self) -> Failure | None:
        """What the last run raised, as values; None if it did not raise."""
        return read_failure(self.facts.raised, self.facts.error)

    @property
    def request(self) -> str | None:
        """The request that this job is a part of."""
        return self.facts.request

    @property
    def failed(self) -> bool:
        """Whether the job has failed, and this lease is its failure handler's."""
        return self.facts.failed_at is not None

    def json(self) -> Any:
        """Decode the payload as JSON."""
        return codec.decode_json(self.data, self.id)


class Extended(IntEnum):
    """The answer to `extend` for one lease. False if the lease is lost."""

    LOST = 0
    HELD = 1
    CANCELLED = 2
    """Held, but the job was cancelled: stop, and settle it in any way."""


class Job(Struct, frozen=True, repr_omit_defaults=True):
    """A job in the queue, to look at, not to run."""

    id: str
    state: State
    data: bytes | None
    """The payload; None for an ending that does not keep it."""
    priority: int | None = 50
    """None if the job has ended, as it is not kept then."""
    at: float | None = None
    """In seconds since the epoch: when a delayed job is due, a lease lapses, a failure handler may
    have a failed job, or an ending is forgotten. None for a ready or parked job, inf for never."""
    facts: Facts | EndedFacts = NO_FACTS
    token: str | None = None
    """The last token given out, as long as it counts."""
    leased_at: float | None = None
    behind: int | None = None
    """How many ready jobs, or parked jobs of its request, go before it. Only `show` sets it."""
    successor: bool = False
    """Whether an update waits for its lease to end. Only `show` sets it."""

    @property
    def failures(self) -> int | None:
        """How many runs of this job raised; None if it has ended, as that is not kept."""
        return self.facts.failures

    @property
    def lapses(self) -> int | None:
        """How many runs of this job ended without an answer; None if it has ended."""
        return self.facts.lapses

    @property
    def error(self) -> str | None:
        """Why the last run failed or lapsed."""
        return self.facts.error

    @property
    def failure(self) -> Failure | None:
        """What the last run raised, as values; None if it did not raise."""
        return read_failure(self.facts.raised, self.facts.error)

    def json(self) -> Any:
        """Decode the payload as JSON. Raises `CodecError` if the payload is not kept."""
        if self.data is None:
            raise CodecError(
                f"{self.id}: the payload is not kept: the job has ended. To keep it as long as the "
                "result, add the job with keep=True and result_for"
            )
        return codec.decode_json(self.data, self.id)


class Outcome(Struct, frozen=True, repr_omit_defaults=True):
    """How a job ended."""

    id: str
    kind: Literal["completed", "cancelled", "failed"]
    result: bytes | None = None
    error: str | None = None
    """Why it failed."""
    at: float = 0
    """When, in seconds since the epoch."""

    @property
    def completed(self) -> bool:
        """Whether it ended well."""
        return self.kind == "completed"

    def json(self) -> Any:
        """Decode the result as JSON. Raises `CodecError` if no result is kept.

        A handler that returns None keeps no result; to keep a null, it returns `Json(None)`.
        """
        return result_json(self.id, self.kind, self.result, self.error)


_NO_RESULT: Final = {
    "failed": "the job has failed",
    "cancelled": "the job was cancelled",
    "completed": "the handler returned None, or the job does not say result_for",
    "done": "its handler returned None",
}
"""Why a job or a part that has ended has no result."""


def result_json(id: str, how: str, result: bytes | None, error: str | None) -> Any:
    """Decode a result as JSON; raise CodecError with the reason if there is none."""
    if result is not None:
        return codec.decode_json(result, id, "result")
    if how not in _NO_RESULT:
        raise CodecError(
            f"{id}: the part is {how} and has no result yet. Ask again when it is done; "
            "request.wait() waits for all parts"
        )
    why = _NO_RESULT[how]
    if how == "failed" and error:
        why = f"{why}: {error}"
    raise CodecError(f"{id}: no result is kept: {why}")


class WorkerInfo(Struct, frozen=True):
    """A worker as it registered itself, for people to look up."""

    holder: str
    alive: bool
    alive_until: float
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """Where it runs, as `host:pid`; its holder if its entry does not say."""
        host, pid = self.about.get("host"), self.about.get("pid")
        return self.holder if host is None or pid is None else f"{host}:{pid}"


class Leases(list[Lease]):
    """The leases that `lease_many` granted; `completed` has a flag per job it was to complete."""

    completed: list[bool]

    def __init__(self, leases: list[Lease], completed: list[bool]) -> None:
        list.__init__(self, leases)  # In fewer steps than by super().
        self.completed = completed


class Counts(Struct, frozen=True):
    """How many jobs are in each state, at one moment."""

    ready: int
    delayed: int
    leased: int
    parked: int
    failed: int
    ended: int
    paused: bool
    staged: int = 0
    """Chunks of rows, each of up to 1000, that are not jobs yet."""
    claims: int = 0
    """Chunks of jobs, each of up to 1000, that readers have claimed; they are leased."""

    @property
    def waiting(self) -> int:
        """Jobs that no worker runs yet: ready, parked and delayed."""
        return self.ready + self.parked + self.delayed


class Totals(Struct, frozen=True):
    """Lifetime counters of a queue; `delete` resets them. Subtract two to get a rate."""

    added: int
    leased: int
    completed: int
    retried: int
    """Runs that failed and will be tried again."""
    released: int
    reclaimed: int
    """Leases that lapsed."""
    failed: int
    """Jobs that failed, or were given back by a failure handler."""
    cancelled: int
    revived: int


class Tidied(Struct, frozen=True):
    """How many jobs and requests `tidy` moved."""

    promoted: int
    reclaimed: int
    pruned: int
    dropped: int = 0
    """Failed jobs that were older than the given age."""
    tended: int = 0
    """Requests that were stopped or forgotten, and parts of them."""
    published: int = 0
    """Rows of committed writes that became jobs."""


Sum = TypeVar("Sum", Counts, Totals, Tidied)


def summed(counts: Sequence[Sum]) -> Sum:
    """Add up counts, of the shards of a queue for example. It is paused if one of them is."""
    [first, *others] = counts
    if not others:
        return first
    told: list[Any] = list(map(sum, zip(*map(astuple, counts), strict=True)))
    total = type(first)(*told)
    if isinstance(total, Counts):
        total = replace(total, paused=bool(total.paused))
    return total


class Problem(Struct, frozen=True):
    """What `audit` found broken, or what `repair` did. Without an id, it is about no single job."""

    id: str
    what: str


class Event(Struct, frozen=True, array_like=True):
    """A hint that something happened. It names the ids if one call moved at most 100."""

    kind: str
    count: int
    ids: list[str] = msgspec.field(default_factory=list)

    def concerns(self, id: str) -> bool:
        """Whether it may have happened to this job."""
        return id in self.ids or len(self.ids) < self.count


_decode_events = msgspec.msgpack.Decoder(list[Event]).decode


def read_events(message: bytes) -> list[Event]:
    """Read the events that one call published; an empty list if they cannot be read."""
    try:
        return _decode_events(message)
    except msgspec.MsgspecError:
        return []
