"""The options that each format takes for reading and writing.

Spark passes options that it does not know to Hadoop, as settings for that read or write. A setting
can replace the file system behind a path, so only the options listed here are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from holdfast import arguments
from holdfast.errors import InvalidArgument

Format: TypeAlias = Literal["parquet", "csv", "json", "text", "orc"]

_LONGEST: Final = 1000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TIMES: Final = _names(
    "dateFormat enableDateTimeParsingFallback locale timeFormat timestampFormat timestampNTZFormat "
    "timeZone"
)
READ: Final[Mapping[Format, frozenset[str]]] = {
    "parquet": _names("datetimeRebaseMode int96RebaseMode mergeSchema"),
    "orc": _names("mergeSchema"),
    "text": _names("encoding lineSep wholetext"),
    "csv": _TIMES
    | _names(
        "charset charToEscapeQuoteEscaping columnNameOfCorruptRecord columnPruning comment "
        "delimiter emptyValue encoding enforceSchema escape header ignoreLeadingWhiteSpace "
        "ignoreTrailingWhiteSpace inferSchema lineSep maxCharsPerColumn maxColumns mode multiLine "
        "nanValue negativeInf nullValue positiveInf preferDate quote samplingRatio sep "
        "singleVariantColumn unescapedQuoteHandling"
    ),
    "json": _TIMES
    | _names(
        "allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
        "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars "
        "allowUnquotedFieldNames charset columnNameOfCorruptRecord dropFieldIfAllNull encoding "
        "inferTimestamp lineSep mode multiLine prefersDecimal primitivesAsString samplingRatio "
        "singleVariantColumn"
    ),
}
"""How to parse files. Outputs take them too: `handle.read` reads an output with its options."""

WRITE: Final[Mapping[Format, frozenset[str]]] = {
    "parquet": _names("compression"),
    "orc": _names("compression"),
    "text": _names("compression"),
    "csv": _names("codec compression escapeQuotes extension quoteAll"),
    "json": _names("compression ignoreNullFields writeNonAsciiCharacterAsCodePoint"),
}

FIND: Final = _names("basePath modifiedAfter modifiedBefore pathGlobFilter recursiveFileLookup")
"""Which files to read, in any format."""

_SIZE: Final = _names("maxRecordsPerFile")

_TEXT_CODECS: Final = "none|uncompressed|bzip2|deflate|gzip|lz4|snappy"
CODECS: Final[Mapping[Format, str]] = {
    "parquet": "none|uncompressed|snappy|gzip|lzo|brotli|lz4|lz4_raw|zstd",
    "orc": "none|uncompressed|zlib|snappy|lzo|lz4|zstd|brotli",
    "text": _TEXT_CODECS,
    "csv": _TEXT_CODECS,
    "json": _TEXT_CODECS,
}
"""Spark's short names. Spark would also load a Java class by its name."""

_VALUES: Final[Mapping[str, str]] = {
    "encoding": r"[a-z0-9][a-z0-9_.:+-]{0,39}",
    "charset": r"[a-z0-9][a-z0-9_.:+-]{0,39}",
    "extension": r"[a-z]{1,10}",
    "locale": r"[a-z0-9-]{1,35}",
    "maxrecordsperfile": r"[0-9]{1,18}",
    "timezone": r"[a-z0-9_+:/-]{1,50}",
}
"""Patterns for values that name something outside the file, matched in lower case."""

_INSTEAD: Final[Mapping[str, str]] = {
    "partitionby": "partitioned outputs are to come with partition_by=, not as an option",
    "path": "paths are given as input and output",
    "paths": "paths are given as input and output",
    "ignorecorruptfiles": "a file that cannot be read fails its part; see partial=True",
    "ignoremissingfiles": "a file that cannot be read fails its part; see partial=True",
}


def own_options(format: Format) -> dict[str, str]:
    """Return how to read files that a pipeline wrote itself: they may have checksums beside them.

    In Parquet files that have, Spark's vectored reads return wrong strings where these are encoded
    as DELTA_BYTE_ARRAY.
    """
    return {"parquet.hadoop.vectored.io.enabled": "false"} if format == "parquet" else {}


def input_options(format: Format, given: object) -> dict[str, str]:
    """Return the options of an input as text; refuse options that its format does not take.

    The caller checks basePath against the roots.
    """
    return _checked("options", format, READ[format] | FIND, given)


def output_options(format: Format, given: object) -> dict[str, str]:
    """Return the options of an output as text; refuse options that its format does not take."""
    return _checked("output_options", format, READ[format] | WRITE[format] | _SIZE, given)


def _checked(name: str, format: Format, known: frozenset[str], given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"{name} must be a mapping, not {arguments.shown(given)}")
    names = {option.lower() for option in known}
    found: dict[str, str] = {}
    seen: set[str] = set()
    for option, value in given.items():
        key = str(option).lower()
        if key not in names:
            why = _INSTEAD.get(key)
            raise InvalidArgument(
                f"{name}: {arguments.shown(option)} is not allowed"
                + (f": {why}" if why else "")
                + f". For {format} there are {', '.join(sorted(known, key=str.lower))}"
            )
        if key in seen:
            raise InvalidArgument(f"{name}: {option} is given twice; case does not count")
        seen.add(key)
        found[str(option)] = _value(f"{name}: {option}", format, key, value)
    return found


def _value(name: str, format: Format, key: str, value: object) -> str:
    if not isinstance(value, str | int | float | bool):
        raise InvalidArgument(f"{name} must be text or a number")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) > _LONGEST or "\0" in text:
        raise InvalidArgument(f"{name} must have at most {_LONGEST} characters, and no NUL")
    if key in ("compression", "codec"):
        if not re.fullmatch(CODECS[format], text.lower()):
            raise InvalidArgument(
                f"{name} must be one of {CODECS[format].replace('|', ', ')}, "
                f"not {arguments.shown(value)}"
            )
    elif key in _VALUES and not re.fullmatch(_VALUES[key], text.lower()):
        raise InvalidArgument(f"{name} cannot be {arguments.shown(value)}")
    return text
