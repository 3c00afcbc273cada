"""The split of a request: a job that fixes the schema, lists the input and adds the parts.

What it found is written beside the output before it is added, some hundred parts at a time. So when
it dies another goes on with the same parts, even if files have come meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast import Request
from holdfast.escaping import logger
from holdfast.spark.pipeline import foreign
from holdfast.spark.pipeline.applying import GivenBack, finish_tried, tried
from holdfast.spark.pipeline.attempts import as_output, read_parts, stored
from holdfast.spark.pipeline.files import Files, as_url
from holdfast.spark.pipeline.order import (
    MOST_PARTS,
    Order,
    PartData,
    Plan,
    Slice,
    is_a_file,
    many_parts,
    too_many_parts,
)
from holdfast.spark.pipeline.pinning import (
    code_of,
    own_session,
    python_here,
    settings_of,
    zone_here,
)
from holdfast.spark.pipeline.reading import (
    divide,
    files_read,
    read_all,
    schema_in,
    schema_in_files,
)
from holdfast.spark.pipeline.roots import Roots
from holdfast.spark.pipeline.splitting import Found, split
from holdfast.spark.pipeline.transforms import UnknownTransform
from holdfast.spark.pipeline.trouble import reason
from holdfast.worker import Fail

log = logger(__name__)

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
    if files.stamp(order.output) is not None:
        raise is_a_file(order.output)
    if order.mode == "error" and files.exists(order.output):
        raise Fail(f"output {order.output} is there already: say mode='overwrite' or 'append'")
    found = list(_found(files, roots, order))  # All are checked before Spark opens the first.
    plan = read_plan(files, order.staging)
    if plan is None:
        plan = _plan(spark, order)
        still_ours()
        files.make(order.staging)
        _try_to_write(spark, files, plan)
        files.write(f"{order.staging}/_plan.json", msgspec.json.encode(plan))
    found = _only_read(found, files_read(spark, plan))
    total = 0
    for some in _chunks(files, plan, found, still_ours):
        for one in some:
            foreign.check_slice(roots, one)
        before, total = total, total + len(some)
        if total > MOST_PARTS:
            request.set_limit(0)  # Parts that were added would run in vain.
            raise too_many_parts(order.part_size)
        request.add_many(
            [msgspec.json.encode(PartData(order.staging, one)) for one in some],
            handler="part",
            max_failures=order.max_failures,
        )
        if (warning := many_parts(total)) and not many_parts(before):
            log.warning("%s: %s", order.id, warning)
    request.seal()
    return total


def _plan(spark: SparkSession, order: Order) -> Plan:
    """Fix what all parts have in common, and try the transform before there is a part.

    A transform that is refused here fails the whole request.
    """
    try:
        code = code_of(order)
    except UnknownTransform as error:
        raise GivenBack(error.in_a_worker()) from error
    settings = settings_of(spark)
    frame = read_all(own_session(spark, settings), order)
    schema = schema_in(frame)
    trial = tried(order.transform, order.params, frame)
    return Plan(
        order=order,
        schema=schema,
        output=trial.schema.json(),
        whole_files=trial.reads_file_facts,
        settings=settings,
        code=code,
        spark=spark.version,
        constants=trial.constants,
        tables=trial.tables,
        python=python_here(),
        zone=zone_here(spark),
        runs_python=trial.runs_python,
        in_files=schema_in_files(frame),
    )


def _try_to_write(spark: SparkSession, files: Files, plan: Plan) -> None:
    """Write empty DataFrames as parts and finish will: not every format holds every type.

    A mistake in the finish transform fails the request here, and not after the last part.
    """
    order = plan.order
    target = f"{order.staging}/_trial"
    schema = StructType.fromJson(foreign.schema_json(plan.output))
    session = own_session(spark, plan.settings)
    kept = "Parquet, in which parts are kept for finish=" if order.finish else "the output"
    try:
        with _refusing(order.transform, kept):
            stored(session.createDataFrame([], schema), order).mode("overwrite").save(
                as_url(target)
            )
        if order.finish is not None:
            _try_finish(own_session(spark, plan.settings), plan, target)
    except BaseException:
        with suppress(Exception):  # What went wrong says more.
            files.remove(order.staging)
        raise
    files.remove(target)


def _try_finish(session: SparkSession, plan: Plan, parts: str) -> None:
    order = plan.order
    assert order.finish is not None
    result = finish_tried(
        order.finish, order.finish_params, read_parts(session, plan, [parts]), plan
    )
    if result is not None:
        schema = StructType.fromJson(foreign.schema_json(result._jdf.schema().json()))
        with _refusing(order.finish, "the output"):
            empty = session.createDataFrame([], schema)
            as_output(empty, order).mode("overwrite").save(as_url(f"{parts}/_finish"))


@contextmanager
def _refusing(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        raise Fail(f"{name} cannot be written to {what}: {reason(error)}") from error


def read_plan(files: Files, staging: str) -> Plan | None:
    """Return the plan of a request; None where there is none."""
    content = files.read(f"{staging}/_plan.json")
    return None if content is None else foreign.decoded("_plan.json", _read_plan, content)


def _chunks(
    files: Files, plan: Plan, found: list[Found], still_ours: Callable[[], None]
) -> Iterator[list[Slice]]:
    """Return the parts, those first that were found before."""
    order = plan.order
    covered: set[str] = set()
    number = 0
    while (known := files.read(_chunk_path(order, number))) is not None:
        some = foreign.decoded(_chunk_path(order, number), _read_slices, known)
        covered.update(path for one in some for path in one.files)
        number += 1
        yield some
    left = (file for file in found if file.path not in covered)
    slices = split(left, order.part_size, lambda file: divide(files, plan, file))
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
    base = None if given is None else roots.locate("options: basePath", given)
    seen: set[str] = set()
    for pattern in order.input:
        for file in files.find(pattern):
            foreign.check_file(roots, file.path)
            foreign.refuse_own_input(order, file.path)
            if file.path not in seen:
                seen.add(file.path)
                yield file if base is None else file._replace(base=base)


def _only_read(found: list[Found], wanted: set[str]) -> list[Found]:
    """Return the files that Spark reads, of those that were found."""
    if others := wanted - {file.path for file in found}:
        raise OSError(f"{min(others)} came, or changed its name, while the input was listed")
    return [file for file in found if file.path in wanted]


def _chunk_path(order: Order, number: int) -> str:
    return f"{order.staging}/_parts-{number:06d}.json"
