from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import CodecError, InvalidArgument, Json, Lease
from holdfast.codec import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, decode_json, encode, encode_result


@dataclasses.dataclass
class Point:
    x: float
    y: object = None


class Named(msgspec.Struct):
    value: object


@given(st.binary())
def test_bytes_are_what_they_are(data: bytes) -> None:
    assert encode(data) == data
    assert encode(bytearray(data)) == data
    assert encode(memoryview(data)) == data
    assert encode_result(data) == data


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_text_is_its_utf_8(text: str) -> None:
    assert encode(text) == text.encode()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(math.isfinite),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON.filter(lambda value: not isinstance(value, str)))
def test_everything_else_is_json_and_comes_back(value: object) -> None:
    try:
        raw = encode(value)
    except CodecError:
        with pytest.raises(UnicodeEncodeError):  # A lone surrogate somewhere.
            json.dumps(value, ensure_ascii=False).encode()
        return
    assert json.loads(raw) == value
    assert decode_json(raw) == value
    assert Lease("a", raw, "t").json() == value


@pytest.mark.parametrize("value", [{"\0holdfast": None}, ["\0holdfast"], {"a": "\0holdfast"}])
def test_what_only_has_a_name_that_jobs_have_is_data(value: object) -> None:
    assert decode_json(encode(value)) == value
    assert decode_json(encode(Json(value))) == value


def test_a_strided_view_is_copied_as_it_reads() -> None:
    assert encode(memoryview(b"abcdef")[::2]) == b"ace"


def test_a_subclass_of_bytes_or_str_is_bytes_or_text() -> None:
    class Raw(bytes):
        pass

    class Text(str):
        __slots__ = ()

    assert encode(Raw(b"\xff")) == b"\xff"
    assert type(encode(Raw(b"x"))) is bytes
    assert encode(Text("x")) == b"x"


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (None, b"null"),
        (True, b"true"),
        ({"a": (1, 2)}, b'{"a":[1,2]}'),
        (Point(1, None), b'{"x":1,"y":null}'),
        (Named([None]), b'{"value":[null]}'),
        (datetime(2030, 1, 1, tzinfo=UTC), b'"2030-01-01T00:00:00Z"'),
        ("null", b"null"),
        (["null", None], b'["null",null]'),
    ],
)
def test_what_json_can_say_is_said(value: object, raw: bytes) -> None:
    assert encode(value) == raw


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        [math.nan],
        {"a": {"b": (1, math.inf)}},
        {1, math.inf},
        Point(math.nan),
        Point(0, [Point(math.inf)]),
        Named({"a": math.nan}),
        [None, "null", math.nan],
    ],
    ids=repr,
)
def test_a_number_that_json_cannot_say_is_not_lost_without_a_word(value: object) -> None:
    with pytest.raises(CodecError, match="NaN and infinity"):
        encode(value)


@pytest.mark.parametrize(
    "value", [object(), 5j, lambda: None, {"a": object()}, "\ud800", ["\ud800"]]
)
def test_what_cannot_be_encoded_is_a_codec_error(value: object) -> None:
    with pytest.raises(CodecError, match="payload cannot be written"):
        encode(value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = [None]
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [10, 400, 600, 800, 950, 5000])
def test_however_deep_it_is_encoded_or_refused(depth: int) -> None:
    try:
        raw = encode(nested(depth))
    except CodecError:
        assert depth > 300
    else:
        assert raw == b"[" * (depth + 1) + b"null" + b"]" * (depth + 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"{",
        b"nul",
        b'{"a":NaN}',
        b'"\\ud800"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
        b"1e999",
        b"[1] [2]",
    ],
    ids=lambda raw: repr(raw[:10]),
)
def test_what_is_not_json_is_a_codec_error(raw: bytes) -> None:
    with pytest.raises(CodecError, match="not JSON"):
        Lease("a", raw, "t").json()


def test_the_limits_are_exact() -> None:
    assert len(encode(b"x" * MAX_PAYLOAD_BYTES)) == MAX_PAYLOAD_BYTES
    assert len(encode_result(b"x" * MAX_RESULT_BYTES)) == MAX_RESULT_BYTES
    with pytest.raises(InvalidArgument, match=r"payload has 8388609 bytes.* queue a reference"):
        encode(b"x" * (MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(InvalidArgument, match=r"result has 1048577 bytes.* keep a reference"):
        encode_result(b"x" * (MAX_RESULT_BYTES + 1))


def test_an_error_does_not_repeat_the_payload() -> None:
    for value in ("secret\ud800" * 1000, {"a": "secret\ud800"}):
        with pytest.raises(CodecError) as error:
            encode(value)
        assert "secret" not in str(error.value)
