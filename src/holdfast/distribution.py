"""The distribution that installs this package, and whether the files here are its own.

Another project on the package index is named `holdfast` and installs a package of the same name.
pip does not notice when two distributions own a file: the later one overwrites it, and whichever is
uninstalled takes it away. All modules of Holdfast import this one, so they say what is wrong
instead of failing at the first name that is missing.
"""

from __future__ import annotations

import sys
from typing import Final

NAME: Final = "holdfast-queue"
"""The name on the package index."""


def version() -> str:
    """Return the version of the installed distribution."""
    from importlib import metadata  # noqa: PLC0415  # It takes long to import.

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{NAME}[{extra}]'"


def _owners() -> list[str]:
    """Return the names of the other distributions that installed `holdfast/__init__.py`."""
    from importlib import metadata  # noqa: PLC0415

    return sorted(
        {
            found.name
            for found in metadata.distributions()
            if found.name != NAME
            and any(str(file) == "holdfast/__init__.py" for file in found.files or ())
        }
    )


def _foreign(file: str | None) -> ImportError:
    others = " ".join(_owners())
    owned = f"was installed by another distribution ({others})" if others else "is not its own"
    what = f"{file} {owned}" if file else "its holdfast/__init__.py was removed"
    return ImportError(
        f"{NAME} is damaged: {what}. Two distributions that install a package `holdfast` cannot "
        f"be in one environment. Repair it with `pip uninstall {others or 'holdfast'}`, then "
        f"`pip install --force-reinstall --no-deps {NAME}`",
        name="holdfast",
        path=file,
    )


_package = sys.modules["holdfast"]
if getattr(_package, "__distribution__", None) != NAME:
    raise _foreign(getattr(_package, "__file__", None))
