from __future__ import annotations

import pytest

from cli.support import Commands, on_a_terminal
from engine_support import Behind, take
from holdfast import Queue, Server
from support import TestServer, wait_until


def fail(queue: Queue, *ids: str) -> None:
    for id in ids:
        queue.add(b"x", id=id)
        queue.fail(take(queue), error="why")


def test_failed_jobs_are_revived_by_id(hf: Commands, queue: Queue) -> None:
    fail(queue, "a", "b", "c")
    assert hf("revive", queue.name, "a", "b") == "2 jobs revived\n"
    assert queue.counts().failed == 1
    result = hf.ran("revive", queue.name, "a", "c", code=1)
    assert (result.stdout, result.stderr) == ("1 job revived\n", "a: is not failed\n")


def test_or_all_of_them(hf: Commands, queue: Queue) -> None:
    fail(queue, *(f"job-{n}" for n in range(230)))
    assert hf("revive", queue.name, "--all") == "230 jobs revived\n"
    assert (queue.counts().failed, queue.counts().ready) == (0, 230)
    assert hf("revive", queue.name, "--all") == "0 jobs revived\n"


@pytest.mark.parametrize("command", ["revive", "cancel"])
def test_whom_must_be_said(hf: Commands, queue: Queue, command: str) -> None:
    hf.error(command, queue.name, code=2)
    all_of_them = {"revive": ["--all"], "cancel": ["--matching", "x"]}[command]
    hf.error(command, queue.name, "a", *all_of_them, code=2)


def test_jobs_are_cancelled(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", id="runs", result_for=60)
    lease = take(queue)
    queue.add(b"x", id="waits")
    result = hf.ran("cancel", queue.name, "waits", "runs", "--waiting-only", code=1)
    assert result.stdout == "1 job cancelled\n"
    assert result.stderr.startswith("runs: was not cancelled")
    assert hf("cancel", queue.name, "runs") == "1 job cancelled\n"
    assert not queue.complete(lease)


def test_jobs_are_cancelled_by_payload_when_somebody_says_yes(hf: Commands, queue: Queue) -> None:
    queue.add_many([b"x", b"y", b"x"])
    error = hf.error("cancel", queue.name, "--matching", "x", code=2)
    assert error == (
        f"Error: Cancel every job of {queue.name} that has this payload? "
        "Confirm with --yes: stdin is not a terminal."
    )
    assert hf("cancel", queue.name, "--matching", "x", "--yes") == "2 jobs cancelled\n"
    assert queue.counts().ready == 1


@pytest.mark.parametrize(("typed", "code", "left"), [(b"y\n", 0, 0), (b"n\n", 1, 2), (b"\n", 1, 2)])
def test_on_a_terminal_it_is_asked(
    hf: Commands, queue: Queue, typed: bytes, code: int, left: int
) -> None:
    queue.add_many([b"x", b"y"])
    assert on_a_terminal("delete", queue.name, typed=typed)[0] == code
    assert queue.counts().ready == left


def test_a_queue_is_paused_and_resumed(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    assert hf("pause", queue.name) == ""
    assert queue.lease(30) is None
    hf("resume", queue.name)
    assert queue.lease(30)


def test_tidy_tells_what_it_did(hf: Commands, queue: Queue) -> None:
    queue.add(b"x", delay=0.001)
    assert hf("tidy", queue.name) in (
        "1 promoted, 0 reclaimed, 0 pruned, 0 dropped, 0 tended, 0 published\n",
        "0 promoted, 0 reclaimed, 0 pruned, 0 dropped, 0 tended, 0 published\n",
    )
    told = hf.json("tidy", queue.name, "--force")
    assert set(told) == {"promoted", "reclaimed", "pruned", "dropped", "tended", "published"}


def test_rules_of_tidy_want_a_yes(hf: Commands, queue: Queue) -> None:
    fail(queue, "a")
    queue.add(b"x", id="held")
    queue.lease(600)
    for rule in ("--failed-longer-than", "--held-longer-than"):
        assert "Confirm with --yes" in hf.error("tidy", queue.name, rule, "0s", code=2)
    assert (queue.counts().failed, queue.counts().leased) == (1, 1)
    assert hf.json("tidy", queue.name, "--failed-longer-than", "0s", "--yes")["dropped"] == 1
    assert hf.json("tidy", queue.name, "--held-longer-than", "0s", "--yes")["reclaimed"] == 1


def test_what_is_broken_is_found_and_mended(
    hf: Commands, queue: Queue, test_server: TestServer
) -> None:
    queue.add(b"x", id="lost")
    assert hf("audit", queue.name) == "no problems found\n"
    assert hf.json("audit", queue.name) == []
    with test_server.client() as client:
        Behind(client, queue)("ZREM", "ready", "lost")
    assert "1 payloads that belong to no job" in hf("audit", queue.name, code=1)
    assert hf.json("audit", queue.name, code=1)[0]["what"]
    assert hf("repair", queue.name).startswith("lost: ")
    assert hf("repair", queue.name) == "nothing to repair\n"
    assert hf.json("repair", queue.name) == []
    assert hf("audit", queue.name) == "no problems found\n"


def test_a_queue_is_deleted(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    error = hf.error("delete", queue.name, code=2)
    assert f"Remove {queue.name} with 1 job, for good?" in error
    hf("delete", queue.name, "--yes")
    assert queue.counts().ready == 0


def test_queues_that_nobody_uses_are_cleared_away(hf: Commands, server: Server) -> None:
    names = [f"idle {n}" for n in range(3)]
    idle, paused, full = (Queue(name, server) for name in names)
    for queue in (idle, paused):
        queue.add(b"x")
        queue.complete(take(queue))
    paused.pause()
    full.add(b"x")
    wait_until(lambda: idle.name in hf("delete", "--idle-for", "1ms"), "it to be idle for so long")
    assert {name for name in server.queues() if name in names} == set(names[1:])
    assert "kept" in hf.error("delete", full.name, "--idle-for", "1ms")
    assert "which queue?" in hf.error("delete", code=2)
    paused.delete()
    full.delete()
