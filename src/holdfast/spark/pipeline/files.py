"""Files of input and output, through Hadoop's file systems: of this machine, or of a store."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast import arguments
from holdfast.codec import random_name
from holdfast.errors import InvalidArgument
from holdfast.spark.pipeline.order import Stamp
from holdfast.spark.pipeline.roots import Roots
from holdfast.spark.pipeline.splitting import Found

_SPECIAL: Final = re.compile(r"([*?{}\[\]\\,])")
_SUMMARIES: Final = frozenset({"_metadata", "_common_metadata"})
"""Files of a directory of Parquet files that Spark reads for the schema."""
_OF_STREAM: Final = "_spark_metadata"
_CHUNK: Final = 64 * 1024
_LINE_END: Final = re.compile(rb"\n(?!%b)" % codecs.BOM_UTF8)


class Files:
    """The file systems that a Spark session reaches. Paths are `/…`, or `scheme://…` elsewhere.

    Every path is checked when it is used: nothing is read or changed that is not below the roots.
    """

    def __init__(self, spark: SparkSession, roots: Roots) -> None:
        self._roots = roots
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._settings: Any = spark._jsc.hadoopConfiguration()
        self._path = jvm.org.apache.hadoop.fs.Path
        self._copy = jvm.org.apache.commons.io.IOUtils.copyLarge

    # ------------------------------------------------------------------ look

    def exists(self, path: str) -> bool:
        """Tell whether there is something."""
        where = self.where(path)
        return bool(self._system(where).exists(where))

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none without a directory."""
        return [status.getPath().getName() for status in self._statuses(path)]

    def regular(self, path: str) -> set[str]:
        """Return the names of the files in a directory, without those of directories."""
        return {status.getPath().getName() for status in self._statuses(path) if status.isFile()}

    def refuse_links(self, path: str) -> None:
        """Refuse a directory that has links out of the roots in it."""
        for name in self.names(path):
            self.where(f"{path}/{name}")

    def find(self, pattern: str) -> Iterator[Found]:
        """Find the files that Spark may read, in the order of their names.

        In directories it reads fewer, by rules of its own.
        """
        where = self.where(pattern)
        for status in self._system(where).globStatus(where) or ():
            if status.isFile():
                yield self._found(status, self.text(status.getPath()))
            else:
                base = self.text(status.getPath())
                yield from self._below(base, base)

    def _below(self, directory: str, base: str) -> Iterator[Found]:
        directories = []
        for status in self._statuses(directory):
            name = status.getPath().getName()
            path = self.text(status.getPath())
            if name in _SUMMARIES:
                self.where(path)
            if name == _OF_STREAM:
                raise InvalidArgument(
                    f"input {directory} is the output of a streaming query: its files count only "
                    f"if {_OF_STREAM} names them. Copy it with a batch job, and read the copy"
                )
            if name.startswith(".") or (name.startswith("_") and "=" not in name):
                continue
            if status.isFile():
                yield self._found(status, path, base)
            else:
                directories.append(path)
        for path in directories:
            yield from self._below(path, base)

    def _found(self, status: Any, path: str, base: str | None = None) -> Found:
        return Found(path, status.getLen(), status.getModificationTime(), base)

    def stamp(self, path: str) -> Stamp | None:
        """Return what a file is now; None where there is none, or a directory.

        Spark would list a directory, and follow the links in it.
        """
        where = self.where(path)
        try:
            status = self._system(where).getFileStatus(where)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == "java.io.FileNotFoundException":
                return None
            raise
        if status.isDirectory():
            return None
        return Stamp(status.getLen(), status.getModificationTime())

    def _statuses(self, path: str) -> list[Any]:
        where = self.where(path)
        system = self._system(where)
        if not system.exists(where):
            return []
        return sorted(system.listStatus(where), key=lambda status: str(status.getPath().getName()))

    def is_compressed(self, path: str) -> bool:
        """Tell whether a file can be read from its beginning only."""
        known = self._jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(self._settings)
        return known.getCodec(self.where(path)) is not None

    def row_groups(self, path: str) -> list[int]:
        """Return the sizes of the row groups of a Parquet file: 0 for those without rows."""
        reader = self._parquet(path)
        try:
            return [
                block.getCompressedSize() if block.getRowCount() else 0
                for block in reader.getFooter().getBlocks()
            ]
        finally:
            reader.close()

    # ---------------------------------------------------------------- change

    def read(self, path: str) -> bytes | None:
        """Return what is in a small file; None where there is none."""
        where = self.where(path)
        system = self._system(where)
        if not system.exists(where):
            return None
        stream = system.open(where)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """Write a small file, so that it is there whole or not at all."""
        there = self.where(path)
        made = self.where(f"{path}.{random_name()}.tmp")
        system = self._system(there)
        try:
            stream = system.create(made, True)
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
        except BaseException:  # A full disk leaves half of it, and only we remove that.
            with suppress(Exception):
                system.delete(made, False)
            raise
        system.delete(there, False)
        if not system.rename(made, there):
            raise OSError(f"{path}: it could not be written")

    def write_once(self, path: str, content: bytes) -> None:
        """Write a small file, unless it is there."""
        if not self.exists(path):
            self.write(path, content)

    def make(self, path: str) -> None:
        """Make a directory, and those above it."""
        where = self.where(path)
        if not self._system(where).mkdirs(where):
            raise OSError(f"Mkdirs failed to create {as_url(path)}")

    def move(self, path: str, to: str) -> bool:
        """Give a file or directory another name; False when it is not there."""
        where, there = self.where(path), self.where(to)
        system = self._system(where)
        if not system.exists(where):
            return False
        if system.exists(there):
            raise FileExistsError(f"{to} is there already")
        if not self._rename(system, where, there):
            if not system.exists(where):
                return False
            raise OSError(f"{path} could not be moved to {to}")
        return True

    def _rename(self, system: Any, where: Any, there: Any) -> bool:
        """Rename in one step. Hadoop copies a local directory whose new place cannot be had."""
        if not self.text(where).startswith("/") or not system.getFileStatus(where).isDirectory():
            return bool(system.rename(where, there))
        file = self._jvm.java.io.File
        return bool(file(self.text(where)).renameTo(file(self.text(there))))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        where = self.where(path)
        self._system(where).delete(where, True)

    def remove_empty(self, path: str) -> None:
        """Remove a directory, if there is nothing in it."""
        where = self.where(path)
        with suppress(Py4JJavaError):
            self._system(where).delete(where, False)

    # ------------------------------------------------------------------- cut

    def cut_lines(self, path: str, start: int, end: int, to: str, *, header: int = 0) -> None:
        """Copy the lines that begin between two places, after the first `header` bytes of all."""
        source, target = self.where(path), self.where(to)
        size = self._system(source).getFileStatus(source).getLen()
        if end > size:
            raise InvalidArgument(f"{path} has {size} bytes, not {end}")
        stream = self._system(source).open(source)
        try:
            begin = max(self._line_at(stream, start), header)
            stop = self._line_at(stream, end)
            out = self._system(target).create(target, True)
            try:
                for first, after in ((0, header), (begin, stop)):
                    if after > first:
                        stream.seek(first)
                        self._copy(stream, out, 0, after - first)
            finally:
                out.close()
        finally:
            stream.close()

    def head(self, path: str, most: int) -> bytes:
        """Return the first bytes of a file."""
        where = self.where(path)
        stream = self._system(where).open(where)
        try:
            return bytes(stream.readNBytes(most))
        finally:
            stream.close()

    def _line_at(self, stream: Any, place: int) -> int:
        """Return where the first line begins, at this place or after it; the end if none does.

        Lines with a byte order mark do not count: Spark would drop it at the beginning of a copy.
        """
        if place == 0:
            return 0
        at = place - 1
        stream.seek(at)
        text = b""
        while True:
            piece = bytes(stream.readNBytes(_CHUNK))
            text += piece
            found = _LINE_END.search(text)
            if found and (not piece or found.end() + len(codecs.BOM_UTF8) <= len(text)):
                return at + found.end()
            if not piece:
                return at + len(text)
            known = found.start() if found else len(text)  # What follows the end is not read yet.
            at, text = at + known, text[known:]

    def cut_blocks(self, path: str, first: int, after: int, to: str) -> None:
        """Copy row groups of a Parquet file as they are, without decoding them.

        Those without rows are left out: Parquet's writer refuses them.
        """
        parquet = self._jvm.org.apache.parquet.hadoop
        reader = self._parquet(path)
        try:
            footer = reader.getFooter()
            about, blocks = footer.getFileMetaData(), footer.getBlocks()
            if after > blocks.size():
                raise InvalidArgument(f"{path} has {blocks.size()} row groups, not {after}")
            target = parquet.util.HadoopOutputFile.fromPath(self.where(to), self._settings)
            mode = getattr(parquet, "ParquetFileWriter$Mode").OVERWRITE
            writer = parquet.ParquetFileWriter(
                target, about.getSchema(), mode, 128 * 2**20, 8 * 2**20
            )
            writer.start()
            stream = self._parquet_file(path).newStream()
            try:
                filled = [block for block in blocks.subList(first, after) if block.getRowCount()]
                writer.appendRowGroups(stream, filled, False)
            finally:
                stream.close()
            writer.end(about.getKeyValueMetaData())
        finally:
            reader.close()

    def _parquet(self, path: str) -> Any:
        return self._jvm.org.apache.parquet.hadoop.ParquetFileReader.open(self._parquet_file(path))

    def _parquet_file(self, path: str) -> Any:
        util = self._jvm.org.apache.parquet.hadoop.util
        return util.HadoopInputFile.fromPath(self.where(path), self._settings)

    # ----------------------------------------------------------------- paths

    def where(self, path: str) -> Any:
        """Return a Hadoop path; refuse a path that leads out of the roots."""
        if not self._roots.holds(path):
            raise InvalidArgument(f"{arguments.shown(path)} leads out of {self._roots!r}: a link?")
        return self._path("file", None, path) if path.startswith("/") else self._path(path)

    def text(self, path: Any) -> str:
        """Return a path of Hadoop as text."""
        where = path.toUri()
        return str(where.getPath() if where.getScheme() in (None, "file") else path.toString())

    def _system(self, where: Any) -> Any:
        return where.getFileSystem(self._settings)


def for_spark(path: str) -> str:
    """Return a path of one file as Spark's reader takes it, which looks for patterns."""
    return as_url(_SPECIAL.sub(r"\\\1", path))


def as_url(path: str) -> str:
    """Return a path, or a pattern, with the scheme of its file system."""
    return f"file:{path}" if path.startswith("/") else path


def path_of(url: str) -> str:
    """Return the path of a file that Spark names with its scheme."""
    return "/" + url.removeprefix("file:").lstrip("/") if url.startswith("file:") else url
