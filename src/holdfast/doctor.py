"""Examine a server before it is trusted with jobs: can it be used, and what can a crash lose.

Only asks, and changes nothing. `server/health.py` judges the answers.
"""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import hiredis

from holdfast.connection.address import Address
from holdfast.connection.protocol import INFO, Packer, describe, pack, untrusted
from holdfast.connection.server import Server
from holdfast.connection.sockets import Link
from holdfast.engine import calls
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
    try:
        node = server.where(packer.slot) if address.kind else None
        address = address.at(node) if node else address
        link = server.connect_to(node)
    except (OSError, HoldfastError) as error:
        server.close()
        return Diagnosis(_url(server), None, "unknown", [_no_entry(address, error)])
    try:
        return _look(server, link, packer, named=queue is not None)
    except (OSError, ServerUnavailable) as error:
        return Diagnosis(_url(server), None, "unknown", [_no_entry(address, error)])
    finally:
        link.close()
        server.close()


def _look(server: Server, link: Link, packer: Packer, *, named: bool) -> Diagnosis:
    refused: list[Finding] = []
    denied = None
    try:
        denied = server.run(packer, calls.rights())
    except ServerRefused as error:
        refused.append(_no_scripts(error, named=named))
    health, seen = _see(link, server.address.embedded, None if denied is None else tuple(denied))
    tier, found = tier_of(health, seen), [*refused, *judge(health, seen)]
    if server.address.by_default:
        found.append(_chosen_by_default())
    match server.address.kind:
        case "cluster" if named:
            found.append(Finding("ok", f"the cluster node of the queue is {link.address}"))
        case "cluster":
            tiers, others = _look_at_others(server, link, found)
            tier, found = worst([tier, *tiers]), [*found, *others]
        case "sentinel":
            found.append(Finding("ok", f"the Sentinels say that the primary is {link.address}"))
    return Diagnosis(_url(server), health.name if health else None, tier, by_weight(found))


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
            link = server.connect_to(node)
            with closing(link):
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
    link: Link, embedded: bool = False, denied: tuple[str, ...] | None = None
) -> tuple[Health | None, Seen]:
    info = link.ask(INFO)
    return read_health(info) if isinstance(info, bytes) else None, Seen(
        settings=_settings(link),
        embedded=embedded,
        denied=denied,
        round_trip_ms=_round_trip(link),
        ahead_seconds=_ahead(link),
    )


def _url(server: Server) -> str:
    """Return the URL for people: without the password, with the directory."""
    address = server.address
    if address.embedded:
        return f"embedded://{address.path or default_directory()}"
    return str(address)


def _chosen_by_default() -> Finding:
    return Finding(
        "ok",
        f"HOLDFAST_URL is not set: this is the embedded server of this {default_owner()}, which "
        "other machines, containers and users do not share",
    )


def _settings(link: Link) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for name in _SETTINGS:
        reply = link.ask(pack(b"CONFIG", b"GET", name))
        if isinstance(reply, hiredis.ReplyError):
            return None
        words = [word.decode(errors="replace") for word in reply]
        found |= dict(zip(words[::2], words[1::2], strict=True))
    return found


def _round_trip(link: Link) -> float:
    """Return milliseconds. A refused PING takes as long as an accepted one."""
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        link.ask(pack(b"PING"))
        took.append(time.perf_counter() - begun)
    return median(took) * 1000


def _ahead(link: Link) -> float | None:
    before = time.time()
    reply: Any = link.ask(pack(b"TIME"))
    after = time.time()
    if isinstance(reply, hiredis.ReplyError):
        return None
    theirs = int(reply[0]) + int(reply[1]) / 1e6
    return theirs - (before + after) / 2


def _no_scripts(error: ServerRefused, *, named: bool) -> Finding:
    if error.word == "NOPERM" and not named:
        return Finding(
            "error",
            f"this user may not run scripts on the keys of a queue named {QUEUE!r}",
            "where it may reach only some queues, name one of them: holdfast doctor QUEUE",
        )
    if error.word == "NOPERM":
        return Finding(
            "error",
            "this user may not run or load scripts on the keys of this queue",
            "give it what a queue needs: SECURITY.md has the ACL rule",
        )
    return Finding("error", "scripts are refused", str(error))


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
