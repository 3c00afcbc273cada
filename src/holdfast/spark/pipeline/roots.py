"""Where a pipeline may read and write: below its roots, and nowhere else."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast import arguments
from holdfast.errors import InvalidArgument

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATTERN: Final = re.compile(r"[*?{}\[\]\\]")


class Roots:
    """Directories of this machine, or of stores such as `s3a://bucket/data`.

    A path that is not absolute begins at the first of them.
    """

    def __init__(self, roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        given = [roots] if isinstance(roots, str | os.PathLike) else list(roots)
        if not given:
            raise InvalidArgument("roots must be at least one directory")
        self._roots = [_root(os.fspath(root)) for root in given]

    def __repr__(self) -> str:
        return f"Roots({', '.join(self._roots)})"

    def locate(self, name: str, path: object) -> str:
        """Return where a path is, which may have patterns; refuse what leads out of the roots."""
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            raise InvalidArgument(f"{name} must be a path, not {arguments.shown(path)}")
        if ".." in path.split("/"):
            raise InvalidArgument(f"{name} must not go up with '..': {arguments.shown(path)}")
        if _SCHEME.match(path):
            located = _remote(path)
        elif path.startswith("/"):
            located = _resolved(path)
        elif _SCHEME.match(self._roots[0]):
            located = f"{self._roots[0]}/{posixpath.normpath(path)}"
        else:
            located = _resolved(posixpath.join(self._roots[0], path))
        if not self.holds(located):
            raise InvalidArgument(
                f"{name} must be below {' or '.join(self._roots)}, not {arguments.shown(path)}"
            )
        return located

    def locate_output(self, path: object) -> str:
        """Return where an output is to be."""
        located = self.locate("output", path)
        if has_pattern(located):
            raise InvalidArgument(f"output must be one directory, without patterns: {path}")
        if located in self._roots:
            raise InvalidArgument("output must be a directory below the roots, not one of them")
        if posixpath.basename(located)[0] in "._":
            raise InvalidArgument(
                "output must not begin with '.' or '_': Spark does not read what does"
            )
        return located

    def holds(self, located: str) -> bool:
        """Tell whether a path without links lies below one of the roots."""
        return any(located == root or located.startswith(f"{root}/") for root in self._roots)

    def holds_file(self, path: str) -> bool:
        """Tell whether a file that was found really lies below one of the roots."""
        return self.holds(path if _SCHEME.match(path) else os.path.realpath(path))


def has_pattern(path: str) -> bool:
    """Tell whether a path stands for any number of files."""
    return _PATTERN.search(path) is not None


def _root(root: str) -> str:
    return _remote(root) if _SCHEME.match(root) else str(Path(root).resolve())


def _remote(path: str) -> str:
    parts = urlsplit(path)
    if parts.scheme == "file" or not parts.netloc:
        raise InvalidArgument(
            f"{arguments.shown(path)}: write a path of this machine without a scheme, and one of a "
            "store as scheme://place/path"
        )
    return f"{parts.scheme}://{parts.netloc}{posixpath.normpath(parts.path or '/')}".rstrip("/")


def _resolved(path: str) -> str:
    """Follow links up to the first pattern: behind it each file is looked at when it is found."""
    fixed: list[str] = []
    rest = posixpath.normpath(path).split("/")
    while rest and not has_pattern(rest[0]):
        fixed.append(rest.pop(0))
    return "/".join([os.path.realpath("/".join(fixed) or "/").rstrip("/"), *rest]) or "/"
