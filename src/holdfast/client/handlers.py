"""Functions as handlers of a queue: the payload is the arguments, as JSON. No I/O.

The payload is an object with the arguments by name. So `queue.add({"to": "a@b.c"}, handler="send")`
is the same as `send.add(to="a@b.c")`, and programs in other languages can add such jobs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, get_type_hints

import msgspec
from msgspec.structs import astuple

from holdfast import arguments, codec
from holdfast.codec import utf8_name
from holdfast.errors import CodecError, InvalidArgument, WrongState
from holdfast.job import JobOptions, NewJob, Receipt

if TYPE_CHECKING:
    from typing import Self

    from holdfast.job import Duration, Outcome

P = ParamSpec("P")
R = TypeVar("R")
Own = ParamSpec("Own")
Called = TypeVar("Called")
Kind = TypeVar("Kind", bound="CallReceipt")

_JOBS: Final = ("RunningJob", "AsyncRunningJob")
_HANDLER: Final = "handler"
_OF_ONE: Final = ("id", "delay", "at", "on_conflict")


class Declared(Generic[P, R, Own, Called]):
    """A function that runs the jobs with its name: the part that both shells share.

    P and R are the arguments and result of a job. Own and Called are those of a plain call, which
    differ if the function also takes the job or is a coroutine function.
    """

    name: str
    """The handler name in jobs."""

    def __init__(self, function: Callable[Own, Called], name: str | None, said: JobOptions) -> None:
        if not callable(function):
            raise InvalidArgument(f"a handler must be a function, not {arguments.shown(function)}")
        update_wrapper(self, function)
        self.name = _name_of(function) if name is None else name
        utf8_name("name", self.name)
        _check(said)
        self._function = function
        self._said: dict[str, Any] = dict(said)
        self._signature, self._takes_job = _signature_of(function)
        kinds = {one.kind: name for name, one in self._signature.parameters.items()}
        self._rest = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        """The name of the `**` parameter, or ""."""
        self.run: Callable[[Any], Any] = _runner(function, self.call_of)
        """The function that a worker calls with the job."""

    @property
    def timeout(self) -> Duration | None:
        """The timeout that was declared with the handler."""
        said: Duration | None = self._said.get("timeout")
        return said

    @cached_property
    def _read(self) -> Callable[[bytes], Any]:
        """Decode JSON as the return type of the function, or as plain values if it is unknown."""
        try:
            return codec.reader(get_type_hints(self._function).get("return", Any))
        except (NameError, TypeError, AttributeError):
            return codec.reader(Any)

    def __call__(self, *args: Own.args, **kwargs: Own.kwargs) -> Called:
        """Call the function directly."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job for a call, to add with others or as a follow-up."""
        own = {name: value for name, value in self._said.items() if name != "on_conflict"}
        return NewJob(self.payload(args, kwargs), handler=self.name, **own)

    # --------------------------------------------------------------- for the shells

    def saying(self, said: Mapping[str, Any]) -> Self:
        """Return a copy of the handler with other options for its jobs."""
        _check({name: value for name, value in said.items() if name not in _OF_ONE})
        other = copy.copy(self)
        vars(other)["_said"] = {**self._said, **said}
        return other

    def options_of(self) -> dict[str, Any]:
        """Return the options to add a job with."""
        return {"handler": self.name, **self._said}

    def news(self, calls: Iterable[Mapping[str, Any]]) -> list[NewJob]:
        """Return the jobs for many calls. All are checked before the first is added."""
        if self._said.get("id") is not None:
            raise InvalidArgument(f"{self.name}: one id cannot be used for many jobs")
        jobs = []
        for one in arguments.several("calls", calls):
            if not isinstance(one, Mapping):
                raise InvalidArgument(
                    f"{self.name}: each call must be a dict of arguments, not "
                    f"{arguments.shown(one)}: for one call there is add"
                )
            jobs.append(self.new(**one))  # type: ignore[call-arg]  # Checked there.
        return jobs

    def payload(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a call as JSON. Refuse what the function or JSON cannot take."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(f"{self.name}{self._signature}: {error}") from None
        rest = bound.arguments.pop(self._rest, {})
        given = {**bound.arguments, **rest}
        raw = codec.encode(given)
        if codec.decode_json(raw) != given:
            where, what = _changed(given, codec.decode_json(raw))
            raise CodecError(
                f"{self.name}: {where} is {_a(what)}, which JSON does not have, so the handler "
                "would get something else: give str, int, float, bool, None, or lists and dicts "
                "(with str keys) of them"
            )
        return raw

    def typed(self, kind: type[Kind], receipt: Receipt) -> Kind:
        """Return a receipt that knows this handler."""
        typed = kind(receipt.id, receipt.created, receipt.state, receipt.updated)
        vars(typed)[_HANDLER] = self
        return typed

    def of_schedule(self, kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
        """Remove and return the arguments of a call that are meant for its schedule.

        Arguments that the function itself takes stay, as with `add`.
        """
        taken = self._signature.parameters.keys()
        found = () if self._rest else [name for name in names if name not in taken]
        return {name: kwargs.pop(name) for name in found if name in kwargs}

    def call_of(self, job: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with for a job."""
        given = job.json()
        if not isinstance(given, dict):
            raise CodecError(
                f"{self.name} takes a JSON object, its arguments by name, "
                f"not {arguments.shown(given)}"
            )
        return ((job,) if self._takes_job else ()), given

    def returned(self, id: str, outcome: Outcome | None) -> R:
        """Return the result of a job as the return type of the function."""
        if outcome is None:
            raise WrongState(f"{id}: the job has not ended: wait longer with wait=")
        if not outcome.completed:
            why = f": {outcome.error}" if outcome.error else ""
            raise WrongState(f"{id}: the job {_ENDED[outcome.kind]}{why}")
        if outcome.result is None:
            return cast("R", None)
        try:
            return cast("R", self._read(outcome.result))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CodecError(f"{id}: the result is not what {self.name} returns: {error}") from None


class CallReceipt(Receipt, frozen=True, dict=True):
    """The receipt of a handler's job. Equal to a `Receipt` with the same fields.

    The handler is not a field, so it is not shown, compared or encoded as JSON.
    """

    def __eq__(self, other: object) -> bool:
        return astuple(self) == astuple(other) if isinstance(other, Receipt) else NotImplemented

    def __hash__(self) -> int:
        return hash(Receipt(*astuple(self)))


def handler_of(receipt: CallReceipt) -> Any:
    """Return the handler that made this receipt. Refuse a receipt that was decoded or copied."""
    try:
        return vars(receipt)[_HANDLER]
    except KeyError:
        raise InvalidArgument(
            f"{receipt.id}: this copy of a receipt does not know its handler: ask "
            "handler.result(receipt)"
        ) from None


D = TypeVar("D", bound=Declared[..., Any, ..., Any])


def register(known: dict[str, Any], declared: D) -> D:
    """Register a handler with a queue. Refuse a name that is taken."""
    if declared.name in known:
        raise InvalidArgument(
            f"the queue has a handler named {declared.name!r} already: use name= to tell them apart"
        )
    known[declared.name] = declared
    return declared


_ENDED: Final = {"failed": "has failed", "cancelled": "was cancelled"}


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InvalidArgument(
            f"{arguments.shown(function)} has no name that jobs could give: use name="
        )
    return name


def _check(said: Mapping[str, Any]) -> None:
    """Refuse invalid options."""
    if "handler" in said:
        raise InvalidArgument("the jobs of a handler name it: give no handler")
    arguments.options({name: value for name, value in said.items() if name != "group_limit"})


def _signature_of(function: Any) -> tuple[inspect.Signature, bool]:
    """Return the signature of the payload, and whether the job is passed before it."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, AttributeError):  # Names that only a type checker knows.
        signature = inspect.signature(function)
    name = getattr(function, "__name__", function)
    parameters = list(signature.parameters.values())
    takes_job = bool(parameters) and _is_job(parameters[0].annotation)
    carried = parameters[takes_job:]
    for parameter in carried:
        if _is_job(parameter.annotation):
            raise InvalidArgument(f"{name}: the job must be the first parameter")
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidArgument(
                f"{name}: {parameter} has no name under which it could be stored: arguments are "
                "carried by name"
            )
    return signature.replace(parameters=carried, return_annotation=signature.empty), takes_job


def _is_job(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] in _JOBS
    return getattr(annotation, "__name__", "") in _JOBS


def _runner(
    function: Any, call_of: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]
) -> Callable[[Any], Any]:
    """Return a function that takes a job and calls `function` with its payload."""

    def run(job: Any) -> Any:
        args, kwargs = call_of(job)
        return _result(function(*args, **kwargs))

    async def run_async(job: Any) -> Any:
        args, kwargs = call_of(job)
        return _result(await function(*args, **kwargs))

    runner: Any = run_async if inspect.iscoroutinefunction(function) else run
    runner.__qualname__ = getattr(function, "__qualname__", str(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"{runner.__qualname__} has a `yield`: calling it would run nothing of it"
        )
    return cast("Callable[[Any], Any]", runner)


def _result(value: object) -> object:
    """Encode str and bytes as JSON, which would otherwise be stored as they are."""
    return codec.to_json("result", value) if isinstance(value, str | bytes) else value


def _changed(given: object, got: object, where: str = "") -> tuple[str, object]:
    """Return the first difference between a value and its copy by way of JSON."""
    if isinstance(given, dict) and isinstance(got, dict):
        for key, value in given.items():
            if not isinstance(key, str):
                return f"a key of {where}", key
            if got.get(key) != value:
                return _changed(value, got.get(key), f"{where}[{key!r}]" if where else key)
    if isinstance(given, list) and isinstance(got, list):
        for n, (value, other) in enumerate(zip(given, got, strict=True)):
            if value != other:
                return _changed(value, other, f"{where}[{n}]")
    return where, given


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
