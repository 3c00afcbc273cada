"""The output of a request: what its parts wrote, gathered and put into place at once.

Any worker may do each step again: a file is not moved twice, and the directory gets its name once.
Files that were not gathered go away with the staging directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.client.status import Part
from holdfast.codec import random_name
from holdfast.spark.pipeline import foreign
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.formats import Format
from holdfast.spark.pipeline.order import (
    GONE,
    Count,
    Done,
    FileName,
    Order,
    Published,
    Run,
    safe,
    staging_of,
)
from holdfast.worker import Fail


class Written(msgspec.Struct, frozen=True):
    """One part in the manifest."""

    number: int
    files: list[str]
    rows_in: int
    rows_out: int
    seconds: float
    worker: str
    tries: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an output consists of: written beside the files, in `_holdfast/<request>.json`."""

    request: str
    run: Run = ""
    transform: str
    params: dict[str, object]
    input: list[str]
    format: Format
    options: dict[str, str]
    rows: Count
    files: list[FileName]
    missing: list[int]
    """Parts that failed, where a partial output was asked for."""
    parts: list[Written]
    published_at: float


_read = msgspec.json.Decoder(Manifest).decode
_REPLACED: Final = "_replaced."
"""What was there before an output begins with this, until the output has its place."""


def manifest_path(output: str, request: str) -> str:
    """Return where the manifest of a request is."""
    return f"{output}/_holdfast/{safe(request)}.json"


def read_manifest(files: Files, output: str, request: str, run: str) -> Manifest | None:
    """Return what a request published; None where it has not, or another of its id has."""
    path = manifest_path(output, request)
    content = files.read(path)
    if content is None:
        return None
    manifest = foreign.decoded(path, _read, content)
    return manifest if (manifest.request, manifest.run) == (request, run) else None


def publish(
    files: Files,
    order: Order,
    winners: Sequence[tuple[Part, Done]],
    missing: Sequence[int],
    finished: Done | None,
    still_ours: Callable[[], None],
) -> Published:
    """Put the output into place; `still_ours` raises when another does it."""

    def ours(directory: str) -> bool:
        return read_manifest(files, directory, order.id, order.run) is not None

    _restore(files, order.output, order.staging, ours)
    published = read_manifest(files, order.output, order.id, order.run)
    if published is None:
        gathered = f"{order.staging}/_gathered"
        manifest = _manifest(order, winners, missing, finished)
        still_ours()
        files.make(f"{gathered}/_holdfast")
        _gather(files, order, winners, finished, gathered)
        path = manifest_path(gathered, order.id)
        known = read_manifest(files, gathered, order.id, order.run)
        if known is None or known.files != manifest.files:  # Else it was written before.
            still_ours()
            files.write(path, msgspec.json.encode(manifest))
        files.write(f"{gathered}/_SUCCESS", b"")
        _remove_others(files, gathered, {*manifest.files, "_SUCCESS", "_holdfast"})
        _remove_others(files, f"{gathered}/_holdfast", {path.rpartition("/")[2]})
        files.refuse_links(gathered)
        still_ours()
        _put(files, order, gathered)
        published = manifest
    _retire(files, order.output, order.staging, ours)
    return as_published(order.output, published)


def abandon(files: Files, output: str, id: str, run: str) -> Published:
    """Remove what a request wrote, unless it was published; return which of the two it is.

    An output that it was about to replace gets its place back. Of an output to which it was about
    to append, the files go that were moved there already.
    """

    def take_back(gone: str) -> None:
        gathered = f"{gone}/_gathered"
        moved = read_manifest(files, gathered, id, run)
        if moved is None or read_manifest(files, output, id, run) is not None:
            return
        own = f"part-{safe(id)}-"  # Only `append` gives such names.
        for name in moved.files:
            if name.startswith(own) and "/" not in name and not files.exists(f"{gathered}/{name}"):
                files.remove(f"{output}/{name}")

    _retire(files, output, staging_of(output, id, run), lambda _: True, take_back)
    published = read_manifest(files, output, id, run)
    return as_published(output, published) if published else Published("cancelled", output)


def _retire(
    files: Files,
    output: str,
    staging: str,
    wanted: Callable[[str], bool],
    take_back: Callable[[str], None] = lambda _: None,
) -> None:
    """Remove staging, but not the output that a publisher has just moved into it to replace it.

    One that was frozen right before that wakes up when another has ended the request. So staging
    loses its name first: from then on nothing can be moved into it, or out of it.
    """
    gone = f"{staging}{GONE}"
    while True:
        _restore(files, output, gone, wanted)
        take_back(gone)
        files.remove(gone)
        if not files.move(staging, gone):
            return


def _restore(files: Files, output: str, directory: str, wanted: Callable[[str], bool]) -> None:
    """Give an output its place back that was moved away to be replaced."""
    for name in files.names(directory):
        found = f"{directory}/{name}"
        if name.startswith(_REPLACED) and not files.exists(output) and wanted(found):
            files.move(found, output)


def as_published(output: str, manifest: Manifest) -> Published:
    """Return what a request came to that has published."""
    return Published(
        "done",
        output,
        manifest.rows,
        len(manifest.files),
        sum(part.rows_in for part in manifest.parts),
        sum(part.rows_out for part in manifest.parts),
    )


def _manifest(
    order: Order,
    winners: Sequence[tuple[Part, Done]],
    missing: Sequence[int],
    finished: Done | None,
) -> Manifest:
    parts = [
        Written(
            part.number,
            [_name(part.number, name) for name in done.files],
            done.rows_in,
            done.rows_out,
            done.seconds,
            done.worker,
            done.tries,
        )
        for part, done in winners
    ]
    files = [name for part in parts for name in part.files]
    rows = sum(part.rows_out for part in parts)
    if finished:
        files, rows = [_name(0, name) for name in finished.files], finished.rows_out
    return Manifest(
        request=order.id,
        run=order.run,
        transform=order.transform,
        params=order.params,
        input=order.input,
        format=order.output_format,
        options=order.output_options,
        rows=rows,
        files=[_unique(order, name) for name in files],
        missing=list(missing),
        parts=parts,
        published_at=time.time(),
    )


def _gather(
    files: Files,
    order: Order,
    winners: Sequence[tuple[Part, Done]],
    finished: Done | None,
    gathered: str,
) -> None:
    """Move the files of the winners into one directory; some may have been moved before."""
    sources = [(0, finished)] if finished else [(part.number, done) for part, done in winners]
    there = set(files.names(gathered))
    for number, done in sources:
        for name in done.files:
            target = _unique(order, _name(number, name))
            if target in there:
                continue
            moved = files.move(f"{order.staging}/{done.attempt}/{name}", f"{gathered}/{target}")
            if not moved and not files.exists(f"{gathered}/{target}"):
                raise Fail(f"{done.attempt}/{name} is gone from {order.staging}")


def _remove_others(files: Files, directory: str, names: set[str]) -> None:
    """Remove what is not of the output: a publisher that was killed may leave half a file."""
    for name in files.names(directory):
        if name not in names:
            files.remove(f"{directory}/{name}")


def _put(files: Files, order: Order, gathered: str) -> None:
    """Give the directory its name, unless another has done so while this run stood still."""
    if not files.exists(gathered):
        return
    if order.mode == "append" and files.exists(order.output):
        _append(files, order, gathered)
        return
    if files.exists(order.output):
        if order.mode == "error":
            raise Fail(f"output {order.output} is there already: say mode='overwrite' or 'append'")
        replaced = f"{order.staging}/{_REPLACED}{random_name()}"
        files.move(order.output, replaced)
        if not files.move(gathered, order.output):
            files.move(replaced, order.output)  # It is this request's, by another publisher.
        return
    files.move(gathered, order.output)


def _append(files: Files, order: Order, gathered: str) -> None:
    """Move the files beside older ones; the manifest comes last, and names them."""
    for name in files.names(gathered):
        if name[0] not in "._" and not files.exists(f"{order.output}/{name}"):
            files.move(f"{gathered}/{name}", f"{order.output}/{name}")
    files.make(f"{order.output}/_holdfast")
    there = manifest_path(order.output, order.id)
    if read_manifest(files, order.output, order.id, order.run) is None:
        files.remove(there)  # That of an earlier request with this id.
        files.move(manifest_path(gathered, order.id), there)


def _name(number: int, name: str) -> str:
    """Return the name of a file, which no other part's has: Spark counts anew in each."""
    return f"part-{number:05d}-{name.removeprefix('part-')}"


def _unique(order: Order, name: str) -> str:
    """Return a name that no other request gives, where several write into one directory.

    It begins as Spark's do: Spark does not read files that begin with "." or "_".
    """
    if order.mode != "append":
        return name
    return f"part-{safe(order.id)}-{name.removeprefix('part-')}"
