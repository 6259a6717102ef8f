"""The values of a file that has a JSON value a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retrytemplate.batch.errors import ReadError
from retrytemplate.batch.readers.base import Reader, Records
from retrytemplate.batch.readers.text_lines import LineCursor, checked_path, opened

if TYPE_CHECKING:
    from os import PathLike

    from retrytemplate._internal.values import JSON


class JsonLinesReader(Reader):
    """The values of a file with a JSON value a line; it can resume.

    :param path: of the file, in UTF-8; it need not be there before the step runs.

    Blank lines are skipped.  A line that is not JSON (also one with ``NaN``) is broken.  The
    file may grow by whole lines.  A file that changes otherwise is a ``ReaderError``.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "orders.jsonl")
    ...     _ = path.write_text('{"id": 17}\\n{"id": 18\\n{"id": 19}\\n')
    ...     with JsonLinesReader(path).open() as cursor:
    ...         records = cursor.read(10)
    >>> records.items
    [{'id': 17}, '{"id": 18\\n', {'id': 19}]
    >>> list(records.broken)
    [1]
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = checked_path(path)

    def open(self, position: JSON = None) -> JsonLinesCursor:
        """Begin; see ``Reader.open``."""
        return opened(JsonLinesCursor, self.name, position)

    def __repr__(self) -> str:
        return f"JsonLinesReader({self.name!r})"


def _reject_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_reject_constant)


class JsonLinesCursor(LineCursor):
    """A file of JSON values while it is read."""

    def _read(self, limit: int, first: int) -> Records:
        items: list[Any] = []
        broken: dict[int, ReadError] = {}
        for line in self._file.file:
            if not line.isspace():
                try:
                    items.append(DECODER.decode(line.decode()))
                except (ValueError, RecursionError) as exc:
                    text = line.decode(errors="backslashreplace")
                    number = first + len(items)
                    broken[len(items)] = ReadError(
                        f"invalid JSON: {exc}", text=text, source=self._file.path, number=number
                    )
                    items.append(text)
                if len(items) == limit:
                    break
        return Records(items, self._file.path, first, broken)
