"""Lint every transition as it runs, with luacheck where the machine has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.engine.calls import SCRIPTS

ENGINE = Path(__file__).parents[1] / "src" / "holdfast" / "engine"
BUILD = Path(__file__).parents[1] / "build" / "lua"
WARNING = re.compile(r"^.*/(?P<name>\w+)\.lua:(?P<line>\d+):(?P<column>\d+): (?P<what>.*)$")
UNUSED = re.compile(r"\(W211\) unused (?:function|variable) '(?P<name>\w+)'")


def main() -> int:
    """Print what is wrong, by file and line; return how the process shall end."""
    luacheck = shutil.which("luacheck")
    if luacheck is None:
        print("luacheck is not installed (Debian: apt install lua-check); Lua is not linted")
        return 0
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    lines = {script.name: _write(script.name, script.parts) for script in SCRIPTS}
    command = [luacheck, "--std", "lua51", "--read-globals", "redis", "cmsgpack", "KEYS", "ARGV"]
    command += ["--formatter", "plain", "--codes", "--max-line-length", "100", str(BUILD)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    problems: dict[str, None] = {}
    unused: dict[tuple[str, str], int] = {}
    for text in found:
        match = WARNING.match(text)
        if match is None:
            problems[text] = None
            continue
        file, line = lines[match["name"]][int(match["line"]) - 1]
        local = UNUSED.match(match["what"])
        if local and file != match["name"]:  # One transition does not use all that it could.
            unused[file, local["name"]] = unused.get((file, local["name"]), 0) + 1
        else:
            problems[f"{file}.lua:{line}:{match['column']}: {match['what']}"] = None
    for (file, name), times in unused.items():
        if times == sum((file, 1) in origins for origins in lines.values()):
            problems[f"{file}.lua: nobody uses '{name}'"] = None
    for problem in problems:
        print(problem)
    print(f"luacheck: {len(lines)} transitions, {len(problems)} problems")
    return 1 if problems else 0


def _write(name: str, parts: tuple[str, ...]) -> list[tuple[str, int]]:
    """Write a transition as it is sent, and return the file and line that each line is from."""
    text, origins = "", []
    for file in ("prelude", *(f"parts/{part}" for part in parts), name):
        body = (ENGINE / f"{file}.lua").read_text()
        origins += [(file, line) for line in range(1, body.count("\n") + 1)]
        text += body
    (BUILD / f"{name}.lua").write_text(text)
    return origins


if __name__ == "__main__":
    sys.exit(main())
