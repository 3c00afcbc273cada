"""Thousands of forged orders, parts, results and files: refused, or harmless."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import spark.pipeline.support  # noqa: F401  # Its transforms are named here.
from holdfast import InvalidArgument
from holdfast.client.status import Part
from holdfast.spark.pipeline import foreign
from holdfast.spark.pipeline.formats import output_options
from holdfast.spark.pipeline.order import (
    Plan,
    Slice,
    read_order,
    read_part_data,
    read_published,
    read_target,
    staging_of,
)
from holdfast.spark.pipeline.publishing import Manifest
from holdfast.spark.pipeline.roots import Roots
from spark.pipeline.forging import (
    Forge,
    good_order,
    good_part,
    good_plan,
    good_result,
    nasty,
)

SEED: Final = 20260
CASES: Final = 2000
"""Of each kind."""
RUN: Final = "19a2b3c4d5e"

read_plan = msgspec.json.Decoder(Plan).decode
read_manifest = msgspec.json.Decoder(Manifest).decode
read_slices = msgspec.json.Decoder(list[Slice]).decode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root with links that lead out of it."""
    (tmp_path / "outside/victim").mkdir(parents=True)
    (tmp_path / "outside/secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in/data.txt").write_text("one\ntwo\n")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "in/link.txt").symlink_to(tmp_path / "outside/secret.txt")
    return root


Check = Callable[[bytes], Iterator[str]]


def checks(root: str) -> dict[str, tuple[Any, Check]]:
    """Return what each kind looks like, and what a worker does before it uses one.

    A check returns the paths that would be used.
    """
    roots = Roots(root)
    staging = staging_of(f"{root}/out", "r", RUN)
    plan = good_plan(good_order(root, run=RUN))
    manifest = {
        "request": "r",
        "run": RUN,
        "transform": "same",
        "params": {},
        "input": [],
        "format": "text",
        "options": {"compression": "none"},
        "rows": 1,
        "files": ["part-00000-x.txt"],
        "missing": [],
        "parts": [],
        "published_at": 1.0,
    }

    def order(content: bytes) -> Iterator[str]:
        found = foreign.decoded("order", read_order, content)
        assert foreign.planned_request("r/plan", found) == "r"
        foreign.check_order(roots, found)
        yield from found.input
        yield from (found.output, staging_of(found.output, found.id, RUN))
        yield from (v for key, v in found.options.items() if key.lower() == "basepath")
        for name in (*found.options, *found.output_options):
            assert "." not in name
            assert "path" not in name.lower() or name.lower() == "basepath"

    def slice_paths(some: Slice, scratch: str) -> Iterator[str]:
        foreign.check_slice(roots, some)
        yield from some.files
        if some.base is not None:
            yield some.base
        if some.piece is not None:
            path = some.files[0]
            yield scratch + (path[len(some.base) :] if some.base else path[path.rindex("/") :])

    def part(content: bytes) -> Iterator[str]:
        found = foreign.decoded("part", read_part_data, content)
        yield foreign.staging_output(roots, found.staging, "r", RUN)
        yield found.staging
        yield from slice_paths(found.slice, f"{found.staging}/_piece.00000.t")

    def slices(content: bytes) -> Iterator[str]:
        for one in foreign.decoded("slices", read_slices, content):
            yield from slice_paths(one, f"{staging}/_piece.00000.t")

    def a_plan(content: bytes) -> Iterator[str]:
        found = foreign.decoded("plan", read_plan, content)
        foreign.check_plan(roots, found, f"{root}/out", "r", RUN)
        assert (found.order.id, found.order.staging) == ("r", staging)
        yield from (found.order.output, found.order.staging)

    def result(content: bytes) -> Iterator[str]:
        done = foreign.done_of(Part(3, "r/3", "done", content))
        yield from (f"{staging}/{done.attempt}/{name}" for name in done.files)
        assert done.attempt.startswith("00003.")

    def finished(content: bytes) -> Iterator[str]:
        done = foreign.finished_of(content)
        assert done.attempt.startswith("finish.")
        yield from (f"{staging}/{done.attempt}/{name}" for name in done.files)

    def target(content: bytes) -> Iterator[str]:
        output = foreign.decoded("target", read_target, content).output
        foreign.check_output(roots, output)
        yield from (output, staging_of(output, "r", RUN))

    def published(content: bytes) -> Iterator[str]:
        output = foreign.decoded("published", read_published, content).output
        foreign.check_output(roots, output)
        yield output

    def a_manifest(content: bytes) -> Iterator[str]:
        found = foreign.decoded("manifest", read_manifest, content)
        assert all("." not in name for name in output_options(found.format, found.options))
        yield from (f"{root}/out/{name}" for name in found.files)

    end = good_result() | {"attempt": "finish.t-1"}
    ended = {"state": "done", "output": f"{root}/out", "rows": 1, "files": 1}
    a_part = good_part(root, staging)
    return {
        "order": (good_order(root), order),
        "part": (a_part, part),
        "slices": ([a_part["slice"]], slices),
        "plan": (plan, a_plan),
        "result": (good_result(3), result),
        "finished": (end, finished),
        "target": ({"output": f"{root}/out"}, target),
        "published": (ended, published),
        "manifest": (manifest, a_manifest),
    }


KINDS = ["order", "part", "slices", "plan", "result", "finished", "target", "published", "manifest"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forged_is_refused_or_stays_below_the_roots(place: Path, kind: str) -> None:
    root = str(place.resolve())
    good, check = checks(root)[kind]
    assert list(check(json.dumps(good).encode())), "the good one must pass"
    forge = Forge(SEED, nasty(root, str(place.parent / "outside"), "http://127.0.0.1:9"))
    refused = unprintable = 0
    for number in range(CASES):
        content = forge.raw(good)
        try:
            used = list(check(content))
        except InvalidArgument as error:  # Nothing else: that fails a job without another try.
            refused += 1
            unprintable += not str(error).isprintable()
            continue
        for path in used:
            # An oracle of its own: as Hadoop reads it, with nothing escaped and all links followed.
            for plain in (path, path.replace("\\", "")):
                assert plain.startswith("/"), (number, content)
                real = os.path.realpath(os.path.normpath(plain))
                assert real == root or real.startswith(f"{root}/"), (number, content, path)
    assert unprintable == 0
    assert refused > CASES // 4, "hardly anything was wrong with them"
