"""docs/cli.md is one session that runs as it is shown, and leaves nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.pages import DOCS, blocks, code_in, rows, section
from engine_support import own_server
from holdfast.cli.main import _COMMANDS, main
from holdfast.health import FULL, OPTIONAL, PATCHED, SLOW_MS, TIERS
from support import DEADLINE

PAGE = DOCS / "cli.md"


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command that the page shows, and what it is said to write."""
    for block in blocks(PAGE, "console"):
        for step in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield command, output


def fits(output: str, shown: str) -> bool:
    """Tell whether an output is what is shown, with `…` for any part of a line."""
    return bool(re.fullmatch(re.escape(shown).replace("…", ".*"), output))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A directory with what the page speaks of, and a server without other queues."""
    (tmp_path / "letter.bin").write_bytes(b"\x00\xff")
    (tmp_path / "jobs.py").write_text(blocks(PAGE, "python")[0].code)
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    with own_server("--appendonly", "yes") as server:
        yield {
            **os.environ,
            "HOLDFAST_URL": server.url,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
        }


def test_the_session_runs_as_it_is_shown(shell: dict[str, str], tmp_path: Path) -> None:
    ran = 0
    for command, shown in steps():
        result = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env=shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        output = result.stdout if result.stdout.endswith("\n") else result.stdout + "\n"
        assert fits(output if result.stdout else "", shown), f"{command}\n{result.stdout}"
        ran += 1
    assert ran > 25


def test_every_command_and_every_way_to_steer_a_request_is_on_the_page() -> None:
    text = PAGE.read_text()
    for name in _COMMANDS:
        assert re.search(rf"`{name}\b|holdfast {name}\b", text), name
    group = main.get_command(click.Context(main), "request")
    assert isinstance(group, click.Group)
    shown = {code_in(row[0])[0].split()[1] for row in rows(section(PAGE, "Requests"))}
    assert shown == set(group.commands)


def test_every_option_of_add_is_on_the_page() -> None:
    command = main.get_command(click.Context(main), "add")
    assert command
    for option in command.params:
        if isinstance(option, click.Option):
            assert f"`{option.opts[0]}" in section(PAGE, "Adding jobs") or option.opts[0] in (
                *("--url", "--json", "--file", "--lines", "--id"),
            ), option.opts


def test_the_tiers_are_those_of_the_code() -> None:
    tiers = {f"`{tier}`": said for tier, said in TIERS.items()}
    shown = {row[0]: row[2] for row in rows(section(PAGE, "Doctor")) if row[0] in tiers}
    assert shown == tiers
    assert f"more than {FULL:.0%}".replace("%", " %") in section(PAGE, "Doctor")
    assert f"more than {SLOW_MS:.0f} ms" in section(PAGE, "Doctor")


def test_what_a_queue_can_do_without_is_on_the_page_about_servers() -> None:
    shown = {
        code_in(row[0])[0].removeprefix("+").partition("\\")[0].upper()
        for row in rows(section(DOCS / "server.md", "A user for a queue"))
    }
    assert shown == set(OPTIONAL)


def test_the_releases_without_known_holes_are_on_that_page_too() -> None:
    text = section(DOCS / "server.md", "Versions")
    for lines in PATCHED.values():
        for (major, minor), patch in lines.items():
            assert f"{major}.{minor}.{patch}" in text
