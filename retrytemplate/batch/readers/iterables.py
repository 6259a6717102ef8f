"""Readers of sequences in memory, and of iterators."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.validation import check_flag
from retrytemplate.batch.errors import ReaderError
from retrytemplate.batch.readers.base import (
    AsyncCursor,
    Cursor,
    Reader,
    Records,
    checked_name,
    part,
)

if TYPE_CHECKING:
    from asyncio import CancelledError

    from retrytemplate._internal.values import JSON

TEXTS = (str, bytes, bytearray, memoryview)


class SequenceReader(Reader):
    """The items of a list, a tuple, a range; it can resume.

    :param sequence: the items; a process that resumes the run must give the same ones.
    :param name: of the source, which makes an item known together with its number.

    >>> reader = SequenceReader(["a", "b", "c"])
    >>> with reader.open({"number": 1}) as cursor:
    ...     cursor.read(10).items
    ['b', 'c']
    """

    def __init__(self, sequence: Sequence[Any], name: str = "items") -> None:
        if isinstance(sequence, TEXTS) or not isinstance(sequence, Sequence):
            raise TypeError(f"sequence must be a list, a tuple, a range ..., got {sequence!r}")
        self.sequence = sequence
        self.name = checked_name(name)

    def open(self, position: JSON = None) -> Cursor:
        """Begin; see ``Reader.open``."""
        number = 0 if position is None else part(position, "number", int, self.name)
        if not 0 <= number <= len(self.sequence):
            raise ReaderError(
                f"{self.name} has {len(self.sequence)} items, but {number} were read; give the "
                "reader the same items again, or restart the run"
            )
        return _SequenceCursor(self.sequence, self.name, number)

    def __repr__(self) -> str:
        return f"SequenceReader({_shown(self.sequence)}, name={self.name!r})"


class _SequenceCursor(Cursor):
    def __init__(self, sequence: Sequence[Any], name: str, number: int) -> None:
        self._sequence = sequence
        self._name = name
        self._number = number
        self.position: JSON = {"number": number}

    @property
    def progress(self) -> float | None:
        return self._number / max(1, len(self._sequence))

    def read(self, limit: int) -> Records:
        start = self._number
        end = min(start + limit, len(self._sequence))
        items = [self._sequence[index] for index in range(start, end)]
        self._number += len(items)
        self.position = {"number": self._number}
        return Records(items, self._name, start + 1)


class ForwardReader(Reader):
    """The items of anything that is iterable, also asynchronously; each of them is given once.

    :param iterable: a generator, a set, a cursor of a database, an asynchronous stream ...
    :param name: of the source, which makes an item known together with its number.
    :param journal: whether the step is to keep the items of a chunk in its journal until the chunk
        is over.  False: a run that is cut off cannot be resumed.

    Items are numbered in their order.  In a process that resumes a run the numbers continue: the
    first item of the iterable there counts as the next one.  An iterable that starts again in each
    process (the rows of a file, say) gives its first items twice: use a reader with positions.
    After an exception of the iterable nothing more is read, and neither from a generator that was
    closed before its end, as ``asyncio.run`` closes those that it leaves: the end would look like
    the true one.  A cancelled read keeps its items for the next read of this reader.

    >>> reader = ForwardReader(letter for letter in "abc")
    >>> with reader.open() as cursor:
    ...     cursor.read(2).items, cursor.position
    (['a', 'b'], {'number': 2})
    >>> reader.seekable
    False
    """

    seekable = False

    def __init__(
        self,
        iterable: Iterable[Any] | AsyncIterable[Any],
        name: str = "items",
        journal: bool = True,
    ) -> None:
        if isinstance(iterable, TEXTS) or not isinstance(iterable, Iterable | AsyncIterable):
            raise TypeError(f"iterable must be iterable, and no text, got {iterable!r}")
        check_flag("journal", journal)
        self.iterable = iterable
        self.name = checked_name(name)
        self.journal = journal
        self._stream = _Stream(self.name)

    def open(self, position: JSON = None) -> Cursor | AsyncCursor:
        """Continue; the position must be the one after the last item that was read."""
        stream = self._stream
        stream.go_to(0 if position is None else part(position, "number", int, self.name))
        if isinstance(self.iterable, Iterable):
            stream.begin(iter, self.iterable)
            return _ForwardCursor(stream)
        stream.begin(aiter, self.iterable)
        return _AsyncForwardCursor(stream)

    def __repr__(self) -> str:
        shown = "" if self.journal else ", journal=False"
        return f"ForwardReader({_shown(self.iterable)}, name={self.name!r}{shown})"


class _Stream:
    """The one iterator, and how far it was read; the cursors of a reader share it.

    ``kept``: items of an interrupted read, for the next one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.iterator: Any = None
        self.number = 0
        self.kept: list[Any] = []
        self.error: BaseException | None = None
        self.cut: CancelledError | None = None
        self.ended = False
        self.loop: Any = None

    def begin(self, iterate: Callable[[Any], Any], iterable: Any) -> None:
        if self.iterator is None:
            self.iterator = iterate(iterable)

    def go_to(self, number: int) -> None:
        if self.iterator is None:
            self.number = number
        elif number != self.number:
            raise ReaderError(
                f"{self.name} was read up to item {self.number}, and cannot continue behind item "
                f"{number}: it is read forward only; give the step a new reader"
            )

    def is_readable(self) -> bool:
        """Whether it can be read; kept items are returned before its error is raised."""
        if not self.kept:
            self.check()
        return self.error is None and not self.ended and not self._closed()

    def check(self) -> None:
        if self.error is not None:
            raise ReaderError(
                f"{self.name} failed behind item {self.number} and cannot continue: "
                f"{summary(self.error)}"
            ) from self.error
        if self._closed():
            raise ReaderError(
                f"{self.name} was closed behind item {self.number}, and not read to its end; give "
                "the step a new reader with the next items"
            )

    def _closed(self) -> bool:
        """Whether it was closed from outside, or with the event loop that it was awaited in."""
        frames = (getattr(self.iterator, name, self) for name in ("gi_frame", "ag_frame"))
        gone = None in frames or (self.loop is not None and self.loop.is_closed())
        return gone and not self.ended

    def failed(self, error: BaseException) -> None:
        """Keep the error; it is raised when the items before it have been given."""
        from asyncio import CancelledError

        if isinstance(error, CancelledError):
            self.cut = error
        else:
            self.error = error
        if not isinstance(error, Exception):  # a signal or a cancellation is raised at once
            raise error

    def end(self) -> None:
        """The iterator has ended: at its end, or because a cancellation ended it."""
        if self.cut is None:
            self.ended = True
        else:
            self.error = self.cut

    def records(self, limit: int) -> Records:
        if not self.kept:
            self.check()
        items, first = self.kept[:limit], self.number + 1
        # At once: no signal may come in between.
        self.kept, self.number = self.kept[limit:], self.number + len(items)
        return Records(items, self.name, first)


class _StreamPosition:
    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.position: JSON = {"number": stream.number}

    def _records(self, limit: int) -> Records:
        records = self._stream.records(limit)
        self.position = {"number": self._stream.number}
        return records


class _ForwardCursor(_StreamPosition, Cursor):
    def read(self, limit: int) -> Records:
        stream = self._stream
        if stream.is_readable():
            items = stream.kept
            try:
                for item in islice(stream.iterator, max(0, limit - len(items))):
                    items.append(item)  # one by one: those before an error are there
                stream.ended = len(items) < limit
            except BaseException as exc:
                stream.failed(exc)
        return self._records(limit)


class _AsyncForwardCursor(_StreamPosition, AsyncCursor):
    async def read(self, limit: int) -> Records:
        from asyncio import get_running_loop

        stream = self._stream
        if stream.is_readable():
            items = stream.kept
            stream.loop = get_running_loop()
            try:
                while len(items) < limit:
                    items.append(await anext(stream.iterator))
                    stream.cut = None  # it continues
            except StopAsyncIteration:
                stream.end()
            except BaseException as exc:  # failed() raises a cancellation again
                stream.failed(exc)
        return self._records(limit)


def as_reader(value: Any) -> Reader:
    """The reader of a step: a reader unchanged, a sequence, or else any iterable.

    >>> as_reader([3, 1, 2])
    SequenceReader(<list of 3>, name='items')
    >>> as_reader("orders.csv")
    Traceback (most recent call last):
        ...
    TypeError: reader must be a Reader (CsvReader for a file), a sequence or an iterable, also an \
asynchronous one, got 'orders.csv'
    """
    if isinstance(value, Reader):
        return value
    if not isinstance(value, TEXTS):
        if isinstance(value, Sequence):
            return SequenceReader(value)
        if isinstance(value, Iterable | AsyncIterable):
            return ForwardReader(value)
    raise TypeError(
        "reader must be a Reader (CsvReader for a file), a sequence or an iterable, also an "
        f"asynchronous one, got {value!r}"
    )


def _shown(value: Any) -> str:
    """Of a source, what fits into a line."""
    kind = type(value).__name__
    return f"<{kind} of {len(value)}>" if isinstance(value, Sequence) else f"<{kind}>"
