"""What can be done to a queue: every call, put to both sides; and how to get where one wants to be.

A history that waits for chance seldom has a job that was updated while its failure handler
had it. So a rule says what it needs, and the calls that bring it about are steps as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from holdfast import arguments
from holdfast.engine import calls
from holdfast.engine.call import Entry, Failed
from holdfast.engine.replies import read_flags
from holdfast.engine.replies import read_receipts as read_letters
from holdfast.job import NO_FACTS, Facts, Receipt, Update
from model.choices import KEPT, LIMITS, Time, Updates, Wanted
from model.comparing import Comparing, is_taken_back
from model.values import NEVER, Settle, raised_with


class Acting(Comparing):
    """One who knows every call."""

    # ---------------------------------------------------------- every call

    def _add(
        self, caller: str, wanted: list[Wanted], on_conflict: str, first_id: str | None = None
    ) -> None:
        given, entries = self._jobs(wanted, first_id)
        call = calls.add(entries, on_conflict=on_conflict)
        self._ask(
            caller,
            call,
            partial(self.model.add, given, on_conflict),
            lambda reply: _read_receipts(call.read(reply)),
        )

    def _update(self, caller: str, wanted: list[Wanted], how: Update, first_id: str | None) -> None:
        # Under ids that somebody gave, for now: an update of one that the client made, sent
        # again when its caller is forgotten, is taken for another update.
        named = [replace(job, id=job.id or "a") for job in wanted]
        given, entries = self._jobs(named, first_id)
        call = calls.update(entries, arguments.how(how))
        self._ask(
            caller,
            call,
            partial(self.model.update, given, how),
            lambda reply: _read_receipts(call.read(reply)),
        )

    def _tick(
        self, caller: str, schedule: str, seen: int | None, tick: int, wanted: list[Wanted]
    ) -> None:
        given, entries = self._jobs(wanted)
        call = calls.tick(schedule, seen, tick, entries)

        def read(reply: Any) -> tuple[int, int | None, list[str] | None]:
            ticks = call.read(reply)
            made = ticks.receipts
            return ticks.now, ticks.last, None if made is None else _read_receipts(made)

        self._ask(caller, call, partial(self.model.tick, schedule, seen, tick, given), read)

    def _lease(
        self, caller: str, count: int, ms: int, done: list[Settle], *, failed: bool = False
    ) -> None:
        token = f"{caller}.{next(self.serial)}"
        call = calls.lease(
            token, ms, count, to_the_back=self.to_the_back, failed=failed, complete=done
        )

        def read(reply: Any) -> tuple[list[Any], list[bool], int]:
            granted = call.read(reply)
            leases = granted.leases
            assert {lease.token for lease in leases} <= {token}
            given = [(lease.id, token) for lease in leases]
            self.given += [lease for lease in given if lease not in self.given]
            shown = [(lease.id, lease.data, _differing(lease.facts)) for lease in leases]
            return shown, leases.completed, round(granted.ask_again * 1000)

        self._ask(caller, call, partial(self.model.lease, token, ms, count, failed, done), read)

    def _extend(self, caller: str, settles: list[Settle], ms: int) -> None:
        call = calls.extend(settles, ms)
        self._ask(
            caller,
            call,
            partial(self.model.extend, settles, ms),
            lambda reply: [extended.name.lower() for extended in call.read(reply)],
        )

    def _complete(
        self, caller: str, settles: list[Settle], wanted: list[Wanted], *, force: bool = False,
        first_id: str | None = None,
    ) -> None:  # fmt: skip
        follow_ups, entries = self._jobs(wanted, first_id)
        ask = self.model.complete_by_force if force else self.model.complete
        self._ask(
            caller,
            calls.complete(settles, force=force, add=entries),
            partial(ask, settles, follow_ups),
            partial(_read_completed, entries),
        )

    def _retry_or_fail(
        self, way: str, caller: str, settles: Sequence[Settle], wait: int, error: str,
        most: bytes = b"",
    ) -> None:  # fmt: skip
        """Each waits a little longer than the one before it."""
        failures = [
            (id, token, wait and min(wait + i, NEVER)) for i, (id, token, _) in enumerate(settles)
        ]
        call = {"retry": calls.retry, "fail": calls.fail}[way]
        ask = {"retry": self.model.retry, "fail": self.model.fail}[way]
        raised = (raised_with(error) or "").encode()
        self._ask(
            caller,
            call([
                Failed(id, token, b"+%d" % due, error.encode(), raised, most)
                for id, token, due in failures
            ]),
            partial(ask, [(*failure, error, most) for failure in failures]),
        )  # fmt: skip

    def _release(
        self, caller: str, settles: list[Settle], after: int | None, lapsed: str, most: bytes = b""
    ) -> None:
        call = calls.release(
            settles,
            after_ms=after,
            to_the_back=self.to_the_back,
            lapsed=lapsed.encode(),
            handlings=most,
        )
        self._ask(caller, call, partial(self.model.release, settles, after, lapsed, most))

    def _settle_as(self, way: str, caller: str, settles: list[Settle], after: int | None) -> None:
        if way in ("retry", "fail"):
            self._retry_or_fail(way, caller, settles, after or 0, "in vain")
        elif way in ("release", "lapse"):
            self._release(caller, settles, after, "killed" if way == "lapse" else "")
        elif way == "lease":
            self._lease(caller, 1000, 4_000, settles)
        elif way == "extend":
            self._extend(caller, settles, 1_000)
        else:
            self._complete(caller, settles, [], force=way == "force")

    def _cancel(self, caller: str, ids: list[str], running: bool) -> None:
        call = calls.cancel(ids, running=running)
        self._ask(caller, call, partial(self.model.cancel, ids, running))

    def _recall(self, caller: str, holder: str, longer: int | None) -> None:
        call = calls.recall(holder=holder, longer_than_ms=longer, to_the_back=self.to_the_back)
        question = partial(self.model.recall, holder, longer)
        self._ask(caller, call, question, lambda reply: _only(call.read(reply), 0))

    def _cancel_matching(self, caller: str, payload: bytes, running: bool) -> None:
        call = calls.cancel_matching(payload, running=running)
        question = partial(self.model.cancel_matching, payload, running)
        self._ask(caller, call, question, lambda reply: _only(call.read(reply), None))

    def _set_result(self, caller: str, id: str, result: bytes) -> None:
        call = calls.set_result(id, result)
        words = {"1": "stored", "0": "no such job", "n": "keeps none"}
        question = partial(self.model.set_result, id, result)
        self._ask(caller, call, question, lambda reply: words[call.read(reply)])

    def _tidy(self, caller: str, force: bool, failed_for: int | None) -> None:
        call = calls.tidy(to_the_back=self.to_the_back, force=force, failed_for_ms=failed_for)
        self._ask(caller, call, partial(self.model.tidy, force, failed_for), tuple)

    def _repair(self, caller: str, place: tuple[int, bytes], count: int) -> Any:
        """Return where to go on."""
        call, found = calls.repair(place, count), list[calls.Repaired]()

        def read(reply: Any) -> list[Any]:
            found.append(call.read(reply))
            return found[-1].done

        self._ask(caller, call, partial(self.model.repair), read)
        return found[0].following

    # ------------------------------------------------------------ what a rule needs

    def _need(self, kind: str, caller: str) -> None:
        """Bring about a job of some kind that seldom comes about by chance."""
        needs = {
            "leased": "ready", "handled": "failed", "failed": "leased", "updated": "no part leased",
            "cancelled": "leased", "reclaimed": "leased by a worker", "part": "part that waits",
            "part that failed": "part",
        }  # fmt: skip
        if self._is_there(kind):
            return
        if kind in needs:
            self._need(needs[kind], caller)
        self._bring_about(kind, caller)
        self.both_agree()
        self._need(kind, caller)

    def _bring_about(self, kind: str, caller: str) -> None:
        leased = sorted(self.model.times("leased"))
        no_parts = [id for id in leased if not self.model.jobs[id].request]
        if self.model.paused:
            self._ask(caller, calls.resume(), partial(self.model.resume))
        elif kind == "ready":
            some = [("a", LIMITS[0]), ("b", LIMITS[-1]), (None, {})]
            wanted = [Wanted(id, "", 50, limits, "own") for id, limits in some]
            self._add(caller, wanted, "ignore")
        elif kind == "leased":
            self._lease(caller, 3, 4_000, [])
        elif kind == "no part leased":
            self._add(caller, [Wanted(None, "", 99, {}, "own")], "ignore")
            self.both_agree()
            self._lease(caller, 1000, 4_000, [])
        elif kind == "at its limits":
            self._add(caller, [Wanted(None, "", 99, LIMITS[0], "own")], "ignore")
            self.both_agree()
            self._lease(caller, 1, 4_000, [])
        elif kind == "with a result":
            self._add(caller, [Wanted(None, "", 99, KEPT | LIMITS[0], "own")], "ignore")
            self.both_agree()
            self._lease(caller, 1, 4_000, [])
            self.both_agree()
            self._set_result(caller, [*self.model.times("leased")][-1], b"so far")
        elif kind == "ended":
            self._add(caller, [Wanted(None, "", 99, KEPT, "own")], "ignore")
            self.both_agree()
            self._complete(caller, [([*self.model.jobs][-1], "-", None)], [], force=True)
        elif kind == "updated":
            wanted = [Wanted(id, "", 50, {}, "own") for id in no_parts]
            self._update(caller, wanted, Update(limits=False), None)
        elif kind == "cancelled":
            self._cancel(caller, leased, True)
        elif kind == "reclaimed":
            self._recall(caller, "", None)
        elif kind == "failed":
            held = [(id, self.model.jobs[id].token or "", None) for id in leased]
            self._retry_or_fail("fail", caller, held, 0, "in vain")
        elif kind == "handled":
            self._lease(caller, 1000, 4_000, [], failed=True)

    def _is_there(self, kind: str) -> bool:
        jobs, endings = self.model.jobs.values(), self.model.endings.values()
        leased = [job for job in jobs if job.state == "leased"]
        there = {
            "ready": self.model.best(),
            "leased": leased,
            "no part leased": any(not job.request for job in leased),
            "updated": any(job.successor for job in leased),
            "cancelled": any(job.cancelled for job in leased),
            "handled": any(job.failed_at is not None for job in leased),
            "with a result": any(job.result is not None for job in leased),
            "reclaimed": any(map(is_taken_back, jobs)),
            "failed": any(job.state == "failed" and job.when <= self.now for job in jobs),
            "at its limits": any(map(self._is_at_its_limits, self.model.jobs)),
            "ended": self.plain or any(end.taken_until > self.now for end in endings),
        }
        return bool(there.get(kind, True))

    def _settle_what(
        self, kind: str, time: Time, caller: str, way: str, after: int | None, before: Updates
    ) -> None:
        """Settle two of a kind in some way, after more updates of the first."""
        self._need(kind, caller)
        settles = self._settles([(kind, 0), (kind, 1)], b"done")
        for job, how in before:
            self._update(caller, [job], how, settles[0][0])
            self.both_agree()
        self._pass(time)
        self._settle_as(way, caller, settles, after)

    def _is_at_its_limits(self, id: str) -> bool:
        """Tell whether a job is leased that fails with the next failure, or lapse."""
        job = self.model.jobs[id]
        first_run = job.state == "leased" and not job.cancelled and job.failed_at is None
        limits = job.options.get("max_failures"), job.options.get("max_lapses")
        return first_run and limits == (0, 0)


# ------------------------------------------------------- replies in the model's words


def _read_receipts(receipts: Sequence[Receipt]) -> list[str]:
    return ["created" if receipt else _standing(receipt) for receipt in receipts]


def _standing(receipt: Receipt) -> str:
    return f"{receipt.state}, updated" if receipt.updated else str(receipt.state)


def _read_completed(entries: list[Entry], reply: list[bytes]) -> tuple[list[bool], list[str]]:
    # Where nothing was completed nothing was added.
    added = read_letters(entries, reply[1:]) if len(reply) > 1 and reply[1] else []
    return read_flags(reply), _read_receipts(added)


def _differing(facts: Facts) -> dict[str, Any]:
    known = msgspec.structs.asdict(facts)
    return {name: fact for name, fact in known.items() if fact != getattr(NO_FACTS, name)}


def _only(answer: tuple[int, Any], end: object) -> int:
    """Return how many; all was looked at in one call."""
    count, following = answer
    assert following == end, following
    return count
