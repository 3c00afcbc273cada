"""docs/guide.md and docs/server.md leave nothing out, and say the numbers that the code has."""

from __future__ import annotations

from inspect import signature

import pytest

import holdfast
from docs.pages import DOCS, blocks, code_in, rows, section
from holdfast import (
    HoldfastError,
    Job,
    JobOptions,
    Lease,
    NewJob,
    Outcome,
    Queue,
    Update,
    _keeper,
    address,
    backoff,
    server,
)
from holdfast.engine.script import BOUNDS

GUIDE, SERVER = DOCS / "guide.md", DOCS / "server.md"


def first_cells(text: str) -> set[str]:
    return {word for row in rows(text) for word in code_in(row[0])}


def test_every_method_is_in_the_guide() -> None:
    text = GUIDE.read_text()
    for name in vars(Queue):
        if not name.startswith("_") and callable(getattr(Queue, name)):
            assert f"queue.{name}(" in text or f"`{name}" in text, name


@pytest.mark.parametrize(
    ("value", "heading"),
    [
        (Update, "Changing a job"),
        (Lease, "Leasing"),
        (Outcome, "Results"),
        (Job, "Jobs"),
    ],
)
def test_all_that_a_value_has_is_in_the_guide(value: type, heading: str) -> None:
    has = {name for name in dir(value) if not name.startswith("_")} - {"id"}
    shown = {word.removesuffix("()") for word in first_cells(section(GUIDE, heading))}
    assert has <= shown


def test_every_argument_is_in_the_guide() -> None:
    assert first_cells(section(GUIDE, "A queue")) == set(signature(Queue).parameters)
    text = GUIDE.read_text()
    for method in (Queue.tidy, Queue.lease, Queue.cancel, Queue.peek, Queue.retry, Queue.register):
        for name, parameter in signature(method).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert f"{name}=" in text, (method, name)


def test_the_waits_of_a_failure_handler_are_those_of_the_code() -> None:
    text = section(GUIDE, "Failure handlers")
    assert f"after {backoff.HANDLING_MS // 1000} seconds" in text
    assert f"up to {backoff.MAX_HANDLING_MS // 60_000} minutes" in text
    assert BOUNDS["MAX_HANDLINGS"] == 100
    assert "a hundred retries" in text


def test_every_option_is_in_the_guide() -> None:
    options = set(JobOptions.__annotations__) | set(NewJob.__struct_fields__) - {"data"}
    assert first_cells(section(GUIDE, "Options")) == options | {"on_conflict"}


def test_every_error_is_in_the_guide() -> None:
    public = (getattr(holdfast, name) for name in holdfast.__all__)
    errors = {
        error.__name__
        for error in public
        if isinstance(error, type) and issubclass(error, HoldfastError)
    }
    assert errors <= set(code_in(section(GUIDE, "Errors")))


def test_the_settings_are_those_of_the_embedded_server() -> None:
    recommended = blocks(SERVER, "text")[0].code.splitlines()
    assert "appendonly yes" in recommended
    assert set(recommended) <= set(_keeper.CONFIG.splitlines())


def test_the_options_and_forms_of_a_url_are_those_of_the_code() -> None:
    shown = {word.partition("=")[0] for word in first_cells(section(SERVER, "TLS"))}
    assert shown == set(address._TLS_OPTIONS)
    forms = {word.partition("://")[0] for word in first_cells(section(SERVER, "URLs"))}
    several = {f"redis+{kind}" for kind in address._PORTS if kind}
    assert forms == {*address._TCP, *several, "unix", "embedded"}


def test_the_timeouts_are_those_of_the_code() -> None:
    shown = [value for _, value in rows(section(SERVER, "Timeouts and patience"))]
    constants = (server.CONNECT_SECONDS, server.REPLY_SECONDS, server.PATIENCE_SECONDS)
    assert [value.partition(",")[0].partition(";")[0] for value in shown] == [
        f"{seconds:.0f}" for seconds in constants
    ]
