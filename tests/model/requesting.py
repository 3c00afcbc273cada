"""Histories of requests: opened, filled, sealed, held up, stopped, ended, revived and forgotten."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast import arguments
from holdfast.engine import calls, request_calls
from model.acting import Acting
from model.choices import (
    GROUPS,
    HOUR,
    REQUESTS,
    Time,
    Wanted,
    WantedParts,
    WantedRequest,
    beside,
    callers,
    fillings,
    jobs,
    new_limits,
    new_priorities,
    openings,
    release_times,
    requests,
    several_jobs,
    several_parts,
    times,
    ways,
)
from model.comparing import with_results
from model.model import Model
from model.values import Limit, Opening
from model.views import record

which = st.integers(0, 5)


class Requesting(Acting):
    """Every transition of requests. Not in a plain history, in which no job has facts."""

    # ---------------------------------------------------------- every call

    def _open(self, caller: str, wanted: WantedRequest) -> None:
        follow_up, entry = None, None
        if wanted.follow_up:
            [follow_up], [entry] = self._jobs([wanted.follow_up], "follow-up")
        opening = Opening(
            wanted.priority, wanted.limit, wanted.fail_fast, wanted.keep_for, wanted.open_for,
            follow_up,
        )  # fmt: skip
        call = request_calls.open_request(
            wanted.name, priority=wanted.priority, limit=wanted.limit, fail_fast=wanted.fail_fast,
            keep_for_ms=wanted.keep_for, open_for_ms=wanted.open_for, follow_up=entry,
        )  # fmt: skip
        question = partial(self.model.open_request, wanted.name, opening)
        self._ask(caller, call, question, lambda reply: _in_words("opened", call.read(reply)))

    def _add_parts(self, caller: str, name: str, wanted: WantedParts) -> None:
        job = Wanted("part", wanted.due, wanted.priority, wanted.options, "own")
        kind = "same" if wanted.same else "own"
        given, entries = self._jobs([replace(job, payload=kind)] * wanted.count)
        first, request = wanted.first, self.model.requests.get(name)
        if first is not None and first <= 0:
            first = max(0, first + (request.total if request else 0))
        call = request_calls.add_parts(
            name,
            first,
            [entry.payload for entry in entries],
            priority=entries[0].priority,
            due=entries[0].due,
            options=arguments.options(wanted.options)[1],
        )

        def read(reply: Any) -> tuple[Any, ...]:
            sent = call.read(reply)
            return _in_words("added", (sent.letter, sent.before, sent.total))

        self._ask(caller, call, partial(self.model.add_parts, name, first, given), read)

    def _change_request(
        self, caller: str, name: str, *, seal: bool = False, cancel: bool = False,
        limit: Limit = "as it is", priority: int | None = None, group: bool = False,
    ) -> None:  # fmt: skip
        words = b"" if isinstance(limit, str) else b"-" if limit is None else b"%d" % limit
        call = request_calls.change_request(
            name, seal=seal, cancel=cancel, limit=words, priority=priority, group=group
        )
        question = partial(self.model.change_request, name, seal, cancel, limit, priority, group)

        def read(reply: Any) -> Any:
            letter, waiting = call.read(reply)
            if letter == "s":
                return "stopped before", waiting
            return _in_words("changed", (letter, waiting))

        self._ask(caller, call, question, read)

    # ------------------------------------------------------------ what a rule needs

    def _bring_about(self, kind: str, caller: str) -> None:
        model = self.model
        if model.paused or kind not in ("part that waits", "part", "part that failed"):
            super()._bring_about(kind, caller)
        elif kind == "part that waits":
            free = [name for name in REQUESTS if name not in model.requests]
            name = free[0] if free else f"r{next(self.serial)}"
            self._open(caller, WantedRequest(name, 99, 2, False, 4_000, None, None))
            self.both_agree()
            self._add_parts(caller, name, WantedParts(3, 0, "", 50, {}, False))
        elif kind == "part":
            self._lease(caller, 1000, 4_000, [])
        else:
            parts = [job for job in model.jobs.values() if job.state == "leased" and job.request]
            held = [(job.id, job.token or "", None) for job in parts]
            self._retry_or_fail("fail", caller, held, 0, "in vain")

    def _is_there(self, kind: str) -> bool:
        parts = [job for job in self.model.jobs.values() if job.request]
        if kind == "part that waits":
            return any(not owner.is_group for owner in self.model.turns())
        if kind == "part":
            return any(job.state == "leased" for job in parts)
        if kind == "part that failed":
            return any(job.state == "failed" for job in parts)
        return super()._is_there(kind)

    def _request(self, n: int) -> str:
        """Return one that is there; the last one first."""
        names = [name for name, request in self.model.requests.items() if not request.is_group]
        return names[-1 - n % len(names)] if names else "p"

    # --------------------------------------------------------------- open and fill

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, opening=openings)
    def open_request(self, time: Time, caller: str, opening: WantedRequest) -> None:
        self._pass(time)
        self._open(caller, opening)

    @precondition(lambda self: not self.plain)
    @rule(caller=callers, filling=fillings)
    def open_and_fill(self, caller: str, filling: tuple[WantedRequest, WantedParts, bool]) -> None:
        self._fill(caller, *filling)

    def _fill(self, caller: str, opening: WantedRequest, parts: WantedParts, seal: bool) -> None:
        self._open(caller, opening)
        self.both_agree()
        self._add_parts(caller, opening.name, parts)
        if seal:
            self.both_agree()
            self._change_request(caller, opening.name, seal=True)

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, n=which, parts=several_parts)
    def add_parts(self, time: Time, caller: str, n: int, parts: WantedParts) -> None:
        self._pass(time)
        self._add_parts(caller, self._request(n), parts)

    @precondition(lambda self: not self.plain)
    @rule(caller=callers, wanted=several_jobs, group=st.sampled_from(GROUPS))
    def add_to_a_group(self, caller: str, wanted: list[Wanted], group: dict[str, Any]) -> None:
        self._add(caller, [replace(job, options=group) for job in wanted], "ignore")

    # -------------------------------------------------------------------- change

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, n=which, limit=new_limits, priority=new_priorities)
    def change_a_request(
        self, time: Time, caller: str, n: int, limit: Limit, priority: int | None
    ) -> None:
        self._pass(time)
        self._change_request(caller, self._request(n), limit=limit, priority=priority)

    @precondition(lambda self: any(owner.is_group for owner in self.model.requests.values()))
    @rule(caller=callers, n=which, limit=new_limits, priority=new_priorities)
    def change_a_group(self, caller: str, n: int, limit: Limit, priority: int | None) -> None:
        groups = [owner.name for owner in self.model.requests.values() if owner.is_group]
        group = priority is None  # Else it is mistaken for a request.
        name = groups[n % len(groups)]
        self._change_request(caller, name, limit=limit, priority=priority, group=group)

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, n=which)
    def seal(self, time: Time, caller: str, n: int) -> None:
        self._pass(time)
        self._change_request(caller, self._request(n), seal=True)

    @precondition(lambda self: not self.plain)
    @rule(caller=callers, name=requests, n=which, seal=st.booleans(), limit=new_limits)
    def cancel_a_request(self, caller: str, name: str, n: int, seal: bool, limit: Limit) -> None:
        """One that may not be there; or one with a part that is leased."""
        if n:
            self._need("part", caller)
            name = self._request(n)
        self._change_request(caller, name, cancel=True, seal=seal, limit=limit)

    # ---------------------------------------------------------------------- run

    @precondition(lambda self: not self.plain)
    @rule(caller=callers, count=st.integers(1, 5), job=st.none() | jobs)
    def lease_by_turns(self, caller: str, count: int, job: Wanted | None) -> None:
        """One by one, so that every turn counts; a job that comes meanwhile waits for its own."""
        self._need("part that waits", caller)
        for i in range(count):
            if job and i == 1:
                self._add(caller, [job], "ignore")
                self.both_agree()
            self._lease(caller, 1, 4_000, [])
            self.both_agree()

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, way=ways, after=release_times)
    def settle_parts(self, time: Time, caller: str, way: str, after: int | None) -> None:
        self._settle_what("part", time, caller, way, after, [])

    @precondition(lambda self: not self.plain)
    @rule(caller=callers, seal=st.sampled_from([True, True, False]), n=which)
    def run_to_the_end(self, caller: str, seal: bool, n: int) -> None:
        """Complete what is leased of a request, and lease and complete more."""
        self._need("part", caller)
        name = self._request(n)
        if seal:
            self._change_request(caller, name, seal=True)
            self.both_agree()
        for _ in range(4):
            leased = self.model.fellows(name, "leased")
            if not leased:
                break
            held = [(job.id, job.token or "") for job in leased]
            done = with_results(held, b"part ")
            self._lease(caller, 3, 4_000, done)
            self.both_agree()

    @precondition(lambda self: not self.plain)
    @rule(
        caller=callers, wanted=several_jobs, follow_up=jobs, limit=st.sampled_from([1, 0, None]),
        n=st.integers(1, 2),
    )  # fmt: skip
    def end_a_request_beside_a_group(
        self, caller: str, wanted: list[Wanted], follow_up: Wanted, limit: int | None, n: int
    ) -> None:
        """In one call: the follow-up is of a group that may just have got a free place."""
        group: dict[str, Any] = {"group": "g", "group_limit": 2}
        self._add(caller, [replace(job, id=None, options=group) for job in wanted * 3], "ignore")
        self.both_agree()
        name = f"r{next(self.serial)}"
        follow_up = replace(follow_up, options=group | {"group_limit": limit})
        opening = WantedRequest(name, 99, None, False, 1_000, None, follow_up)
        self._fill(caller, opening, WantedParts(1, None, "", 50, {}, same=False), seal=True)
        self.both_agree()
        self._lease(caller, 1000, 4_000, [])
        self.both_agree()
        fellows = self.model.fellows("g", "leased")[:n]
        leased = [*fellows, *self.model.fellows(name, "leased")]
        held = [(job.id, job.token or "", None) for job in leased]
        self._complete(caller, [*held, ("nobody", "-", None)], [])

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, n=which, seal=st.booleans())
    def revive_parts(self, time: Time, caller: str, n: int, seal: bool) -> None:
        """Of a request that goes on, or of one that has ended meanwhile."""
        self._need("part that failed", caller)
        first, second = self._name("part that failed", n), self._name("part that failed", n + 1)
        if seal:
            self._change_request(caller, first.rpartition("/")[0], seal=True)
            self.both_agree()
        self._pass(time)
        ids = [first, second]
        self._ask(caller, calls.revive(ids), partial(self.model.revive, ids))

    @precondition(lambda self: not self.plain)
    @rule(time=times, caller=callers, limit=new_limits, way=ways)
    def handle_parts(self, time: Time, caller: str, limit: Limit, way: str) -> None:
        """With as many places as there are, or with another number of them."""
        self._need("part that failed", caller)
        name = self._name("part that failed", 0).rpartition("/")[0]
        self._change_request(caller, name, limit=limit)
        self.both_agree()
        self._pass(time)
        self._lease(caller, 2, 4_000, [], failed=True)
        self.both_agree()
        handled = [job for job in self.model.fellows(name, "leased") if job.failed_at is not None]
        self._settle_as(way, caller, [(job.id, job.token or "", None) for job in handled], 1_000)

    @precondition(lambda self: not self.plain)
    @rule(
        time=times, caller=callers, parts=several_parts, way=st.sampled_from(["cancel", "fail"]),
        seal=st.booleans(),
    )  # fmt: skip
    def stop_while_parts_wait(
        self, time: Time, caller: str, parts: WantedParts, way: str, seal: bool
    ) -> None:
        """Also such that wait for their time."""
        name = f"r{next(self.serial)}"
        self._fill(caller, WantedRequest(name, 99, 1, True, 1_000, None, None), parts, seal=False)
        self.both_agree()
        self._add_parts(caller, name, replace(parts, due=""))
        self.both_agree()
        self._lease(caller, 1, 4_000, [])
        self.both_agree()
        self._pass(time)
        leased = self.model.fellows(name, "leased")
        if way == "cancel" or not leased:
            self._change_request(caller, name, cancel=True, seal=seal)
        else:
            held = [(job.id, job.token or "", None) for job in leased]
            self._retry_or_fail("fail", caller, held, 0, "in vain")

    @precondition(lambda self: any(owner.term < 2**52 for owner in self.model.requests.values()))
    @rule(time=beside("term"), caller=callers, lease=st.booleans())
    def tend_requests(self, time: Time, caller: str, lease: bool) -> None:
        self._pass(time)
        if lease:
            self._lease(caller, 1, 4_000, [])
        else:
            self._tidy(caller, False, None)

    @precondition(lambda self: any(one.outcome for one in self.model.requests.values()))
    @rule(caller=callers, opening=openings, ms=st.sampled_from([0, -1, 1]), n=which)
    def open_what_has_ended(self, caller: str, opening: WantedRequest, ms: int, n: int) -> None:
        """When it need not be kept any longer, or just before that."""
        ended = [one for one in self.model.requests.values() if one.outcome]
        request = ended[n % len(ended)]
        if self.now < request.term < self.now + 300 * HOUR:
            self.now = request.term + ms
        self._open(caller, replace(opening, name=request.name))

    @precondition(lambda self: self.model.requests)
    @rule(caller=callers, moved=st.sampled_from([False, False, True]))
    def recount(self, caller: str, moved: bool) -> None:
        """As the end of a repair does: nothing is to be corrected, or it is too late for it."""
        model = self.model
        counted = {
            name: (
                *(len(model.fellows(name, s)) for s in ("leased", "failed", "parked", "delayed")),
                *_endings(model, name),
            )
            for name in model.requests
        }
        stamp, seen = self.engine.stamp(self.now), model.stamp()
        if moved:
            self._change_request(caller, next(iter(counted)), limit=1)
            self.both_agree()
        question = partial(model.recount, [*counted], seen)
        self._ask(caller, request_calls.recount(stamp, counted), question)

    # ---------------------------------------------------------------- more than a call moves

    def stop_a_big_request(
        self, parked: int, delayed: int, way: str, lease: bool, again: bool
    ) -> None:
        """Let it be emptied and forgotten, call by call; or opened again."""
        self._open("ann", WantedRequest("p", 50, 1, True, 4_000, 4_000, None))
        for count, due in ((parked, ""), (delayed, f"+{HOUR}")):
            for some in (count // 2, count - count // 2):
                if some:
                    parts = WantedParts(some, None, due, 50, {"max_failures": 0}, same=False)
                    self._add_parts("ann", "p", parts)
        self.both_agree()
        self._lease("ann", 1, HOUR, [])
        self.both_agree()
        leased = [(job.id, job.token or "", b"") for job in self.model.fellows("p", "leased")]
        if way == "open for too long":
            self._pass(("term", 0))
        elif way == "cancel" or not leased:
            self._change_request("ann", "p", cancel=True)
        else:
            self._retry_or_fail("fail", "ann", leased, 0, "in vain")
        self.both_agree()
        for _ in range(4):
            self._tend_once(lease)
        self._complete("ann", [*leased, ("nobody", "-", None)], [])
        self.both_agree()
        self._cancel("ann", ["p/0", "nobody"], True)
        self.both_agree()
        if again:
            self._pass(("term", 0))
            for _ in range(4):
                self._open("ann", WantedRequest("p", 50, 1, True, 4_000, None, None))
                self.both_agree()
            assert self.model.requests["p"].total == 0
            return
        for _ in range(4):
            self._pass(("term", 0))
            self._tend_once(lease)
        assert "p" not in self.model.requests

    def _tend_once(self, lease: bool) -> None:
        if lease:
            self._lease("ann", 1, 4_000, [])
        else:
            self._tidy("ann", False, None)
        self.both_agree()


_WORDS = {
    "o": "open", "s": "sealed", "e": "ended", "g": "a group", "0": "no such request",
    "f": "being forgotten",
}  # fmt: skip


def _endings(model: Model, name: str) -> tuple[int, int, int]:
    """Return of how many parts it is kept that they were handled, cancelled, had a result."""
    told = record(model, model.requests[name])
    return told["handled"], told["cancelled"], told["results"]


def _in_words(done: str, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    letter, *numbers = answer
    return (done if letter == "1" else _WORDS[letter], *numbers)
