"""The engine as a library of functions that the server runs.

The text is the files in `lua/` one after the other, below a line with the bounds. A server loads it
once with FUNCTION LOAD and keeps it, with its replicas and in its files. Its name says what is in
it, so the libraries of two releases stand side by side. Where a user or a server has no functions,
the same text is run as a script.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from holdfast.codec import MAX_ERROR_BYTES, MAX_NAME_BYTES
from holdfast.engine.replies import ENDINGS

MAX_JOBS: Final = 1000
"""The most jobs that one call moves."""

MAX_BYTES: Final = 8 * 1024 * 1024
"""The most payload bytes that one call moves."""

MAX_REQUEST_BYTES: Final = MAX_NAME_BYTES - 32
"""The longest name of a request: the ids of its parts and follow-ups are longer."""

LEAST_KEPT_MS: Final = 10_000
"""An ended request is kept at least this long, so that clients that wait for it learn the end."""

GONE_DAYS: Final = 100
"""A reader, writer or schedule is forgotten when no call has named it for this many days."""

BOUNDS: Final = {
    "MAX_JOBS": MAX_JOBS,
    "MAX_BYTES": MAX_BYTES,
    "MAX_NAME": MAX_NAME_BYTES,
    "MAX_ERROR": MAX_ERROR_BYTES,
    "MAX_REQUEST": MAX_REQUEST_BYTES,
    "MAX_PRIORITY": 99,
    "MAX_INSTANT": 2**53 - 1,  # the latest instant; as a duration: for ever
    "DEFAULT_LAPSES": 3,
    "DEFAULT_FAILURES": 10,
    "MAX_HANDLINGS": 100,  # how often a failure handler may try
    "HANDLING_MS": 10_000,  # its first wait between two tries, doubled with each try
    "MAX_HANDLING_MS": 900_000,
    "SPENT": 2**52,  # a failed job with a score from here on gets no failure handler any more
    "RANKS": 2**46,  # how many ranks one priority has
    "COMPLETED": ENDINGS.index("completed"),
    "FAILED": ENDINGS.index("failed"),
    "CANCELLED": ENDINGS.index("cancelled"),
    "OUR_LAYOUT": 1,  # the version of the keys and their contents
    "SILENCE_MS": 5_000,  # after a longer silence of all callers, holders get as long again
    "CALLER_MS": 600_000,  # a caller silent for longer is forgotten
    "LEAST_KEPT_MS": LEAST_KEPT_MS,
    "GONE_MS": GONE_DAYS * 86_400_000,
    "HEARD_MS": 86_400_000,  # how often the use of a reader or schedule is recorded
    "MAX_CHUNKS": 16,  # chunks of rows that one call forgets
    "SMALL_CHUNKS": 128 * 1024,  # bytes of chunks that one call publishes, if more than one chunk
}
"""The values that Lua files use by name."""

FILES: Final = (
    "prelude",
    "shared/requests",
    "shared/waiting",
    "shared/closing",
    "shared/ending",
    "shared/adding",
    "shared/staging",
    "shared/granting",
    "jobs",
    "leases",
    "requests",
    "writes",
    "claims",
    "queue",
    "reads",
    "repair",
    "audit",
)
"""All Lua files, each after those whose functions it uses: first what transitions share."""

LUA: Final = Path(__file__).parent / "lua"

Flags: TypeAlias = Literal["", "allow-oom", "no-writes"]
"""What a server may let a function do: add data, only free or move it, only read it."""


class Function:
    """A function of the library: a transition, and what the server may let it do."""

    __slots__ = ("changes", "flags", "name", "runs")

    def __init__(self, name: str, flags: Flags = "", *, transition: str = "") -> None:
        self.name = name
        self.flags = flags
        self.runs = transition or name
        """The name of its transition."""
        self.changes = flags != "no-writes"
        """Whether calls carry a caller and a number, so that a repetition gets the same answer."""

    @property
    def called(self) -> str:
        """Its name on the server."""
        return prefix() + self.name


# Functions that free or move work run on a full server, so that it can be drained.
# Functions that add work or store results do not: hence lease and complete are here twice.
ADD: Final = Function("add")
ADD_GROUPED: Final = Function("add_grouped")
UPDATE: Final = Function("update")
TICK: Final = Function("tick")
LEASE: Final = Function("lease", "allow-oom")
LEASE_WITH_RESULTS: Final = Function("lease_with_results", transition="lease")
COMPLETE: Final = Function("complete", "allow-oom")
COMPLETE_WITH_RESULTS: Final = Function("complete_with_results", transition="complete")
COMPLETE_AND_ADD: Final = Function("complete_and_add")
RETRY: Final = Function("retry", "allow-oom")
FAIL: Final = Function("fail", "allow-oom")
RELEASE: Final = Function("release", "allow-oom")
EXTEND: Final = Function("extend", "allow-oom")
CANCEL: Final = Function("cancel", "allow-oom")
CANCEL_MATCHING: Final = Function("cancel_matching", "allow-oom")
REVIVE: Final = Function("revive", "allow-oom")
SET_RESULT: Final = Function("set_result")
RECALL: Final = Function("recall", "allow-oom")
REGISTER: Final = Function("register", "allow-oom")
TIDY: Final = Function("tidy", "allow-oom")
REPAIR: Final = Function("repair", "allow-oom")
RECOUNT: Final = Function("recount", "allow-oom")
OPEN_REQUEST: Final = Function("open_request")
ADD_PARTS: Final = Function("add_parts")
CHANGE_REQUEST: Final = Function("change_request", "allow-oom")
STAGE: Final = Function("stage")
ADOPT: Final = Function("adopt")
COMMIT: Final = Function("commit")
PUBLISH: Final = Function("publish")
ABORT: Final = Function("abort", "allow-oom")
OPEN_READER: Final = Function("open_reader", "allow-oom")
CLAIM: Final = Function("claim", "allow-oom")
RENEW_CLAIMS: Final = Function("renew_claims", "allow-oom")
SETTLE_CLAIMS: Final = Function("settle_claims", "allow-oom")
RETURN_CLAIM: Final = Function("return_claim", "allow-oom")
PAUSE: Final = Function("pause", "allow-oom")
RESUME: Final = Function("resume", "allow-oom")
DELETE: Final = Function("delete", "allow-oom")
COUNTS: Final = Function("counts", "no-writes")
TOTALS: Final = Function("totals", "no-writes")
RIGHTS: Final = Function("rights", "no-writes")
SHOW: Final = Function("show", "no-writes")
PEEK: Final = Function("peek", "no-writes")
WORKERS: Final = Function("workers", "no-writes")
AUDIT: Final = Function("audit", "no-writes")
REQUESTS: Final = Function("requests", "no-writes")
PARTS: Final = Function("parts", "no-writes")
LEDGER: Final = Function("ledger", "no-writes")
READ_CLAIM: Final = Function("read_claim", "no-writes")

FUNCTIONS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Function))


# ------------------------------------------------------------------------------- texts

# Not cached_property or importlib.resources: they take locks. If one thread forks while another
# holds such a lock, the child finds it locked for ever.


@cache
def code() -> str:
    """Return the bounds and all files: what the library and the scripts have in common."""
    bounds = f"local {', '.join(BOUNDS)} = {', '.join(map(str, BOUNDS.values()))}\n"
    return bounds + "".join(map(read, FILES))


def read(file: str) -> str:
    """Return a Lua file."""
    return (LUA / f"{file}.lua").read_text(encoding="utf-8")


def place_of(line: int) -> str:
    """Return file and line for a line of the library or a script, as servers name it in errors."""
    line -= 2  # The header and the bounds.
    for file in FILES:
        length = read(file).count("\n")
        if 0 < line <= length:
            return f"{file}.lua:{line}"
        line -= length
    return f"library.py:{line}"


@cache
def prefix() -> str:
    """Return what the names of this library's functions begin with."""
    flags = "".join(f"{function.name} {function.flags} " for function in FUNCTIONS)
    content = hashlib.sha1((code() + flags).encode(), usedforsecurity=False)
    return f"hf_{content.hexdigest()[:12]}_"


@cache
def library_name() -> str:
    """Return the name of the library."""
    return "holdfast" + prefix()[2:-1]


@cache
def library() -> bytes:
    """Return the text for FUNCTION LOAD."""
    functions = "".join(
        f"serve('{prefix()}{function.name}', transition.{function.runs}, {{{flags}}})\n"
        for function in FUNCTIONS
        for flags in (f"'{function.flags}'" if function.flags else "",)
    )
    return f"#!lua name={library_name()}\n{code()}{functions}".encode()


@cache
def script(flags: Flags) -> bytes:
    """Return the text for SCRIPT LOAD: it runs the transition that its last argument names."""
    header = f"#!lua flags={flags}\n" if flags else "#!lua\n"
    return f"{header}{code()}return run_as_script()\n".encode()


@cache
def sha(flags: Flags) -> bytes:
    """Return the name that a server gives to a script."""
    return hashlib.sha1(script(flags), usedforsecurity=False).hexdigest().encode()
