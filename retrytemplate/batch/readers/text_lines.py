"""A file of lines: the end of a record, and whether the file has changed."""

from __future__ import annotations

import os
from abc import abstractmethod
from codecs import lookup
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from attrs import define

from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.base import Cursor, Records, part

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

    from retrytemplate._internal.values import JSON

    C = TypeVar("C", bound="LineCursor")

BOM = b"\xef\xbb\xbf"
# Bytes that are compared at the beginning of a file, and as many before a position.
SAMPLE = 1024
REMEDY = "restore it, or start the run again with on_existing='restart'"


def checked_path(path: Any) -> str:
    """The path as a str.

    :raises TypeError: it is not a path.
    """
    if not isinstance(path, str | os.PathLike) or not path:
        raise TypeError(f"path must be a non-empty str or os.PathLike, got {path!r}")
    found = os.fspath(path)
    if not isinstance(found, str):
        raise TypeError(f"path must be a path of str, got {path!r}")
    return found


def checked_encoding(encoding: Any) -> str:
    """The encoding.

    :raises ValueError: a newline is not the single byte 0x0A in it.
    """
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a str, got {encoding!r}")
    allowed = "encoding must write a newline as the byte 0x0A, like utf-8 or cp1252"
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


class RecordedFile(FileIO):
    """A file that keeps the bytes it returned, to compare them with its content.

    It keeps the first bytes, and all from shortly before the last records on.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._first = b""  # only while _kept does not begin with the file
        self._start = 0
        self._kept = bytearray()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read, and replace the kept bytes from here on."""
        index = self.tell() - self._start
        count = super().readinto(buffer)
        self._kept[index:] = memoryview(buffer)[:count]
        return count

    def sample(self, end: int) -> tuple[bytes, bytes]:
        """The first bytes of the file and the last ones before *end*, as they were read."""
        index = end - self._start
        first = self._first or bytes(self._kept[: min(index, SAMPLE)])
        return first, bytes(self._kept[max(index - SAMPLE, 0) : index])

    def load(self, end: int) -> None:
        """Keep the sample that the file has now."""
        self._start = max(end - SAMPLE, 0)
        self._first = self._now(0, SAMPLE) if self._start else b""
        self._kept = bytearray(self._now(self._start, end))

    def forget(self, end: int) -> None:
        """Keep no more than the sample before *end*."""
        start = max(end - SAMPLE, 0)
        if start > self._start:
            self._first = self._first or bytes(self._kept[:SAMPLE])
            del self._kept[: start - self._start]
            self._start = start

    def is_unchanged(self, end: int) -> bool:
        """Whether the file has the bytes before *end* that are kept."""
        found = self._now(self._start, end)
        return (
            len(found) == end - self._start
            and self._kept.startswith(found)
            and self._now(0, len(self._first)) == self._first
        )

    def _now(self, start: int, end: int) -> bytes:
        here = self.tell()
        try:
            self.seek(start)
            return self.read(end - start)
        finally:
            self.seek(here)


def _check(first: bytes, last: bytes) -> int:
    return crc32(last, crc32(first))


@define
class LineFile:
    """An open file, and how many records were read of it."""

    path: str
    file: BufferedReader
    _raw: RecordedFile
    number: int = 0
    _start: int = 0
    _largest: int = 0
    _absolute: str = ""

    @classmethod
    def open(cls, path: str) -> LineFile:
        """Open the file."""
        try:
            raw = RecordedFile(path)
        except OSError as exc:
            raise ReaderError(
                f"{path} cannot be read (in {os.getcwd()}): {exc.strerror or exc}"
            ) from exc
        return cls(path, BufferedReader(raw), raw)

    def begin(self) -> None:
        """Go to the first byte after a byte order mark."""
        if not self.file.seekable():
            raise ReaderError(f"{self.path} has no positions; give its lines to a ForwardReader")
        self._absolute = os.path.abspath(self.path)
        self._largest = self.size()
        self._start = len(BOM) if self.file.read(len(BOM)) == BOM else 0
        self.file.seek(self._start)

    def position(self, *, unclosed: bool) -> JSON:
        """The present offset, with a digest of the file's first bytes and of the last before it.

        :param unclosed: whether the record that ends here is to have further lines.
        """
        offset = self.file.tell()
        first, last = self._raw.sample(offset)
        return {
            "offset": offset,
            "number": self.number,
            "check": _check(first, last),
            "open": unclosed or (offset > self._start and not last.endswith(b"\n")),
        }

    def seek(self, offset: int) -> None:
        """Continue at this byte of the present file."""
        self._raw.forget(offset)
        self.file.seek(0, os.SEEK_END)  # drops the buffer, which a seek inside it does not
        self.file.seek(offset)

    def go_to(self, position: JSON) -> None:
        """Continue at a position of this file; ``ReaderError`` if it has changed."""
        for name, kind in (("offset", int), ("number", int), ("check", int), ("open", bool)):
            part(position, name, kind, self.path)
        offset = position["offset"]
        self._verify_size(offset)
        self._raw.load(offset)
        if _check(*self._raw.sample(offset)) != position["check"]:
            raise self._changed(offset)
        self.verify(position, offset)
        self.number = position["number"]

    def verify(self, position: Any, end: int) -> None:
        """Raise ``ReaderError`` unless the file has the bytes that were read, up to *end*.

        :param position: an earlier one, where another record must begin.
        """
        size = self._verify_size(end)
        if self._is_replaced():
            raise ReaderError(f"{self.path} was replaced by another file: {REMEDY}")
        if not self._raw.is_unchanged(end):
            raise self._changed(end)
        if position["open"] and size > position["offset"]:
            raise ReaderError(
                f"{self.path} has grown in the middle of its last record, number "
                f"{position['number']}, behind byte {position['offset']}: {REMEDY}"
            )

    def _verify_size(self, end: int) -> int:
        size = self.size()
        before = max(end, self._largest)
        if end < 0 or size < before:
            raise ReaderError(
                f"{self.path} became shorter: it had {before} bytes, and has {size}: {REMEDY}"
            )
        self._largest = size
        return size

    def _changed(self, end: int) -> ReaderError:
        return ReaderError(f"{self.path} has changed, up to byte {end}: {REMEDY}")

    def _is_replaced(self) -> bool:
        """Whether the path names another file now; a removed file is still read."""
        try:
            named = os.stat(self._absolute)
        except OSError:
            return False
        return not os.path.samestat(named, os.fstat(self.file.fileno()))

    def progress(self) -> float:
        """The part of the file that was read."""
        return min(1.0, self.file.tell() / max(1, self.size()))

    def size(self) -> int:
        """The present size of the file."""
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
        self._file.verify(self.position, position["offset"])
        self._file.number += len(records)
        self.position = position
        return records

    def _read_on(self, limit: int) -> tuple[Records, Any]:
        """The next records, and the position behind them."""
        file = self._file
        file.seek(self.position["offset"])
        records = self._read(limit, file.number + 1)
        position = file.position(unclosed=self._unclosed)
        return records, {**position, "number": file.number + len(records)}

    @abstractmethod
    def _read(self, limit: int, first: int) -> Records:
        """Up to *limit* records from here; *first* is the number of the first one."""

    def verify(self) -> None:
        """Raise ``ReaderError`` if the file has changed; see ``Cursor.verify``."""
        self._file.verify(self.position, self.position["offset"])

    @property
    def progress(self) -> float | None:
        """The part of the file that was read."""
        return self._file.progress()

    def go_to(self, position: JSON) -> None:
        """Continue at a position of another cursor."""
        self._file.go_to(position)
        self.position = position

    def close(self) -> None:
        """Close the file."""
        self._file.file.close()


def opened(make: Callable[[LineFile], C], path: str, position: JSON) -> C:
    """A cursor at a position, after its header was read."""
    file = LineFile.open(path)
    try:
        file.begin()
        cursor = make(file)
        if position is not None:
            cursor.go_to(position)
    except BaseException:
        file.file.close()
        raise
    return cursor
