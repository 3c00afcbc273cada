"""The functions that a pipeline may run, by name: code never travels through the queue."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

import msgspec

from holdfast import arguments, codec
from holdfast.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Transform:
    """A function from a DataFrame, and parameters, to a DataFrame."""

    name: str
    function: Callable[..., Any]
    per_part: bool = False
    """Whether each part may give a result of its own."""

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check parameters, which came as JSON, and return them as the function wants them."""
        signature = inspect.signature(self.function)
        try:
            signature.bind(None, **given)
        except TypeError as error:
            raise InvalidArgument(
                f"params of {self.name!r}: {error}; it takes {_takes(signature)}"
            ) from None
        hints = _hints(self.function)
        return {name: self._converted(name, value, hints) for name, value in given.items()}

    def _converted(self, name: str, value: Any, hints: Mapping[str, Any]) -> Any:
        if name not in hints:
            return value
        try:
            return codec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"params of {self.name!r}: {name}: {error}") from None
        except TypeError:  # A type that no JSON could be.
            return value


_known: Final[dict[str, Transform]] = {}


class UnknownTransform(InvalidArgument):
    """No transform of this name is registered in this process."""

    def __init__(self, name: str) -> None:
        self.unknown = arguments.shown(name)
        self.there = ", ".join(sorted(_known)) or "none"
        super().__init__(
            f"unknown transform {self.unknown}: register it with @transform, and import "
            f"the module where it is. Registered here: {self.there}"
        )

    def in_a_worker(self) -> str:
        """Return what to do where a worker does not know the transform of a request."""
        return (
            f"unknown transform {self.unknown}: import its module in the workers (--transforms), "
            f"or cancel the request. This worker knows: {self.there}"
        )


@overload
def transform(function: F, /) -> F: ...
@overload
def transform(*, name: str | None = None, per_part: bool = False) -> Callable[[F], F]: ...
def transform(
    function: F | None = None, /, *, name: str | None = None, per_part: bool = False
) -> F | Callable[[F], F]:
    """Register a function that pipelines may run: `@transform`.

    It is given a DataFrame, and the parameters of the request by name, and returns a DataFrame. It
    sees one part of the input at a time, so it works row by row: filter, select, join with what it
    loads itself. Anything else is refused when a request is planned. What needs all rows belongs
    into `finish`.

    name      what requests call it; by default the name of the function
    per_part  let it group, sort, window or run queries within each part: no check
    """

    def register(function: F) -> F:
        _check(function)
        named = Transform(name or function.__name__, function, per_part)
        before = _known.get(named.name)
        if before and _origin(before.function) != _origin(function):
            raise InvalidArgument(
                f"there is a transform {named.name!r} already, in {before.function.__module__}: "
                "give one of them another name"
            )
        _known[named.name] = named
        return function

    return register if function is None else register(function)


def find(name: str) -> Transform:
    """Return a transform; an error that lists what there is when it is not there."""
    found = _known.get(name)
    if found is None:
        raise UnknownTransform(name)
    return found


def registered() -> list[Transform]:
    """Return all transforms of this process."""
    return list(_known.values())


def as_json(name: str, params: object) -> dict[str, Any]:
    """Return parameters as they will be after their journey."""
    if not isinstance(params, Mapping):
        raise InvalidArgument(
            f"{name} must be a dict, such as {{'day': '2030-01-31'}}, not {arguments.shown(params)}"
        )
    decoded: dict[str, Any] = codec.decode_json(codec.encode(params))
    return decoded


def _check(function: Any) -> None:
    """Refuse what cannot be called with a DataFrame and return another."""
    is_class = inspect.isclass(function)
    if is_class or not callable(function) or not hasattr(function, "__qualname__"):
        kind = "a class: " if is_class else ""
        raise InvalidArgument(
            f"a transform must be a function, not {kind}{arguments.shown(function)}"
        )
    called = f"the transform {function.__qualname__}"
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise InvalidArgument(
            f"{called} must be a plain function that returns a DataFrame, without async and yield"
        )
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise InvalidArgument(
            f"{called} must take the DataFrame as its first parameter, before a `*`"
        )


def _origin(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _takes(signature: inspect.Signature) -> str:
    names = [str(parameter) for parameter in list(signature.parameters.values())[1:]]
    return ", ".join(names) or "none"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that a function names, without types that only type checkers know."""
    found: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(function).items():
        one = types.SimpleNamespace(__annotations__={name: hint})
        with suppress(Exception):
            found |= typing.get_type_hints(one, getattr(function, "__globals__", None))
    return found
