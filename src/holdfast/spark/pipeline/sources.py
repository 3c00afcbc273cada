"""The source of a function, and of what it uses of its own package, wherever it is imported.

Modules are read and not imported. What is found does not depend on which of them this process has
loaded, nor on where they are. Of a module counts what is used of it: the definitions behind the
names that are imported from it or looked up in it. A module counts as a whole where that cannot be
told: `getattr(module, name)`, a module that is passed on, a name that its text does not define.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
CELLS: Final = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_LOOKS_UP: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})
_BETWEEN: Final = frozenset({"CACHE", "EXTENDED_ARG"})
_ENDS: Final = re.compile("\r\n?|\n")
_IMPORTS: Final = frozenset({"__import__", "import_module"})
_IN_ALL_MODULES: Final = frozenset({"__file__", "__name__", "__package__", "__path__"})
_COMPREHENSIONS: Final = (
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_HAS_NAMES_OF_ITS_OWN: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)

Names = tuple[str, ...]
"""A name, and those of the attributes that are looked up one after the other."""
Target = tuple[str, Names]
"""A module, and what is looked up in it."""


@functools.lru_cache(maxsize=1000)
def fingerprint(function: Callable[..., Any]) -> str:
    """Return a digest of a function's source, and of what it uses of its own package.

    It goes by the text of the source, so neither the place of the files nor the version of Python
    changes it. Values that are made while a program runs, and other packages, are not in it.
    """
    function = inspect.unwrap(function)
    name = _module_of(function)
    module = _read(name) or _Module(name, is_package=False)
    text, unit = _start(function, module)
    reach = _Reach(_package(name))
    reach.uses(module, unit)
    outermost = function.__qualname__.partition(".<locals>")[0]
    if outermost != function.__qualname__:
        reach.want(name, (outermost.partition(".")[0],))
    reach.found["", function.__qualname__] = text
    return reach.digest(name)[:16]


def of_imports(function: FunctionType, package: str) -> str:
    """Return a digest of what a function imports of a package in its body; empty without any."""
    if not package or not _may_import(function.__code__):
        return ""
    name = _module_of(function)
    module = _read(name) or _Module(name, is_package=False)
    code = function.__code__
    units = [
        _unit(node, module)
        for node in (ast.walk(module.tree) if module.tree else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    reach = _Reach(package)
    for unit in units or [_unit_of_code(code, module)]:
        reach.imports(unit)
    return reach.digest(name) if reach.has_targets else ""


def of_module(name: str, path: Names, package: str) -> str:
    """Return a digest of what is looked up in a module of a package; of it all without a path."""
    reach = _Reach(package)
    reach.want(name, path)
    return reach.digest("")


def lookups(code: CodeType, reads: frozenset[str]) -> dict[str, set[Names]]:
    """Return the names that code reads from around it, with what it looks up in each.

    reads  the instructions that read: `GLOBALS`, or `CELLS` for those of functions around it
    """
    found: dict[str, set[Names]] = {}
    name = ""
    names: list[str] = []
    for one in dis.get_instructions(code):
        if one.opname in _BETWEEN:
            continue
        if name and one.opname in _LOOKS_UP:
            names.append(str(one.argval))
            continue
        if name:
            found.setdefault(name, set()).add(tuple(names))
        name, names = (str(one.argval) if one.opname in reads else ""), []
    for below in code.co_consts:
        if isinstance(below, CodeType):
            for name, several in lookups(below, reads).items():
                found.setdefault(name, set()).update(several)
    return found


# --------------------------------------------------------------------- modules


@dataclass(frozen=True)
class _Unit:
    """What a piece of source refers to."""

    paths: frozenset[Names]
    imports: dict[str, list[Target]]
    """By the names that they give to it."""
    loads: frozenset[str]
    """Modules of `import a.b.c`, which gives only `a` a name."""
    wanted: frozenset[Target]
    """What is used in any case."""
    has_scope: bool
    """Whether what it imports can be used inside of it only."""


@dataclass(frozen=True)
class _Module:
    name: str
    is_package: bool
    text: str | None = None
    """None without source: then there is its code, or a digest of its file."""
    tree: ast.Module | None = None
    code: CodeType | None = None
    file: str = ""
    _units: dict[ast.AST, _Unit] = field(default_factory=dict)

    @functools.cached_property
    def defined(self) -> dict[str, list[ast.stmt]]:
        """Return the names at its top, with the statements that make or change each."""
        found: dict[str, list[ast.stmt]] = {}
        for node in self.tree.body if self.tree else ():
            for name in dict.fromkeys(_bound(node)):
                found.setdefault(name, []).append(node)
        return found

    @functools.cached_property
    def stars(self) -> list[str]:
        """Return the modules of which it imports everything."""
        found: list[str] = []
        todo: list[ast.AST] = [self.tree] if self.tree else []
        while todo:
            node = todo.pop()
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                found.append(_origin(self, node.module, node.level))
            elif not isinstance(node, (*_HAS_NAMES_OF_ITS_OWN, ast.expr)):
                todo += ast.iter_child_nodes(node)
        return found

    @functools.cached_property
    def lines(self) -> list[str]:
        return (self.text or "").split("\n")  # Python ends no line at a form feed.

    def unit(self, node: ast.AST) -> _Unit:
        """Return what one of its nodes refers to."""
        if node not in self._units:
            self._units[node] = _unit(node, self)
        return self._units[node]

    def source(self, node: ast.stmt, name: str) -> str:
        """Return the text of a statement that makes a name; of an import what it stands for."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            return repr(self.unit(node).imports.get(name))
        return "\n".join(self.lines[_first_line(node) - 1 : node.end_lineno])

    @functools.cached_property
    def all_imports(self) -> list[Target]:
        """Return what it imports, in functions, too."""
        if self.tree is None:
            return [] if self.code is None else [*_unit_of_code(self.code, self).wanted]
        unit = _unit(self.tree, self)
        tops = {_package(name) for name in unit.loads}
        named = [one for targets in unit.imports.values() for one in targets]
        loaded: list[Target] = [(name, ()) for name in [*unit.loads, *self.stars]]
        return [*(one for one in named if one[1] or one[0] not in tops), *loaded, *unit.wanted]


def _module_of(function: Any) -> str:
    """Return the name that a function's module has when it is imported."""
    name = getattr(function, "__globals__", {}).get("__name__") or function.__module__ or ""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return str(spec.name) if name == "__main__" and spec is not None else str(name)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _spec(name: str) -> ModuleSpec | None:
    """Find a module without importing anything."""
    loaded = sys.modules.get(name)
    spec: ModuleSpec | None = getattr(loaded, "__spec__", None)
    if spec is not None and name != "__main__":
        return spec
    above = name.rpartition(".")[0]
    path: Sequence[str] | None = None
    if above:
        above_spec = _spec(above)
        path = above_spec.submodule_search_locations if above_spec else None
        path = getattr(sys.modules.get(above), "__path__", path)
        if path is None:
            return None
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path, None)
        except (AttributeError, ImportError, OSError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


_known: Final[dict[object, _Module]] = {}


def _read(name: str) -> _Module | None:
    """Return what a module has, as its files are now; None without one."""
    if not name:
        return None
    spec = None if name == "__main__" else _spec(name)
    if spec is not None:
        origin = spec.origin or ""
        place = getattr(spec.loader, "archive", None) or origin
    else:
        loaded = sys.modules.get(name)
        if loaded is None:
            return None
        origin = place = str(getattr(loaded, "__file__", None) or id(loaded))
    try:
        status = Path(place).stat()
        key = (name, origin, status.st_mtime_ns, status.st_size)
    except OSError:
        key = (name, origin, 0, 0)
    if key not in _known:
        if len(_known) > 10_000:  # Files that were replaced often.
            _known.clear()
        _known[key] = _parsed(name, spec)
    return _known[key]


def _parsed(name: str, spec: ModuleSpec | None) -> _Module:
    is_package = spec is not None and spec.submodule_search_locations is not None
    text, code, file = _content(name, spec)
    tree = None
    if text is not None:
        with suppress(SyntaxError, ValueError, RecursionError):
            tree = ast.parse(text)
    return _Module(name, is_package, text, tree, code, file)


def _content(name: str, spec: ModuleSpec | None) -> tuple[str | None, CodeType | None, str]:
    """Return the source of a module, or its code, or a digest of its file."""
    if spec is None:
        try:
            return inspect.getsource(sys.modules[name]), None, ""
        except (OSError, TypeError):
            return None, None, ""  # A notebook, or a program that was not read from a file.
    loader: Any = spec.loader
    if loader is None:
        return "", None, ""  # A directory without __init__.py.
    try:
        if hasattr(loader, "get_source"):
            text = loader.get_source(name)
        else:  # An import hook, such as pytest's, which rewrites what it reads.
            text = decode_source(Path(spec.origin or "").read_bytes())
        code = loader.get_code(name) if text is None else None
        if text is None and code is None:
            return None, None, hashlib.sha256(loader.get_data(spec.origin)).hexdigest()
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None, None, ""
    return text and "\n".join(_ENDS.split(text)), code, ""  # A zip file has them as they are.


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([int(node.lineno), *(int(one.lineno) for one in decorators)])


def _bound(top: ast.stmt) -> Iterator[str]:
    """Return the names at the top of a module that a statement makes or changes."""
    todo: list[ast.AST] = [top]
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
                for one in ast.walk(node):
                    if isinstance(one, ast.Global):
                        yield from one.names
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names):
                yield from (one.asname or _package(one.name) for one in names)
            case ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names if one.name != "*")
            case ast.Expr():  # `TABLE.update(MORE)`
                yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
            case _ if not isinstance(node, _COMPREHENSIONS):
                if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
                    yield from _root(node)
                todo += ast.iter_child_nodes(node)


def _root(node: Any) -> Iterator[str]:
    """Return the name to which, or into which, something is put: `TABLE["a"].b = 1`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


# ----------------------------------------------------------------------- units


def _unit(top: ast.AST, module: _Module) -> _Unit:
    """Return what a piece of source refers to."""
    paths: set[Names] = set()
    imports: dict[str, list[Target]] = {}
    loads: set[str] = set()
    wanted: set[Target] = set()
    todo: list[ast.AST] = [top]
    while todo:
        node = todo.pop()
        match node:
            case ast.Attribute():
                root, names = _chain(node)
                if isinstance(root, ast.Name):
                    paths.add((root.id, *names))
                else:
                    todo.append(root)
                continue
            case ast.Name(id=name):
                if not isinstance(node.ctx, ast.Store):
                    paths.add((name,))
            case ast.AugAssign(target=ast.Name(id=name)):
                paths.add((name,))
            case ast.Global(names=names):
                paths.update((name,) for name in names)
            case ast.Import() | ast.ImportFrom():
                for name, target in _imported(node, module):
                    imports.setdefault(name, []).append(target)
                if isinstance(node, ast.Import):
                    loads.update(one.name for one in node.names if not one.asname)
            case ast.ClassDef():  # What it imports is an attribute of its own.
                for one in node.body:
                    if isinstance(one, ast.Import | ast.ImportFrom):
                        wanted.update(target for _, target in _imported(one, module))
            case ast.Call():
                wanted.update(_called(node, module))
        todo += ast.iter_child_nodes(node)
    has_scope = isinstance(top, _HAS_NAMES_OF_ITS_OWN)
    return _Unit(frozenset(paths), imports, frozenset(loads), frozenset(wanted), has_scope)


def _chain(node: ast.expr) -> tuple[ast.expr, list[str]]:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return node, names


def _imported(node: ast.Import | ast.ImportFrom, module: _Module) -> Iterator[tuple[str, Target]]:
    """Return the names that an import makes, and what they stand for."""
    for one in node.names:
        if isinstance(node, ast.Import):
            origin = one.name if one.asname else _package(one.name)
            yield one.asname or origin, (origin, ())
        elif one.name != "*":
            yield one.asname or one.name, (_origin(module, node.module, node.level), (one.name,))


def _called(node: ast.Call, module: _Module) -> Iterator[Target]:
    """Return the module that a call imports, if the call has its name."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in _IMPORTS:
        for one in node.args[:1]:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                below = one.value.lstrip(".")
                yield _origin(module, below, len(one.value) - len(below)), ()


def _origin(module: _Module, name: str | None, level: int) -> str:
    """Return the full name of a module that another one imports."""
    if not level:
        return name or ""
    above = module.name.split(".")
    above = above[: max(0, len(above) - level + module.is_package)]
    return ".".join([*above, *filter(None, [name])]) if above else ""


def _unit_of_code(code: CodeType, module: _Module) -> _Unit:
    """Return what code without source refers to."""
    wanted: set[Target] = set()
    for level, name, names in _imports_in(code):
        origin = _origin(module, name, level)
        wanted |= {(origin, (one,) if one != "*" else ()) for one in names} or {(origin, ())}
    paths = {(name, *path) for name, several in lookups(code, GLOBALS).items() for path in several}
    return _Unit(frozenset(paths), {}, frozenset(), frozenset(wanted), has_scope=True)


def _may_import(code: CodeType) -> bool:
    return (
        not _IMPORTS.isdisjoint(code.co_names)
        or any(_imports_in(code))
        or any(_may_import(one) for one in code.co_consts if isinstance(one, CodeType))
    )


def _imports_in(code: CodeType) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Return the imports in code: level, module, and names."""
    before: list[Any] = [None, None]
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            yield before[-2] or 0, str(one.argval), before[-1] or ()
        if one.opname not in _BETWEEN:
            before = [before[-1], one.argval]
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _imports_in(const)


def _in_words(code: CodeType) -> str:
    """Return what code does, as a text without the places and the order of sets."""
    consts = [
        _in_words(one)
        if isinstance(one, CodeType)
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    return f"{code.co_code!r}{code.co_names!r}{consts!r}"


def _start(function: Callable[..., Any], module: _Module) -> tuple[str, _Unit]:
    """Return the text of a function, and what it refers to."""
    code = getattr(function, "__code__", None)
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        if code is None:
            return "", _unit(ast.Module([], []), module)
        return _in_words(code), _unit_of_code(code, module)
    try:
        return text, _in_function(ast.parse(text), module)
    except SyntaxError:  # A lambda in the middle of a line.
        line = getattr(code, "co_firstlineno", 0)
        for node in module.tree.body if module.tree else ():
            if _first_line(node) <= line <= (node.end_lineno or 0):
                return text, _unit(node, module)
        return text, _unit_of_code(code, module) if code else _unit(ast.Module([], []), module)


def _in_function(tree: ast.Module, module: _Module) -> _Unit:
    return _unit(tree.body[0] if len(tree.body) == 1 else tree, module)


# ----------------------------------------------------------------------- reach


class _Reach:
    """What is used of a package, found by going from name to name."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._todo: list[Target] = []
        self._seen: set[Target] = set()
        self._walked: set[tuple[str, str]] = set()
        self.found: dict[tuple[str, str], str] = {}

    @property
    def has_targets(self) -> bool:
        return bool(self._seen)

    def digest(self, start: str) -> str:
        """Return a digest of all that is used.

        start  the module whose name does not count: it may be run as a program
        """
        while self._todo:
            self._follow(*self._todo.pop())
        parts = sorted(
            ("" if module == start else module, name, text)
            for (module, name), text in self.found.items()
        )
        return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()

    def want(self, name: str, path: Names) -> None:
        """Add what is looked up in a module; all of it without a path."""
        target = (name, path)
        if _package(name) == self._package and name and target not in self._seen:
            self._seen.add(target)
            self._todo.append(target)

    def uses(self, module: _Module, unit: _Unit) -> None:
        """Add what a piece of a module refers to."""
        self.imports(unit)
        for path in unit.paths:
            if path[0] in module.defined or self._that_have(module, path[0]):
                self.want(module.name, path)

    def imports(self, unit: _Unit) -> None:
        """Add what a piece of source imports."""
        used = {path[0] for path in unit.paths}
        for path in unit.paths:
            for name, before in unit.imports.get(path[0], ()):
                self.want(name, before + path[1:])
        for target in unit.wanted:
            self.want(*target)
        if unit.has_scope:
            tops = {_package(name) for name in unit.loads}
            for name in unit.imports.keys() - used - tops:
                for target in unit.imports[name]:
                    self.want(*target)
            for name in unit.loads:
                parts = tuple(name.split("."))
                below = {path[len(parts) :] for path in unit.paths if path[: len(parts)] == parts}
                for path in below or {()}:  # It is imported for what it does.
                    self.want(name, path)

    def _follow(self, name: str, path: Names) -> None:
        module = _read(name)
        if module is None:
            self.found[name, ""] = "missing"
        elif not path or module.tree is None:
            self._whole(module)
        elif path[0] in module.defined or self._that_have(module, path[0]):
            if path[0] in module.defined:
                self._definition(module, path[0], path[1:])
            for star in self._that_have(module, path[0]):  # The later one counts.
                self.want(star, path)
        elif module.is_package and _spec(f"{name}.{path[0]}") is not None:
            self.want(f"{name}.{path[0]}", path[1:])
        elif path[0] not in _IN_ALL_MODULES:
            self.want(name, ())  # Its `__getattr__` may make it.

    def _definition(self, module: _Module, name: str, below: Names) -> None:
        nodes = module.defined[name]
        for node in nodes:
            for origin, before in module.unit(node).imports.get(name, ()):
                self.want(origin, before + below)
        if (module.name, name) not in self._walked:
            self._walked.add((module.name, name))
            texts = [module.source(node, name) for node in nodes]
            self.found[module.name, name] = "\n".join(texts)
            for node in nodes:
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    self.uses(module, module.unit(node))

    def _whole(self, module: _Module) -> None:
        code = _in_words(module.code) if module.code else module.file
        text = code if module.text is None else module.text
        self.found[module.name, ""] = f"whole\n{text}"
        for target in module.all_imports:
            self.want(*target)

    def _that_have(self, module: _Module, name: str) -> list[str]:
        """Return the modules of the package of which all is imported, and which have a name."""
        found: list[str] = []
        todo, seen = [*module.stars], {module.name}
        while todo:
            star = todo.pop()
            if star in seen or _package(star) != self._package:
                continue
            seen.add(star)
            other = _read(star)
            if other is not None and (other.tree is None or name in other.defined):
                found.append(star)
            elif other is not None:
                todo += other.stars
        return found
