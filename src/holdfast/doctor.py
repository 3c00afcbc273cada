"""Examine a server before it is trusted with jobs: can it be used, and what can a crash lose.

Only asks, and changes nothing. `server/health.py` judges the answers.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import hiredis

from holdfast import libraries
from holdfast.connection.address import Address
from holdfast.connection.protocol import (
    INFO,
    PING,
    Packer,
    describe,
    pack,
    untrusted,
    word_of,
)
from holdfast.connection.server import Link, Server
from holdfast.engine import calls, library
from holdfast.engine.keys import queue_keys
from holdfast.errors import HoldfastError, ServerRefused, ServerUnavailable, UnsupportedServer
from holdfast.server.directory import default_owner
from holdfast.server.embedded import default_directory
from holdfast.server.health import (
    Finding,
    Health,
    Seen,
    Tier,
    by_weight,
    judge,
    read_health,
    tier_of,
    worst,
)

__all__ = ["Diagnosis", "Finding", "Tier", "examine"]

REPLY_SECONDS: Final = 5.0
ROUNDS: Final = 20
QUEUE: Final = "holdfast doctor"
"""The queue whose keys are checked if none is named. Nothing is ever stored there."""

_SETTINGS: Final = (b"appendfsync", b"no-appendfsync-on-rewrite")


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a server."""

    url: str
    """Its URL, without the password."""
    server: str | None
    """Product and version, if the server tells them."""
    tier: Tier
    findings: list[Finding]
    """The worst first."""

    @property
    def sound(self) -> bool:
        """Whether no finding prevents the use of the server, or will cost jobs."""
        return all(finding.level != "error" for finding in self.findings)


def examine(url: str | None = None, *, queue: str | None = None) -> Diagnosis:
    """Examine a server, as the user in the URL. Never raises because of what it finds.

    Name a queue if the user may reach only some queues. In a cluster, the node of this queue is
    examined; if no queue is named, all primaries are.
    """
    server = Server(url, patience=0, reply_within=REPLY_SECONDS)
    packer = Packer(queue or QUEUE)
    address = server.address
    shown = str(address)
    if address.embedded:
        shown = f"embedded://{address.path or default_directory()}"
    with closing(server):
        try:
            node = server.where(packer.slot) if address.kind else None
            address = address.at(node) if node else address
            with closing(server.connect_to(node)) as link:
                health, tier, found = _look(server, link, queue or QUEUE, named=queue is not None)
        except (OSError, HoldfastError) as error:
            return Diagnosis(shown, None, "unknown", [_no_entry(address, error)])
    return Diagnosis(shown, health.name if health else None, tier, by_weight(found))


def _look(
    server: Server, link: Link, queue: str, *, named: bool
) -> tuple[Health | None, Tier, list[Finding]]:
    found: list[Finding] = []
    denied = None
    try:
        denied = server.run(Packer(queue), calls.rights())
    except ServerRefused as error:
        found.append(_no_calls(error, named=named))
    if server.runs_scripts:
        found.append(_AS_A_SCRIPT)
    elif denied is not None:
        found += _no_changes(link, queue)
    there = libraries.names_at(link) or []
    if older := [name for name in there if name != library.library_name()]:
        found.append(
            Finding(
                "ok",
                f"libraries of other releases are loaded: {', '.join(older)}",
                "`holdfast load --prune` removes them if no worker uses them",
            )
        )
    health, seen = _see(link, denied, embedded=server.address.embedded)
    tier = tier_of(health, seen)
    found += judge(health, seen)
    if server.address.by_default:
        found.append(
            Finding(
                "ok",
                f"HOLDFAST_URL is not set: this is the embedded server of this {default_owner()}, "
                "which other machines, containers and users do not share",
            )
        )
    match server.address.kind:
        case "cluster" if named:
            found.append(Finding("ok", f"the cluster node of the queue is {link.address}"))
        case "cluster":
            tiers, others = _look_at_others(server, link, found)
            tier, found = worst([tier, *tiers]), [*found, *others]
        case "sentinel":
            found.append(Finding("ok", f"the Sentinels say that the primary is {link.address}"))
    return health, tier, found


_AS_A_SCRIPT: Final = Finding(
    "warning",
    "the library cannot be loaded or called, so it runs as a script: about ten times the work for "
    "the server",
    "run `holdfast load` as a user who may, and allow FCALL and FCALL_RO",
)


def _no_changes(link: Link, queue: str) -> Iterator[Finding]:
    """Yield a finding if this user may not run FCALL: calls that only read use FCALL_RO."""
    name, keys = calls.rights().function.called.encode(), queue_keys(queue)
    if word_of(link.ask(pack(b"FCALL", name, b"%d" % len(keys), *keys, b""))) != "NOPERM":
        return
    if word_of(link.ask(pack(b"EVALSHA", b"0" * 40, b"0"))) == "NOSCRIPT":
        yield _AS_A_SCRIPT
    else:
        yield Finding(
            "error",
            "this user may not run FCALL, which every change of a queue needs",
            "allow FCALL: `holdfast acl` prints the whole rule",
        )


def _look_at_others(
    server: Server, first: Link, found: list[Finding]
) -> tuple[list[Tier], list[Finding]]:
    """Return the tiers of the other primaries of a cluster, and the findings that are new there."""
    tiers: list[Tier] = []
    others: list[Finding] = []
    gone: list[Finding] = []
    try:
        nodes = [node for node in server.primaries() if node]
    except ServerRefused as error:
        return [], [Finding("warning", f"one node was looked at, {first.address}", str(error))]
    for node in nodes:
        address = server.address.at(node)
        if address == first.address:
            continue
        try:
            with closing(server.connect_to(node)) as link:
                health, seen = _see(link)
        except (OSError, HoldfastError) as error:
            tiers.append("unknown")
            gone.append(_no_entry(address, error))
            continue
        tiers.append(tier_of(health, seen))
        others += [
            replace(finding, what=f"{address}: {finding.what}")
            for finding in judge(health, seen)
            if finding.level != "ok" and finding not in found
        ]
    if not gone:
        others.append(Finding("ok", f"all primaries were looked at: {len(nodes)}"))
    return tiers, [*gone, *others]


def _see(
    link: Link, denied: list[str] | None = None, *, embedded: bool = False
) -> tuple[Health | None, Seen]:
    """Ask a server all that is judged."""
    info = link.ask(INFO)
    settings = None
    replies = [link.ask(pack(b"CONFIG", b"GET", name)) for name in _SETTINGS]
    if not any(isinstance(reply, hiredis.ReplyError) for reply in replies):
        words = [word.decode(errors="replace") for reply in replies for word in reply]
        settings = dict(zip(words[::2], words[1::2], strict=True))
    took = []
    for _ in range(ROUNDS):  # A refused PING takes as long as an accepted one.
        begun = time.perf_counter()
        link.ask(PING)
        took.append(time.perf_counter() - begun)
    before = time.time()
    clock = link.ask(pack(b"TIME"))
    ahead = None
    if not isinstance(clock, hiredis.ReplyError):
        ahead = int(clock[0]) + int(clock[1]) / 1e6 - (before + time.time()) / 2
    return read_health(info) if isinstance(info, bytes) else None, Seen(
        settings=settings,
        embedded=embedded,
        denied=None if denied is None else tuple(denied),
        round_trip_ms=median(took) * 1000,
        ahead_seconds=ahead,
    )


def _no_calls(error: ServerRefused, *, named: bool) -> Finding:
    if error.word == "NOPERM" and not named:
        return Finding(
            "error",
            f"this user may not call functions on the keys of a queue named {QUEUE!r}",
            "where it may reach only some queues, name one of them: holdfast doctor QUEUE",
        )
    if error.word == "NOPERM":
        return Finding(
            "error",
            "this user may not call functions on the keys of this queue",
            "give it what a queue needs: SECURITY.md has the ACL rule",
        )
    return Finding("error", "calls are refused", str(error))


def _no_entry(address: Address, error: Exception) -> Finding:
    """Return why a server cannot be used at all, and what to do."""
    if address.embedded:
        why, _, _ = str(error).partition(" The log ends:\n")
        return Finding("error", "the embedded server does not run", why)
    if isinstance(error, UnsupportedServer | ServerUnavailable):
        return Finding("error", "this server cannot be used", str(error))
    if isinstance(error, HoldfastError):
        what, _, advice = str(error).partition(": ")
        return Finding("error", what, advice)
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return Finding(
            "error",
            f"nothing listens at {address}",
            "start the server, or correct the URL; without any URL Holdfast starts its own",
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return Finding("error", *untrusted(error))
    if isinstance(error, TimeoutError) and not address.tls:
        return Finding(
            "error",
            f"no answer from {address} in {REPLY_SECONDS:.0f} s",
            "is it the right host and port, and does a firewall let this machine through?",
        )
    why, colon, advice = describe(error).partition(": ")
    return Finding(
        "error", f"{address} cannot be reached: {why}", advice if colon else "correct the URL"
    )
