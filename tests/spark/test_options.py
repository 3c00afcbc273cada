"""Options and columns: what is wrong is refused by its name, before anything is sent."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.datasource import CaseInsensitiveDict

from holdfast import InvalidArgument
from holdfast.job import Row
from holdfast.server.embedded import default_directory
from holdfast.spark.columns import check_columns, jobs_of
from holdfast.spark.options import Place, look_options, sink_options, source_options

PLACE = {"queue": "emails", "url": "redis://h"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option 'queue' is missing"),
        ({"queue": ""}, "option 'queue'"),
        ({"queue": "}x"}, "option 'queue': queue name must not begin with"),
        ({"queue": "q" * 513}, "option 'queue': queue name must have 1 to 512 bytes"),
        ({**PLACE, "qeue": "x"}, "unknown option 'qeue': a batch read has url, queue, state"),
        ({**PLACE, "path": "x"}, "take no path here"),
        ({**PLACE, "reader": "x"}, "unknown option 'reader'"),
        ({**PLACE, "state": "redy"}, "option 'state' must be one or more of ready, parked"),
        ({**PLACE, "state": ""}, "option 'state'"),
        ({**PLACE, "url": "http://h"}, "option 'url': url must begin with"),
        ({**PLACE, "url": "redis://h/x"}, "option 'url': url names a database"),
    ],
)
def test_a_wrong_option_of_a_look_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        look_options(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (PLACE, "option 'reader' is missing"),
        ({**PLACE, "reader": ""}, "option 'reader'"),
        ({**PLACE, "reader": "a b"}, "option 'reader'.*white space"),
        ({**PLACE, "reader": "r" * 441}, "option 'reader'"),
        ({**PLACE, "reader": "r", "maxJobsPerTrigger": "0"}, "option 'maxJobsPerTrigger'"),
        ({**PLACE, "reader": "r", "maxJobsPerTrigger": "1e3"}, "option 'maxJobsPerTrigger'"),
        ({**PLACE, "reader": "r", "maxJobsPerTrigger": "9" * 10}, "option 'maxJobsPerTrigger'"),
        ({**PLACE, "reader": "r", "maxJobsPerPartition": "-1"}, "option 'maxJobsPerPartition'"),
        ({**PLACE, "reader": "r", "claimFor": "nan"}, "option 'claimFor' must be seconds"),
        ({**PLACE, "reader": "r", "claimFor": "1 hour"}, "option 'claimFor' must be seconds"),
        ({**PLACE, "reader": "r", "claimFor": "0"}, "option 'claimFor' must be seconds"),
        ({**PLACE, "reader": "r", "writer": "w"}, "unknown option 'writer'"),
    ],
)
def test_a_wrong_option_of_a_source_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        source_options(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({**PLACE, "writer": "w"}, "unknown option 'writer': a batch write has url, queue"),
        ({**PLACE, "checkpointLocation": "c"}, "unknown option 'checkpointLocation'"),
        ({**PLACE, "stagedFor": "-1"}, "option 'stagedFor' must be seconds"),
    ],
)
def test_a_wrong_option_of_a_sink_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        sink_options(given, stream=False)


def test_a_writers_name_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="option 'writer'"):
        sink_options({**PLACE, "writer": "w" * 441}, stream=True)


def test_case_does_not_count_as_spark_has_it() -> None:
    given = CaseInsensitiveDict({**PLACE, "READER": "r", "MaxJobsPerTrigger": "5"})
    options = source_options(given)
    assert (options.reader, options.max_jobs, options.claim_for) == ("r", 5, 3600)


def test_a_place_is_pickled_with_its_password_and_shows_none() -> None:
    options = sink_options({"queue": "q", "url": "redis://u:secret@h"}, stream=False)
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_url_is_that_of_the_environment_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://from-the-environment")
    assert look_options({"queue": "q"}).place.url == "redis://from-the-environment"
    monkeypatch.delenv("HOLDFAST_URL")
    assert look_options({"queue": "q"}).place.url == f"embedded://{default_directory()}"


def test_an_embedded_server_is_the_same_one_for_executors_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / ".holdfast").mkdir(mode=0o700)
    for url in (None, "embedded://", "embedded://.holdfast"):
        options = {"queue": "q"} if url is None else {"queue": "q", "url": url}
        assert look_options(options).place.url == f"embedded://{tmp_path}/.holdfast"


def test_an_embedded_server_is_no_other_machines() -> None:
    with pytest.raises(InvalidArgument, match="which other machines cannot reach"):
        Place("q", "embedded://", host="another machine").open()


# ------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id string", "column 'value' is missing, the payload of a job; the columns are 'id'"),
        ("value string, valeu string", "unknown column 'valeu': a job has 'value', 'id'"),
        ("value integer", "column 'value' must be binary, string or a struct, not int"),
        ("value array<string>", "column 'value' must be binary, string or a struct, not array"),
        ("value string, id integer", "column 'id' must be a string, not int"),
        ("value string, priority double", "column 'priority' must be a whole number"),
        ("value string, delay string", "column 'delay' must be a number of seconds"),
        ("value string, due_at date", "column 'due_at' must be a timestamp"),
        ("value string, delay integer, due_at timestamp", "column 'delay' or column 'due_at'"),
        ("value string, id string, request string", "column 'id' or column 'request'"),
        ("value string, value string", "column 'value' appears more than once"),
    ],
)
def test_a_wrong_column_is_named(columns: str, told: str) -> None:
    schema = types.StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind if kind != "array<string>" else types.ArrayType(types.StringType()))
    with pytest.raises(InvalidArgument, match=told):
        check_columns(schema)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), **columns})


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": pa.array([None], pa.binary())}, "column 'value' has a null"),
        ({"value": pa.array([{"a": math.nan}])}, "column 'value': .*NaN"),
        ({"id": pa.array([None], pa.string())}, "column 'id' has a null"),
        ({"id": pa.array([""])}, "column 'id' must have 1 to 512 bytes"),
        ({"id": pa.array(["i" * 513])}, "column 'id' must have 1 to 512 bytes"),
        ({"priority": pa.array([100])}, "column 'priority' must be 0 to 99, not 100"),
        ({"delay": pa.array([-1.0])}, "column 'delay' must be seconds, from 0"),
        ({"delay": pa.array([math.nan])}, "column 'delay' must be seconds, from 0"),
        ({"due_at": pa.array([-1], pa.timestamp("us", tz="UTC"))}, "column 'due_at'"),
        ({"request": pa.array([""])}, "column 'request' must have 1 to 512 bytes"),
    ],
)
def test_a_wrong_value_is_named_by_its_column(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        list(jobs_of(batch(**columns)))


def test_rows_become_jobs() -> None:
    due = datetime(2100, 1, 1, tzinfo=UTC)
    rows = jobs_of(
        batch(
            value=pa.array(["ü", "b"]),
            id=pa.array(["1", "2"]),
            priority=pa.array([None, 7], pa.int32()),
            due_at=pa.array([due, None], pa.timestamp("us", tz="UTC")),
        )
    )
    assert list(rows) == [
        Row("ü".encode(), id="1", at=due.timestamp()),
        Row(b"b", id="2", priority=7),
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"ab", b""]),
        pa.array(["ab", ""]),
        pa.array([b"ab", b""], pa.large_binary()),
        pa.array(["ab", ""], pa.large_string()),
    ],
    ids=lambda column: str(column.type),
)
def test_bytes_and_text_are_payloads_as_they_are(column: pa.Array) -> None:
    assert list(jobs_of(batch(value=column))) == [b"ab", b""]


def test_a_struct_becomes_json() -> None:
    kind = pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.int64())), ("n", pa.int8())])
    column = pa.array([{"a": 2**60, "m": [("k", 1)], "n": None}], kind)
    [payload] = jobs_of(batch(value=column))
    assert payload == b'{"a":1152921504606846976,"m":{"k":1},"n":null}'
