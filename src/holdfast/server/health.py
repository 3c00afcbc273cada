"""Judge what a server says about itself: what it means for jobs. No I/O.

When a queue first connects, it warns of what can cost jobs (`Health.warnings`). `doctor.py` asks
for more, and reports all findings (`judge`). Both use the same judgements and words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Tier: TypeAlias = Literal["durable", "one-second", "volatile", "unknown"]
"""What a crash can lose of what was acknowledged: nothing, about a second, or everything."""

Level: TypeAlias = Literal["ok", "warning", "error"]

TIERS: Final[Mapping[Tier, str]] = {
    "durable": "what was acknowledged is on disk before the answer",
    "one-second": "a crash can cost about the last second of what was acknowledged",
    "volatile": "a crash can cost all since the last snapshot, if there is one",
    "unknown": "the server does not tell how it writes to disk",
}

PATCHED: Final[Mapping[str, Mapping[tuple[int, int], int]]] = {
    "Valkey": {(8, 0): 8, (8, 1): 7, (9, 0): 4},
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
}
"""The first release of each release line whose Lua has no known hole."""

NEEDS: Final = "Holdfast needs Valkey 8.0 or Redis 7.0"

FULL: Final = 0.8
SLOW_MS: Final = 10.0
APART_SECONDS: Final = 2.0

OPTIONAL: Final[Mapping[str, str]] = {
    "BLPOP": "a client that waits for work polls instead of being woken",
    "SUBSCRIBE": "`events` and waiting for a result are refused",
    "PUBLISH": "the calls of this user send no events",
    "HSCAN": "`repair` is refused",
    "HGETALL": "`workers` is refused",
}
"""Commands that a queue can do without, and what does not work then."""


@dataclass(frozen=True)
class Finding:
    """The result of one check, and advice."""

    level: Level
    what: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}" if self.advice else self.what


@dataclass(frozen=True)
class Health:
    """What INFO says about a server."""

    product: str
    version: tuple[int, ...]
    eviction: str
    aof: bool
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def too_old(self) -> bool:
        """Whether this server lacks what the scripts need."""
        return self.version < ((8, 0) if self.product == "Valkey" else (7, 0))

    @property
    def name(self) -> str:
        """Product and version."""
        return f"{self.product} {'.'.join(map(str, self.version))}"

    def warnings(self, *, embedded: bool = False) -> list[str]:
        """Return one sentence for each thing that can cost jobs."""
        return [*map(str, _costs(self, embedded=embedded))]

    def number(self, name: str) -> int:
        """Return a number from INFO; 0 if INFO does not have it."""
        text = self.fields.get(name, "")
        return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class Seen:
    """What else a server was asked; None for each question that it did not answer."""

    settings: Mapping[str, str] | None = None
    """The answers to CONFIG GET."""
    embedded: bool = False
    denied: tuple[str, ...] | None = None
    """Commands that this user may not run."""
    round_trip_ms: float | None = None
    ahead_seconds: float | None = None
    """How far its clock is ahead of ours."""


def read_health(info: bytes) -> Health:
    """Read the reply of INFO."""
    fields = dict(
        line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
    )
    valkey = fields.get("valkey_version")
    version = valkey or fields.get("redis_version", "0")
    return Health(
        product="Valkey" if valkey else "Redis",
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        eviction=fields.get("maxmemory_policy", ""),
        # A server with an append-only file reports aof_enabled:0 while it loads its data.
        aof=fields.get("aof_enabled", "1") == "1" or fields.get("loading") == "1",
        fields=fields,
    )


def tier_of(health: Health | None, seen: Seen) -> Tier:
    """Return the tier of this server."""
    if health is None:
        return "unknown"
    if not health.aof:
        return "volatile"
    fsync = (seen.settings or {}).get("appendfsync")
    tiers: dict[str | None, Tier] = {
        "always": "durable",
        "everysec": "one-second",
        "no": "volatile",
    }
    return tiers.get(fsync, "unknown")


def worst(tiers: Iterable[Tier]) -> Tier:
    """Return the worst tier of several servers."""
    order: tuple[Tier, ...] = ("volatile", "unknown", "one-second", "durable")
    return min(tiers, key=order.index)


def judge(health: Health | None, seen: Seen) -> list[Finding]:
    """Return the findings about a server; `health` is None if it refused INFO."""
    found = [*_rights(seen), *_pace(seen)]
    if health is None:
        return [Finding("warning", "this user may not ask for INFO", "allow INFO"), *found]
    return [
        *_costs(health, embedded=seen.embedded),
        *_version(health),
        *_role(health),
        *_persistence(health, seen),
        *_memory(health, seen),
        *found,
    ]


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first."""
    return sorted(findings, key=lambda finding: ("error", "warning", "ok").index(finding.level))


# ------------------------------------------------------------------------ the checks


def _costs(health: Health, *, embedded: bool) -> Iterator[Finding]:
    """Yield what can cost jobs: a queue warns of it when it first connects."""
    if health.eviction not in ("", "noeviction"):
        yield Finding(
            "error",
            f"maxmemory-policy is {health.eviction}: a full server will drop jobs",
            "set it to noeviction",
        )
    if not health.aof:
        yield Finding(
            "error",
            "appendonly is off: jobs added since the last snapshot are lost when the server stops",
            "set appendonly yes",
        )
    # The file of an embedded server is rewritten when it starts.
    elif not embedded and (health.product, health.version[:2]) == ("Redis", (7, 0)):
        yield Finding(
            "error",
            "Redis 7.0 can lose acknowledged jobs at the second start after an unclean stop, "
            "whatever appendfsync says",
            "use Valkey 8.0, Redis 7.2 or newer; until then run BGREWRITEAOF after every unclean "
            "stop, before jobs are added",
        )


def _version(health: Health) -> Iterator[Finding]:
    if health.too_old:
        yield Finding("error", f"this is {health.name}", f"{NEEDS}: update it")
        return
    lines = PATCHED[health.product]
    major, minor, own, *_ = *health.version, 0, 0, 0
    line = major, minor
    patch = lines.get(line)
    if patch is not None and own < patch:
        yield Finding(
            "warning",
            f"{health.name} has known holes in its Lua",
            f"update it to {major}.{minor}.{patch} or newer",
        )
    elif patch is None and line < max(lines):
        known = ", ".join(f"{a}.{b}.{c}" for (a, b), c in lines.items() if (a, b) > line)
        yield Finding(
            "warning",
            f"{health.name} is of a release line that gets no more fixes",
            f"update it to {known} or newer",
        )
    else:
        yield Finding("ok", f"{health.name} is new enough")


def _role(health: Health) -> Iterator[Finding]:
    replicas = health.number("connected_slaves")
    if health.fields.get("role") == "slave":
        host, port = health.fields.get("master_host", "?"), health.fields.get("master_port", "?")
        link = health.fields.get("master_link_status", "up")
        lost = "" if link == "up" else " that it cannot reach"
        yield Finding(
            "error",
            f"this is a read-only replica of {host}:{port}{lost}: jobs can be read, not changed",
            "connect to its primary",
        )
    elif replicas:
        yield Finding(
            "warning",
            f"replicas ({replicas}) follow this primary asynchronously: after a failover, the last "
            "acknowledged calls may be lost",
            "where you can, fail over by hand, once the replica has caught up",
        )


def _persistence(health: Health, seen: Seen) -> Iterator[Finding]:
    if not health.aof:
        return
    settings = seen.settings or {}
    fsync = settings.get("appendfsync")
    if fsync == "always":
        yield Finding("ok", "appendfsync is always: jobs are on disk before they are acknowledged")
    elif fsync == "everysec":
        yield Finding(
            "warning",
            "appendfsync is everysec: a crash or a power cut can cost about the last second",
            "set appendfsync always; a call costs one flush, however many jobs are in it",
        )
    elif fsync is None:
        yield Finding(
            "warning",
            "appendonly is on, but this user may not ask for appendfsync",
            "look at the server's settings: appendfsync always keeps all that is acknowledged",
        )
    else:
        yield Finding(
            "error",
            f"appendfsync is {fsync}: a power cut can cost half a minute or more",
            "set appendfsync always",
        )
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        yield Finding(
            "warning",
            "no-appendfsync-on-rewrite is yes: nothing is flushed while the file is rewritten",
            "set no-appendfsync-on-rewrite no",
        )
    if health.fields.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            "error",
            "the last write to the append-only file failed",
            "look at the server's log, and at its disk",
        )


def _memory(health: Health, seen: Seen) -> Iterator[Finding]:
    if health.eviction == "noeviction":
        yield Finding("ok", "maxmemory-policy is noeviction: a full server refuses, and drops none")
    used, most = health.number("used_memory"), health.number("maxmemory")
    if not used:
        return
    if most and used > FULL * most:
        yield Finding(
            "warning",
            f"{_megabytes(used)} of {_megabytes(most)} are used: when it is full, nothing can be "
            "added",
            "finish jobs, or raise "
            + ("HOLDFAST_SERVER_MAXMEMORY" if seen.embedded else "maxmemory"),
        )
    else:
        limit = f" of {_megabytes(most)}" if most else ", with no limit of its own (maxmemory)"
        yield Finding("ok", f"{_megabytes(used)} are used{limit}")


def _rights(seen: Seen) -> Iterator[Finding]:
    if seen.denied is None:
        return
    needed = [name for name in seen.denied if name not in OPTIONAL]
    if needed:
        yield Finding(
            "error",
            f"this user may not run {', '.join(needed)}",
            "give it what a queue needs: SECURITY.md has the ACL rule",
        )
    for name, missing in OPTIONAL.items():
        if name in seen.denied:
            yield Finding("warning", f"this user may not run {name}: {missing}", f"allow {name}")
    if not seen.denied:
        yield Finding("ok", "this user may run all that a queue needs")


def _pace(seen: Seen) -> Iterator[Finding]:
    if seen.round_trip_ms is not None:
        trip = f"a round trip takes {seen.round_trip_ms:.2f} ms"
        if seen.round_trip_ms > SLOW_MS:
            yield Finding("warning", trip, "move closer, and add and lease many jobs in one call")
        else:
            yield Finding("ok", trip)
    if seen.ahead_seconds is not None and abs(seen.ahead_seconds) > APART_SECONDS:
        way = "ahead of" if seen.ahead_seconds > 0 else "behind"
        yield Finding(
            "warning",
            f"the server's clock is {abs(seen.ahead_seconds):.0f} s {way} this machine's: jobs "
            "with a time (`at`) run by the server's",
            "set both by NTP",
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
