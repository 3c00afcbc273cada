"""The split of a request: a job that fixes the schema, lists the input and adds the parts.

What it found is written beside the output before it is added, some hundred parts at a time. So when
it dies another goes on with the same parts, even if files have come meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from pyspark.sql import SparkSession

from holdfast import Request
from holdfast.spark.pipeline.files import Files
from holdfast.spark.pipeline.order import Order, PartData, Plan, Slice
from holdfast.spark.pipeline.reading import divide, schema_of
from holdfast.spark.pipeline.roots import Roots
from holdfast.spark.pipeline.splitting import Found, split
from holdfast.worker import Fail

CHUNK = 500
"""Parts that are found, written down and added at a time."""

_read_plan = msgspec.json.Decoder(Plan).decode
_read_slices = msgspec.json.Decoder(list[Slice]).decode


def plan_parts(
    spark: SparkSession,
    files: Files,
    roots: Roots,
    order: Order,
    request: Request,
    still_ours: Callable[[], None],
) -> int:
    """Add the parts of an order to its request, and seal it; return how many there are.

    `still_ours` raises when another does it, or nobody wants it any more.
    """
    _check(files, roots, order)
    if read_plan(files, order.staging) is None:
        plan = Plan(order, schema_of(spark, order))
        still_ours()
        files.make(order.staging)
        files.write(f"{order.staging}/_plan.json", msgspec.json.encode(plan))
    total = 0
    for some in _chunks(files, roots, order, still_ours):
        request.add_many(
            [msgspec.json.encode(PartData(order.staging, one)) for one in some],
            handler="part",
            max_failures=order.max_failures,
        )
        total += len(some)
    request.seal()
    return total


def read_plan(files: Files, staging: str) -> Plan | None:
    """Return the plan of a request; None where there is none."""
    content = files.read(f"{staging}/_plan.json")
    return None if content is None else _read_plan(content)


def _check(files: Files, roots: Roots, order: Order) -> None:
    """Refuse what this worker may not read or write, whoever submitted it."""
    for path in order.input:
        if roots.locate("input", path) != path:
            raise Fail(f"input {path} leads elsewhere here: {roots!r}")
    if roots.locate_output(order.output) != order.output:
        raise Fail(f"output {order.output} leads elsewhere here: {roots!r}")
    if order.mode == "error" and files.exists(order.output):
        raise Fail(f"output {order.output} is there already: say mode='overwrite' or 'append'")


def _chunks(
    files: Files, roots: Roots, order: Order, still_ours: Callable[[], None]
) -> Iterator[list[Slice]]:
    """Return the parts, those first that were found before."""
    covered: set[str] = set()
    number = 0
    while (known := files.read(_chunk_path(order, number))) is not None:
        some = _read_slices(known)
        covered.update(path for one in some for path in one.files)
        number += 1
        yield some
    found = (file for file in _found(files, roots, order) if file.path not in covered)
    slices = split(found, order.part_size, lambda file: divide(files, order, file))
    while some := list(_some(slices)):
        still_ours()
        files.write(_chunk_path(order, number), msgspec.json.encode(some))
        number += 1
        yield some
    if number == 0:
        still_ours()
        files.write(_chunk_path(order, 0), msgspec.json.encode([Slice([])]))
        yield [Slice([])]  # An input without rows has an output without rows.


def _some(slices: Iterator[list[Slice]]) -> Iterator[Slice]:
    """Take the next ones, and all pieces of a file together."""
    taken = 0
    for together in slices:
        yield from together
        taken += len(together)
        if taken >= CHUNK:
            return


def _found(files: Files, roots: Roots, order: Order) -> Iterator[Found]:
    given = order.option("basePath")
    base = None if given is None else roots.locate("option basePath", given)
    seen: set[str] = set()
    for pattern in order.input:
        for file in files.find(pattern, deep=order.has("recursiveFileLookup")):
            if not roots.holds_file(file.path):
                raise Fail(f"{file.path} leads out of {roots!r}: a link?")
            if file.path not in seen:
                seen.add(file.path)
                yield file if base is None else file._replace(base=base)


def _chunk_path(order: Order, number: int) -> str:
    return f"{order.staging}/_parts-{number:06d}.json"
