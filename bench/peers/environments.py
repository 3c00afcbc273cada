"""An environment per peer under .bench/, made when it is needed and kept for the next run."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent / ".bench"


def python_of(peer: str) -> Path:
    """Return the Python that has this peer, as `<peer>.txt` names it."""
    wanted = HERE / f"{peer}.txt"
    home = ROOT / peer
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"installing {peer} into .bench/ …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(wanted)], check=True)
        shutil.copy(wanted, stamp)
    return python


def bullmq() -> Path | None:
    """Return the program that measures BullMQ; None where there is no Node."""
    if not shutil.which("npm"):
        return None
    home, wanted = ROOT / "bullmq", HERE / "package.json"
    stamp = home / "installed.json"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print("installing bullmq into .bench/ …", file=sys.stderr)
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(wanted, home)
        install = ["npm", "install", "--silent", "--no-package-lock", "--no-fund", "--no-audit"]
        subprocess.run(install, cwd=home, check=True)
        shutil.copy(wanted, stamp)
    return Path(shutil.copy(HERE / "bullmq.mjs", home))
