"""Checks of payloads, results and files in staging, before a worker or a reader uses them.

A producer can put any payload and any result into the queue, and other users of the file system may
be able to write below the roots. So no value is used because this program once wrote it: each is
derived again, or it has a strict form and lies below the roots. See docs/threat-model.md.

A check raises `InvalidArgument`. That fails the job at once, and the worker goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from holdfast import arguments
from holdfast.client.status import Part
from holdfast.errors import InvalidArgument
from holdfast.escaping import visible
from holdfast.spark.pipeline.formats import input_options, output_options
from holdfast.spark.pipeline.order import (
    Blocks,
    Bytes,
    Done,
    Order,
    Plan,
    Slice,
    read_done,
    safe,
    staging_of,
)
from holdfast.spark.pipeline.roots import (
    Roots,
    fixed,
    goes_up,
    has_pattern,
    is_below,
    real,
    resolved,
)
from holdfast.spark.pipeline.splitting import MOST_FILES

T = TypeVar("T")

_PART_ID: Final = re.compile(r"(.+)/([0-9]{1,10})", re.DOTALL)
_ENDING_ID: Final = re.compile(r"(.+)/end/[0-9]{1,10}", re.DOTALL)
_CANCEL_ID: Final = re.compile(r"(.+)/end/([0-9]{1,10})/cancel", re.DOTALL)


def decoded(what: str, decode: Callable[[bytes], T], content: bytes | None) -> T:
    """Decode stored bytes; refuse them where they do not have the form that a pipeline writes."""
    try:
        return decode(content or b"")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        said = visible(str(error))[:300]
        raise InvalidArgument(f"{what} is not what a pipeline writes: {said}") from error


# ------------------------------------------------------------------------ names


def planned_request(job_id: str, order: Order) -> str:
    """Return the request that a job plans."""
    if job_id != f"{order.id}/plan":
        raise InvalidArgument(f"{arguments.shown(job_id)} holds the order of another request")
    return order.id


def part_request(job_id: str, request: str | None) -> str:
    """Return the request of a part, which is in the id that the server gave it."""
    found = _PART_ID.fullmatch(job_id)
    if request is None or found is None or found[1] != request:
        raise InvalidArgument(f"{arguments.shown(job_id)} is not a part of a request")
    return request


def ended_request(job_id: str) -> str:
    """Return the request that a job publishes."""
    found = _ENDING_ID.fullmatch(job_id)
    if found is None:
        raise InvalidArgument(f"{arguments.shown(job_id)} does not publish a request")
    return found[1]


def cancelled_request(job_id: str) -> tuple[str, int]:
    """Return the request that a job gives up, and which of its endings."""
    found = _CANCEL_ID.fullmatch(job_id)
    if found is None:
        raise InvalidArgument(f"{arguments.shown(job_id)} does not cancel a request")
    return found[1], int(found[2])


def whose(job_id: str) -> str:
    """Return the request that a job of a pipeline belongs to, going by its id."""
    found = _CANCEL_ID.fullmatch(job_id) or _ENDING_ID.fullmatch(job_id)
    found = found or _PART_ID.fullmatch(job_id)
    return found[1] if found else job_id.removesuffix("/plan")


# ------------------------------------------------------------------------ orders


def check_order(roots: Roots, order: Order) -> None:
    """Refuse an order that reads or writes outside the roots, or replaces its own input."""
    for path in order.input:
        roots.check("input", path)
    check_output(roots, order.output)
    input_options(order.format, order.options)
    output_options(order.output_format, order.output_options)
    if (base := order.option("basePath")) is not None:
        roots.check("options: basePath", base)
    refuse_own_input(order)


def check_output(roots: Roots, output: str) -> None:
    """Refuse an output outside the roots, or behind a link."""
    if roots.locate_output(output) != output:
        raise InvalidArgument(f"output {arguments.shown(output)} leads elsewhere here: {roots!r}")


def refuse_own_input(order: Order, path: str | None = None) -> None:
    """Refuse mode="overwrite" where the output and the input, or one file of it, overlap."""
    if order.mode != "overwrite":
        return
    for one in order.input if path is None else [path]:
        for place in (one, resolved(one) if path is None else real(one)):
            # A pattern may match files in the output: each file is checked when it is found.
            around = not has_pattern(place) and is_below(order.output, place)
            if around or is_below(fixed(place), order.output):
                raise InvalidArgument(
                    f"output {order.output} and input {one} overlap: mode='overwrite' would "
                    "replace what is read. Write to another directory"
                )


# ------------------------------------------------------------------------ plans


def staging_output(roots: Roots, staging: str, id: str, run: str) -> str:
    """Return the output of a staging directory; refuse those of other requests and runs."""
    parent, _, name = staging.rpartition("/")
    output = f"{parent}/{name[1:].removesuffix(f'.{safe(id)}.{run}')}"
    if staging_of(output, id, run) != staging:
        raise InvalidArgument(f"{arguments.shown(staging)} is not where {id!a} writes")
    check_output(roots, output)
    check_place(roots, staging)
    return output


def check_place(roots: Roots, path: str) -> None:
    """Refuse a path that leads out of the roots now: it may have become a link."""
    if not roots.holds(path):
        raise InvalidArgument(f"{arguments.shown(path)} leads out of {roots!r}: a link?")


def check_plan(roots: Roots, plan: Plan, output: str, id: str, run: str) -> None:
    """Refuse a plan of another request, and an order or a schema that is not allowed."""
    order = plan.order
    if (order.output, order.id, order.run) != (output, id, run):
        raise InvalidArgument(f"the plan beside {output} is of another request than {id!a}")
    check_order(roots, order)
    schema_json(plan.schema)
    schema_json(plan.output)
    if plan.in_files is not None:
        schema_json(plan.in_files)


def schema_json(text: str | bytes) -> dict[str, Any]:
    """Return a schema as `StructType.fromJson` takes it.

    PySpark imports the module that a user-defined type names, so only Spark's own are allowed.
    """
    found = decoded("the schema", json.loads, text.encode() if isinstance(text, str) else text)
    _refuse_types(found)
    if not isinstance(found, dict) or found.get("type") != "struct":
        raise InvalidArgument("the schema is not what a pipeline writes: no struct")
    return found


def _refuse_types(found: object) -> None:
    if isinstance(found, dict):
        named = str(found.get("pyClass", ""))
        if found.get("type") == "udt" and not re.fullmatch(
            r"pyspark\.ml(lib)?\.linalg\.\w+", named
        ):
            raise InvalidArgument(
                f"the schema has a user-defined type, {arguments.shown(named)}: write that column "
                "as one of Spark's own types"
            )
        found = list(found.values())
    if isinstance(found, list):
        for one in found:
            _refuse_types(one)


# ------------------------------------------------------------------------ parts


def check_file(roots: Roots, path: str) -> None:
    """Refuse a file outside the roots, or a name that Spark could read as a pattern with '..'."""
    if goes_up(path):
        raise InvalidArgument(f"{arguments.shown(path)} goes up with '..'")
    check_place(roots, path)


def check_slice(roots: Roots, some: Slice) -> None:
    """Refuse files and ranges that a plan could not have given to a part."""
    if len(some.files) > MOST_FILES or not 0 <= some.size < 2**63:
        raise InvalidArgument(f"a part must have a size and at most {MOST_FILES} files")
    for path in some.files:
        check_file(roots, path)
        if some.base is not None and not path.startswith(f"{some.base}/"):
            raise InvalidArgument(f"{arguments.shown(path)} is not below its basePath")
    if some.base is not None:
        check_place(roots, some.base)
    if len(some.stamps) != len(some.files):
        raise InvalidArgument("a part must say of each file what it was when it was planned")
    match some.piece:
        case None:
            return
        case Blocks(first=first, after=after) | Bytes(start=first, end=after):
            if len(some.files) != 1 or first >= after:
                raise InvalidArgument("a piece must be a range of one file")


# ---------------------------------------------------------------------- results


def done_of(part: Part) -> Done:
    """Return the result of a part; refuse it if it names the directory of another part."""
    done = decoded(f"the result of {part.id!a}", read_done, part.result)
    if not done.attempt.startswith(f"{part.number:05d}."):
        raise InvalidArgument(f"the result of {part.id!a} names the directory of another part")
    return done


def finished_of(content: bytes) -> Done:
    """Return the stored result of `finish`."""
    done = decoded("the result of finish", read_done, content)
    if not done.attempt.startswith("finish."):
        raise InvalidArgument("the result of finish names the directory of a part")
    return done
