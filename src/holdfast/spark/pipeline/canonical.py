"""Python values as digests that are equal where the values are, in every process.

Pickled bytes do not serve for that: they differ with the identity of strings, with the order of
sets, and with the names that cloudpickle gives to local classes. Of a function counts what it does
and what it refers to: its bytecode, the values that it captures, the globals that it uses, and the
source of what it imports. The order of a dict counts, since a function may go through it.

Spark's processes import the modules of functions that can be imported. So what such a function
finds in a dict or list of its module is what the module put there, and not what this process has
put there since, into a cache for example: `remember` keeps how they were.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import pickle
import sys
import types
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Final

from holdfast.spark.pipeline.sources import CELLS, GLOBALS, Names, lookups, of_imports, of_module

_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_DEEPEST: Final = 200
_OF_SPARK: Final = (b"py4j.", b"pyspark.")
_VALUES_OF_SPARK: Final = (b"pyspark.sql.types.", b"pyspark.ml.linalg.", b"pyspark.mllib.linalg.")


def digest(value: object, package: str = "") -> str:
    """Return the digest of a value.

    package  whose functions are looked into; those of others are known by their names
    """
    return _Digests(package).of(value).hex()


def captured(function: types.FunctionType, package: str = "") -> Iterator[tuple[str, str]]:
    """Return what a function refers to, by name, with digests."""
    digests = _Digests(package)
    for name, value in digests.references(function):
        yield name, digests.referred(function, name, value).hex()


def remember(package: str) -> None:
    """Keep what is in the containers of a package's modules now, right after they were imported."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == package:
            for name, value in list(vars(module).items()):
                if _may_change(value):
                    _remembered(package, module_name, name, value)


def _may_change(value: object) -> bool:
    return value is None or isinstance(value, dict | list | set | bytearray)


def _remembered(package: str, module: str, name: str, value: object) -> bytes:
    """Return the digest that a container had when it was seen first."""
    place = (package, module, name)
    if place not in _first_seen:
        _first_seen[place] = _Digests(package).of(value)
    return _first_seen[place]


_first_seen: dict[tuple[str, str, str], bytes] = {}


def is_local(function: types.FunctionType, package: str) -> bool:
    """Tell whether a function is of this package, or made while a program runs."""
    module = function.__module__ or ""
    return module.partition(".")[0] in (package, "__main__") or not _is_importable(function)


class _Digests:
    def __init__(self, package: str) -> None:
        self._package = package
        self._home = _home_of(package)
        self._known: dict[int, bytes] = {}
        self._kept: list[object] = []
        """What is in `_known`, so that no other object gets the same identity."""
        self._depth = 0

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if self._home and isinstance(value, str | PurePath) and str(value).startswith(self._home):
            return _hashed("path", kind.__name__.encode(), str(value)[len(self._home) :].encode())
        if kind in _SCALARS:
            return _hashed(kind.__name__, _spelled(value))
        if (known := self._known.get(id(value))) is not None:
            return known
        self._known[id(value)] = b"cycle"
        self._kept.append(value)
        self._depth += 1
        try:
            found = self._container(kind, value) if self._depth < _DEEPEST else b"deep"
        finally:
            self._depth -= 1
        self._known[id(value)] = found
        return found

    def _container(self, kind: type, value: Any) -> bytes:
        if kind in (list, tuple):
            if {type(one) for one in value} <= _SCALARS:
                return _hashed(kind.__name__, b"scalars", *map(_spelled, value))
            return _hashed(kind.__name__, *map(self.of, value))
        if kind is dict:
            if {type(one) for pair in value.items() for one in pair} <= _SCALARS:
                return _hashed(
                    "dict", b"scalars", *(_spelled(one) for pair in value.items() for one in pair)
                )
            return _hashed("dict", *(self.of(one) for pair in value.items() for one in pair))
        if kind in (set, frozenset):
            return _hashed("set", *sorted(map(self.of, value)))
        return self._code_or_object(value)

    def _code_or_object(self, value: Any) -> bytes:
        match value:
            case types.FunctionType():
                return self._function(value)
            case types.CodeType():
                consts = [one for one in value.co_consts if one is not None]
                return _hashed(
                    "code", value.co_code, self.of(value.co_names), *map(self.of, consts)
                )
            case types.ModuleType():
                name = value.__name__
                text = of_module(name, (), self._package) if self._is_module(value) else ""
                return _hashed("module", name.encode(), text.encode())
            case types.MethodType():
                return _hashed("method", self.of(value.__func__), self.of(value.__self__))
            case staticmethod() | classmethod():
                return _hashed(type(value).__name__, self.of(value.__func__))
            case property():
                return _hashed("property", *map(self.of, (value.fget, value.fset, value.fdel)))
            case functools._lru_cache_wrapper():  # noqa: SLF001
                return self.of(value.__wrapped__)
            case type():
                return self._class(value)
        return self._object(value)

    def _function(self, function: types.FunctionType) -> bytes:
        if not is_local(function, self._package):
            return _hashed("named", _full_name(function))
        pairs = (
            (name.encode(), self.referred(function, name, value))
            for name, value in self.references(function)
        )
        return _hashed(
            "function", self.of(function.__code__), *(one for pair in pairs for one in pair)
        )

    def referred(self, function: types.FunctionType, name: str, value: object) -> bytes:
        """Return the digest of what a function refers to by a name."""
        if (
            _may_change(value)
            and function.__module__ != "__main__"
            and function.__globals__.get(name, function) is value
            and _is_importable(function)
        ):
            return _remembered(self._package, function.__module__, name, value)
        return self.of(value)

    def references(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """Return what a function captured, its defaults, and the globals that it uses."""
        code = function.__code__
        cells = lookups(code, CELLS)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield from self._looked_up(name, _content(cell), cells.get(name, {()}))
        yield from ((f"default {n}", one) for n, one in enumerate(function.__defaults__ or ()))
        yield from sorted((function.__kwdefaults__ or {}).items())
        used = lookups(code, GLOBALS)
        for name in sorted(used.keys() & function.__globals__.keys()):
            yield from self._looked_up(name, function.__globals__[name], used[name])
        if imported := of_imports(function, self._package):
            yield "imports", imported

    def _looked_up(self, name: str, value: Any, paths: set[Names]) -> Iterator[tuple[str, Any]]:
        """Return a value; of a module of the package what is looked up in it."""
        if not self._is_module(value):
            yield name, value
            return
        for path in sorted(paths):
            here, at = value, 0
            while at < len(path) and self._is_module(here) and path[at] in vars(here):
                here, at = vars(here)[path[at]], at + 1
            if self._is_module(here):  # What its text says, in every process.
                here = of_module(here.__name__, path[at:], self._package)
            yield ".".join([name, *path[:at]]), here

    def _class(self, found: type) -> bytes:
        if _is_importable(found) and not self._is_own(found.__module__):
            return _hashed("named", _full_name(found))
        own = {
            name: value
            for name, value in vars(found).items()
            if not name.startswith("__") or isinstance(value, types.FunctionType)
        }
        return _hashed(
            "class", found.__name__.encode(), self.of(own), *map(self.of, found.__bases__)
        )

    def _object(self, value: Any) -> bytes:
        """Return the digest of what an object is made from, as copying or pickling would."""
        name = _full_name(type(value))
        kind = self.of(type(value))
        if name.startswith(_OF_SPARK) and not name.startswith(_VALUES_OF_SPARK):
            return _hashed("opaque", kind)  # A session, a DataFrame: they lead everywhere.
        reduced = copyreg.dispatch_table.get(type(value))
        try:
            made = value.__reduce_ex__(4) if reduced is None else reduced(value)
        except Exception:  # noqa: BLE001  # A lock, a connection: it has no value.
            return _hashed("opaque", kind)
        if isinstance(made, str):
            return _hashed("named", kind, made.encode())
        self._kept.append(made)
        parts: list[bytes] = []
        for part in made:
            # The elements of a list or a dict come as iterators.
            several = list(part) if isinstance(part, Iterator) else part
            self._kept.append(several)
            parts.append(self.of(several))
        return _hashed("object", kind, *parts)

    def _is_module(self, value: object) -> bool:
        return isinstance(value, types.ModuleType) and self._is_own(value.__name__)

    def _is_own(self, module: str) -> bool:
        return bool(self._package) and module.partition(".")[0] == self._package


def _hashed(kind: str, *parts: bytes) -> bytes:
    found = hashlib.sha256(kind.encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


def _spelled(scalar: Any) -> bytes:
    """Return a text that no other scalar has: `repr` tells types and every bit of a float."""
    return (hex(scalar) if type(scalar) is int else repr(scalar)).encode()  # repr() has a limit.


def _home_of(package: str) -> str:
    """Return the directory in which a package is installed: it may be another one elsewhere."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if not package or not file:
        return ""
    path = Path(file)
    return str(path.parents[1] if path.stem == "__init__" else path.parent)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # It is not filled yet.


def _full_name(found: Any) -> bytes:
    return f"{found.__module__}.{found.__qualname__}".encode()


def _is_importable(found: Any) -> bool:
    here: Any = sys.modules.get(found.__module__ or "")
    for name in found.__qualname__.split("."):
        here = getattr(here, name, None)
    return here is found


class Shared:
    """A broadcast variable, as it stands in what was pickled: its value is in a file."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def content(self) -> Any:
        """Return the value; None without a file."""
        if self._path is None:
            return None
        with open(self._path, "rb") as file:  # noqa: PTH123
            return pickle.load(file)  # noqa: S301  # This process has pickled it.

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return Shared, (self.content(),)


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes | bytearray, paths: dict[int, str]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._paths = paths

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("pyspark.core.broadcast", "_from_id"):
            return lambda number: Shared(self._paths.get(number))
        return super().find_class(module, name)


def loaded(pickled: bytes | bytearray, paths: dict[int, str]) -> Any:
    """Return what this process pickled for Spark.

    paths  of broadcast variables, by their number
    """
    return _Unpickler(pickled, paths).load()


def functions_in(value: object) -> Iterator[types.FunctionType]:
    """Return the functions in what Spark was given: in tuples, together with types."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from functions_in(one)
