"""docs/architecture.md says what the code does: the layers, and the walk of a job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import holdfast
from docs import walk
from docs.pages import DOCS, ROOT
from support import TestServer

PAGE = DOCS / "architecture.md"
HOME = Path(holdfast.__file__).parent
OCCASIONAL = {"connection/address.py", "connection/retries.py", "escaping.py", "failures.py"}
"""What runs if the server lacks a script, or a machine is so slow that something is logged, or
asked again."""


def listed(step: str) -> list[str]:
    found = re.search(rf"```text {step}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, step
    return found[1].split()


def test_the_walk_of_a_job_is_the_real_one(test_server: TestServer) -> None:
    """In a process of its own, in which nothing has happened before."""
    command = [sys.executable, "-W", "ignore", walk.__file__, test_server.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    walked: dict[str, list[str]] = json.loads(ran.stdout)
    if os.environ.get("HOLDFAST_WRITE_WALK"):
        text = PAGE.read_text()
        for step, names in walked.items():
            block = "".join(f"{name}\n" for name in names)
            text = re.sub(rf"(```text {step}\n).*?```", rf"\g<1>{block}```", text, flags=re.DOTALL)
        PAGE.write_text(text)
    for step, names in walked.items():
        more = set(names) - set(listed(step))
        assert more <= OCCASIONAL, f"{step}: not on the page"
        assert set(listed(step)) <= set(names), f"{step}: nothing of it ran"


def test_the_layers_are_those_that_the_imports_are_compared_with() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [one["layers"] for one in contracts["contracts"] if one["type"] == "layers"]
    folders = [
        name.removeprefix("holdfast.")
        for layer in layers
        for name in layer.split(" | ")
        if (HOME / name.removeprefix("holdfast.")).is_dir()
    ]
    drawn = re.findall(r"^ {3}(\w+)/ ", PAGE.read_text(), re.MULTILINE)
    assert drawn == folders
    there = {path.name for path in HOME.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert there == set(folders)
