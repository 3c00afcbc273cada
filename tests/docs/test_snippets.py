"""What the pages show works: every Python block runs, every relative link leads somewhere."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.pages import PAGES, ROOT, anchors, blocks, name_of, prose, run
from holdfast import Queue
from support import TestServer, wait_until

README = ROOT / "README.md"
SPARK = ROOT / "docs" / "spark.md"  # It runs in the tests of Spark, which have a session.
WITH_PYTHON = [page for page in PAGES if page != SPARK and blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_blocks_of_a_page_run_as_one_program(
    page: Path, test_server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", test_server.url)
    with Queue("emails") as queue:
        queue.delete()
        run(page)
        assert queue.audit() == []
        queue.delete()


def test_the_readme_runs_on_the_embedded_server_and_prints_what_it_says(tmp_path: Path) -> None:
    program = "\n".join(block.code for block in blocks(README, "python"))
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    environment.pop("HOLDFAST_URL", None)
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "invoice-8: failed: not an address\n")
    assert ran.stdout.startswith("".join(block.code for block in blocks(README, "text")))
    with (tmp_path / "holdfast" / "server.lock").open() as lock:
        wait_until(lambda: _is_free(lock.fileno()), "the end of the embedded server")


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_the_readmes_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z]+)\b(?= |`|$|\n)", "\n".join(_code(page))):
            assert f"\n{target}:" in makefile, f"{name_of(page)}: make {target}"


def _code(page: Path) -> list[str]:
    return [*re.findall(r"`([^`\n]+)`", prose(page)), *(block.code for block in blocks(page, "sh"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{name_of(page)}: {link}"
        assert target.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"
