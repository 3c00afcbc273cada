"""Who works, who holds what, and giving back the jobs of a worker that is gone."""

from __future__ import annotations

import pytest

from cli.support import Commands, on_a_terminal
from engine_support import take
from holdfast import Queue
from support import TestServer, wait_until


@pytest.fixture
def web(queue: Queue) -> Queue:
    """The queue, whose holder is registered as the worker web-1:4242."""
    queue.register(alive_for=60, host="web-1", pid=4242)
    return queue


def test_who_works(hf: Commands, queue: Queue) -> None:
    queue.register(
        alive_for=60,
        host="web-1",
        pid=4242,
        queues=["a", "b"],
        running=[{"id": "x"}],
        handlers=["send", "store"],
        unnamed=True,
        started_at=1.5,
    )
    heading, line = hf("workers", queue.name).splitlines()
    assert heading.split() == ["worker", "alive", "running", "handlers", "about", "holder"]
    assert line.startswith(
        "web-1:4242  yes          0  send, store, jobs without a name  queues: a b"
    )
    assert line.endswith(f"ago  {queue.holder}")
    [told] = hf.json("workers", queue.name)
    assert (told["worker"], told["holder"], told["alive"]) == ("web-1:4242", queue.holder, True)
    assert told["about"]["queues"] == ["a", "b"]
    assert told["about"]["started_at"] == "1970-01-01T00:00:01.500Z"
    assert told["alive_until"].endswith("Z")


def test_who_is_gone_is_told_since_when(hf: Commands, queue: Queue) -> None:
    queue.register(alive_for=0.001)
    wait_until(lambda: not queue.workers()[0].alive, "the worker to be gone")
    assert "gone for" in hf("workers", queue.name)
    queue.add(b"")  # A queue that nothing was added to does not exist once it forgets the worker.


def test_a_lease_is_shown_with_the_host_and_pid_of_its_worker(hf: Commands, web: Queue) -> None:
    web.add(b"x", id="a", handler="send", timeout=60)
    lease = take(web)
    assert f"\nworker        web-1:4242\ntoken         {lease.token}\n" in hf("show", web.name, "a")
    assert f"leased by web-1:4242 under {lease.token}" in hf("explain", web.name, "a")
    heading, line = hf("peek", web.name, "--state", "leased").splitlines()
    assert heading.split() == [
        "id",
        "handler",
        "priority",
        "worker",
        "lapses",
        "at",
        "when",
        "payload",
    ]
    assert line.split()[:4] == ["a", "send", "50", "web-1:4242"]
    assert lease.token not in line
    for told in (hf.json("show", web.name, "a"), *hf.json("peek", web.name, "--state", "leased")):
        assert (told["worker"], told["token"]) == ("web-1:4242", lease.token)


def test_a_lease_of_a_client_that_is_no_worker_is_shown_with_its_token(
    hf: Commands, queue: Queue
) -> None:
    queue.add(b"x", id="a")
    token = take(queue).token
    shown = hf("show", queue.name, "a")
    assert f"\ntoken         {token}\n" in shown
    assert "\nworker" not in shown
    assert f"leased under {token}" in hf("explain", queue.name, "a")
    assert token in hf("peek", queue.name, "--state", "leased")


def test_a_limit_names_the_workers_that_fill_it(hf: Commands, web: Queue) -> None:
    web.add_many([b""] * 4, group="mail", group_limit=2)
    web.lease_many(2, 60)
    parked = hf.json("peek", web.name, "--state", "parked")[0]["id"]
    assert "limit full: 2 of 2 held by web-1:4242 (2)" in hf("explain", web.name, parked)


def test_the_jobs_of_a_worker_are_given_back(
    hf: Commands, web: Queue, test_server: TestServer
) -> None:
    other = Queue(web.name, test_server.queue_url)
    other.register(alive_for=60, host="web-2", pid=7)
    web.add_many([b""] * 5)
    web.lease_many(3, 60)
    other.lease_many(1, 60)
    error = hf.error("fail-worker", web.name, "web-1:4242", code=2)
    assert error == (
        "Error: Give back 3 jobs of web-1:4242, which is alive? "
        "Confirm with --yes: stdin is not a terminal."
    )
    assert web.counts().leased == 4
    assert hf("fail-worker", web.name, "web-1:4242", "--yes") == "3 jobs given back\n"
    assert web.counts().leased == 1
    assert web.totals().reclaimed == 3
    code, screen = on_a_terminal("fail-worker", web.name, "--", other.holder, typed=b"y\n")
    assert "Give back 1 job of web-2:7, which is alive? [y/N]:" in screen
    assert (code, screen.rstrip().endswith("1 job given back")) == (0, True)
    other.close()


def test_a_worker_that_is_not_there_is_an_error(hf: Commands, web: Queue) -> None:
    web.add(b"")
    error = hf.error("fail-worker", web.name, "web-1:1", "--yes")
    assert error == (
        f"Error: web-1:1 is not a worker of {web.name}: `holdfast workers {web.name}` lists them"
    )


def test_of_two_workers_with_one_name_the_holder_says_which(
    hf: Commands, web: Queue, test_server: TestServer
) -> None:
    again = Queue(web.name, test_server.queue_url)
    again.register(alive_for=60, host="web-1", pid=4242)
    again.add(b"")
    again.lease(60)
    error = hf.error("fail-worker", web.name, "web-1:4242", "--yes")
    assert error.startswith("Error: 2 workers are web-1:4242: name a holder: ")
    assert f"{again.holder} (alive)" in error
    assert hf("fail-worker", web.name, "--yes", "--", again.holder) == "1 job given back\n"
    again.close()
