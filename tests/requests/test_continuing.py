"""A producer that died is followed by another, and no part is lost or doubled."""

from __future__ import annotations

import pytest

from engine_support import take
from holdfast import JobExists, Queue, WrongState
from request_support import counters, fill, work_off
from seeds.crowd import race


def test_who_begins_again_repeats_what_is_there(queue: Queue) -> None:
    died = fill(queue.request("r"), 3, seal=False)
    assert died.add(b"3").id == "r/3"
    with queue.request("r") as request:
        receipts = [request.add(b"%d" % n) for n in range(6)]
    assert [receipt.id for receipt in receipts] == [f"r/{n}" for n in range(6)]
    assert [bool(receipt) for receipt in receipts] == [False] * 4 + [True] * 2
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"%d" % n for n in range(6)]
    assert request.status().total == 6


def test_what_is_repeated_in_bulk_counts_once(queue: Queue) -> None:
    """The repetition is cut where the other one was, also in the middle of a call."""
    fill(queue.request("r"), 1300, seal=False)
    work_off(queue)
    request = queue.request("r")
    assert request.open() == 1300
    assert request.add_many(b"%d" % n for n in range(2500)) == 1200
    assert counters(request.status()) == {"total": 2500, "done": 1300, "parked": 1200}
    assert queue.data("r/1300") == b"1300"
    assert queue.data("r/2499") == b"2499"


def test_a_repetition_changes_nothing_about_the_part(queue: Queue) -> None:
    first = queue.request("r")
    first.open()
    first.add(b"first", max_failures=1)
    again = queue.request("r", priority=99, limit=0)
    again.open()
    assert not again.add(b"second", max_failures=9)
    lease = take(queue)
    assert (lease.data, lease.facts.max_failures) == (b"first", 1)
    assert (again.status().priority, again.status().limit) == (50, None)


def test_a_repetition_of_what_is_done_does_not_run_again(queue: Queue) -> None:
    fill(queue.request("r"), 2, seal=False)
    assert work_off(queue) == ["r/0", "r/1"]
    fill(queue.request("r"), 2)
    assert work_off(queue) == []
    assert queue.request("r").status().state == "completed"


def test_a_request_that_is_opened_anew_begins_at_zero_again(queue: Queue) -> None:
    request = fill(queue.request("r"), 2, seal=False)
    assert request.open() == 2
    assert not request.add(b"0")
    assert not request.add(b"1")
    assert request.add(b"2")


def test_appending_numbers_after_the_last(queue: Queue) -> None:
    fill(queue.request("r"), 2, seal=False)
    request = queue.request("r", append=True)
    assert request.open() == 2
    assert request.add(b"2").id == "r/2"
    assert request.add_many([b"3", b"4"]) == 2
    assert request.add(b"5")
    assert [lease.data for lease in queue.lease_many(9, 30)] == [b"%d" % n for n in range(6)]


def test_appending_needs_no_opening_where_the_request_is_open(queue: Queue) -> None:
    fill(queue.request("r"), 2, seal=False)
    receipt = queue.request("r", append=True).add(b"2")
    assert (receipt.id, receipt.created) == ("r/2", True)
    assert queue.request("r").status().total == 3


def test_two_who_append_at_once_lose_and_double_nothing(live_queue: Queue) -> None:
    live_queue.request("r").open()

    def produce(name: str) -> list[str]:
        request = live_queue.request("r", append=True)
        request.open()
        receipts = [request.add(f"{name} {n}") for n in range(100)]
        request.add_many(f"{name} {n}" for n in range(100, 1300))
        assert all(receipts)
        return [receipt.id for receipt in receipts]

    one, two = race(lambda: produce("one"), lambda: produce("two"))
    assert len({*one, *two}) == 200
    request = live_queue.request("r")
    request.seal()
    assert request.status().total == 2600
    leases = [lease for _ in range(3) for lease in live_queue.lease_many(1000, 60)]
    assert sorted(lease.data.decode() for lease in leases) == sorted(
        f"{name} {n}" for name in ("one", "two") for n in range(1300)
    )
    # Each kept its own order.
    numbers = {lease.data: int(lease.id[2:]) for lease in leases}
    for name in ("one", "two"):
        own = [numbers[f"{name} {n}".encode()] for n in range(1300)]
        assert own == sorted(own)


def test_two_who_begin_at_zero_at_once_make_each_part_once(live_queue: Queue) -> None:
    def produce() -> int:
        request = live_queue.request("r")
        request.open()
        return sum(map(bool, (request.add(b"%d" % n) for n in range(150))))

    assert sum(race(produce, produce, produce)) == 150
    leases = live_queue.lease_many(1000, 60)
    assert [lease.data for lease in leases] == [b"%d" % n for n in range(150)]


def test_a_gap_is_refused_and_the_next_number_is_told(queue: Queue) -> None:
    request = fill(queue.request("r"), 3, seal=False)
    with pytest.raises(WrongState, match=r"^r: .*\b3\b"):
        request.add(b"", number=4)
    assert request.status().total == 3
    assert request.add(b"", number=3)
    assert not request.add(b"", number=0)


def test_a_number_that_is_given_leaves_the_count_alone(queue: Queue) -> None:
    request = fill(queue.request("r"), 2, seal=False)
    assert not request.add(b"again", number=0)
    assert request.add(b"").id == "r/2"


def test_a_part_whose_id_a_plain_job_has_is_refused_and_nothing_is_added(queue: Queue) -> None:
    queue.add(b"plain", id="r/2")
    request = queue.request("r")
    request.open()
    with pytest.raises(JobExists, match="r/2"):
        request.add_many([b"0", b"1", b"2", b"3"])
    assert request.status().total == 0
    assert request.add_many([b"0", b"1"]) == 2
    with pytest.raises(JobExists, match="r/2"):
        request.add(b"2")
    work_off(queue)
    assert request.add(b"2").id == "r/2"


def test_a_part_whose_id_is_remembered_is_refused(queue: Queue) -> None:
    queue.add(b"plain", id="r/0", result_for=60)
    queue.complete(take(queue), b"result")
    request = queue.request("r")
    request.open()
    with pytest.raises(JobExists, match="r/0"):
        request.add(b"")
    outcome = queue.result("r/0")
    assert outcome
    assert outcome.result == b"result"


def test_the_id_of_a_part_is_taken_for_plain_jobs(queue: Queue) -> None:
    request = fill(queue.request("r"), 1, seal=False)
    receipt = queue.add(b"plain", id="r/0")
    assert (receipt.created, receipt.state) == (False, "parked")
    with pytest.raises(JobExists):
        queue.add(b"plain", id="r/0", on_conflict="raise")
    with pytest.raises(WrongState, match="r/0"):
        queue.add(b"plain", id="r/0", on_conflict="update")
    assert take(queue).data == b"0"
    assert request.status().total == 1


@pytest.mark.parametrize("result", [None, b"result"])
@pytest.mark.parametrize("group", [None, "g"])
def test_the_id_of_a_part_that_is_done_is_taken_as_long_as_its_request_is_kept(
    queue: Queue, result: bytes | None, group: str | None
) -> None:
    request = fill(queue.request("r"), 1)
    queue.complete(take(queue), result)
    receipt = queue.add(b"plain", id="r/0", group=group)
    assert (receipt.created, receipt.state) == (False, "ended")
    receipt = queue.add(b"plain", id="r/0", group=group, on_conflict="update")
    assert (receipt.created, receipt.state) == (False, "ended")
    assert [(part.state, part.result) for part in request.results()] == [("done", result)]


def test_the_id_of_a_part_that_is_not_there_yet_is_free(queue: Queue) -> None:
    fill(queue.request("r"), 1, seal=False)
    assert queue.add(b"plain", id="r/1")
    assert queue.add(b"plain", id="r/no number")
    assert queue.add(b"plain", id="other/0")
