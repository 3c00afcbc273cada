from __future__ import annotations

import json

import pytest

from cli.support import Commands, interrupted, on_a_terminal, started
from engine_support import own_server
from holdfast import Counts, Queue, Totals
from holdfast.cli.watch import Look
from support import command_on, documented_user, with_login


def test_counts_and_rates_are_written_a_line_per_look(hf: Commands, queue: Queue) -> None:
    queue.add_many([b"x"] * 5)
    queue.lease_many(2, 60)
    heading, first, second = hf("watch", queue.name, "--times", 2, "--every", "1ms").splitlines()
    states = ["ready", "delayed", "leased", "parked", "failed"]
    assert heading.split() == ["queue", *states, "added/s", "done/s", "retried/s"]
    assert first.split() == [queue.name, "3", "0", "2", "0", "0"]
    assert second.split() == [queue.name, "3", "0", "2", "0", "0", "0", "0", "0"]
    # In the same columns.
    assert second.index("3") == first.index("3") == heading.index("ready") + 4


def test_rates_are_what_happened_since_the_look_before() -> None:
    def look(at: float, added: int, completed: int) -> Look:
        counts = Counts(0, 0, 0, 0, 0, 0, paused=False)
        return Look(counts, Totals(added, 0, completed, 3, 0, 0, 0, 0, 0), at)

    before, after = look(10, 100, 50), look(12, 140, 51)
    assert after.rates(before) == {"added": 20, "completed": 0.5, "retried": 0}
    assert before.rates(None) == {"added": None, "completed": None, "retried": None}
    # The queue was deleted, and begins anew.
    assert look(13, 0, 0).rates(after)["added"] == 0


def test_rates_count_what_happens(hf: Commands, queue: Queue) -> None:
    queue.resume()
    with started("watch", queue.name, "--every", "50ms", "--json") as process:
        assert process.stdout
        first = json.loads(process.stdout.readline())
        assert first["added_per_second"] is None
        queue.add_many([b"x"] * 10)
        queue.complete_many(queue.lease_many(10, 60))
        done = 0.0
        while not done:
            told = json.loads(process.stdout.readline())
            done = told["completed_per_second"]
        code, _, err = interrupted(process)
    assert (code, err) == (0, "")
    assert set(told) == {
        *("queue", "at", "ready", "delayed", "leased", "parked", "failed", "ended", "paused"),
        *("staged", "claims"),
        *("waiting", "added_per_second", "completed_per_second", "retried_per_second"),
    }


def test_several_queues_or_all(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    lines = hf("watch", queue.name, "q-nobody", "--times", 1).splitlines()
    assert [line.split()[0] for line in lines] == ["queue", queue.name, "q-nobody"]
    assert queue.name in hf("watch", "--times", 1)


def test_all_queues_are_those_that_the_user_may_reach(hf: Commands) -> None:
    with own_server() as server:
        for name in ("emails", "of others"):
            with Queue(name, server.url) as queue:
                queue.add(b"x")
        with server.client() as client:
            command_on(client, "ACL", "SETUSER", *documented_user("emails"), "+scan")
        url = with_login(server.url, "emails:secret")
        for command in (["watch", "--times", 1], ["ls"]):
            lines = hf(*command, "--url", url).splitlines()
            assert [line.split()[0] for line in lines] == ["queue", "emails"]
        hf.error("watch", "emails", "of others", "--url", url)


def test_ctrl_c_is_how_it_ends(hf: Commands, queue: Queue) -> None:
    queue.resume()
    with started("watch", queue.name, "--every", "10ms") as process:
        assert process.stdout
        process.stdout.readline()
        assert interrupted(process)[::2] == (0, "")


def test_on_a_terminal_it_is_drawn_in_place(hf: Commands, queue: Queue) -> None:
    queue.pause()
    code, screen = on_a_terminal("watch", queue.name, "--times", "3", "--every", "1ms", columns=200)
    assert code == 0
    assert screen.count("\x1b[2A\r\x1b[J") == 2
    assert screen.count(f"{queue.name} (paused)") == 3


def test_who_wants_no_colours_has_it_drawn_in_place_all_the_same(
    hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    _, screen = on_a_terminal("watch", queue.name, "--times", "2", "--every", "1ms", colours=False)
    assert screen.count("\x1b") == screen.count("\x1b[2A\r\x1b[J") * 2 == 2


def test_a_dumb_terminal_gets_a_line_per_look(hf: Commands, queue: Queue) -> None:
    queue.resume()
    _, screen = on_a_terminal("watch", queue.name, "--times", "2", "--every", "1ms", kind="dumb")
    heading, *looks = screen.splitlines()
    assert heading.startswith("queue ")
    assert [look.split()[0] for look in looks] == [queue.name] * 2
    assert "\x1b" not in screen


def test_more_queues_than_a_terminal_has_lines_are_cut(
    hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "5")
    queues = [Queue(f"q-{name}", queue.server) for name in "abcde"]
    names = [one.name for one in queues]
    for one in queues:
        one.resume()
    _, screen = on_a_terminal("watch", *names, "--times", "2", "--every", "1ms")
    assert screen.count("\x1b[4A\r\x1b[J") == 1
    assert screen.splitlines()[-1] == "… and 3 more"
    assert on_a_terminal("watch", *names[:3], "--times", "1")[1].count("\n") == 4
    for one in queues:
        one.delete()


@pytest.mark.parametrize(
    "args", [["--every", "0"], ["--every", "-1s"], ["--times", "0"], ["--every", "x"]]
)
def test_wrong_values_are_usage_errors(hf: Commands, args: list[str]) -> None:
    hf.error("watch", *args, code=2)
