"""The records of a CSV file."""

from __future__ import annotations

import csv
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

from retrytemplate.batch.errors import ReaderError, ReadError
from retrytemplate.batch.readers.base import Reader, Records, checked_names
from retrytemplate.batch.readers.text_lines import (
    LineCursor,
    checked_encoding,
    checked_path,
    opened,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from retrytemplate._internal.values import JSON
    from retrytemplate.batch.readers.text_lines import LineFile


class CsvReader(Reader):
    """The records of a CSV file as dicts; it can resume.

    :param path: of the file; it need not be there before the step runs.
    :param encoding: of the file; a byte order mark of UTF-8 is passed over.
    :param fields: the names of the fields; None: the first record has them.
    :param dialect: what else ``csv.reader`` takes: ``delimiter=";"``, ``dialect="excel-tab"``.
        ``strict`` is true unless you say otherwise: a quote that is never closed would include the
        records after it.
    :raises TypeError, ValueError: a path, an encoding, names or a dialect is not valid.

    Blank lines are skipped.  A record with more or fewer fields than names, with a byte that is not
    of the encoding, or that is not CSV, is broken; reading continues at the next line.  The file
    may grow between two runs.  A run is not resumed if the part that was read has changed.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "orders.csv")
    ...     _ = path.write_text("id,customer\\n17,Sato\\n18,Ito,Ltd\\n19,Abe\\n")
    ...     with CsvReader(path).open() as cursor:
    ...         print(cursor.read(1).items)
    ...         position = cursor.position
    ...     with CsvReader(path).open(position) as cursor:
    ...         records = cursor.read(10)
    [{'id': '17', 'customer': 'Sato'}]
    >>> records.items
    ['18,Ito,Ltd\\n', {'id': '19', 'customer': 'Abe'}]
    >>> str(records.broken[0]).rpartition("/")[2]
    'orders.csv, record 2: 3 fields where there should be 2'
    """

    def __init__(
        self,
        path: str | PathLike[str],
        encoding: str = "utf-8",
        fields: Sequence[str] | None = None,
        **dialect: Any,
    ) -> None:
        self.name = checked_path(path)
        self.encoding = checked_encoding(encoding)
        self.fields = None if fields is None else checked_names(FIELDS, fields)
        self.dialect = {"strict": True} | _checked_dialect(dialect)

    def open(self, position: JSON = None) -> CsvCursor:
        """Begin; see ``Reader.open``."""
        return opened(
            lambda file: CsvCursor(file, self.encoding, self.fields, self.dialect),
            self.name,
            position,
        )

    def __repr__(self) -> str:
        options = {"encoding": self.encoding, "fields": self.fields} | self.dialect
        shown = (
            f", {name}={value!r}"
            for name, value in options.items()
            if name not in DEFAULTS or value != DEFAULTS[name]
        )
        return f"CsvReader({self.name!r}{''.join(shown)})"


# Lists that exist at the same time: more of them start the garbage collector repeatedly.
FEW = 100
FIELDS = "fields must be distinct names, at least one"
DEFAULTS = {"encoding": "utf-8", "fields": None, "strict": True}


def _checked_dialect(dialect: dict[str, Any]) -> dict[str, Any]:
    try:
        csv.reader((), **dialect)
    except (TypeError, csv.Error) as exc:
        kind = ValueError if isinstance(exc, csv.Error) else TypeError
        raise kind(f"dialect must be what csv.reader takes, got {dialect!r}: {exc}") from exc
    return dialect


class CsvCursor(LineCursor):
    """A CSV file while it is read."""

    def __init__(
        self,
        file: LineFile,
        encoding: str,
        fields: tuple[str, ...] | None,
        dialect: Mapping[str, Any],
    ) -> None:
        self._file = file
        self._encoding = encoding
        self._dialect = dialect
        self._fields = self._header() if fields is None else fields
        lines = map(bytes.decode, file.file, repeat(encoding))
        self._rows = csv.reader(lines, **dialect)
        super().__init__(file)

    def _read(self, limit: int, first: int) -> Records:
        start = self._file.file.tell()
        self._unclosed = False
        records = self._at_once(limit, first)
        if records is None or self._may_be_unclosed():
            self._file.file.seek(start)
            records = self._one_by_one(limit, first)
        return records

    def _may_be_unclosed(self) -> bool:
        """Whether the last record may have an open quote, which only a strict dialect reports."""
        file = self._file
        return not self._dialect["strict"] and file.file.tell() >= file.size()

    def _at_once(self, limit: int, first: int) -> Records | None:
        """The records as dicts; None: at least one is not valid."""
        fields, size = self._fields, {len(self._fields)}
        items: list[Any] = []
        try:
            while rows := list(islice(self._rows, min(limit - len(items), FEW))):
                if set(map(len, rows)) != size:
                    return None
                items += [dict(zip(fields, row)) for row in rows]  # noqa: B905  # of one size
        except (csv.Error, ValueError):
            return None
        return Records(items, self._file.path, first)

    def _one_by_one(self, limit: int, first: int) -> Records:
        items: list[Any] = []
        broken: dict[int, ReadError] = {}
        for raw, row, error in islice(self._found(), limit):
            problem = f"no CSV: {error}" if error else self._problem(raw, row)
            if problem is None:
                items.append(dict(zip(self._fields, row, strict=True)))
                continue
            text = raw.decode(self._encoding, "backslashreplace")
            source, number = self._file.path, first + len(items)
            broken[len(items)] = ReadError(problem, text=text, source=source, number=number)
            items.append(text)
        return Records(items, self._file.path, first, broken)

    def _found(self) -> Iterator[tuple[bytes, list[str], Exception | None]]:
        """Yield each record, without blank lines: its bytes, and its fields or an error."""
        raw: list[bytes] = []
        rows = csv.reader(self._kept(raw), **self._dialect)
        while True:
            raw.clear()
            try:
                row = next(rows, None)
            except (csv.Error, ValueError) as exc:
                yield b"".join(raw), [], exc
                continue
            if row is None:
                return
            if row:
                yield b"".join(raw), row, None

    def _kept(self, raw: list[bytes]) -> Iterator[str]:
        for line in self._file.file:
            raw.append(line)
            yield line.decode(self._encoding, "replace")
        self._unclosed = bool(raw)

    def _problem(self, raw: bytes, row: list[str]) -> str | None:
        try:
            raw.decode(self._encoding)
        except ValueError as exc:
            return f"not {self._encoding}: {exc}"
        if len(row) != len(self._fields):
            return f"{len(row)} fields where there should be {len(self._fields)}"
        return None

    def _header(self) -> tuple[str, ...]:
        """The names in the first record."""
        raw, row, error = next(self._found(), (b"", [], None))
        try:
            raw.decode(self._encoding)
            if error is not None:
                raise error
            return checked_names(FIELDS, row)
        except (csv.Error, TypeError, ValueError) as exc:
            raise ReaderError(
                f"{self._file.path} does not begin with the names of its fields ({exc}): mend its "
                "first line, or give CsvReader the names as fields=..."
            ) from exc
