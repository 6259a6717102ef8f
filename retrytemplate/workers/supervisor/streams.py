"""Streams of items with bounded concurrency, and loops without ``await``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attrs import frozen

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.validation import check_at_least_one, check_flag
from retrytemplate.workers.supervisor.pool import Gathered, Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

    from retrytemplate._internal.validation import Seconds

    T = TypeVar("T")


@frozen(kw_only=True)
class StreamReport(Gathered):
    """Result of ``process_stream``.

    :param items: number of items that were processed, failures included.
    :param values: with ``ordered=True`` the results in the order of the source, None where an item
        failed; otherwise empty.
    :param failures: the collected exceptions by position of the item, from 0.
    """

    items: int


async def process_stream(
    source: AsyncIterable[T] | Iterable[T],
    work: Callable[[T], Awaitable[Any]],
    *,
    concurrency: int,
    buffer: int | None = None,
    per_item_timeout: Seconds | None = None,
    on_failure: Literal["raise", "collect"] = "raise",
    ordered: bool = False,
) -> StreamReport:
    """Call a coroutine function for each item of a stream, with a fixed number of tasks.

    For asyncio and trio.  While *buffer* items wait for a task, the source is not read.

    :param source: an async iterable or an iterable of any items, also None.  Its iterator is closed
        at the end, also after a failure or cancellation.
    :param work: gets an item.  Work begins in the order of the source.
    :param concurrency: number of tasks that work, at least 1; one more reads the source.
    :param buffer: maximum number of items that were read and wait for a task, at least 1; default:
        twice the *concurrency*.
    :param per_item_timeout: seconds for each item, above 0; None, the default: no limit.
    :param on_failure: ``"raise"``, the default: the first failure cancels the other tasks, and all
        failures are raised.  ``"collect"``: the other items are processed; failures are logged and
        returned, so their number should be limited.
    :param ordered: whether to keep the results, in the order of the source; default False: results
        are dropped, and the memory in use does not grow with the number of items.
    :raises ExceptionGroup: work failed, or the source raised an exception; each failure of an item
        has a note with its position.
    :raises ValueError: a number is out of its range.

    The error of an item that exceeds its limit is a ``DeadlineExceededError`` of the kind
    ``"item"``.  Items that one task processes share its context variables.

    >>> import asyncio
    >>> async def orders():
    ...     for number in range(1000):
    ...         yield number
    >>> async def ship(order):
    ...     await asyncio.sleep(0)
    >>> asyncio.run(process_stream(orders(), ship, concurrency=10)).items
    1000
    """
    check_flag("ordered", ordered)
    pool = Pool(
        "process_stream",
        work,
        concurrency=concurrency,
        buffer=buffer,
        per_item_timeout=per_item_timeout,
        on_failure=on_failure,
        keep=ordered,
    )
    await pool.run(source)
    return StreamReport(values=tuple(pool.values), failures=pool.failures, items=pool.items)


class _Calls(threading.local):
    count = 0  # since the loop of this thread last ran its other tasks


_calls = _Calls()


async def checkpoint(every: int = 1000) -> None:
    """Let other tasks run, and a cancellation in, from a loop that awaits nothing else.

    :param every: number of calls, by all tasks of the thread, after which one yields to the event
        loop; default 1000, at least 1.
    :raises ValueError: *every* is less than 1.

    >>> import asyncio
    >>> async def total(numbers):
    ...     result = 0
    ...     for number in numbers:
    ...         await checkpoint()
    ...         result += number
    ...     return result
    >>> asyncio.run(total(range(5000)))
    12497500
    """
    if type(every) is int:
        _calls.count += 1
        if _calls.count < every:
            return
    check_at_least_one("every", every)
    _calls.count = 0
    if in_trio():
        import trio

        await trio.lowlevel.checkpoint()
    else:
        import asyncio

        await asyncio.sleep(0)
