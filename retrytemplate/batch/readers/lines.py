"""A file of lines: where a record ends, and whether the file is still what it was."""

from __future__ import annotations

import os
from codecs import lookup
from typing import TYPE_CHECKING, Any
from zlib import crc32

from attrs import define

from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.base import Cursor, part

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedReader
    from typing import TypeVar

    from retrytemplate.batch.readers.base import JSON, Records

    C = TypeVar("C", bound="LineCursor")

__all__ = ["LineCursor", "LineFile", "checked_encoding", "checked_path", "opened"]

BOM = b"\xef\xbb\xbf"
# Bytes that are compared at the beginning of a file, and as many before a position.
SAMPLE = 1024
REMEDY = "restore it, or start the run again with on_existing='restart'"


def checked_path(path: Any) -> str:
    """The path as text; TypeError for what is none."""
    if not isinstance(path, str | os.PathLike) or not path:
        raise TypeError(f"path must be a non-empty str or os.PathLike, got {path!r}")
    found = os.fspath(path)
    if not isinstance(found, str):
        raise TypeError(f"path must be a path of str, got {path!r}")
    return found


def checked_encoding(encoding: Any) -> str:
    """The encoding; an error for one whose lines cannot be told apart by their bytes."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a str, got {encoding!r}")
    allowed = "encoding must be one in which a line ends with the byte 10, like utf-8 or cp1252"
    try:
        found = lookup(encoding).name
        plain = "a\n".encode(encoding)
    except LookupError:
        raise ValueError(f"{allowed}, got the unknown {encoding!r}") from None
    if found == "utf-8-sig":
        return "utf-8"  # the mark at the beginning is passed over anyway
    if plain != b"a\n":
        raise ValueError(f"{allowed}, got {encoding!r}: convert the file")
    return encoding


@define
class LineFile:
    """An open file, and how many records were read of it."""

    path: str
    file: BufferedReader
    number: int = 0
    _start: int = 0
    _largest: int = 0
    _absolute: str = ""

    @classmethod
    def open(cls, path: str) -> LineFile:
        """At the first byte behind a byte order mark."""
        try:
            file = open(path, "rb")  # noqa: SIM115  # a cursor closes it
        except OSError as exc:
            raise ReaderError(
                f"{path} cannot be read (in {os.getcwd()}): {exc.strerror or exc}"
            ) from exc
        opened = cls(path, file)
        try:
            opened._begin()
        except BaseException:
            file.close()
            raise
        return opened

    def _begin(self) -> None:
        if not self.file.seekable():
            raise ReaderError(
                f"{self.path} is no file with positions: give what it says to a ForwardReader"
            )
        self._absolute = os.path.abspath(self.path)
        self._largest = self.size()
        self._start = len(BOM) if self.file.read(len(BOM)) == BOM else 0
        self.file.seek(self._start)

    def position(self, *, unclosed: bool) -> JSON:
        """Here, with a digest of the first bytes of the file and the last ones before here.

        :param unclosed: whether the record that ends here is to have further lines.
        """
        offset = self.file.tell()
        last = self._bytes(max(offset - 1, 0), offset)
        return {
            "offset": offset,
            "number": self.number,
            "check": self._digest(offset),
            "open": unclosed or (offset > self._start and last != b"\n"),
        }

    def _digest(self, offset: int) -> int:
        first = self._bytes(0, min(offset, SAMPLE))
        return crc32(self._bytes(max(offset - SAMPLE, 0), offset), crc32(first))

    def _bytes(self, start: int, end: int) -> bytes:
        """These bytes as the file has them now, which its buffer may not."""
        raw: Any = self.file.raw
        here = raw.tell()
        try:
            raw.seek(start)
            return raw.read(end - start) or b""
        finally:
            raw.seek(here)

    def go_to(self, position: JSON) -> None:
        """Continue at a position of this file; ``ReaderError`` if it has changed."""
        for name, kind in (("offset", int), ("number", int), ("check", int), ("open", bool)):
            part(position, name, kind, self.path)
        self.verify(position)
        self.number = position["number"]

    def verify(self, position: Any) -> None:
        """Raise ``ReaderError`` unless the file has what was read up to this position of it."""
        offset, size = position["offset"], self.size()
        before = max(offset, self._largest)
        if offset < 0 or size < before:
            raise ReaderError(
                f"{self.path} became shorter: it had {before} bytes, and has {size}: {REMEDY}"
            )
        self._largest = size
        if self._is_replaced():
            raise ReaderError(f"{self.path} was replaced by another file: {REMEDY}")
        if self._digest(offset) != position["check"]:
            raise ReaderError(f"{self.path} is not what was read, up to byte {offset}: {REMEDY}")
        if position["open"] and size > offset:
            raise ReaderError(
                f"{self.path} has grown in the middle of its last record, number "
                f"{position['number']}, behind byte {offset}: {REMEDY}"
            )

    def _is_replaced(self) -> bool:
        """Whether the path names another file now; what was removed is still read."""
        try:
            named = os.stat(self._absolute)
        except OSError:
            return False
        return not os.path.samestat(named, os.fstat(self.file.fileno()))

    def progress(self) -> float:
        """How much of the file is behind."""
        return min(1.0, self.file.tell() / max(1, self.size()))

    def size(self) -> int:
        """Of the file, as it is now."""
        return os.fstat(self.file.fileno()).st_size


class LineCursor(Cursor):
    """A file of lines while it is read.  A kind of file overrides ``_read``.

    A last record without its end may still grow: it is read by itself, after all others.
    """

    _unclosed = False
    """Whether the file ended inside the last record, although its last line has an end."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self.position = file.position(unclosed=self._unclosed)

    def read(self, limit: int) -> Records:
        """The next records; see ``Cursor.read``."""
        records, position = self._read_on(limit)
        if position["open"] and len(records) > 1:
            records, position = self._read_on(len(records) - 1)
        self.verify()
        self._file.number += len(records)
        self.position = position
        return records

    def _read_on(self, limit: int) -> tuple[Records, Any]:
        """The next records, and the position behind them."""
        file = self._file
        file.file.seek(self.position["offset"])
        records = self._read(limit, file.number + 1)
        position = file.position(unclosed=self._unclosed)
        return records, {**position, "number": file.number + len(records)}

    def _read(self, limit: int, first: int) -> Records:
        raise NotImplementedError

    def verify(self) -> None:
        """Raise ``ReaderError`` if the file has changed; see ``Cursor.verify``."""
        self._file.verify(self.position)

    @property
    def progress(self) -> float | None:
        """How much of the file is behind."""
        return self._file.progress()

    def go_to(self, position: JSON) -> None:
        """Continue at a position of another cursor."""
        self._file.go_to(position)
        self.position = position

    def close(self) -> None:
        """Close the file."""
        self._file.file.close()


def opened(make: Callable[[LineFile], C], path: str, position: JSON) -> C:
    """A cursor at a position; what it takes of the beginning is read before."""
    file = LineFile.open(path)
    try:
        cursor = make(file)
        if position is not None:
            cursor.go_to(position)
    except BaseException:
        file.file.close()
        raise
    return cursor
