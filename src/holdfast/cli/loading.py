"""Import what a user names: a module here, or one that is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import click


def load(module: str, param_hint: str) -> ModuleType:
    """Return a module; what it imports itself and is not there is its own trouble."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(
            f"there is no module {module!r} here or installed", param_hint=param_hint
        ) from error
