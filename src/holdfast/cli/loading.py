"""Import the modules that a user names, and find what to run in them: MODULE:NAME, or MODULE."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.client.aio.queue import AsyncQueue
    from holdfast.client.sync.queue import Queue
    from holdfast.worker import Worker

HINT = "MODULE[:NAME]"


@dataclass(frozen=True)
class Functions:
    """The functions of a plain module: `handle`, and `handle_failure` if it has one."""

    handle: Callable[..., Any]
    handle_failure: Callable[..., Any] | None = None


def load(module: str, param_hint: str) -> ModuleType:
    """Import a module. An import that fails inside the module raises its own error."""
    if _is_file(module):
        parts = Path(module.removesuffix(".py")).parts
        meant = ".".join(part for part in parts if part.isidentifier())
        raise click.BadParameter(
            f"{module!r} is a file: name the module, {meant!r}", param_hint=param_hint
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(
            f"module {module!r} was not found, neither here nor installed", param_hint=param_hint
        ) from error


def _is_file(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def named(target: str, *, with_queue: bool) -> object:
    """Return what a target names: a Worker, a Queue, a function, or the Functions of a module.

    If the user gave --queue (`with_queue`), a MODULE alone stands for its functions. Otherwise it
    stands for its only Worker, or its only queue with handlers.
    """
    module_name, colon, name = target.partition(":")
    wrong = not module_name or (colon and not name)
    if wrong or (module_name.startswith(".") and not _is_file(module_name)):
        raise click.BadParameter(
            "should look like myapp.jobs, or myapp.jobs:worker", param_hint=HINT
        )
    module = load(module_name, HINT)
    if not colon:
        return _functions(module) if with_queue else _only(module)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            close = get_close_matches(part, dir(found), 1)
            meant = f": did you mean {close[0]!r}?" if close else ""
            raise click.BadParameter(f"{module_name!r} has no {name!r}{meant}", param_hint=HINT)
        found = getattr(found, part)
    return found


def _functions(module: ModuleType) -> Functions:
    handle = getattr(module, "handle", None)
    if not callable(handle):
        raise click.BadParameter(
            f"{module.__name__!r} has no function handle: name the one to run, as in "
            f"{module.__name__}:send",
            param_hint=HINT,
        )
    return Functions(handle, getattr(module, "handle_failure", None))


def _only(module: ModuleType) -> Worker | Queue | AsyncQueue:
    """Return the only Worker of a module, or its only queue with handlers."""
    from holdfast.client.aio.queue import AsyncQueue  # noqa: PLC0415
    from holdfast.client.sync.queue import Queue  # noqa: PLC0415
    from holdfast.worker import Worker  # noqa: PLC0415

    workers: dict[str, Worker] = _in(module, Worker)
    queues: dict[str, Queue | AsyncQueue] = _in(module, Queue | AsyncQueue)
    able = {name: queue for name, queue in queues.items() if queue.handlers}
    if len(workers) == 1:
        [(name, worker)] = workers.items()
        others = [other for other, queue in able.items() if queue.name not in worker.queues]
        if not others:
            return worker
        found = f"a Worker, {name}, and handlers of a queue that it does not work on, {others[0]}"
    elif workers:
        found = f"{len(workers)} workers, {_listed(workers)}"
    elif len(able) == 1:
        return next(iter(able.values()))
    elif able:
        found = f"{len(able)} queues with handlers, {_listed(able)}"
        raise click.UsageError(
            f"{module.__name__} has {found}: name one of them, or several: "
            f"holdfast work {' '.join(able)}"
        )
    elif callable(getattr(module, "handle", None)):
        raise click.UsageError(
            f"{module.__name__} has a function handle: name the queue it works on with --queue"
        )
    else:
        bare = f"; {_listed(queues)} has no handlers" if queues else ""
        raise click.UsageError(
            f"{module.__name__} has no Worker, no Queue with handlers and no function handle{bare}"
        )
    raise click.UsageError(f"{module.__name__} has {found}: name the one to run")


def _in(module: ModuleType, kind: Any) -> dict[str, Any]:
    """Return the objects of a kind in a module, each once, by their MODULE:NAME."""
    found: dict[int, tuple[str, Any]] = {}
    for name, value in vars(module).items():
        if isinstance(value, kind):
            found.setdefault(id(value), (f"{module.__name__}:{name}", value))
    return dict(found.values())


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
