"""docs/cli.md leaves nothing out."""

from __future__ import annotations

import re

import click

from docs.pages import DOCS, code_in, rows, section
from holdfast.cli.main import _COMMANDS, main
from holdfast.server.health import FULL, OPTIONAL, PATCHED, SLOW_MS, TIERS

PAGE = DOCS / "cli.md"


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
                *("--url", "--password-file", "--json", "--file", "--lines", "--id"),
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
