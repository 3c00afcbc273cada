"""What a server did, call by call, as its append-only file tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import hiredis

Command: TypeAlias = list[bytes]
Transaction: TypeAlias = list[Command]
"""The writes of one script, or of one command by itself."""

KEPT_AS_COMMANDS = (
    *("--appendonly", "yes", "--appendfsync", "no", "--aof-use-rdb-preamble", "no"),
    *("--auto-aof-rewrite-percentage", "0"),
)
"""Options of a server whose file has every command from its first start on."""

_CHUNK = 1 << 20


def transactions(directory: Path) -> Iterator[Transaction]:
    """Go through all that a server with this directory has written, in order."""
    return _grouped(_commands(_files(directory / "appendonlydir")))


def _files(directory: Path) -> Iterator[Path]:
    """The base and then what came after it: each a line `file <name> seq <n> type <b or i>`."""
    (manifest,) = directory.glob("*.manifest")
    for line in manifest.read_text().splitlines():
        words = line.split()
        yield directory / words[words.index("file") + 1]


def _commands(files: Iterable[Path]) -> Iterator[Command]:
    reader = hiredis.Reader()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                reader.feed(chunk)
                while (command := reader.gets()) is not False:
                    assert isinstance(command, list), f"not a command: {command!r}"
                    yield command
        assert not reader.has_data(), f"{path} ends in the middle of a command"


def _grouped(commands: Iterable[Command]) -> Iterator[Transaction]:
    block: Transaction | None = None
    for command in commands:
        match command[0].upper():
            case b"SELECT":
                pass
            case b"MULTI":
                assert block is None, "a transaction in a transaction"
                block = []
            case b"EXEC":
                assert block is not None, "the end of no transaction"
                yield block
                block = None
            case _ if block is None:
                yield [command]
            case _:
                block.append(command)
    assert block is None, "the last transaction has no end"
