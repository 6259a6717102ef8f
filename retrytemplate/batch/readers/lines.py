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
# How much of what stands before a position is compared when the file is opened there.
TAIL = 64
ANEW = "put it back as it was, or begin the run anew"


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
    _head: int = 0
    _size: int = 0

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
        start = len(BOM) if self.file.read(len(BOM)) == BOM else 0
        self.file.seek(0)
        self._size = self.size()
        self._head = crc32(self.file.readline())
        self.file.seek(start)

    def position(self) -> JSON:
        """Here, with a check of what stands before."""
        offset = self.file.tell()
        return {"offset": offset, "number": self.number, "check": self._check(offset)}

    def _check(self, offset: int) -> int:
        """Of the first line and the bytes before the offset; leaves the file there."""
        length = min(offset, TAIL)
        self.file.seek(offset - length)
        return crc32(self.file.read(length), self._head)

    def go_to(self, position: JSON) -> None:
        """Go on at a position of this file; ``ReaderError`` if it is not the same any more."""
        offset = part(position, "offset", int, self.path)
        number = part(position, "number", int, self.path)
        check = part(position, "check", int, self.path)
        size = self.size()
        if offset < 0 or offset > size:
            raise ReaderError(f"{self.path} has {size} bytes, {offset} of it were read: {ANEW}")
        if self._check(offset) != check:
            raise ReaderError(f"{self.path} is not what was read, up to byte {offset}: {ANEW}")
        if 0 < offset < size and not self._at_line_end(offset):
            raise ReaderError(f"{self.path} has grown in the middle of its last line: {ANEW}")
        self.number = number

    def _at_line_end(self, offset: int) -> bool:
        self.file.seek(offset - 1)
        return self.file.read(1) == b"\n"

    def progress(self) -> float:
        """How much of the file is behind."""
        return min(1.0, self.file.tell() / max(1, self.size()))

    def size(self) -> int:
        """Of the file, as it is now."""
        return os.fstat(self.file.fileno()).st_size

    def check_size(self) -> None:
        """Raise if the file was cut: what was read last may be half a record."""
        if self.size() < self._size:
            raise ReaderError(f"{self.path} became shorter while it was read: {ANEW}")


class LineCursor(Cursor):
    """A file of lines while it is read.  A kind of file overrides ``_read``."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self.position = file.position()

    def read(self, limit: int) -> Records:
        """The next records; see ``Cursor.read``."""
        file = self._file
        file.file.seek(self.position["offset"])  # where a read that failed may not have left it
        records = self._read(limit, file.number + 1)
        file.check_size()
        file.number += len(records)
        self.position = file.position()
        return records

    def _read(self, limit: int, first: int) -> Records:
        raise NotImplementedError

    @property
    def progress(self) -> float | None:
        """How much of the file is behind."""
        return self._file.progress()

    def go_to(self, position: JSON) -> None:
        """Go on at a position of another cursor."""
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
