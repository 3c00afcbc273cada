"""What is logged is one line per event, whatever ids, names and errors hold."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import Fail, Queue, Retry, RunningJob
from holdfast.escaping import logger
from worker.support import work_off

FORGED = "2030-01-31 08:00:00 INFO    all is well"
NASTY = {
    "a line": f"x\n{FORGED}",
    "a carriage return": f"x\r{FORGED}",
    "an escape sequence": "x\x1b[2J\x1b]0;title\x07",
    "a control of eight bits": "x\x9b2J",
    "a line of Unicode's": f"x\u2028{FORGED}",
    "a paragraph": f"x\u2029{FORGED}",
    "letters that turn the line": "x\u202egpj.exe\u2066\u200f",
    "what could be tabs": "x\t\x0b\x0c\x85",
}
SURROGATE = "x\udc80\ud800"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines that were logged: with one per record, and tracebacks indented below."""
    assert all(record.getMessage().isprintable() for record in caplog.records)
    lines = caplog.text.split("\n")
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert not line.startswith("2030"), line
    return lines


@pytest.mark.parametrize("case", NASTY)
@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("raised", [Fail, Retry, ValueError])
def test_ids_and_errors_are_logged_on_one_line(
    live_queue: Queue,
    caplog: pytest.LogCaptureFixture,
    case: str,
    executor: str,
    raised: type[Exception],
) -> None:
    nasty = NASTY[case]
    live_queue.add(b"", id=f"id {nasty}", max_failures=0)

    def handle(job: RunningJob) -> None:
        error = raised(f"error {nasty}")
        error.add_note(f"note\n{nasty}")
        raise error from LookupError(f"cause {nasty}")

    work_off(live_queue, handle, executor=executor)
    lines = lines_of(caplog)
    escaped = ascii(nasty)[1:-1]
    [line] = [line for line in lines if f"id {escaped}" in line]
    assert f"error {escaped}" in line
    if raised is ValueError and executor == "thread":
        assert "raise error from LookupError" in caplog.text  # Tracebacks stay as they are.


def test_what_cannot_be_written_as_utf8_is_escaped(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    live_queue.add(b"", id="a")

    def handle(job: RunningJob) -> None:
        raise ValueError(SURROGATE)

    work_off(live_queue, handle)
    assert any(r"x\udc80\ud800" in line for line in lines_of(caplog))


def test_names_of_handlers_and_queues_are_escaped(
    live_queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    live_queue.add(b"", id="a", handler=f"nobody\n{FORGED}")
    work_off(live_queue, print)
    assert any(r"nobody\n2030" in line for line in lines_of(caplog))


def test_what_a_format_makes_of_other_objects_is_escaped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd:
        def __str__(self) -> str:
            return f"odd\n{FORGED}"

    log = logger("holdfast.test")
    log.warning("%s, %d and %s", Odd(), 5, "as it is")
    log.warning("%(what)s", {"what": f"x\n{FORGED}"})
    log.warning(f"no arguments\n{FORGED}")  # noqa: G004
    lines_of(caplog)
    assert r"odd\n2030-01-31 08:00:00 INFO    all is well, 5 and as it is" in caplog.text
    assert r"no arguments\n2030" in caplog.text


def test_what_cannot_be_formatted_is_left_to_the_handlers() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no words")

    log = logger("holdfast.test")
    record = log.makeRecord("holdfast.test", logging.WARNING, "", 1, "%r", (Broken(),), None)
    assert log.filter(record)


def test_a_record_that_needs_no_escapes_keeps_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, error = logger("holdfast.test"), ValueError("plain")
    log.warning("%s: %s", "id", error, exc_info=error)
    log.warning("%s: %s", "i\nd", error)
    plain, escaped = caplog.records
    assert (plain.args, plain.exc_info) == (("id", error), (ValueError, error, None))
    assert escaped.args == ("i\\nd", error)


def test_every_logger_of_holdfast_is_the_one_that_escapes() -> None:
    found = [
        (path.name, name)
        for path in Path(holdfast.__file__).parent.rglob("*.py")
        for name in re.findall(r"^\w*log = ([^\n]*)", path.read_text(), re.MULTILINE)
    ]
    assert found
    assert {name for _, name in found} == {"logger(__name__)", 'logger("holdfast.jobs")'}
