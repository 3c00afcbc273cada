"""A forked child begins anew: its own holder, callers and connections; the parent's stay whole."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from holdfast import Queue
from support import TestServer

HEAD = """
import json, os, signal, sys, threading
from holdfast import Queue, Server
from holdfast.connection import protocol

server = Server(sys.argv[1])
queue = Queue(sys.argv[2], server)

def connection(server):
    "The server's own number for the connection that the next call will use."
    caller = server.session.take_caller()
    server.session.give_caller(caller)
    return caller.link and caller.link.ask(protocol.pack(b"CLIENT", b"ID"))

def in_child(function):
    reader, writer = os.pipe()
    if os.fork() == 0:
        signal.alarm(60)  # A child that waits for ever ends without an answer.
        try:
            os.write(writer, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.wait()
    with open(reader) as answer:
        return json.loads(answer.read() or "null")
"""

HOLDERS = """
queue.add_many([b"1", b"2"])
mine = queue.lease(60)
before = connection(server)

def child():
    inherited = connection(server)
    lease = queue.lease(60)
    return {
        "inherited": inherited,
        "connection": connection(server),
        "token": lease.token,
        "data": lease.data.decode(),
        "grandchild": in_child(lambda: server.session.holder),
    }

told = in_child(child)
queue.extend(mine, 60)
print(json.dumps({
    **told,
    "before": before,
    "after": connection(server),
    "mine": mine.token,
    "completed": queue.complete(mine),
}))
"""

BUSY = """
def work(name):
    for n in range(50):
        queue.add(b"", id=f"{name}-{n}")
        lease = queue.lease(60)
        assert lease is None or queue.complete(lease) is True

threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(4)]
for thread in threads:
    thread.start()
def child():
    work(f"child-{os.getpid()}")
    return True
answers = [in_child(child) for n in range(4)]
for thread in threads:
    thread.join()
counts = queue.counts()
print(json.dumps({"answers": answers, "left": counts.ready + counts.leased}))
"""


# A thread on its way to the server is stopped where it opens a file, if it does: then it
# may hold a lock, that of an import or of a cache. Then the process is forked.
HALFWAY = """
halfway, go_on = threading.Event(), threading.Event()

def stop_at_file(event, args):
    if event == "open" and str(args[0]).endswith(sys.argv[3]):
        if threading.current_thread() is not threading.main_thread():
            halfway.set()
            go_on.wait()

sys.addaudithook(stop_at_file)
thread = threading.Thread(target=queue.add, args=(b"",))
thread.start()
while thread.is_alive() and not halfway.wait(0.01):
    pass
created = in_child(lambda: queue.add(b"").created)
go_on.set()
thread.join()
print(json.dumps({"created": created, "ready": queue.counts().ready}))
"""


def run(program: str, test_server: TestServer, queue: Queue, *args: str) -> Any:
    name = queue.name.strip("\0")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + program, test_server.url, name, *args],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    left = Queue(name, queue.server)
    assert left.audit() == []
    left.delete()
    return answer


@pytest.fixture(scope="module")
def told(test_server: TestServer) -> Any:
    queue = Queue("forked", test_server.url)
    try:
        return run(HOLDERS, test_server, queue)
    finally:
        queue.close()


def test_a_child_has_another_holder_and_so_has_its_child(told: Any) -> None:
    holders = [token.partition(".")[0] for token in (told["mine"], told["token"])]
    assert len({*holders, told["grandchild"]}) == 3
    assert told["data"] == "2"


def test_a_child_opens_its_own_connection(told: Any) -> None:
    assert told["inherited"] is None
    assert told["connection"] not in (None, told["before"])


def test_the_parent_goes_on_with_its_connection_and_its_leases(told: Any) -> None:
    assert told["after"] == told["before"]
    assert told["completed"] is True


def test_children_of_a_busy_parent_mix_up_nothing(test_server: TestServer, server: Any) -> None:
    told = run(BUSY, test_server, Queue("busy and forked", server))
    assert told == {"answers": [True] * 4, "left": 0}


@pytest.mark.parametrize("file", ["", ".lua"])
def test_a_child_does_not_wait_for_a_thread_that_it_does_not_have(
    test_server: TestServer, server: Any, file: str
) -> None:
    told = run(HALFWAY, test_server, Queue("forked halfway", server), file)
    assert told == {"created": True, "ready": 2}
