"""The reference leaves nothing out, and says the numbers that the code has."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

import holdfast
from docs.pages import DOCS, ROOT, blocks, code_in, rows, section
from holdfast import (
    HoldfastError,
    Job,
    JobOptions,
    Lease,
    NewJob,
    Outcome,
    Queue,
    Update,
    Worker,
    failures,
    spark,
    testing,
)
from holdfast.connection import address, conversation
from holdfast.engine.library import BOUNDS
from holdfast.server import keeper

QUEUE, FAILURES, OPERATING = DOCS / "queue.md", DOCS / "failures.md", DOCS / "operating.md"
SERVER = DOCS / "server.md"
ABOUT_QUEUES = [QUEUE, FAILURES, OPERATING]
ABOUT_QUEUES += [DOCS / f"{name}.md" for name in ("requests", "periodic", "connectors", "workers")]


def first_cells(text: str) -> set[str]:
    return {word for row in rows(text) for word in code_in(row[0])}


def test_every_method_is_in_the_reference() -> None:
    text = "".join(page.read_text() for page in ABOUT_QUEUES)
    for name in vars(Queue):
        if not name.startswith("_") and callable(getattr(Queue, name)):
            assert f"queue.{name}(" in text or f"`{name}" in text, name


@pytest.mark.parametrize(
    ("value", "page", "heading"),
    [
        (Update, QUEUE, "Changing a job"),
        (Lease, QUEUE, "Leasing"),
        (Outcome, QUEUE, "Results"),
        (Job, OPERATING, "Jobs"),
    ],
)
def test_all_that_a_value_has_is_in_the_reference(value: type, page: Path, heading: str) -> None:
    has = {name for name in dir(value) if not name.startswith("_")} - {"id"}
    shown = {word.removesuffix("()") for word in first_cells(section(page, heading))}
    assert has <= shown


def test_every_argument_is_in_the_reference() -> None:
    assert first_cells(section(QUEUE, "A queue")) == set(signature(Queue).parameters)
    shown = first_cells(section(DOCS / "workers.md", "Arguments"))
    assert shown == set(signature(Worker).parameters)
    text = "".join(page.read_text() for page in ABOUT_QUEUES)
    for method in (Queue.tidy, Queue.lease, Queue.cancel, Queue.peek, Queue.retry, Queue.register):
        for name, parameter in signature(method).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert f"{name}=" in text, (method, name)


def test_the_waits_of_a_failure_handler_are_those_of_the_code() -> None:
    text = section(FAILURES, "Failure handlers")
    assert f"after {failures.DEFAULT_HANDLING.min_backoff_ms // 1000} seconds" in text
    assert f"up to {failures.DEFAULT_HANDLING.max_backoff_ms // 60_000} minutes" in text
    assert BOUNDS["MAX_HANDLINGS"] == 100
    assert "a hundred retries" in text


def test_every_public_name_is_in_the_api() -> None:
    named = re.findall(r"auto(?:class|function):: ([\w.]+)", (DOCS / "api.md").read_text())
    public = {f"holdfast.{name}" for name in holdfast.__all__}
    public |= {
        f"{module.__name__}.{name}" for module in (spark, testing) for name in module.__all__
    }
    assert sorted(named) == sorted(public | {"holdfast.doctor.examine"})


def test_every_option_is_in_the_reference() -> None:
    options = set(JobOptions.__annotations__) | set(NewJob.__struct_fields__) - {"data"}
    assert first_cells(section(QUEUE, "Options")) == options | {"on_conflict"}


def test_every_error_is_in_the_reference() -> None:
    public = (getattr(holdfast, name) for name in holdfast.__all__)
    errors = {
        error.__name__
        for error in public
        if isinstance(error, type) and issubclass(error, HoldfastError)
    }
    assert errors <= set(code_in(section(DOCS / "errors.md", "All of them")))


def test_the_settings_are_those_of_the_embedded_server() -> None:
    recommended = blocks(SERVER, "text")[0].code.splitlines()
    assert "appendonly yes" in recommended
    assert set(recommended) <= set(keeper.CONFIG.splitlines())


def test_the_options_and_forms_of_a_url_are_those_of_the_code() -> None:
    shown = {word.partition("=")[0] for word in first_cells(section(SERVER, "TLS"))}
    assert shown == set(address._TLS_OPTIONS)
    forms = {word.partition("://")[0] for word in first_cells(section(SERVER, "URLs"))}
    several = {f"redis+{kind}" for kind in address._PORTS if kind}
    assert forms == {*address._TCP, *several, "unix", "embedded"}


def test_the_timeouts_are_those_of_the_code() -> None:
    shown = [value for _, value in rows(section(SERVER, "Timeouts and patience"))]
    constants = (
        conversation.CONNECT_SECONDS,
        conversation.REPLY_SECONDS,
        conversation.PATIENCE_SECONDS,
    )
    assert [value.partition(",")[0].partition(";")[0] for value in shown] == [
        f"{seconds:.0f}" for seconds in constants
    ]


def test_every_peer_in_the_readme_has_its_sources() -> None:
    peers = [row[0].split(" (")[0] for row in rows(section(ROOT / "README.md", "Beside others"))]
    named = [row[0] for row in rows((DOCS / "comparison.md").read_text())]
    assert peers[0] == "**Holdfast**"
    assert [peer.split(" on ")[0].split(",")[0] for peer in peers[1:]] == named
