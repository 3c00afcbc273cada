"""From a receipt to what the job came to."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from conftest import Clock
from holdfast import (
    AsyncQueue,
    InvalidArgument,
    JobNotFound,
    Json,
    Queue,
    Receipt,
    Server,
    ShardedQueue,
    Worker,
    WrongState,
)
from support import DEADLINE, TestServer


def doubling(queue: Queue) -> Any:
    @queue.handler(result_for=60, max_failures=0)
    def double(n: int) -> tuple[int, str]:
        if n < 0:
            raise ValueError("below 0")
        return 2 * n, "twice"

    return double


def test_the_result_of_a_receipt_is_that_of_its_job(queue: Queue) -> None:
    receipt = queue.add(b"x", result_for=60)
    assert queue.result(receipt) is None
    queue.complete(receipt.id, Json("done"), force=True)
    outcome = queue.result(receipt)
    assert outcome == queue.result(receipt.id)
    assert outcome
    assert outcome.json() == "done"


def test_what_names_no_job_is_refused(queue: Queue) -> None:
    for wrong in (None, 7, b"a", ["a"], queue):
        with pytest.raises(InvalidArgument, match="id"):
            queue.result(wrong)  # type: ignore[arg-type]


def test_a_handler_takes_a_receipt(queue: Queue) -> None:
    double = doubling(queue)
    receipt = queue.add({"n": 4}, handler="double", result_for=60)
    assert Worker(queue).run(until_empty=True)
    assert double.result(receipt) == double.result(receipt.id) == (8, "twice")


def test_the_receipt_of_a_call_gives_what_the_function_returned(queue: Queue) -> None:
    double = doubling(queue)
    receipt = double.add(4)
    many = double.add_many([{"n": 1}, {"n": 2}])
    assert receipt
    with pytest.raises(WrongState, match="has not ended"):
        receipt.result()
    assert Worker(queue).run(until_empty=True)
    assert receipt.result() == (8, "twice")
    assert [one.result() for one in many] == [(2, "twice"), (4, "twice")]


def test_the_receipt_of_a_call_waits_for_the_result(live_queue: Queue) -> None:
    double = doubling(live_queue)
    receipt = double.add(4)
    worker = threading.Thread(target=Worker(live_queue).run, kwargs={"until_empty": True})
    worker.start()
    assert receipt.result(wait=DEADLINE) == (8, "twice")
    worker.join()


def test_the_receipt_of_a_call_that_failed_says_why(queue: Queue) -> None:
    double = doubling(queue)
    receipt = double.options(id="a").add(-1)
    assert Worker(queue).run(until_empty=True)
    with pytest.raises(WrongState, match="a: the job has failed: ValueError: below 0"):
        receipt.result()


def test_the_receipt_of_a_call_whose_result_is_not_kept_says_what_to_do(queue: Queue) -> None:
    @queue.handler
    def nothing() -> None: ...

    receipt = nothing.add()
    assert Worker(queue).run(until_empty=True)
    with pytest.raises(JobNotFound, match="result_for"):
        receipt.result()


def test_the_receipt_of_an_id_that_is_taken_asks_for_the_job_that_has_it(queue: Queue) -> None:
    double = doubling(queue).options(id="a")
    first, second = double.add(1), double.add(2)
    assert (bool(first), bool(second)) == (True, False)
    assert Worker(queue).run(until_empty=True)
    assert first.result() == second.result() == (2, "twice")


def test_the_receipt_of_a_call_looks_like_any_other(queue: Queue) -> None:
    double = doubling(queue)
    typed, plain = double.options(id="a").add(1), queue.add(b"x", id="a")
    assert repr(typed) == "TypedReceipt(id='a')"
    assert msgspec.json.encode(typed) == b'{"id":"a","created":true,"state":null,"updated":false}'
    assert (plain.id, plain.created, plain.state) == ("a", False, "ready")
    again = double.options(id="a").add(1)
    assert (again.id, again.created, again.state) == ("a", False, "ready")
    same = Receipt("a")
    assert typed == same
    assert same == typed
    assert typed != Receipt("b")
    assert typed != "a"
    assert {typed, same} == {same}


@pytest.mark.parametrize("way", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_receipt_that_was_copied_says_whom_to_ask(
    queue: Queue, way: Callable[[Any], Any]
) -> None:
    double = doubling(queue)
    receipt = way(double.add(1))
    with pytest.raises(InvalidArgument, match=r"handler\.result\(receipt\)"):
        receipt.result()
    assert Worker(queue).run(until_empty=True)
    assert double.result(receipt) == (2, "twice")


def test_a_sharded_queue_knows_receipts(server: Server, clock: Clock) -> None:
    queue = ShardedQueue("receipts", server, shards=3, clock=clock)
    double = doubling(queue)
    receipts = [double.add(n) for n in range(4)]
    plain = queue.add({"n": 9}, handler="double", result_for=60)
    assert Worker(queue).run(until_empty=True)
    assert [receipt.result()[0] for receipt in receipts] == [0, 2, 4, 6]
    outcome = queue.result(plain)
    assert outcome
    assert outcome.json() == [18, "twice"]
    queue.delete()


def test_coroutines_know_receipts(test_server: TestServer, queue: Queue, clock: Clock) -> None:
    async def main() -> None:
        async with AsyncQueue(queue.name, test_server.queue_url, clock=clock) as aqueue:

            @aqueue.handler(result_for=60)
            async def double(n: int) -> tuple[int, str]:
                return 2 * n, "twice"

            receipt = await double.add(4)
            many = await double.add_many([{"n": 1}])
            plain = await aqueue.add({"n": 3}, handler="double", result_for=60)
            with pytest.raises(WrongState, match="has not ended"):
                await receipt.result()
            await asyncio.to_thread(Worker(aqueue).run, until_empty=True)
            assert await receipt.result(wait=DEADLINE) == (8, "twice")
            assert await many[0].result() == (2, "twice")
            assert await double.result(plain) == (6, "twice")
            outcome = await aqueue.result(plain)
            assert outcome
            assert outcome.json() == [6, "twice"]
            assert repr(receipt).startswith("AsyncTypedReceipt(id=")
            with pytest.raises(InvalidArgument, match=r"handler\.result\(receipt\)"):
                await copy.copy(receipt).result()

    asyncio.run(asyncio.wait_for(main(), DEADLINE))
