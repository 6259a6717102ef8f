"""Time limits of a stream: until its first item, between two, and in all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from attrs import field, frozen

from retrytemplate._engine.deadline import Deadline
from retrytemplate._internal.formatting import operation_of
from retrytemplate._internal.validation import (
    check_span_or_none,
    check_text,
    checked_by,
    to_seconds,
)
from retrytemplate.control._fields import Observed
from retrytemplate.control.classification.timeouts import FIRST
from retrytemplate.control.timeout.timeout import Timeout, notify_timed_out
from retrytemplate.errors import DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable
    from typing import Literal

T = TypeVar("T")
NEXT, WHOLE = "next item", "stream"


@frozen
class StreamTimeout(Observed):
    """Time limits of a stream, such as the tokens of a language model.

    As they are: a first token may take half a minute, the next one half of that, and all of them
    as long as it takes.

    :param first: seconds until the first item; None: any number, as for the others.
    :param between: seconds until the next item, from its request.
    :param total: seconds until the end, from the request of the first item, with what happens to
        the items meanwhile.
    :param name: of the stream, in events.
    :param listeners: receive a ``TimedOut`` for each exceeded limit.
    :param clock: measures; the system's, unless given.
    :raises ValueError: for a limit that is not above 0.

    An item that does not come in time is a ``DeadlineExceededError`` whose ``kind`` is
    ``"first item"``, ``"next item"`` or ``"stream"``.  An asynchronous stream is cancelled at the
    limit.  A plain iterator is not: an item that comes too late is discarded, and the stream ends.

    >>> import asyncio
    >>> async def tokens():
    ...     yield "Once"
    ...     await asyncio.sleep(60)
    ...     yield "upon"
    >>> async def main():
    ...     async for token in StreamTimeout(first=1.0, between=0.01).over(tokens()):
    ...         print(token)
    >>> try:
    ...     asyncio.run(main())
    ... except TimeoutError as error:
    ...     print(error.kind)
    Once
    next item
    """

    first: float | None = field(
        default=30.0, converter=to_seconds, validator=checked_by(check_span_or_none)
    )
    between: float | None = field(
        default=15.0, converter=to_seconds, validator=checked_by(check_span_or_none)
    )
    total: float | None = field(
        default=None, converter=to_seconds, validator=checked_by(check_span_or_none)
    )
    name: str = field(default="stream", kw_only=True, validator=checked_by(check_text))

    @overload
    def over(self, stream: AsyncIterable[T]) -> AsyncIterator[T]: ...

    @overload
    def over(self, stream: Iterable[T]) -> Iterator[T]: ...

    def over(self, stream: Any) -> Any:
        """The items of the stream, each in time; ``aclose`` or ``close`` goes through to it.

        :param stream: an iterable or an async iterable.
        :raises DeadlineExceededError: from the iterator, for an item that does not come in time.

        >>> list(StreamTimeout(total=60).over(["Once", "upon"]))
        ['Once', 'upon']
        """
        if hasattr(type(stream), "__aiter__"):
            return _AsyncItems(self, aiter(stream))
        if hasattr(type(stream), "__iter__"):
            return _Items(self, iter(stream))
        raise TypeError(f"stream must be an iterable or an async iterable, got {stream!r}")


class _TimedIterator:
    _on_late_result: Literal["return", "discard"] = "return"

    def __init__(self, limits: StreamTimeout, items: Any) -> None:
        self._limits = limits
        self._items = items
        self._total_deadline: Deadline | None = None

    def _timeout(self, fn: Any) -> Timeout:
        """The limit of the item that this function returns."""
        limits, whole = self._limits, self._total_deadline
        seconds, kind = limits.between, NEXT
        if whole is None:
            seconds, kind = limits.first, FIRST
            total = float("inf") if limits.total is None else limits.total
            whole = self._total_deadline = Deadline.after(total, kind=WHOLE, clock=limits.clock)
        left = whole.remaining()
        if seconds is None or left <= seconds:
            seconds, kind = left, WHOLE
        if seconds <= 0:
            try:
                raise whole.error(f"the stream took longer than {whole.limit:g} seconds")
            except DeadlineExceededError as error:
                notify_timed_out(limits, operation_of(fn), whole, whole.elapsed(), error)
                raise
        return Timeout(
            seconds,
            kind=kind,
            name=limits.name,
            listeners=limits.listeners,
            on_late_result=self._on_late_result,
            clock=limits.clock,
        )


class _AsyncItems(_TimedIterator, AsyncIterator[Any]):
    async def __anext__(self) -> Any:
        ask = self._items.__anext__
        return await self._timeout(ask).call_async(ask)

    async def aclose(self) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


class _Items(_TimedIterator, Iterator[Any]):
    _on_late_result = "discard"  # a plain iterator that is too slow ends here

    def __next__(self) -> Any:
        return self._timeout(next).call(next, self._items)

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
