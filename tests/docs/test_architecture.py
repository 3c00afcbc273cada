"""docs/architecture.md says what the code does: the layers, and the walk of a job."""

from __future__ import annotations

import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from docs.pages import DOCS, ROOT
from holdfast import Queue, Worker

PAGE = DOCS / "architecture.md"
HOME = Path(holdfast.__file__).parent
OCCASIONAL = {"connection/address.py", "connection/topology.py", "escaping.py", "failures.py"}
"""What runs if a machine is so slow that something is logged, or asked again."""


def files_of(act: Callable[[], object]) -> list[str]:
    """Return the files of ours that run, in any thread."""
    seen: set[str] = set()

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":  # It is imported just now.
            seen.add(frame.f_code.co_filename)

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        act()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = (Path(name) for name in seen if name.startswith(f"{HOME}{os.sep}"))
    return sorted(str(path.relative_to(HOME)) for path in found)


def listed(step: str) -> list[str]:
    found = re.search(rf"```text {step}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, step
    return found[1].split()


def test_the_walk_of_a_job_is_the_real_one(live_queue: Queue) -> None:
    live_queue.add(b"warm")
    live_queue.complete(live_queue.lease(10))  # type: ignore[arg-type]
    worker = Worker(live_queue, concurrency=1)
    worker.handler(lambda job: "done")
    steps: dict[str, Callable[[], object]] = {
        "add": lambda: live_queue.add({"n": 1}, id="walked", result_for=60),
        "run": lambda: worker.run(until_empty=True),
        "result": lambda: live_queue.result("walked"),
    }
    walked = {step: files_of(act) for step, act in steps.items()}
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
