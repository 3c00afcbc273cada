"""Lint every transition as it runs: behind the prelude, with luacheck where the machine has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

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
    prelude = (ENGINE / "prelude.lua").read_text()
    border = prelude.count("\n")
    transitions = sorted(path.stem for path in ENGINE.glob("*.lua") if path.stem != "prelude")
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in transitions:
        (BUILD / f"{name}.lua").write_text(prelude + (ENGINE / f"{name}.lua").read_text())
    command = [luacheck, "--std", "lua51", "--read-globals", "redis", "cmsgpack", "KEYS", "ARGV"]
    command += ["--formatter", "plain", "--codes", "--max-line-length", "100", str(BUILD)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    problems: dict[str, None] = {}
    unused: dict[str, int] = {}
    for text in found:
        match = WARNING.match(text)
        if match is None:
            problems[text] = None
            continue
        line, what = int(match["line"]), match["what"]
        if line > border:
            problems[f"{match['name']}.lua:{line - border}:{match['column']}: {what}"] = None
        elif local := UNUSED.match(what):  # One transition does not use all of the prelude.
            unused[local["name"]] = unused.get(local["name"], 0) + 1
        else:
            problems[f"prelude.lua:{line}:{match['column']}: {what}"] = None
    # The keys of a queue are all named, also those that no transition touches yet.
    for name, times in unused.items():
        if times == len(transitions) and not name.isupper():
            problems[f"prelude.lua: no transition uses '{name}'"] = None
    for problem in problems:
        print(problem)
    print(f"luacheck: {len(transitions)} transitions, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
