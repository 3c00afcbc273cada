"""An environment per peer under .bench/, made when it is needed and kept for the next run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent / ".bench"


class NotHere(Exception):
    """A peer cannot be installed or run on this machine; the message says why."""


def python_of(peer: str) -> Path:
    """Return the Python that has this peer, as `<peer>.txt` names it."""
    wanted = HERE / f"{peer}.txt"
    home = ROOT / peer
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"installing {peer} into .bench/ …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _install([*install, "-r", str(wanted)], peer, home)
        shutil.copy(wanted, stamp)
    return python


def bullmq() -> Path:
    """Return the program that measures BullMQ on Node."""
    if not shutil.which("npm"):
        raise NotHere("there is no Node here")
    home, wanted = ROOT / "bullmq", HERE / "package.json"
    stamp = home / "installed.json"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print("installing bullmq into .bench/ …", file=sys.stderr)
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted, home)
        install = ["npm", "install", "--silent", "--no-package-lock", "--no-fund", "--no-audit"]
        _install(install, "bullmq", home)
        shutil.copy(wanted, stamp)
    return Path(shutil.copy(HERE / "bullmq.mjs", home))


def _install(command: list[str], peer: str, where: Path) -> None:
    run = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if run.returncode:
        said = [line for line in run.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise NotHere(f"{peer} does not install: {said[-1]}")


def version_of(peer: str, *, node: bool = False) -> str:
    """Return the version that is pinned; of the project, the one that is installed."""
    if not peer:
        return metadata.version("holdfast-queue")
    if node:
        pins: dict[str, str] = json.loads((HERE / "package.json").read_text())["dependencies"]
        return pins[peer]
    return (HERE / f"{peer}.txt").read_text().split()[0].partition("==")[2]
