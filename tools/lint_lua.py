"""Lint every transition as it runs, with luacheck where the machine has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from holdfast.engine.scripts import SCRIPTS, assemble, functions_in, shared

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "lua"
ENGINE = ROOT / "src" / "holdfast" / "engine" / "lua"
LONGEST = 100


def main() -> int:
    """Print what is wrong, by file and line; return how the process shall end."""
    ours = [f"nobody uses {name}" for name in sorted(shared_functions() - used_functions())]
    ours += too_long()
    luacheck = shutil.which("luacheck")
    if luacheck is None:
        print(*ours, sep="\n")
        print("luacheck is not installed (Debian: apt install lua-check): the rest is not checked")
        return 1 if ours else 0
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for script in SCRIPTS:
        (BUILD / f"{script.name}.lua").write_text(assemble(script.name))
    command = [luacheck, "--std", "lua51"]
    command += ["--read-globals", "redis", "cmsgpack", "struct", "KEYS", "ARGV"]
    command += [
        "--ignore",
        "231/this",
        "211/this",  # Every script has them; `rights` runs no command.
        "211/call",
        "43",  # A function that was put into another does not see what that calls alike.
        "--formatter",
        "plain",
        "--codes",
        "--no-max-line-length",  # What is filled in may be long.
        str(BUILD),
    ]
    problems = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    for problem in [*problems.splitlines(), *ours]:
        print(problem)
    if problems:
        print(f"(the lines are those of the files in {BUILD.relative_to(Path.cwd())})")
    print(f"luacheck: {len(SCRIPTS)} scripts, {len(problems.splitlines()) + len(ours)} problems")
    return 1 if problems or ours else 0


def too_long() -> list[str]:
    """Return the lines of our files that are longer than others."""
    return [
        f"{file.name}:{number}: line is too long ({len(line)} > {LONGEST})"
        for file in sorted(ENGINE.rglob("*.lua"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > LONGEST
    ]


def shared_functions() -> set[str]:
    """Return the functions that transitions may share."""
    return set(functions_in(shared()))


def used_functions() -> set[str]:
    """Return the functions that some script carries."""
    return {name for script in SCRIPTS for name in functions_in(assemble(script.name))}


if __name__ == "__main__":
    sys.exit(main())
