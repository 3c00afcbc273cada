"""Write the client for threads, `src/holdfast/client/sync`, from the one for asyncio beside it.

    tools/generate_client.py            write it
    tools/generate_client.py --check    fail if what is there is not what would be written

Code loses `async` and `await`, and names change as the tables below say. Names in comments and
strings change too. A rule that matches nothing is an error: it is out of date.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src/holdfast/client/aio"
TARGET: Final = ROOT / "src/holdfast/client/sync"

NAMES: Final = {
    "AsyncDeclare": "Declare",
    "AsyncIterator": "Iterator",
    "AsyncQueue": "Queue",
    "AsyncQueueHandler": "QueueHandler",
    "AsyncReader": "Reader",
    "AsyncRequest": "Request",
    "AsyncServer": "Server",
    "AsyncShard": "Shard",
    "AsyncShardedQueue": "ShardedQueue",
    "AsyncTypedReceipt": "TypedReceipt",
    "AsyncWrite": "Write",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "_length": "__len__",
    "aio": "sync",
    "anext": "next",
    "async_server": "server",
    "asynccontextmanager": "contextmanager",
}
"""Names in code, and words in comments and docstrings."""

PHRASES: Final = {
    r"asyncio\.sleep": "time.sleep",
    r"Callable\[\[\], Awaitable\[T\]\]": "Callable[[], T]",
    r", Awaitable\b": "",
    r"  # noqa: ASYNC109$": "",
    r"\b([Aa])n (?=`?(?:Sharded)?(?:Queue|Server))": r"\1 ",
}
"""What takes more than a name: patterns in the text that the names above have changed."""

_WORD: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")
_ASYNC: Final = re.compile(r"\basync (?=(?:with|for)\b)|\bawait (?=\w)")


def generate(name: str, used: Counter[str]) -> str:
    """Return a file of the client for threads; count the rules that it took."""
    text = _without_async((SOURCE / name).read_text(), used)
    for pattern, replacement in PHRASES.items():
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        used[pattern] += count
    first, quote, rest = text.partition('"""')
    title = rest.partition(",")[0]
    said = f"{title}, for threads. Generated from aio/{name}: do not edit."
    return _formatted(f"{first}{quote}{said}{quote}{rest.partition(quote)[2]}", name)


def _without_async(text: str, used: Counter[str]) -> str:
    lines = text.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (row, start), (last, end) = token.start, token.end
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            edits.append((row, start, end + 1, ""))
        elif token.type == tokenize.NAME and token.string in NAMES:
            used[token.string] += 1
            edits.append((row, start, end, NAMES[token.string]))
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            said = _ASYNC.sub("", _WORD.sub(lambda match: NAMES[match[1]], token.string))
            for number, line in enumerate(said.splitlines(keepends=True), row):
                begin = start if number == row else 0
                stop = end if number == last else len(lines[number - 1])
                edits.append((number, begin, stop, line))
    for row, start, end, new in sorted(edits, reverse=True):
        lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][end:]
    return "".join(lines)


def _formatted(text: str, name: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--quiet", "--select=I,F401", "--fix-only"], ["format", "--quiet"]):
        place = f"--stdin-filename={TARGET / name}"
        ran = subprocess.run(
            [ruff, *command, place, "-"], input=text, capture_output=True, text=True, check=True
        )
        text = ran.stdout
    return text


def main(arguments: Sequence[str]) -> int:
    """Write or check all files; return whether something is wrong."""
    check = "--check" in arguments
    used: Counter[str] = Counter()
    made = {path.name: generate(path.name, used) for path in sorted(SOURCE.glob("*.py"))}
    there = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    stale = sorted(name for name in made.keys() | there if made.get(name) != there.get(name))
    for name in () if check else stale:
        if name in made:
            (TARGET / name).write_text(made[name])
        else:
            (TARGET / name).unlink()
    unused = [rule for rule in (*NAMES, *PHRASES) if not used[rule]]
    for rule in unused:
        print(f"generate_client.py: nothing matches {rule!r}: remove the rule")
    if check and stale:
        print(f"client/sync is out of date ({', '.join(stale)}): run make generate")
    return int(bool(unused or (check and stale)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
