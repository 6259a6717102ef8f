"""Several files, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from attrs import frozen

from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.base import Cursor, Reader, Records, part
from retrytemplate.batch.readers.csv import CsvReader

if TYPE_CHECKING:
    from os import PathLike

    from retrytemplate._internal.values import JSON


class FilesReader(Reader):
    """Files in the order in which they are given; it can resume.

    :param paths: of the files, each once.  Sort the result of a glob.
    :param each: makes the reader of one file; ``functools.partial(CsvReader, delimiter=";")``.
    :raises TypeError, ValueError: no paths, a path twice, or a path that ``each`` rejects.

    A read has records of one file: a chunk ends with its file.  The source of a record is its
    own file, and its number counts in there.  Files may be added at the end between two runs.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in "ab":
    ...         _ = Path(folder, f"{name}.csv").write_text(f"id\\n{name}1\\n{name}2\\n")
    ...     with FilesReader(sorted(Path(folder).glob("*.csv"))).open() as cursor:
    ...         cursor.read(10).items, cursor.read(10).items, cursor.read(10).items
    ([{'id': 'a1'}, {'id': 'a2'}], [{'id': 'b1'}, {'id': 'b2'}], [])
    """

    def __init__(
        self,
        paths: Iterable[str | PathLike[str]],
        each: Callable[[str | PathLike[str]], Reader] = CsvReader,
    ) -> None:
        allowed = "paths must be paths of files, each once, at least one"
        if isinstance(paths, str | bytes) or not isinstance(paths, Iterable):
            raise TypeError(f"{allowed}, got {paths!r}")
        given = tuple(paths)
        if not callable(each):
            raise TypeError(f"each must make a reader of a path, got {each!r}")
        self.readers = tuple(_checked_reader(each(path)) for path in given)
        self._parts = tuple(_parts(self.readers))
        names = [reader.name for reader in self.readers]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"{allowed}, got {given!r}")
        self.name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def open(self, position: JSON = None) -> Cursor:
        """Begin; see ``Reader.open``."""
        if position is None:
            return _FilesCursor(self._parts, 0, None)
        index = part(position, "file", int, self.name)
        known = 0 <= index < len(self._parts)
        if not known or self._parts[index].check != part(position, "check", int, self.name):
            raise ReaderError(
                f"{self.name}: the files up to {position.get('name')} are not those that were read "
                "before; keep their order and add new ones at the end, or restart the run"
            )
        return _FilesCursor(self._parts, index, position.get("at"))

    def __repr__(self) -> str:
        return f"FilesReader({list(self.readers)!r})"


def _checked_reader(reader: Any) -> Reader:
    if not isinstance(reader, Reader) or not reader.seekable:
        raise TypeError(f"each must make a seekable reader, made {reader!r}")
    return reader


@frozen
class _Part:
    """The reader of a file, and a check of the names of all files up to it."""

    reader: Reader
    check: int


def _parts(readers: Iterable[Reader]) -> Iterator[_Part]:
    check = 0
    for reader in readers:
        check = crc32(json.dumps(reader.name).encode(), check)
        yield _Part(reader, check)


class _FilesCursor(Cursor):
    def __init__(self, parts: Sequence[_Part], index: int, at: JSON) -> None:
        self._parts = parts
        self._go_to(index, at)

    def _go_to(self, index: int, at: JSON) -> None:
        reader = self._parts[index].reader
        cursor = reader.open(at)
        if not isinstance(cursor, Cursor):
            raise ReaderError(f"{reader.name} is asynchronous; FilesReader takes no such reader")
        self._index = index
        self._cursor = cursor

    @property
    def position(self) -> JSON:
        file = self._parts[self._index]
        return {
            "file": self._index,
            "name": file.reader.name,
            "check": file.check,
            "at": self._cursor.position,
        }

    @property
    def progress(self) -> float | None:
        return (self._index + (self._cursor.progress or 0)) / len(self._parts)

    def read(self, limit: int) -> Records:
        records = self._cursor.read(limit)
        while not records and self._index + 1 < len(self._parts):
            before = self._cursor
            self._go_to(self._index + 1, None)
            before.close()
            records = self._cursor.read(limit)
        return records

    def verify(self) -> None:
        self._cursor.verify()

    def close(self) -> None:
        self._cursor.close()
