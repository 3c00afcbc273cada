"""Documents that are almost what a pipeline writes: for the tests of what it refuses."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyspark

from holdfast.spark.pipeline.order import read_order
from holdfast.spark.pipeline.pinning import code_of


def nasty(root: str, outside: str, url: str) -> list[Any]:
    """What somebody would put where a path, a name, an option or a number should be."""
    up = "/".join([".."] * 12)
    paths = [
        outside,
        f"{outside}/secret.txt",
        f"{outside}/victim",
        f"{root}/../outside/secret.txt",
        f"{root}/in/../../outside/secret.txt",
        f"{root}/in/./data.txt",
        f"{root}//../outside",
        rf"{root}/.\./outside/secret.txt",
        rf"{root}/in/\.\./\.\./outside/*",
        f"{root}/{{in/.,q}}./{{in/.,q}}./outside/secret.txt",
        f"{root}/%2e%2e/outside/secret.txt",
        f"{root}/..%2foutside/secret.txt",
        f"{root}/link/secret.txt",
        f"{root}/link",
        f"{root}/in/link.txt",
        f"{root}x/in",
        f"{root}\0/x",
        f"{root}/in\n",
        f"//{root}/in",
        f"file://{outside}/secret.txt",
        f"file:{outside}/secret.txt",
        f"FILE:///{outside}",
        f"{url}/x.txt",
        f"{url}{root}/in/data.txt",
        f"viewfs://default{outside}",
        f"har://file-localhost{outside}/x.har",
        f"jar:file:{outside}/x.jar!/y",
        f"hdfs://127.0.0.1:{url.rpartition(':')[2]}/x",
        f"ftp://127.0.0.1:{url.rpartition(':')[2]}/x",
        f"../{up}{outside}/secret.txt",
        f"{up}{outside}",
        "../../outside/secret.txt",
        "../../outside",
        "..",
        ".",
        "",
        "/",
        "\0",
        "~",
        "~root",
        "$HOME",
        root,
        f"{root}/in",
        f"{root}/in/data.txt",
        f"{root}/in/*",
        f"{root}/.hidden",
        f"{root}/_x",
    ]
    numbers = [-1, 0, 1, 2**31, 2**62 + 1, 2**63, 2**64, -(2**63), 1e308, 0.5, True]
    shapes: list[Any] = [None, [], {}, [[]], "x" * 5000, "00000.t", "finish.t", "\ud7ff", "\u202e"]
    likely = [
        "../../outside/keep",
        "../../../outside/secret.txt",
        "part-0/../../../../outside/secret.txt",
        "00000.t/../../../outside/keep",
        "00003.t/../../../outside/keep",
        "finish.t/../../../outside/keep",
        f"{outside}/victim",
        f"{url}/x",
        f"/a/b/c/../../..{root}/in/data.txt",
        "/a/b/c",
        rf"{root}/.\./outside/*.txt",
    ]
    return [*paths, *likely * 6, *numbers, *shapes]


OPTIONS = [
    "fs.file.impl",
    "fs.defaultFS",
    "FS.FILE.IMPL",
    "spark.sql.files.ignoreCorruptFiles",
    "mapreduce.fileoutputcommitter.algorithm.version",
    "parquet.crypto.factory.class",
    "path",
    "paths",
    "basePath",
    "BASEPATH",
    "compression",
    "encoding",
    "header",
    "wholetext",
    "lineSep",
    "partitionBy",
    "recursiveFileLookup",
    "ignoreMissingFiles",
]


class Forge:
    """Documents that are almost right."""

    def __init__(self, seed: int, values: list[Any]) -> None:
        self.random = random.Random(seed)
        self.values = values

    def forged(self, good: Any, keep: frozenset[str] = frozenset()) -> Any:
        """Return a document with some of its values replaced, removed or added."""
        made = copy.deepcopy(good)
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            where, key = self.random.choice(list(_places(made, keep)))
            action = self.random.random()
            if key in ("options", "output_options") and action < 0.8:
                where[key] = {
                    self.random.choice(OPTIONS): str(self.random.choice(self.values))
                    for _ in range(self.random.choice((1, 2)))
                }
            elif action < 0.85:
                where[key] = self._instead_of(where[key])
            elif action < 0.9 and isinstance(where[key], str):
                where[key] = where[key] + str(self.random.choice(self.values))
            elif action < 0.95 and isinstance(where, dict):
                del where[key]
            elif isinstance(where[key], list):
                where[key].append(self._instead_of(""))
            if not isinstance(made, dict | list) or not made:
                return made
        return made

    def _instead_of(self, value: Any) -> Any:
        """Return another value, most often one that has the right type at least."""
        alike = [one for one in self.values if type(one) is type(value)]
        some = alike if alike and self.random.random() < 0.8 else self.values
        return copy.deepcopy(self.random.choice(some))

    def raw(self, good: Any) -> bytes:
        """Return a forged document as bytes, which may not even be a document."""
        content = json.dumps(self.forged(good)).encode()
        if self.random.random() < 0.05:
            return content[: self.random.randrange(len(content))]
        if self.random.random() < 0.02:
            return b"[" * 100_000
        return content


def _places(value: Any, keep: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, below in items:
        if key not in keep:
            yield value, key
            if isinstance(below, dict | list) and below:
                yield from _places(below, keep)


SCHEMA: Final = {
    "type": "struct",
    "fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}],
}


def good_order(root: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": "r",
        "transform": "same",
        "input": [f"{root}/in/data.txt", f"{root}/in/*.txt"],
        "output": f"{root}/out",
        "format": "text",
        "options": {"wholetext": "false"},
        "output_format": "text",
        "output_options": {"compression": "none"},
        "part_size": 1000,
        "max_failures": 0,
        "mode": "overwrite",
    } | changes


def good_plan(order: dict[str, Any]) -> dict[str, Any]:
    """Return a plan that this worker would have made."""
    return {
        "order": order,
        "schema": json.dumps(SCHEMA),
        "output": json.dumps(SCHEMA),
        "whole_files": False,
        "settings": {},
        "code": code_of(read_order(json.dumps(order))),
        "spark": pyspark.__version__,
    }


def stamp(path: str) -> list[int]:
    """Return what is pinned of a file, if there is one."""
    found = Path(path).stat() if Path(path).exists() else None
    return [found.st_size, found.st_mtime_ns // 1_000_000] if found else [0, 0]


def good_part(root: str, staging: str) -> dict[str, Any]:
    piece = {"type": "bytes", "start": 0, "end": 5}
    return {
        "staging": staging,
        "slice": {
            "files": [f"{root}/in/data.txt"],
            "size": 9,
            "base": f"{root}/in",
            "piece": piece,
            "stamps": [[9, 1_700_000_000_000]],
        },
    }


def good_result(number: int = 0) -> dict[str, Any]:
    return {
        "attempt": f"{number:05d}.t-1",
        "files": ["part-00000-x-c000.txt"],
        "rows_in": 1,
        "rows_out": 1,
        "began_at": 1.5,
        "seconds": 0.5,
        "worker": "host:1",
        "tries": 1,
    }
