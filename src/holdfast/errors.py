"""Everything that Holdfast raises.

HoldfastError
├── Refused               the server refused the call, and nothing was changed
│   ├── LeaseLost         the job is no longer yours to settle or extend
│   │   └── JobCancelled  it was cancelled while it ran
│   ├── JobExists         the id is taken, and add was called with on_conflict="raise"
│   ├── JobNotFound       no job has this id
│   │   ├── RequestNotFound   no request has this id
│   │   └── GroupNotFound     no group of jobs has this name
│   ├── WrongState        the job is not in a state that allows this
│   ├── Fenced            a newer reader of this name was opened
│   ├── QueueFull         the server is out of memory and takes no more work
│   └── ServerRefused     the server itself refused: read-only, loading, disk full, no access
│       └── ServerNotStarted  the embedded server cannot be started
├── ServerUnavailable     the connection was lost and did not come back in time:
│                         the outcome is unknown until you ask
├── UnsupportedServer     too old, or not a server that Holdfast can use
├── InvalidArgument       a value was refused before anything was sent (a ValueError)
└── CodecError            a payload could not be encoded or decoded (a ValueError)

ModuleNotFoundError
└── MissingExtra          a module is missing that an extra of this package installs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.distribution import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.job import Receipt


class HoldfastError(Exception):
    """The base of every error that Holdfast raises."""

    receipts: Sequence[Receipt] = ()
    """The receipts of the jobs that `add_many` added before this error stopped it."""

    answers: Sequence[int] = ()
    """The answers that a many-form received before this error stopped it."""


class Refused(HoldfastError):
    """The server refused the call; nothing was changed."""


class LeaseLost(Refused):
    """The lease is over: the job was taken back, given to another, or has ended."""


class JobCancelled(LeaseLost):
    """The job was cancelled while it ran: stop, it ends as cancelled."""


class JobExists(Refused):
    """A job already has this id."""


class JobNotFound(Refused):
    """No job has this id."""


class RequestNotFound(JobNotFound):
    """No request has this id: it was never opened, or it ended and is forgotten."""


class GroupNotFound(JobNotFound):
    """No group of jobs has this name: a group exists as long as it has jobs."""


class WrongState(Refused):
    """The job, request or queue is not in a state that allows this call."""


class Fenced(Refused):
    """A newer reader of this name was opened: this reader may not continue."""


class QueueFull(Refused):
    """The server is out of memory: jobs can be finished, but not added."""


class ServerRefused(Refused):
    """The server itself refused: read-only, loading, disk full, or access denied.

    `word` is the first word of its answer, such as `READONLY` or `NOPERM`.
    """

    def __init__(self, message: str, word: str = "") -> None:
        super().__init__(message)
        self.word = word


class ServerNotStarted(ServerRefused):
    """The embedded server cannot be started, and nothing was changed. The message says why."""


class ServerUnavailable(HoldfastError):
    """The server could not be reached; whether the last call was applied is unknown."""


class UnsupportedServer(HoldfastError):
    """The server cannot carry a Holdfast queue."""


class InvalidArgument(HoldfastError, ValueError):
    """An argument was refused before anything was sent to the server."""


class CodecError(HoldfastError, ValueError):
    """A payload could not be encoded or decoded."""


# ------------------------------------------------------------- an extra is not installed

_MODULES: Final = {
    "spark": frozenset({"pyspark", "py4j", "pyarrow", "pandas"}),
    "plot": frozenset({"matplotlib"}),
}
"""The modules that each extra installs."""


class MissingExtra(ModuleNotFoundError):
    """A module is missing that an extra of this package installs."""


def missing_extra(extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return an error that names the command to install an extra; else the same error."""
    module = (error.name or "").partition(".")[0]
    if isinstance(error, MissingExtra) or module not in _MODULES[extra]:
        return error
    return MissingExtra(f"{module} is not installed: {install_command(extra)}", name=module)
