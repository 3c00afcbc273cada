"""What the pages show works: every Python block runs, every session goes as it is shown."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import (
    DOCS,
    NOT_RUN,
    PAGES,
    ROOT,
    blocks,
    code_of,
    name_of,
    play,
    program_of,
    prose,
    run,
)
from engine_support import own_server
from holdfast import Queue
from support import TestServer, wait_until

README = ROOT / "README.md"
SESSIONS = [page for page in PAGES if blocks(page, "console")]
# They run in the tests of Spark, which have a session.
WITH_SPARK = {DOCS / "spark.md", DOCS / "pipeline.md", DOCS / "how-to" / "spark.md"}
PROGRAMS = [
    page
    for page in PAGES
    if blocks(page, "python") and page not in {README, *SESSIONS, *WITH_SPARK}
]


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_the_python_blocks_of_a_page_run_as_one_program(
    page: Path, test_server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", test_server.url)
    with Queue("emails") as queue:
        queue.delete()
        run(page)
        assert queue.audit() == []
        queue.delete()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A folder with `holdfast` on the path, and a server without other queues."""
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with own_server("--appendonly", "yes") as server:
        monkeypatch.setenv("HOLDFAST_URL", server.url)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        yield dict(os.environ)


@pytest.mark.parametrize("page", SESSIONS, ids=name_of)
def test_a_session_goes_as_it_is_shown(page: Path, shell: dict[str, str], tmp_path: Path) -> None:
    assert play(page, tmp_path, shell) > 0


def test_the_readme_runs_on_the_embedded_server_and_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    environment.pop("HOLDFAST_URL", None)
    program, says = program_of(README, "Add and work")
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,  # Not in a project that has a server of its own.
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    warning, failed = ran.stderr.splitlines()
    assert warning.startswith(f"HOLDFAST_URL is not set: using the embedded server in {tmp_path}")
    assert (ran.returncode, failed) == (0, "invoice-8: failed: not an address")
    assert ran.stdout == says
    with (tmp_path / "holdfast" / "server.lock").open() as lock:
        wait_until(lambda: _is_free(lock.fileno()), "the end of the embedded server")


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_python_block_that_does_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        if block.info.startswith(("python", "py")):
            assert block.info in ("python", NOT_RUN), f"{name_of(page)}:{block.line}"
        if block.info == NOT_RUN:
            assert re.match(r"# not run: \w", block.code), f"{name_of(page)}:{block.line}"


def test_the_commands_of_the_pages_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        code = "\n".join(code_of(prose(page)) + [block.code for block in blocks(page, "sh")])
        for target in re.findall(r"\bmake ([a-z]+)\b(?= |`|$|\n)", code):
            assert f"\n{target}:" in makefile, f"{name_of(page)}: make {target}"
