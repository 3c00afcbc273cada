"""The options of the connectors: parsed from text and checked. Errors name the option.

Spark passes options as text, and ignores the case of their names. An unknown option is refused: if
it were ignored, a misspelling would be noticed much later.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import quote

from holdfast import arguments
from holdfast.client.sync.queue import Queue
from holdfast.codec import utf8_name
from holdfast.connection.address import default_url
from holdfast.connection.address import parse as parse_url
from holdfast.connection.server import Server
from holdfast.engine.keys import queue_keys
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.job import State
from holdfast.server.directory import default_directory, real_path, tell_default

T = TypeVar("T")

STATES: Final[tuple[State, ...]] = ("ready", "parked", "delayed", "leased", "failed", "ended")

MAX_NAME_BYTES: Final = 440
"""Limit for the name of a reader or a writer: the ledger adds to it."""

OF_A_LOOK: Final = ("url", "queue", "state")
OF_A_WRITE: Final = ("url", "queue", "stagedFor")
OF_A_STREAMS_WRITE: Final = (*OF_A_WRITE, "writer", "checkpointLocation")
OF_A_STREAM: Final = (
    "url",
    "queue",
    "reader",
    "maxJobsPerTrigger",
    "maxJobsPerPartition",
    "claimFor",
)

DEFAULT_JOBS_PER_TRIGGER: Final = 20_000
DEFAULT_JOBS_PER_PARTITION: Final = 10_000
DEFAULT_CLAIM_SECONDS: Final = 3600.0
DEFAULT_STAGED_SECONDS: Final = 86400.0
REACH_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Place:
    """A queue on a server: all that another process needs to open it."""

    queue: str
    url: str = field(repr=False)
    """It includes the password, so the repr leaves it out."""
    host: str = ""
    """Of an embedded server: the machine where the options were read. Others cannot reach it."""

    def open(self) -> Queue:
        """Return the queue. All callers in this process share its connections."""
        if self.host and self.host != socket.gethostname():
            raise InvalidArgument(
                "url is that of an embedded server, which other machines cannot reach: "
                "give the url of a server that all executors can reach"
            )
        return _open(self.queue, self.url)


@lru_cache(maxsize=64)
def _open(queue: str, url: str) -> Queue:
    return Queue(queue, url)


@dataclass(frozen=True)
class LookOptions:
    """The options of a batch read."""

    place: Place
    states: tuple[State, ...]


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write; `writer` is for streams only."""

    place: Place
    writer: str | None
    staged_for: float


@dataclass(frozen=True)
class SourceOptions:
    """The options of a stream's read."""

    place: Place
    reader: str
    max_jobs: int
    partition_jobs: int
    claim_for: float


def look_options(given: Mapping[str, str]) -> LookOptions:
    """Parse the options of a batch read."""
    options = _Given(given, "a batch read", OF_A_LOOK)
    return LookOptions(options.place(), options.read("state", _states, STATES))


def sink_options(given: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Parse the options of a batch or stream write."""
    if stream:
        options = _Given(given, "a stream's write", OF_A_STREAMS_WRITE)
    else:
        options = _Given(given, "a batch write", OF_A_WRITE)
    return SinkOptions(
        options.place(),
        options.read("writer", _name_of("writer"), None),
        options.read("stagedFor", _seconds_of("stagedFor"), DEFAULT_STAGED_SECONDS),
    )


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a stream's read."""
    options = _Given(given, "a stream's read", OF_A_STREAM)
    if "reader" not in given:
        raise InvalidArgument(
            "option 'reader' is missing: name this stream, so that it finds its claims again "
            "after a restart; two streams that run side by side need two names"
        )
    return SourceOptions(
        options.place(),
        options.read("reader", _name_of("reader"), ""),
        options.read("maxJobsPerTrigger", _whole_of("maxJobsPerTrigger"), DEFAULT_JOBS_PER_TRIGGER),
        options.read(
            "maxJobsPerPartition", _whole_of("maxJobsPerPartition"), DEFAULT_JOBS_PER_PARTITION
        ),
        options.read("claimFor", _seconds_of("claimFor"), DEFAULT_CLAIM_SECONDS),
    )


class _Given:
    """The options that the user gave. Unknown ones are refused."""

    def __init__(self, given: Mapping[str, str], what: str, known: tuple[str, ...]) -> None:
        self._given = given
        names = {name.lower(): name for name in known}
        for name in given:
            if name.lower() == "path":
                raise InvalidArgument(
                    "load() and save() take no path here: name the queue with option 'queue'"
                )
            if name.lower() not in names:
                raise InvalidArgument(
                    f"unknown option {arguments.shown(name)}: {what} has {', '.join(known)}"
                )

    def read(self, name: str, check: Callable[[str], T], default: T) -> T:
        text = self._given.get(name, self._given.get(name.lower()))
        return default if text is None else check(text)

    def place(self) -> Place:
        queue = self.read("queue", _queue, "")
        if not queue:
            raise InvalidArgument("option 'queue' is missing: name the queue")
        url: str | None = self.read("url", str, None)
        try:
            address = parse_url(url)
        except InvalidArgument as error:
            raise InvalidArgument(f"option 'url': {error}") from None
        if not address.embedded:
            return Place(queue, default_url() if url is None else url)
        # Executors have another current directory.
        directory = real_path(address.path or default_directory())
        if address.by_default:
            tell_default(directory)
        return Place(queue, f"embedded://{quote(str(directory))}", socket.gethostname())


def _queue(text: str) -> str:
    try:
        queue_keys(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"option 'queue': {error}") from None
    return text


def _states(text: str) -> tuple[State, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in STATES:
            raise InvalidArgument(
                f"option 'state' must be one or more of {', '.join(STATES)}, separated by commas, "
                f"not {arguments.shown(text)}"
            )
    return tuple(state for state in STATES if state in words)


def _name_of(option: str) -> Callable[[str], Any]:
    def check(text: str) -> str:
        size = len(utf8_name(f"option {option!r}", text))
        if size > MAX_NAME_BYTES or any(map(str.isspace, text)):
            raise InvalidArgument(
                f"option {option!r} must have 1 to {MAX_NAME_BYTES} bytes and no white space, "
                f"not {arguments.shown(text)}"
            )
        return text

    return check


def _whole_of(option: str) -> Callable[[str], int]:
    def check(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
            raise InvalidArgument(
                f"option {option!r} must be a whole number, 1 or more, not {arguments.shown(text)}"
            )
        return int(text)

    return check


def _seconds_of(option: str) -> Callable[[str], float]:
    def check(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 1 <= seconds <= 10**9:
            raise InvalidArgument(
                f"option {option!r} must be seconds, from 1 to a billion, "
                f"not {arguments.shown(text)}"
            )
        return seconds

    return check


def reach(place: Place) -> None:
    """Check that the server answers before any work is planned; raise an error if it does not.

    It gives up sooner than calls during the work, because the user waits for it.
    """
    place.open()  # Refuses an embedded server of another machine.
    try:
        with Queue(place.queue, Server(place.url, patience=REACH_SECONDS)) as queue:
            queue.counts()
    except HoldfastError as error:
        raise type(error)(f"option 'url': {error}") from None
