"""Lint the engine's library, with luacheck where the machine has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.engine import library

ROOT = Path(__file__).parents[1]
LONGEST = 100
COMMAND = ["--std", "lua51", "--formatter", "plain", "--codes", "--no-max-line-length"]
COMMAND += ["--read-globals", "redis", "cmsgpack", "struct", "KEYS", "ARGV"]


def main() -> int:
    """Print what is wrong, by file and line; return how the process shall end."""
    problems = too_long()
    luacheck = shutil.which("luacheck")
    if luacheck:
        problems += check(luacheck)
    print(*problems, sep="\n", end="\n" if problems else "")
    if luacheck is None:
        print("luacheck is not installed (Debian: apt install lua-check): the rest is not checked")
    print(f"Lua: {len(library.FILES)} files, {len(problems)} problems")
    return 1 if problems else 0


def check(luacheck: str) -> list[str]:
    """Return what luacheck finds, in the lines of our files."""
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "library.lua"
        _, _, text = library.library().decode().partition("\n")
        file.write_text(text + "run_as_script()\n")
        command = [luacheck, *COMMAND, str(file)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [
            re.sub(r"^.*?:(\d+):", lambda match: library.place_of(int(match[1]) + 1) + ":", line)
            for line in found.splitlines()
        ]


def too_long() -> list[str]:
    """Return the lines of our files that are longer than others."""
    return [
        f"{file.name}:{number}: line is too long ({len(line)} > {LONGEST})"
        for file in sorted(library.LUA.rglob("*.lua"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > LONGEST
    ]


if __name__ == "__main__":
    sys.exit(main())
