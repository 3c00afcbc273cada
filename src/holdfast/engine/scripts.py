"""The script of each transition: one text, put together from the files in `lua/`.

The server runs the whole text for every call, so every function in it costs time, used or not.
Hence a script carries only the shared functions that it needs. The names of keys, bounds and
fields are filled in here: `key.ready` becomes `KEYS[1]`, `MAX_JOBS` becomes `1000`,
`record.limit` becomes `record[6]`, `field.limit` becomes `6`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Final

from holdfast.codec import MAX_ERROR_BYTES, MAX_NAME_BYTES
from holdfast.engine.keys import NAMES
from holdfast.engine.replies import ENDINGS, RECORD_BYTES, RECORD_FORMAT, Record

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
    "RECORD_FORMAT": f"'{RECORD_FORMAT}'",  # of the record of a request, see replies.py
    "RECORD_BYTES": RECORD_BYTES,
    "RECORD_NAMES": ", ".join(Record.__struct_fields__[:-1]),
    "RECORD_SUM": " + ".join(Record.__struct_fields__[:-1]),
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

FIELDS: Final = ("todo", "number", "stood", *Record.__struct_fields__)
"""The fields of the record of a request, in their order. The first three are never stored."""

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
"""All Lua files, each after the files whose functions it needs: first what transitions share, then
the transitions by family."""

LAZY: Final = frozenset(
    {
        *("maintain", "complete_each", "settle_met", "decide_met"),
        *("pop_by_turns", "pop_failed", "drop_ghosts", "leave_what_fits", "answer_again"),
        *("choose_each", "read_options", "standing", "publish_some", "tend_staging"),
        *("number_turns", "closer", "ender"),
    }
)
"""Functions that most calls do not run. The functions that only they need are made inside them.

To make a function costs as much as a small command, and a lease would make a hundred.
"""

LUA: Final = Path(__file__).parent / "lua"

_COMMENT: Final = re.compile(r" *--.*")
_EMPTY: Final = re.compile(r"\n\n+")
_STRING: Final = re.compile(r"'[^']*'")
_FUNCTION: Final = re.compile(r"^local function (\w+)\b.*?^end\n", re.MULTILINE | re.DOTALL)
_TRANSITION: Final = re.compile(
    r"^function transition\.(\w+)\(\)\n(.*?)^end\n", re.MULTILINE | re.DOTALL
)
_KEY: Final = re.compile(r"\bkey\.(\w+)")
_FIELD: Final = re.compile(r"\b(record|field)\.(\w+)")
_BOUND: Final = re.compile(rf"\b({'|'.join(BOUNDS)})\b")


class Script:
    """A transition: header, the shared functions that it needs, body; named by its hash."""

    __slots__ = ("changes", "flags", "name")

    def __init__(self, name: str, flags: str = "") -> None:
        self.name = name
        self.flags = flags
        self.changes = "no-writes" not in flags
        """Whether calls carry a caller and a number, so that a repetition gets the same answer."""

    @property
    def text(self) -> bytes:
        """The text that is loaded into the server."""
        return _text(self.name, self.flags)

    @property
    def sha(self) -> bytes:
        """The name that the server gives to this text."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


# Not cached_property or importlib.resources: they take locks. If one thread forks while another
# holds such a lock, the child finds it locked for ever.
@cache
def _text(name: str, flags: str) -> bytes:
    header = f"#!lua flags={flags}\n" if flags else "#!lua\n"
    return (header + assemble(name)).encode()


def assemble(name: str) -> str:
    """Return the body of a transition with the shared functions that it needs."""
    text = shared() + transitions()[name][1]
    functions = functions_in(text)
    needed = _reached(_FUNCTION.sub("", text), functions)
    text = _FUNCTION.sub(
        lambda match: _placed(match[1], functions, needed) if match[1] in needed else "", text
    )
    text = _KEY.sub(lambda match: f"KEYS[{NAMES.index(match[1]) + 1}]", text)
    text = _FIELD.sub(_place, text)
    return _BOUND.sub(lambda match: str(BOUNDS[match[1]]), text)


def _placed(name: str, functions: Mapping[str, str], known: AbstractSet[str]) -> str:
    """Return a function; a lazy one has the functions it needs inside, except the known ones."""
    code = functions[name]
    if name not in LAZY:
        return code
    own = _reached(code, functions) - known - {name}
    signature, _, rest = code.partition("\n")
    inside = "".join(_placed(f, functions, known | own) for f in functions if f in own)
    return f"{signature}\n{inside}{rest}"


def _reached(text: str, functions: Mapping[str, str]) -> set[str]:
    """Return the functions that a text uses, directly or through others that are not lazy."""
    unseen, reached = [text], set[str]()
    while unseen:
        words = set(re.findall(r"\w+", _STRING.sub("", unseen.pop())))
        found = functions.keys() & words - reached
        reached |= found
        unseen += [functions[function] for function in found - LAZY]
    return reached


def _place(match: re.Match[str]) -> str:
    place = FIELDS.index(match[2]) + 1
    return f"record[{place}]" if match[1] == "record" else f"{place}"


def functions_in(text: str) -> dict[str, str]:
    """Return the functions at the outermost level of a text, by name."""
    return {match[1]: match[0] for match in _FUNCTION.finditer(text)}


@cache
def shared() -> str:
    """Return everything that transitions share."""
    return _TRANSITION.sub("", "".join(map(read, FILES)))


@cache
def transitions() -> dict[str, tuple[str, str]]:
    """Return the file and the body of every transition, by name."""
    return {
        match[1]: (file, dedent(match[2]))
        for file in FILES
        for match in _TRANSITION.finditer(read(file))
    }


def read(file: str) -> str:
    """Return a Lua file without its comments."""
    text = (LUA / f"{file}.lua").read_text(encoding="utf-8")
    return _EMPTY.sub("\n", _COMMENT.sub("", text)).lstrip("\n")


# ---------------------------------------------------------------- all transitions

# Scripts that free or move work run on a full server, so that it can be drained.
# Scripts that add work or store results do not: hence lease and complete are here twice.
ADD: Final = Script("add")
ADD_GROUPED: Final = Script("add_grouped")
UPDATE: Final = Script("update")
TICK: Final = Script("tick")
LEASE: Final = Script("lease", "allow-oom")
LEASE_WITH_RESULTS: Final = Script("lease")
COMPLETE: Final = Script("complete", "allow-oom")
COMPLETE_WITH_RESULTS: Final = Script("complete")
COMPLETE_AND_ADD: Final = Script("complete_and_add")
RETRY: Final = Script("retry", "allow-oom")
FAIL: Final = Script("fail", "allow-oom")
RELEASE: Final = Script("release", "allow-oom")
EXTEND: Final = Script("extend", "allow-oom")
CANCEL: Final = Script("cancel", "allow-oom")
CANCEL_MATCHING: Final = Script("cancel_matching", "allow-oom")
REVIVE: Final = Script("revive", "allow-oom")
SET_RESULT: Final = Script("set_result")
RECALL: Final = Script("recall", "allow-oom")
REGISTER: Final = Script("register", "allow-oom")
TIDY: Final = Script("tidy", "allow-oom")
REPAIR: Final = Script("repair", "allow-oom")
RECOUNT: Final = Script("recount", "allow-oom")
OPEN_REQUEST: Final = Script("open_request")
ADD_PARTS: Final = Script("add_parts")
CHANGE_REQUEST: Final = Script("change_request", "allow-oom")
STAGE: Final = Script("stage")
ADOPT: Final = Script("adopt")
COMMIT: Final = Script("commit")
PUBLISH: Final = Script("publish")
ABORT: Final = Script("abort", "allow-oom")
OPEN_READER: Final = Script("open_reader", "allow-oom")
CLAIM: Final = Script("claim", "allow-oom")
RENEW_CLAIMS: Final = Script("renew_claims", "allow-oom")
SETTLE_CLAIMS: Final = Script("settle_claims", "allow-oom")
RETURN_CLAIM: Final = Script("return_claim", "allow-oom")
PAUSE: Final = Script("pause", "allow-oom")
RESUME: Final = Script("resume", "allow-oom")
DELETE: Final = Script("delete", "allow-oom")
COUNTS: Final = Script("counts", "no-writes")
TOTALS: Final = Script("totals", "no-writes")
RIGHTS: Final = Script("rights", "no-writes")
SHOW: Final = Script("show", "no-writes")
PEEK: Final = Script("peek", "no-writes")
WORKERS: Final = Script("workers", "no-writes")
AUDIT: Final = Script("audit", "no-writes")
REQUESTS: Final = Script("requests", "no-writes")
PARTS: Final = Script("parts", "no-writes")
LEDGER: Final = Script("ledger", "no-writes")
READ_CLAIM: Final = Script("read_claim", "no-writes")

SCRIPTS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Script))
