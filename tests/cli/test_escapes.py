"""Whatever names, payloads and errors hold is shown, and does nothing to a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from cli.support import Commands, on_a_terminal
from engine_support import take
from holdfast import Queue, Server

EVIL = "\x1b]0;title\x07\x1b[31m\x9b2J\r\n\t\x08\u202ex\x7f"
OURS = re.compile(r"\x1b\[[0-9;]*m")  # Colours that click adds, when there is a terminal.


@pytest.fixture
def evil(server: Server) -> Iterator[Queue]:
    """A queue in which everything that has a name, or says something, is evil."""
    queue = Queue(f"q{EVIL}", server)
    queue.delete()
    schedules = [[EVIL, EVIL, EVIL, f"0 3 * * * {EVIL}"]]
    entry = {"handlers": [EVIL], "schedules": schedules, "schedule_count": 2, EVIL: [EVIL]}
    queue.register(alive_for=60, host=EVIL, pid=EVIL, **entry)
    queue.add(EVIL, id=f"failed{EVIL}", handler=EVIL, result_for=60)
    queue.fail(take(queue), error=EVIL)
    queue.add({EVIL: EVIL}, id=f"json{EVIL}", group=EVIL, priority=90, result_for=60)
    queue.add(EVIL.encode() + b"\xff\x1b[31m", id=f"bytes{EVIL}", result_for=60)
    queue.add(EVIL, id=f"done{EVIL}", priority=99, result_for=60, keep=True)
    queue.complete(take(queue), EVIL)
    with queue.request(f"request{EVIL}", on_failure="fail_fast", priority=99) as request:
        request.add(EVIL)
        request.add(EVIL)
    queue.fail(take(queue), error=EVIL)
    yield queue
    queue.delete()


LOOKS = [
    ("ls",),
    ("counts", "Q"),
    ("peek", "Q"),
    *(("peek", "Q", "--state", state) for state in ("failed", "parked", "ended", "leased")),
    ("failed", "Q"),
    ("failed", "Q", "--by", "error"),
    ("failed", "Q", "--by", "handler"),
    ("workers", "Q"),
    ("groups", "Q"),
    ("schedules", "Q"),
    ("fail-worker", "Q", EVIL),
    ("fail-worker", "Q", f"{EVIL}:{EVIL}"),
    *(
        (command, "Q", id)
        for command in ("show", "explain", "result")
        for id in (f"failed{EVIL}", f"json{EVIL}", f"bytes{EVIL}", f"done{EVIL}", EVIL)
    ),
    ("watch", "Q", "--times", "1"),
    ("request", "ls", "Q"),
    ("request", "show", "Q", f"request{EVIL}", "--parts"),
    ("request", "progress", "Q", f"request{EVIL}"),
    ("request", "show", "Q", EVIL),
    ("request", "seal", "Q", EVIL),
    ("request", "cancel", "Q", f"request{EVIL}", "--yes"),
    ("request", "set-limit", "Q", EVIL, "1"),
    ("revive", "Q", EVIL),
    ("cancel", "Q", EVIL),
    ("cancel", "Q", "--matching", EVIL),
    ("add", "Q", EVIL, "--id", f"json{EVIL}"),
    ("add", "Q", EVIL, "--id", f"json{EVIL}", "--on-conflict", "raise"),
    ("add", "Q", EVIL, "--delay", EVIL),
    ("delete", "Q"),
    ("doctor", "Q"),
    ("audit", "Q"),
    ("tidy", "Q", "--failed-longer-than", "1d"),
    ("doctor", "Q", "--url", f"redis://{EVIL}"),
    ("ls", "--url", f"unix:///{EVIL}"),
    (EVIL,),
]


def of(queue: Queue, look: tuple[str, ...]) -> list[str]:
    return [queue.name if word == "Q" else word for word in look]


@pytest.mark.parametrize(
    "look", LOOKS, ids=lambda look: " ".join(look[:4]).encode("unicode_escape").decode()[:60]
)
def test_nothing_that_is_written_can_do_anything(
    hf: Commands, evil: Queue, look: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from holdfast.cli import main

    for args in (of(evil, look), [*of(evil, look), "--json"]):
        result = CliRunner().invoke(main, args, env={"HOLDFAST_URL": str(evil.server.address)})
        assert not result.exception or isinstance(result.exception, SystemExit)
        assert result.output
        for line in result.output.split("\n"):
            assert line.isprintable(), ascii(line)


def test_they_are_shown(hf: Commands, evil: Queue) -> None:
    shown = r"\x1b]0;title\x07\x1b[31m\x9b2J\r\n\t\x08\u202ex\x7f"
    assert f"q{shown}" in hf("ls")
    assert f"json{shown}" in hf("peek", evil.name, "--state", "ready") + hf(
        "peek", evil.name, "--state", "parked"
    )
    assert f"error  {shown}" in re.sub(" +", "  ", hf("show", evil.name, f"failed{EVIL}"))


@pytest.mark.parametrize("look", [("peek", "Q"), ("failed", "Q"), ("show", "Q", f"failed{EVIL}")])
def test_on_a_terminal_there_are_colours_and_nothing_else(
    hf: Commands, evil: Queue, look: tuple[str, ...]
) -> None:
    code, screen = on_a_terminal(*of(evil, look), columns=400)
    assert code == 0
    assert OURS.search(screen)
    for line in OURS.sub("", screen).replace("\r\n", "\n").split("\n"):
        assert line.isprintable(), ascii(line)


def test_raw_is_raw(hf: Commands, evil: Queue) -> None:
    raw = hf.ran("show", evil.name, f"failed{EVIL}", "--raw")
    assert raw.stdout_bytes == EVIL.encode()
