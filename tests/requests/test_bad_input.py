"""What cannot be meant is refused before anything is sent, or before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from conftest import Clock
from engine_support import Behind
from holdfast import CodecError, InvalidArgument, NewJob, Queue
from holdfast.engine import library
from holdfast.engine.library import Function

LONGEST = 480


@pytest.mark.parametrize(
    "id", ["", "r/end", "/end", "x" * (LONGEST + 1), "ü" * (LONGEST // 2 + 1), b"r", 7, "\ud800"]
)
def test_an_id_that_could_not_name_its_parts_is_refused(queue: Queue, id: Any) -> None:
    with pytest.raises(InvalidArgument, match="request"):
        queue.request(id)


def test_the_longest_id_has_the_longest_parts_and_follow_ups(queue: Queue) -> None:
    request = queue.request("x" * LONGEST, follow_up=b"")
    request.open()
    request.add(b"")
    request.seal()
    assert queue.lease_many(9, 60, complete=queue.lease_many(9, 60))[0].id == request.id + "/end/1"


@pytest.mark.parametrize("id", ["end", "r/end/1", "r/ end", "end/", "a b", "0", "r/0"])
def test_an_id_that_merely_looks_odd_is_taken(queue: Queue, id: str) -> None:
    request = queue.request(id)
    request.open()
    assert request.add(b"").id == f"{id}/0"
    assert [status.id for status in queue.requests()] == [id]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"priority": 100}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"limit": -1}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": 2**31 + 1}, "limit"),
        ({"limit": "4"}, "limit"),
        ({"on_failure": "stop"}, "on_failure"),
        ({"keep_for": -1}, "keep_for"),
        ({"keep_for": None}, "keep_for"),
        ({"open_for": 0}, "open_for"),
        ({"open_for": -1}, "open_for"),
        ({"append": 1}, "append"),
        ({"follow_up": object()}, "object"),
        ({"follow_up": NewJob(b"", priority=100)}, "priority"),
    ],
)
def test_a_bad_option_is_refused(
    queue: Queue, behind: Behind, options: dict[str, Any], match: str
) -> None:
    with pytest.raises((InvalidArgument, CodecError), match=match):
        queue.request("r", **options)
    assert behind.everything() == {}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"result_for": 60}, "'result_for': a part may have .*; its result is kept"),
        ({"remember_for": 60}, "'remember_for'"),
        ({"keep": True}, "'keep'"),
        ({"group": "g"}, "'group'"),
        ({"group_limit": 1}, "'group_limit'"),
        ({"nonsense": 1}, "'nonsense'"),
        ({"priority": 100}, "priority"),
        ({"max_failures": -1}, "max_failures"),
        ({"handler": ""}, "handler"),
    ],
)
def test_a_part_may_not_have_what_its_request_decides(
    queue: Queue, options: dict[str, Any], match: str
) -> None:
    request = queue.request("r")
    request.open()
    with pytest.raises(InvalidArgument, match=match):
        request.add(b"", **options)
    with pytest.raises(InvalidArgument, match=match):
        request.add_many([b""], **options)
    assert request.status().total == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda request: request.add(b"", number=-1),
        lambda request: request.add(b"", number=1.0),
        lambda request: request.add(b"", number=True),
        lambda request: request.add(b"", delay=1, at=1),
        lambda request: request.add(b"", delay=-1),
        lambda request: request.add_many(b"bytes"),
        lambda request: request.add_many("text"),
        lambda request: request.add_many({"a": 1}),
        lambda request: request.add_many(7),
        lambda request: request.set_limit(-1),
        lambda request: request.set_limit(2.0),
        lambda request: request.set_priority(100),
        lambda request: request.set_priority(None),
        lambda request: request.wait(-1),
        lambda request: request.wait("1"),
    ],
)
def test_a_bad_argument_is_refused_and_nothing_is_changed(
    queue: Queue, ask: Callable[[Any], object]
) -> None:
    request = queue.request("r")
    request.open()
    before = request.status()
    with pytest.raises(InvalidArgument):
        ask(request)
    assert request.status() == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"group_limit": 1}, "group_limit needs a group"),
        ({"group": None, "group_limit": None}, "group_limit needs a group"),
        ({"group": ""}, "group"),
        ({"group": 7}, "group"),
        ({"group": "x" * 513}, "group"),
        ({"group": "g/end"}, "'/end'"),
        ({"group": "g", "group_limit": -1}, "group_limit"),
        ({"group": "g", "group_limit": 1.5}, "group_limit"),
        ({"group": "g", "group_limit": True}, "group_limit"),
    ],
)
def test_a_bad_group_is_refused(
    queue: Queue, behind: Behind, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidArgument, match=match):
        queue.add(b"", **options)
    with pytest.raises(InvalidArgument, match=match):
        queue.add_many([NewJob(b"", **options)])
    with pytest.raises(InvalidArgument, match=match):
        Queue("q", queue.server, defaults=options)  # type: ignore[arg-type]
    assert behind.everything() == {}


@pytest.mark.parametrize(("group", "limit"), [("", 1), (7, 1), ("g", -1), ("g", "1"), ("g/end", 1)])
def test_a_bad_limit_of_a_group_is_refused(queue: Queue, group: Any, limit: Any) -> None:
    queue.add(b"", group="g", group_limit=3)
    with pytest.raises(InvalidArgument):
        queue.set_group_limit(group, limit)
    assert queue.groups()[0].limit == 3


def test_the_name_of_a_group_may_be_as_long_as_an_id(queue: Queue) -> None:
    queue.add(b"", group="x" * 512)
    assert queue.lease(60)


def test_a_number_beyond_all_bounds_is_refused(queue: Queue) -> None:
    request = queue.request("r")
    request.open()
    with pytest.raises(InvalidArgument, match="number"):
        request.add(b"", number=2**41)


def test_who_calls_the_scripts_raw_is_refused_too(
    queue: Queue, behind: Behind, clock: Clock
) -> None:
    queue.request("r").open()
    before = behind.everything()
    asked: list[tuple[Function, list[object]]] = [
        (library.OPEN_REQUEST, ["x/end", 50, "", 0, 0, "", ""]),
        (library.OPEN_REQUEST, ["x" * 481, 50, "", 0, 0, "", ""]),
        (library.OPEN_REQUEST, ["x", 100, "", 0, 0, "", ""]),
        (library.OPEN_REQUEST, ["x", 50, "nan", 0, 0, "", ""]),
        (library.OPEN_REQUEST, ["x", 50, "", 0, "-1", "", ""]),
        (library.OPEN_REQUEST, ["x", 50, "", 0, 0, 0, ""]),
        (library.OPEN_REQUEST, ["x", 50, "", 0, 0, "", 1, 50, "", "", 1, "id", "y" * 9000]),
        (library.ADD_PARTS, ["r", 0, 50, "", ""]),
        (library.ADD_PARTS, ["r", 1, 50, "", "", "payload"]),
        (library.ADD_PARTS, ["r", "0x0", 50, "", "", "payload"]),
        (library.ADD_PARTS, ["r", 0, 50, "", "junk", "payload"]),
        (library.ADD_PARTS, ["r", 0, 50, "", "", *["payload"] * 1001]),
        (library.ADD_PARTS, ["", 0, 50, "", "", "payload"]),
        (library.CHANGE_REQUEST, ["", "", "", "", ""]),
        (library.CHANGE_REQUEST, ["r", "", "", "1e3", ""]),
        (library.CHANGE_REQUEST, ["r", "", "", "", "100"]),
    ]
    for number, (script, args) in enumerate(asked, 1):
        with pytest.raises(redis.ResponseError, match=r"INVALID|GAP"):
            behind.run(script, clock(), "caller", number, *args)
    assert behind.everything() == before
