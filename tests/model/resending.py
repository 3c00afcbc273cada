"""Calls that change nothing: nonsense, and those that were answered before."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from model import views
from model.acting import Acting
from model.choices import CALLERS, NONSENSE, Time, callers, times


class Resending(Acting):
    """Who does not know whether a call was heard, or asks for what cannot be."""

    # -------------------------------------------------------------- nonsense

    @rule(time=times, caller=callers, nonsense=st.sampled_from(sorted(NONSENSE)))
    def ask_nonsense(self, time: Time, caller: str, nonsense: str) -> None:
        """A refused call changes nothing, also where all but its last argument is good."""
        self._pass(time)
        held = [(job.id, job.token or "-", b"") for job in self.model.jobs.values()]
        call = NONSENSE[nonsense]([*held, ("a", "-", b"")])
        [reply] = self.engine.ask(self.now, caller, self.last_number[caller] + 1, call)
        assert str(reply).startswith("INVALID"), reply

    # ----------------------------------------------------- replies that were lost

    @precondition(lambda self: self.sent)
    @rule(time=times)
    def send_the_last_call_again(self, time: Time) -> None:
        self._pass(time)
        self._send(self.sent[-1])

    @precondition(lambda self: self.sent)
    @rule(time=times, caller=callers, back=st.sampled_from([0, 0, 0, 1, 2]))
    def send_an_earlier_call_again(self, time: Time, caller: str, back: int) -> None:
        """The last of a caller is answered as before, and the ones before it are refused.

        Nobody sends one of those again after ten minutes, when the caller may be forgotten.
        """
        self._pass(time)
        sent = [sent for sent in self.sent if sent.caller == caller]
        if caller not in self.model.answers:
            back = 0
        if sent:
            self._send(sent[-1 - back % len(sent)])

    @precondition(lambda self: self._lost())
    @rule(time=times, which=st.integers(0, 3))
    def send_a_lease_again_that_was_lost(self, time: Time, which: int) -> None:
        self._send_the_last_of(self._lost(), time, which)

    @precondition(lambda self: self._forgotten())
    @rule(time=times, which=st.integers(0, 3))
    def send_a_call_again_that_was_forgotten(self, time: Time, which: int) -> None:
        self._send_the_last_of(self._forgotten(), time, which)

    def _send_the_last_of(self, callers: list[str], time: Time, which: int) -> None:
        caller = callers[which % len(callers)]
        self._pass(time)
        self._send([sent for sent in self.sent if sent.caller == caller][-1])

    # ------------------------------------------------------------ what there is

    def _lost(self) -> list[str]:
        return [caller for caller in CALLERS if views.has_lost_leases(self.model, caller)]

    def _forgotten(self) -> list[str]:
        return sorted({sent.caller for sent in self.sent} - self.model.answers.keys())
