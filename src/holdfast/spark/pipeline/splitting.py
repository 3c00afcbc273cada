"""How files become parts: small ones together, big ones divided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from holdfast.spark.pipeline.order import Blocks, Bytes, Slice, Stamp

MOST_FILES = 1000
"""Files in one part, however small they are."""


class Found(NamedTuple):
    """A file of the input."""

    path: str
    size: int
    modified_ms: int
    base: str | None = None

    @property
    def stamp(self) -> Stamp:
        """What it is now."""
        return Stamp(self.size, self.modified_ms)


def split(
    files: Iterable[Found], part_size: int, divide: Callable[[Found], list[Slice]]
) -> Iterator[list[Slice]]:
    """Return the parts in the order of the files, those together that read the same file.

    Empty files have nothing to say.
    """
    together: list[Found] = []
    for file in files:
        if not file.size:
            continue
        if file.size > 2 * part_size and len(pieces := divide(file)) > 1:
            yield pieces
            continue
        size = sum(one.size for one in together)
        if together and (
            size + file.size > part_size
            or len(together) >= MOST_FILES
            or together[0].base != file.base
        ):
            yield [_whole(together)]
            together = []
        together.append(file)
    if together:
        yield [_whole(together)]


def _whole(files: list[Found]) -> Slice:
    return Slice(
        [file.path for file in files],
        sum(file.size for file in files),
        files[0].base,
        stamps=[file.stamp for file in files],
    )


def by_bytes(file: Found, part_size: int) -> list[Slice]:
    """Divide a file of lines into pieces of about the same size."""
    count = -(-file.size // part_size)
    borders = [file.size * number // count for number in range(count + 1)]
    return [
        Slice([file.path], end - start, file.base, Bytes(start, end), [file.stamp])
        for start, end in pairwise(borders)
    ]


def by_blocks(file: Found, part_size: int, sizes: list[int]) -> list[Slice]:
    """Divide a file of row groups, which are never divided themselves."""
    pieces = []
    first = size = 0
    stamps = [file.stamp]
    for number, block in enumerate(sizes):
        if size and size + block > part_size:
            pieces.append(Slice([file.path], size, file.base, Blocks(first, number), stamps))
            first, size = number, 0
        size += block
    if size:
        pieces.append(Slice([file.path], size, file.base, Blocks(first, len(sizes)), stamps))
    return pieces
