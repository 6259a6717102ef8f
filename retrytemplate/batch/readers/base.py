"""The protocol of readers, for your own ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from attrs import field, frozen, validators

from retrytemplate._internal.closing import AsyncClosing, Closing
from retrytemplate._internal.validation import check_int, checked_by
from retrytemplate.batch.errors import ReaderError, ReadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retrytemplate._internal.values import JSON


@frozen
class Records:
    """Consecutive records of one source; empty at its end.

    :param items: the records; instead of a broken one its text in the source.
    :param source: where they come from; with its number it makes a record known.
    :param first: the number of the first one in its source, from 1.
    :param broken: the errors of records that cannot be read, by index.
    :param fingerprint: at least 0; differs if other records are read in their place later, such as
        a checksum of their keys.  None: not checked.

    >>> records = Records(["a", "b"], "letters", first=25)
    >>> len(records), records.number(1), bool(Records([], "letters", first=27))
    (2, 26, False)
    """

    items: Sequence[Any]
    source: str
    first: int
    broken: Mapping[int, ReadError] = field(factory=dict)
    fingerprint: int | None = field(
        default=None, validator=validators.optional(checked_by(check_int, 0))
    )

    def __len__(self) -> int:
        return len(self.items)

    def number(self, index: int) -> int:
        """The number in the source of the record at this index."""
        return self.first + index


class Cursor(Closing):
    """A source while it is read.  ``with reader.open() as cursor`` closes it."""

    position: JSON
    """Behind the last record that was read: where the next read begins, and another cursor may."""

    @property
    def progress(self) -> float | None:
        """The part of the source that was read, from 0 to 1; None: unknown."""
        return None

    @abstractmethod
    def read(self, limit: int) -> Records:
        """The next records, *limit* at most; none at the end.

        From the same position it gives the same ones, and of a smaller limit the first of them.
        There may be fewer before the end, where a part of the source ends.
        """

    def verify(self) -> None:  # not every source can change
        """Raise ``ReaderError`` if the source no longer has the records that were read last.

        Called before each commit about them: an error ends the run, and nothing of them is written.
        The default accepts every source.
        """

    def close(self) -> None:
        """Release the source."""


class AsyncCursor(AsyncClosing):
    """The same for a source that is awaited.  ``async with reader.open() as cursor`` closes it."""

    position: JSON
    """As that of ``Cursor``."""

    @property
    def progress(self) -> float | None:
        """As that of ``Cursor``."""
        return None

    @abstractmethod
    async def read(self, limit: int) -> Records:
        """The next records, *limit* at most; none at the end."""

    async def verify(self) -> None:  # as above
        """As that of ``Cursor``."""

    async def close(self) -> None:
        """Release the source."""


class Reader(ABC):
    """The source of the items of a step.

    To write one, give it a ``name`` and override ``open``.  A position is a JSON value: the journal
    keeps it, and another process begins there.  Raise ``ReaderError`` for a position that the
    source does not have any more.

    >>> class Countdown(Reader):
    ...     name = "countdown"
    ...     def open(self, position=None):
    ...         return CountdownCursor(position if isinstance(position, int) else 10)
    >>> class CountdownCursor(Cursor):
    ...     def __init__(self, position):
    ...         self.position = position
    ...     def read(self, limit):
    ...         left, first = self.position, 11 - self.position
    ...         self.position = max(0, left - limit)
    ...         return Records(range(left, self.position, -1), "countdown", first)
    >>> with Countdown().open() as cursor:
    ...     list(cursor.read(3).items), cursor.position
    ([10, 9, 8], 7)
    >>> with Countdown().open(7) as cursor:
    ...     list(cursor.read(3).items)
    [7, 6, 5]
    """

    name: str
    """Its name in messages; with one source, the name of the source."""

    seekable: bool = True
    """Whether it may begin again at a position that a cursor of it gave, in another process too."""

    journal: bool = True
    """Where it may not: whether the step keeps the items of a chunk until the chunk is over."""

    @abstractmethod
    def open(self, position: JSON = None) -> Cursor | AsyncCursor:
        """Begin at the position that a cursor of this source gave; None: at the beginning.

        :raises ReaderError: the source cannot be read, or not from there.
        """


def part(position: JSON, name: str, kind: type, reader: str) -> Any:
    """A part of a position; ``ReaderError`` where it is the position of something else."""
    value = position.get(name) if isinstance(position, dict) else None
    if type(value) is not kind:
        raise ReaderError(
            f"{reader} cannot resume at {position!r}: not a position of this reader; "
            "give the step its former reader, or restart the run"
        )
    return value


def checked_names(allowed: str, value: Any) -> tuple[str, ...]:
    """Distinct strings of a list or tuple, at least one; *allowed* begins the error message."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{allowed}, in a list or tuple, got {value!r}")
    if not value or len(set(value)) < len(value):
        raise ValueError(f"{allowed}, got {value!r}")
    return tuple(value)


def checked_name(name: Any) -> str:
    """The name of a source.

    :raises TypeError: it is not a non-empty str.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name must be a non-empty str, got {name!r}")
    return name
