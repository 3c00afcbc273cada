"""What commands have in common: help, errors, exit codes, pipes, Ctrl-C."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import click
import pytest
import redis

from cli.support import COMMAND, Commands, interrupted, on_a_terminal, started
from engine_support import own_server
from holdfast import Queue
from holdfast.cli import options
from holdfast.cli.main import _COMMANDS, main
from holdfast.server.embedded import find_binary
from support import DEADLINE, wait_until

HEAVY = {"psutil", "asyncio", "pyspark", "rich", "redis", "multiprocessing", "holdfast.worker"}


def every_command() -> list[tuple[str, ...]]:
    context = click.Context(main)
    found: list[tuple[str, ...]] = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.commands]
    return found


def test_the_commands_are_those_that_are_promised() -> None:
    assert set(_COMMANDS) == {
        "add",
        "work",
        "ls",
        "counts",
        "watch",
        "peek",
        "show",
        "explain",
        "result",
        "cancel",
        "failed",
        "revive",
        "pause",
        "resume",
        "tidy",
        "repair",
        "audit",
        "delete",
        "workers",
        "fail-worker",
        "groups",
        "schedules",
        "events",
        "request",
        "pipeline",
        "server",
        "doctor",
        "load",
        "acl",
        "bench",
        "lease",
        "extend",
        "complete",
        "retry",
        "fail",
        "release",
    }


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_list_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command
    assert command.get_short_help_str(200) == _COMMANDS[name][1]


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_has_short_help_with_examples(hf: Commands, command: tuple[str, ...]) -> None:
    text = hf(*command, "--help")
    assert f"Examples:\n    holdfast {' '.join(command)}" in text
    assert len(text.splitlines()) <= 60
    assert hf(*command, "-h") == text


LOOKING = ["ls", "counts", "watch", "peek", "show", "explain", "result", "failed", "workers"]
LOOKING += ["audit", "doctor", "bench", "groups", "schedules", "events"]


@pytest.mark.parametrize(
    "command",
    [
        *LOOKING,
        "request ls",
        "pipeline ls",
        "request show",
        "request create",
        "request progress",
        "add",
        "tidy",
        "repair",
    ],
)
def test_what_is_read_can_be_had_as_json(hf: Commands, command: str) -> None:
    assert "--json " in hf(*command.split(), "--help")


GROUPS = {("request",), ("pipeline",)}


@pytest.mark.parametrize("command", [c for c in every_command() if c not in GROUPS], ids=" ".join)
def test_every_command_takes_a_url(hf: Commands, command: tuple[str, ...]) -> None:
    assert "--url " in hf(*command, "--help") or command in (("server",), ("acl",))


@pytest.mark.parametrize("name", ["extend", "complete", "retry", "fail", "release"])
def test_the_help_of_what_takes_a_lease_says_where_it_comes_from(hf: Commands, name: str) -> None:
    text = " ".join(hf(name, "--help").split())
    assert "Reads the lease from stdin, as `holdfast lease` printed it" in text
    assert "Exits with 4" in text
    assert "another worker" in text  # So it says why the run is to be dropped.


@pytest.mark.parametrize("name", ["lease", "extend", "retry", "release"])
def test_the_help_says_how_a_duration_is_written(hf: Commands, name: str) -> None:
    assert "DURATION is 90, 250ms, 5m or 1h30m" in " ".join(hf(name, "--help").split())


def test_the_help_says_what_a_lease_is(hf: Commands) -> None:
    text = " ".join(hf("lease", "--help").split())
    assert "Take jobs for a limited time" in text
    assert "another worker gets it" in text


def test_help_and_version(hf: Commands) -> None:
    assert hf("--help") == hf("-h")
    assert "holdfast" in hf("--version")
    for name in _COMMANDS:
        assert f"  {name} " in hf("--help")


def modules_of(*args: str) -> set[str]:
    program = "import sys; from holdfast.cli import main\n"
    program += f"try: main({list(args)!r})\nfinally: print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.split())


def test_help_imports_nothing_that_it_does_not_need(hf: Commands) -> None:
    loaded = modules_of("--help")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("holdfast.cli.")} == {"holdfast.cli.main"}


def test_looking_imports_neither_workers_nor_asyncio(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    assert not modules_of("counts", queue.name) & HEAVY


def test_what_is_imported_later_is_there_all_the_same() -> None:
    program = (
        "import holdfast; print(holdfast.Worker.__name__, holdfast.AsyncQueue.__name__)"
        "\nprint('Worker' in dir(holdfast))"
    )
    program += "\ntry: holdfast.nothing\nexcept AttributeError as error: print(error)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "Worker AsyncQueue",
        "True",
        "module 'holdfast' has no attribute 'nothing'",
    ]


# ----------------------------------------------------------------------------- errors


def test_a_server_that_is_not_there_is_one_line(hf: Commands) -> None:
    result = hf.ran("counts", "q", "--url", "redis://127.0.0.1:1", code=1)
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: redis://127.0.0.1:1/0: ")
    assert line.endswith(". Nothing was changed. Run `holdfast doctor` to check the server")


def test_an_embedded_server_that_does_not_start_is_one_line(
    hf: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "fake"
    version = f'if [ "$1" = --version ]; then exec "{find_binary()}" "$1"; fi'
    fake.write_text(f"#!/bin/sh\n{version}\necho no luck today; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("HOLDFAST_SERVER_BINARY", str(fake))
    result = hf.ran("counts", "q", "--url", f"embedded://{tmp_path}/data", code=1)
    [line] = result.stderr.splitlines()
    assert "ends as soon as it is started: no luck today" in line
    assert "server.log" in line
    assert line.endswith("Run `holdfast doctor` to check the server")


def test_an_unknown_command_or_option_is_a_usage_error(hf: Commands) -> None:
    assert "No such command 'nothing'" in hf.error("nothing", code=2)
    assert "No such option" in hf.error("counts", "q", "--nothing", code=2)
    assert "Missing argument 'QUEUE'" in hf.error("counts", code=2)


def test_no_password_is_written(hf: Commands) -> None:
    result = hf.ran("counts", "q", "--url", "redis://u:hunter2@127.0.0.1:1", code=1)
    assert "hunter2" not in result.output
    assert "u:***@" in result.output


# ----------------------------------------------------------------------------- pipes, Ctrl-C


def test_a_reader_who_has_enough_is_no_error(hf: Commands, queue: Queue) -> None:
    queue.add_many([b"x" * 1000] * 1000)
    with started("peek", queue.name, "-n", "1000") as process:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, err) == (0, "")


def test_closed_streams_are_empty_ones(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    for args in (["peek", "--raw"], ["peek"], ["watch", "--times", "1"], ["add", "--lines"]):
        said = shlex.join([*COMMAND, *args, queue.name])
        ran = subprocess.run(["/bin/sh", "-c", f"{said} <&- >&-"], capture_output=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_closed_stderr_does_not_let_errors_go_to_stdout(hf: Commands, queue: Queue) -> None:
    said = shlex.join([*COMMAND, "show", queue.name, "nobody"])
    ran = subprocess.run(["/bin/sh", "-c", f"{said} 2>&-"], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, b"")


def test_a_full_disk_is_one_line(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    with Path("/dev/full").open("w") as full, started("peek", queue.name, stdout=full) as process:
        _, err = process.communicate(timeout=DEADLINE)
        said = "Error: cannot write the output: No space left on device. "
        assert (process.returncode, err) == (1, f"{said}The command itself was not undone\n")


def test_ctrl_c_ends_with_130_and_no_traceback(
    hf: Commands, queue: Queue, client: redis.Redis
) -> None:
    queue.add(b"x", id="a")
    with started("result", queue.name, "a", "--wait", "1h") as process:
        channel = f"hf:{{{queue.name}}}:events".encode()
        wait_until(lambda: channel in client.pubsub_channels(), "the command to listen")
        assert interrupted(process) == (130, "", "")


def test_colours_are_for_terminals_and_can_be_had_without(
    hf: Commands, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.add(b"x")
    assert "\x1b[1m" in on_a_terminal("peek", queue.name)[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal("peek", queue.name, colours=False)[1]
    piped = subprocess.run(
        [*COMMAND, "peek", queue.name], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in piped.stdout


def test_letters_that_a_terminal_cannot_write_are_escaped(hf: Commands, queue: Queue) -> None:
    queue.add("ü €", id="a")
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ran = subprocess.run(
        [*COMMAND, "peek", queue.name], capture_output=True, check=True, env=environment
    )
    assert "ü \\u20ac" in ran.stdout.decode("latin-1")


def test_a_shell_can_complete_commands() -> None:
    environment = {**os.environ, "_HOLDFAST_COMPLETE": "bash_complete"}
    environment |= {"COMP_WORDS": "holdfast d", "COMP_CWORD": "1"}
    program = "from holdfast.cli import main; main(prog_name='holdfast')"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.stdout.split() == ["plain,delete", "plain,doctor"]


def test_ctrl_c_at_a_question_is_an_interruption_and_no_answer(hf: Commands, queue: Queue) -> None:
    queue.add(b"x")
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        [*COMMAND, "delete", queue.name], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 65536)
    while asked.poll() is None:  # One that comes right before Python reads is heard with the next.
        asked.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            asked.wait(3)
    assert asked.returncode == 130
    os.close(ours)
    assert on_a_terminal("delete", queue.name, typed=b"n\n")[0] == 1
    assert queue.counts().ready == 1


def test_the_patience_of_a_url_counts_for_commands(
    hf: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "PATIENCE", 0)
    with own_server() as server:
        server.kill()
        returns = threading.Timer(1, server.launch)
        returns.start()
        assert hf("ls", "--url", f"{server.url}?patience={DEADLINE}") == ""
        returns.join()
