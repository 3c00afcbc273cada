"""Why a run failed: whose fault it is, and how to say it in one line."""

from __future__ import annotations

import builtins
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import holdfast
from holdfast.errors import InvalidArgument
from holdfast.escaping import visible
from holdfast.spark.pipeline.order import Blocks, Bytes, PartData

_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*: ")
_FRAME: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]*\] ")
"""How a message of Spark begins; it ends with the line of its SQLSTATE. A plan may follow."""
_OF_FILES: Final = (
    "CSV header does not conform to the schema",
    "[CANNOT_MERGE_SCHEMAS]",
    "[CONFLICTING_DIRECTORY_STRUCTURES]",
    "[CONFLICTING_PARTITION_COLUMN_NAMES]",
    "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH]",
)
"""How errors begin that say that files do not fit each other, or the schema."""
_QUOTA: Final = re.compile(r"[Qq]uota\b")
_NOT_MADE: Final = re.compile(
    r"Mkdirs failed to create file:(/[^\n]*?)(?: \(exists=|$)", re.MULTILINE
)
_LONGEST_PATH: Final = 4096
_LEAST_BYTES: Final = 2**20
_LEAST_FILES: Final = 100
"""With less than this left on its disk, a directory that could not be made had no room."""
_TRACEBACK: Final = "Traceback (most recent call last)"
_LONGEST: Final = 2000
_PROBE_BYTES: Final = 2**18
"""What each task of a probe writes into a local directory: more than a full disk has left."""

_HERE: Final = re.escape(str(Path(holdfast.__file__).parent))
_OURS: Final = re.compile(
    rf"^{_HERE}/|^<frozen|-packages/(pyspark|py4j)/|/(pyspark|py4j[^/\s]*)\.zip/"
)
_INSTALLED: Final = re.compile(
    rf"/lib/python\d|-packages/|^{re.escape(sysconfig.get_path('stdlib'))}/"
)


class Permanent(Exception):
    """An error that every run of a request would meet again."""


class Place(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


# --------------------------------------------------------------------- whose fault


def is_lost(spark: SparkSession) -> bool:
    """Tell whether the JVM is gone, and with it everything that could be run here."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError, AttributeError):
        return True


def probe(spark: SparkSession) -> None:
    """Run a small job that needs what a part may need; it raises where this worker cannot work.

    Its shuffle writes into every local directory, and it calls Python on every executor.
    """
    tasks = 4 * max(2, spark.sparkContext.defaultParallelism)
    text = spark.range(0, tasks, 1, tasks).selectExpr(f"randstr({_PROBE_BYTES}, 0) AS text")
    lengths = text.repartition(tasks // 4).select(F.udf(len, "int")("text"))
    lengths.write.format("noop").mode("overwrite").save()


def is_permanent(error: BaseException) -> bool:
    """Tell whether another run would fail in the same way, as the order is wrong.

    The files of a request stay as they are: what does not fit in them fits never. An analysis error
    with a cause is something else: a catalog that did not answer, say.
    """
    if isinstance(error, Permanent | InvalidArgument):
        return True
    if any(text.startswith(_OF_FILES) for text in _messages(error)):
        return True
    return isinstance(error, AnalysisException | IllegalArgumentException) and not (
        (origin := getattr(error, "_origin", None)) and origin.getCause()
    )


def is_bug(error: Exception) -> bool:
    """Tell whether an exception of a transform is a mistake in its code.

    Files, connections and Spark's jobs may be better next time.
    """
    passing = OSError | MemoryError | Py4JJavaError | Py4JNetworkError | CapturedException
    return not isinstance(error, passing) or is_permanent(error)


def is_of_a_row(error: BaseException) -> bool:
    """Tell whether Python code that Spark called raised, and not for want of files or memory."""
    for text in _messages(error):
        if _java(error) is not None and _TRACEBACK in text:
            kind = getattr(builtins, _telling_line(text).partition(":")[0], ValueError)
            return not (
                isinstance(kind, type) and issubclass(kind, OSError | MemoryError | EOFError)
            )
    return False


def is_output_full(error: BaseException) -> bool:
    """Tell whether the disk for the output was full.

    Spark writes the output through Hadoop's file systems, and its local directories without them.
    Java does not say why it could not make a directory, so the disk is asked.
    """
    text = str(error)
    not_made = _NOT_MADE.search(text)
    if not_made and len(not_made[1]) <= _LONGEST_PATH and _is_full(Path(not_made[1])):
        return True
    return _says_full(text) and "org.apache.hadoop.fs." in text


def _says_full(text: str) -> bool:
    """Tell whether a line says that a disk or a quota has no room left."""
    quotas = ((line, _QUOTA.search(line)) for line in text.split("\n"))
    return "No space left on device" in text or any(
        quota and line.find(" exceeded", quota.end()) >= 0 for line, quota in quotas
    )


def _is_full(path: Path) -> bool:
    """Tell whether next to nothing is left on the disk of a path, which need not exist."""
    for place in (path, *path.parents):
        with suppress(OSError):
            disk = os.statvfs(place)
            few_files = disk.f_files > 0 and disk.f_favail < _LEAST_FILES
            return few_files or disk.f_bavail * disk.f_frsize < _LEAST_BYTES
    return False


# ----------------------------------------------------------------------- in words


def reason(error: BaseException) -> str:
    """Return why a run failed, in one line: Java's stack is too long to read."""
    told: list[str] = []
    for text in _messages(error):
        line = _telling_line(text)[:_LONGEST].rstrip("; ")
        if not any(line in before for before in told):
            told.append(line)
    said = "; ".join([*told[:2], *told[2:][-1:]])[:_LONGEST]
    place = place_of(error)
    return f"{said} ({place})" if place and str(place) not in said else said


def place_of(error: BaseException) -> Place | None:
    """Return the last line of the user's own code that an error passed."""
    frames = [
        Place(frame.filename, frame.lineno or 0, frame.name)
        for cause in _causes(error)
        for frame in traceback.extract_tb(cause.__traceback__)
    ]
    for text in _messages(error):
        if _TRACEBACK in text:
            frames += [Place(file, int(line), name) for file, line, name in _FRAME.findall(text)]
    foreign = [frame for frame in frames if not _OURS.search(frame.file)]
    own = [frame for frame in foreign if not _INSTALLED.search(frame.file)]
    return next(reversed(own or [frame for frame in foreign if "-packages/" in frame.file]), None)


def trace_of(error: BaseException) -> str:
    """Return the Python traceback of an error, without Java's stack."""
    for text in _messages(error):
        if _TRACEBACK in text:
            lines = text[text.index(_TRACEBACK) :].splitlines()
            return "\n".join(line[:_LONGEST] for line in lines if not line.startswith("\tat "))
    innermost = list(_causes(error))[-1]
    return "".join(traceback.format_tb(innermost.__traceback__)) + reason(innermost)


def name_input(text: str, data: PartData) -> str:
    """Return an error with the input of its part: of a piece the file, never the copy."""
    if not data.slice.files:
        return text
    first, *more = data.slice.files
    name = first.rpartition("/")[2]
    for spelled in (str, quote):
        copy = (
            rf"{re.escape(spelled(data.staging))}/_piece\.[^/]+/(?:\S*/)?{re.escape(spelled(name))}"
        )
        text = re.sub(copy, lambda _: first, text)
    match data.slice.piece:
        case Blocks(first=begin, after=after):
            return f"{text} [input: {first}, row groups {begin} to {after - 1}]"
        case Bytes(start=start, end=end):
            return f"{text} [input: {first}, bytes {start} to {end}]"
    if not more and first in text:
        return text
    return f"{text} [input: {first}{f' and {len(more)} more files' if more else ''}]"


def _java(error: BaseException) -> Any:
    """Return the Java exception behind an error; None where there is none."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _messages(error: BaseException) -> Iterator[str]:
    """Return what an error says, and each of its causes in Java."""
    cause = _java(error)
    if cause is None:
        ours = isinstance(error, Permanent | InvalidArgument)
        yield visible(error) if ours else f"{type(error).__name__}: {error}"
    try:
        while cause is not None:
            yield str(cause.getMessage() or cause.toString())
            cause = cause.getCause()
    except (Py4JError, ConnectionError):  # The JVM is gone meanwhile.
        yield type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Return an error, and the errors that it was raised from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _telling_line(text: str) -> str:
    """Return the line that says what happened: of a Python stack it is the last."""
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("\tat ")]
    if _TRACEBACK in text:
        raised = [line for line in lines if _RAISED.match(line)]
        return raised[-1] if raised else lines[-1]
    if _CONDITION.match(text) and (state := text.find("SQLSTATE: ")) >= 0:
        return (
            " ".join(text[: min(state, _LONGEST)].split()) + " " + text[state:].partition("\n")[0]
        )
    # What Py4J did not understand is in its second line.
    return " ".join(lines[: 2 if lines and lines[0].endswith("Trace:") else 1])
