"""What may happen in a history: who calls, when, with what. Strategies, and nothing else.

The first of each is the simplest: that is what a history is shortened towards. Many are
named more than once, because they happen more often than the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st

from holdfast.engine import calls, request_calls
from holdfast.engine.call import Call, Entry, Failed
from holdfast.job import Update
from model.values import NEVER, Settle

START = 1_700_000_000_000
MINUTE = 60_000
HOUR = 60 * MINUTE

# What each counts from, and by how much. Every 16th number the engine looks for callers to
# forget, so bob makes it look each time; and a number has as many digits as Lua can hold.
# Four and not more: it looks at four at random, and a history must run again as it ran.
CALLERS = {"ann": (0, 1), "bob": (0, 16), "cyd": (NEVER - 10_000, 1), "eve": (0, 1)}
callers = st.sampled_from(["ann", "bob", "cyd"])

# Before a call: so many ms from now, or to the next moment of a kind, or just beside it.
Time: TypeAlias = tuple[str, int]
times = st.sampled_from(
    [("now", 0)] * 48
    + [("now", ms) for ms in (1, 500, 999, 1_000, 4_000, 5_001, 6_000, MINUTE, HOUR, 200 * HOUR)]
    + [("now", ms) for ms in (-1, -999, -MINUTE, -2 * HOUR)]
    + [("lapse", ms) for ms in (0, 0, 0, 0, 1, -1, -400)]
    + [("due", ms) for ms in (0, 0, 1, -1, -400)]
    + [("patience", ms) for ms in (0, 0, -1)]
    + [
        (kind, ms)
        for kind in ("second", "forget", "free", "handling", "term", "entry")
        for ms in (0, -1)
    ]
    + [(kind, ms) for kind in ("silence", "caller", "worker") for ms in (0, 1)]
)


# Calls that are far apart, one after the other: how long after the last, and what is called.
gaps = st.lists(
    st.tuples(
        st.sampled_from([6_000, 5_001, 5_000, 5_999, 7_500, 9_000, 30_000, 1_500, 500, 1, HOUR]),
        st.sampled_from(["tidy", "lease", "tidy", "lease", "failed", "extend", "add", "resume"]),
    ),
    min_size=2,
    max_size=8,
)


def beside(*kinds: str) -> st.SearchStrategy[Time]:
    """Go to a moment of these kinds, or to just before it."""
    return st.sampled_from([("now", 0), *((kind, ms) for kind in kinds for ms in (0, -1, -400))])


class _Long(str):
    """An id as long as it may be: to file a job under another one must cut it, in an ü."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "LONG"


LONG = _Long("x" * 495 + "ü" * 8 + "x")
ids = st.sampled_from(["a", "b", "c", "d"] * 3 + ["ü\n{x}\0", LONG] * 2 + ["q/0", "q/1", "p/end/1"])
counts = st.sampled_from([1, 2, 3, 7, 8, 12, 1000, 1000])
lease_times = st.sampled_from([4_000, 4_000, 1_000, 1_000, 1, 5_000, 30_000, HOUR, NEVER])
results = st.sampled_from([None, b"", b"done", b"\0\xff\r\n"])
release_times = st.sampled_from([None, None, None, 0, 1, 1, 999, 1_000, 3_000, HOUR, NEVER])
retry_times = st.sampled_from([0, 1, 999, 1_000, 3_000, 3_000, HOUR, NEVER])
reasons = st.sampled_from(["", "", "killed", "ü: timed out"])
handlings = st.sampled_from([b"", b"", b"", b"-", b"0", b"1", b"2"])
ages = st.sampled_from([None, 0, 0, 1, 1_000, 4_000, HOUR])

# Which lease to present: one that counts, one that was taken back, one of all that ever
# were, or one never given; or one that counts, of a job that was updated or cancelled
# meanwhile, or of a failure handler.
Pick: TypeAlias = tuple[str, int]
LEASES = ["updated", "cancelled", "handled"]
picks = st.tuples(
    st.sampled_from(["held"] * 4 + ["part"] + LEASES + ["reclaimed", "old", "never given"]),
    st.integers(0, 7),
)
several_picks = st.lists(picks, min_size=1, max_size=4)
kinds = st.sampled_from(["leased", *LEASES])
WAYS = ["complete", "retry", "fail", "release", "lapse", "lease", "force", "extend"]
ways = st.sampled_from([*WAYS, "retry", "release"])

SELDOM = ["resume", "pause", "pause", "register", "register", "repair", "delete", "hear only bob"]

# Which id to name: one of those that stand in a state, or any.
STATES = ["leased", "leased", "cancelled", "reclaimed", "ready", "delayed", "failed", "ended"]
STATES += ["part", "parked"]
names = st.tuples(st.sampled_from([*STATES, "any"]), st.integers(0, 7))
several_names = st.lists(names, min_size=1, max_size=3)


@dataclass(frozen=True)
class Wanted:
    """A job to add. Without an id the client makes one; `due` is +ms from now, or @ms after it."""

    id: str | None
    due: str
    priority: int
    options: dict[str, Any]
    payload: str


DUES = [
    "+0",
    "+1",
    "+999",
    "+1000",
    "+4000",
    f"+{HOUR}",
    f"+{NEVER}",
    "@-1",
    "@-1",
    "@-2000",
    f"@-{HOUR}",
    "@0",
    "@1",
    "@3000",
]
OPTIONS = [
    {name: value for name, value in zip(names, values, strict=True) if value != "-"}
    for names in [("max_failures", "max_lapses", "result_for", "remember_for", "keep")]
    for values in itertools.product(
        ["-", 0, 1, None], ["-", 0, 1, None], ["-", 10, math.inf], ["-", 4, math.inf], ["-", True]
    )
]
KEPT = {"result_for": 10, "remember_for": 4}
LIMITS = [{"max_failures": n, "max_lapses": m} for n in (0, 0, 1, 2) for m in (0, 0, 1, 2)]
GROUPS: list[dict[str, Any]] = [
    {"group": name} | limit | {"max_failures": 0}
    for name in ("g", "g", "ü", "q")
    for limit in ({}, {"group_limit": 1}, {"group_limit": 2}, {"group_limit": None})
] + [{"group": "g", "group_limit": 0}]
jobs = st.builds(
    Wanted,
    id=st.none() | ids,
    due=st.sampled_from([""] * 20 + DUES),
    priority=st.sampled_from([50, 50, 50, 51, 0, 99]),
    options=st.one_of(
        st.just(dict[str, Any]()),
        st.sampled_from(LIMITS),
        st.sampled_from(LIMITS),
        st.sampled_from(OPTIONS),
        st.just(KEPT),
        st.sampled_from(GROUPS),
        st.sampled_from([group | KEPT for group in GROUPS]),
    ),
    payload=st.sampled_from(["own"] * 8 + ["same", "big"]),
)
several_jobs = st.lists(jobs, min_size=1, max_size=6)
conflicts = st.sampled_from(["ignore", "ignore", "raise"])
updates = st.builds(
    Update,
    data=st.sampled_from([True, True, False]),
    due=st.sampled_from([True, False, "later", "earlier"]),
    limits=st.booleans()
    | st.lists(
        st.sampled_from(
            (
                *("priority", "max_failures", "max_lapses", "result_for", "keep", "remember_for"),
                *("group", "group"),
            )
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    counts=st.sampled_from([None, True, False]),
)
Updates: TypeAlias = list[tuple[Wanted, Update]]
few_updates: st.SearchStrategy[Updates] = st.lists(st.tuples(jobs, updates), max_size=2)

# Requests: few, with few parts, limits that are reached, and so short-lived that they are
# forgotten and opened again. "q" is the name of a group, too.
REQUESTS = ["p", "p", "q", "q", "ü/7"]
requests = st.sampled_from(REQUESTS)
limits = st.sampled_from([1, 1, 2, None, 0, 3])
new_limits = st.sampled_from([1, None, 2, 0, 3, None, "as it is"])
new_priorities = st.sampled_from([None, None, 50, 51, 0, 99])
keep_times = st.sampled_from([12_000, 0, 10_000, 1, 10_001, HOUR, NEVER])
open_times = st.sampled_from([None, None, None, None, 4_000, 1, 1_000, NEVER])


@dataclass(frozen=True)
class WantedRequest:
    """A request to open, and what is then done with it."""

    name: str
    priority: int
    limit: int | None
    fail_fast: bool
    keep_for: int
    open_for: int | None
    follow_up: Wanted | None


@dataclass(frozen=True)
class WantedParts:
    """Parts to add: `first` is counted from the end of those that are there, None appends."""

    count: int
    first: int | None
    due: str
    priority: int
    options: dict[str, Any]
    same: bool


openings = st.builds(
    WantedRequest,
    name=requests,
    priority=st.sampled_from([50, 50, 50, 51, 0]),
    limit=limits,
    fail_fast=st.sampled_from([False, False, True]),
    keep_for=keep_times,
    open_for=open_times,
    follow_up=st.none() | jobs,
)
several_parts = st.builds(
    WantedParts,
    count=st.integers(1, 4),
    first=st.sampled_from([None, 0, 0, 0, -1, -2, 1]),
    due=st.sampled_from([""] * 30 + DUES),
    priority=st.sampled_from([50, 50, 50, 99, 0]),
    options=st.sampled_from([{}, *LIMITS]),
    same=st.sampled_from([False, False, False, True]),
)
fillings = st.tuples(openings, several_parts, st.booleans())


GOOD = Entry("good", b"", False, 50, b"", b"")
NONSENSE: dict[str, Callable[[list[Settle]], Call[Any]]] = {
    "priority 100": lambda _: calls.add([GOOD, msgspec.structs.replace(GOOD, priority=100)]),
    "due at nan": lambda _: calls.add([GOOD, msgspec.structs.replace(GOOD, due=b"nan")]),
    "an empty id": lambda _: calls.add([GOOD, msgspec.structs.replace(GOOD, id="")]),
    "an unknown option": lambda _: calls.add(
        [GOOD, msgspec.structs.replace(GOOD, options=b"\x81\xa1x\x01")]
    ),
    "an update of nothing known": lambda held: calls.update(
        [GOOD, *(msgspec.structs.replace(GOOD, id=id) for id, _, _ in held)], b"1=1x"
    ),
    "a tick at nan": lambda _: calls.tick("s", None, -1, [GOOD]),
    "a tick of nothing": lambda _: calls.tick("", None, 1, [GOOD]),
    "a lease for 0 ms": lambda held: calls.lease("zoe.1", 0, 1, complete=held),
    "1001 leases": lambda held: calls.lease("zoe.1", 1_000, 1_001, complete=held),
    "a token of two words": lambda held: calls.complete([*held, ("a", "ann 1", None)]),
    "follow-ups of two": lambda held: calls.complete([held[0], held[-1], held[0]], add=[GOOD]),
    "a follow-up due at inf": lambda held: calls.complete(
        held[:1], add=[GOOD, msgspec.structs.replace(GOOD, due=b"+inf")]
    ),
    "an extension by too much": lambda held: calls.extend(held, 2**53),
    "a release into the past": lambda held: calls.release(held, after_ms=-1),
    "a retry in the past": lambda held: calls.retry(
        [*(Failed(id, token) for id, token, _ in held), Failed("a", "zoe.1", b"-1")]
    ),
    "an error too long": lambda held: calls.fail(
        [*(Failed(id, token) for id, token, _ in held), Failed("a", "zoe.1", b"", b"x" * 2**20)]
    ),
    "cancel no id": lambda held: calls.cancel([*(id for id, _, _ in held), ""]),
    "revive nothing": lambda _: calls.revive([]),
    "a recall of none": lambda _: calls.recall(count=0),
    "a worker dead at once": lambda _: calls.register("zoe", 0, b"\x80"),
    "a part of a group": lambda _: request_calls.add_parts(
        "p", None, [b""], options=b"\x81\xa5group\xa1g"
    ),
    "no parts": lambda _: request_calls.add_parts("p", None, []),
    "parts from -1 on": lambda _: request_calls.add_parts("p", -1, [b""]),
    "a request that ends in /end": lambda _: request_calls.open_request("p/end"),
    "a request with a name too long": lambda _: request_calls.open_request("p" * 481),
    "a request with less than no place": lambda _: request_calls.open_request("p", limit=-1),
    "a follow-up too big": lambda _: request_calls.open_request(
        "p", follow_up=msgspec.structs.replace(GOOD, payload=b"x" * 8389)
    ),
    "a group that ends in /end": lambda _: calls.add(
        [msgspec.structs.replace(GOOD, options=b"\x81\xa5group\xa5p/end", grouped=True)]
    ),
    "a group limit without a group": lambda _: calls.add(
        [msgspec.structs.replace(GOOD, options=b"\x81\xabgroup_limit\x01", grouped=True)]
    ),
    "half a place": lambda _: request_calls.change_request(
        "p", seal=True, cancel=True, limit=b"0.5"
    ),
    "a request of priority 100": lambda _: request_calls.change_request(
        "p", cancel=True, priority=100
    ),
    "failed for less than nothing": lambda _: calls.tidy(failed_for_ms=-1),
    "repair of what is not there": lambda _: calls.repair((20, b"")),
}
