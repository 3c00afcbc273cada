"""Where a pipeline may read and write: below its roots, and nowhere else."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from holdfast import arguments
from holdfast.errors import InvalidArgument

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PLACE: Final = r"(?:[A-Za-z0-9._-]+@)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
"""A bucket or a host; Azure has the container before an @. A password is refused."""
_URL: Final = re.compile(rf"([A-Za-z][A-Za-z0-9+.-]*)://({_PLACE})(/.*)?", re.DOTALL)
_PATTERN: Final = re.compile(r"[*?{}\[\]\\]")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and what is not UTF-8."""
_LONGEST: Final = 4096


class Roots:
    """Directories of this machine, or of stores such as `s3a://bucket/data`.

    A path that is not absolute begins at the first of them. Links are followed to check a path. An
    input keeps the name that it was given, since Spark goes by the names of files.
    """

    def __init__(self, roots: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        given = paths("roots", roots)
        self._roots = [_root(root) for root in given]
        self._first = _as_named(given[0], self._roots[0])

    def __repr__(self) -> str:
        return f"Roots({', '.join(self._roots)})"

    def locate(self, name: str, path: object) -> str:
        """Return a path as it is named, in full; refuse what leads out of the roots.

        It may have patterns, and links in it: call `holds` right before using what is found there.
        """
        path = _path(name, path)
        if len(path) > _LONGEST:
            raise InvalidArgument(f"{name} must have at most {_LONGEST} characters")
        if goes_up(path):
            raise InvalidArgument(f"{name} must not go up with '..': {arguments.shown(path)}")
        if _SCHEME.match(path):
            located = _remote(path)
        elif path.startswith("/"):
            located = _normal(path)
        elif _SCHEME.match(self._first):
            located = f"{self._first}/{posixpath.normpath(path)}"
        else:
            located = _normal(posixpath.join(self._first, path))
        if not self._is_below(resolved(located)):
            raise InvalidArgument(
                f"{name} must be below {' or '.join(self._roots)}, not {arguments.shown(path)}"
            )
        return located

    def check(self, name: str, path: str) -> None:
        """Refuse a stored path that is not in the form in which `locate` returns it."""
        if self.locate(name, path) != path:
            raise InvalidArgument(f"{name} {arguments.shown(path)} leads elsewhere here: {self!r}")

    def locate_output(self, path: object) -> str:
        """Return where an output is to be, without links."""
        located = resolved(self.locate("output", path))
        if has_pattern(located):
            raise InvalidArgument(
                f"output must be one directory, without patterns, not {arguments.shown(located)}"
            )
        if any(is_below(root, located) for root in self._roots):
            raise InvalidArgument("output must be a directory below the roots, not one of them")
        if posixpath.basename(located)[0] in "._":
            raise InvalidArgument(
                "output must not begin with '.' or '_': Spark does not read what does"
            )
        return located

    def holds(self, path: str) -> bool:
        """Tell whether a path lies below one of the roots, when all links are followed.

        The path is taken literally, without patterns. Call this right before using a path: a user
        who may write below the roots can still replace a directory by a link in between.
        """
        if "\0" in path or any(name in (".", "..") for name in path.split("/")):
            return False
        if not path.startswith("/") and not _SCHEME.match(path):
            return False
        return self._is_below(real(path)) and self._is_below(_behind_checksums(path))

    def _is_below(self, path: str) -> bool:
        return any(is_below(path, root) for root in self._roots)


def paths(name: str, given: object) -> list[str]:
    """Return one path, or several, as text; refuse what is none."""
    several = [given] if isinstance(given, str | os.PathLike) else arguments.several(name, given)
    found = [_path(name, path) for path in several]
    if not found:
        raise InvalidArgument(f"{name} must be at least one path")
    return found


def _path(name: str, path: object) -> str:
    """Return a path as text; refuse what is none, or could not be stored."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text.strip() or _UNFIT.search(text):
        raise InvalidArgument(
            f"{name} must be a path (text in UTF-8, without control characters), "
            f"not {arguments.shown(path)}"
        )
    return text


def is_below(path: str, directory: str) -> bool:
    """Tell whether a path is a directory, or lies in it."""
    return path == directory or path.startswith(f"{directory}/")


def goes_up(path: str) -> bool:
    r"""Tell whether a path has '..', however it is written: `%2e%2e`, or `.\.` in a pattern."""
    while (decoded := unquote(path)) != path:
        path = decoded
    if ".." in path.split("/"):
        return True
    if "\\" not in path and all(name.count("{") == name.count("}") for name in path.split("/")):
        return False
    # Hadoop removes backslashes, and expands {a/.,b}. to a/.. before it looks for names.
    return any(re.fullmatch(r"\.+", piece) for piece in re.split(r"[/{},\\]", path))


def resolved(pattern: str) -> str:
    """Follow links up to the first pattern: behind it each file is looked at when it is found."""
    if _SCHEME.match(pattern):
        return pattern
    known = fixed(pattern)
    return real(known or "/").rstrip("/") + pattern[len(known) :] or "/"


def real(path: str) -> str:
    """Follow all links of a path, which is taken literally. A store has none."""
    return path if _SCHEME.match(path) else os.path.realpath(path)


def _behind_checksums(path: str) -> str:
    """Return what Hadoop reads for the checksums of a file, if that is a link; else the file."""
    directory, _, name = path.rpartition("/")
    checksums = f"{directory}/.{name}.crc"
    is_link = not _SCHEME.match(path) and os.path.islink(checksums)  # noqa: PTH114  # Names may be odd.
    return real(checksums if is_link else path)


def fixed(pattern: str) -> str:
    """Return the part of a path before the first component with a pattern."""
    names = pattern.split("/")
    count = next((n for n, name in enumerate(names) if has_pattern(name)), len(names))
    return "/".join(names[:count])


def has_pattern(path: str) -> bool:
    """Tell whether a path stands for any number of files."""
    return _PATTERN.search(path) is not None


def _root(root: str) -> str:
    if _SCHEME.match(root):
        return _remote(root)
    if not Path(root).is_dir():
        raise InvalidArgument(
            f"the root {arguments.shown(root)} is not a directory on this machine: create it or "
            "mount it, or name another with roots= or --root"
        )
    return str(Path(root).resolve())


def _remote(path: str) -> str:
    found = _URL.fullmatch(path)
    if found is None or found[1].lower() == "file":
        raise InvalidArgument(
            f"{arguments.shown(path)}: write a path of this machine without a scheme, and one of a "
            "store as scheme://place/path, without a password"
        )
    return f"{found[1].lower()}://{found[2]}{posixpath.normpath(found[3] or '/')}".rstrip("/")


def _as_named(root: str, real: str) -> str:
    """Return a root in full, with the links in its name; without them where it goes up."""
    if _SCHEME.match(root) or goes_up(root):
        return real
    return _normal(str(Path.cwd() / root))


def _normal(path: str) -> str:
    """Return a path in the one form that has no empty names and no '.'."""
    return "/" + posixpath.normpath(path).lstrip("/")
