"""A fixed number of tasks that work on the items of a source."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._engine.deadline import Deadline
from retrytemplate._engine.final_error import set_note
from retrytemplate._internal.awaitables import in_trio, is_awaitable
from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import operation_of
from retrytemplate._internal.validation import (
    check_at_least_one,
    check_choice,
    check_span_or_none,
    read_seconds,
)
from retrytemplate.classify.exceptions import is_never_retried
from retrytemplate.errors import MisuseError
from retrytemplate.workers.supervisor.task_group import LOG, run_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Work = Callable[..., Awaitable[Any]]


@frozen
class Gathered:
    """Results and failures of several works.

    :param values: the results by position; None where a work failed.
    :param failures: the exceptions by position.
    """

    values: tuple[Any, ...]
    failures: Mapping[int, Exception]

    def raise_for_failures(self) -> None:
        """Raise the failures, if there are any.

        :raises ExceptionGroup: with every failure.
        """
        if self.failures:
            raise ExceptionGroup("collected failures", tuple(self.failures.values()))


@frozen
class Failed:
    """The failure of a work, as its result."""

    error: Exception


def awaitable_of(work: Work, *args: Any) -> Awaitable[Any]:
    """Call a work, and check that the result can be awaited."""
    made = work(*args)
    if type(made) is not CoroutineType and not is_awaitable(made):
        raise MisuseError(
            f"work must be a coroutine function, got the plain function {operation_of(work)}"
        )
    return made


async def outcome_of(work: Work, *args: Any) -> Any:
    """The result of a work, or its failure; a cancellation is raised."""
    try:
        return await awaitable_of(work, *args)
    except Exception as exc:
        if is_never_retried(exc):  # a group with a cancellation, for example
            raise
        return Failed(exc)


def log_failures(name: str, failures: Mapping[int, Exception], total: int) -> None:
    """Log how many failures were collected, and the first one."""
    for position, error in failures.items():
        text = "%s: %d of %d items failed; the first one at index %d: %s"
        LOG.warning(text, name, len(failures), total, position, summary(error))
        break


async def _within(seconds: float, work: Work, item: Any) -> Any:
    async with Deadline(seconds, kind="item"):
        return await awaitable_of(work, item)


class Pool:
    """One task reads a source, *concurrency* tasks work on its items.

    ``items`` counts the items on which work has begun, ``failures`` has the collected exceptions
    by the position of the item, and ``values`` the results by position, if they are kept.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        *,
        concurrency: int,
        buffer: int | None = None,
        per_item_timeout: Any,
        on_failure: str,
        keep: bool,
    ) -> None:
        if not callable(work):
            raise TypeError(f"work must be a coroutine function, got {work!r}")
        check_at_least_one("concurrency", concurrency)
        size = 2 * concurrency if buffer is None else buffer
        check_at_least_one("buffer", size)
        seconds = read_seconds("per_item_timeout", per_item_timeout, check_span_or_none)
        check_choice("on_failure", on_failure, "raise", "collect")
        self.name = f"{name}({operation_of(work)})"
        self.items = 0
        self.values: list[Any] = []
        self.failures: dict[int, Exception] = {}
        self._keep = keep
        self._concurrency = concurrency
        self._buffer = Buffer(size)
        self._work = work if seconds is None else partial(_within, seconds, work)
        if on_failure == "collect":
            self._work = partial(outcome_of, self._work)

    async def run(self, source: Any) -> None:
        """Process all items of the source, and close it."""
        if not hasattr(type(source), "__aiter__") and not hasattr(type(source), "__iter__"):
            raise TypeError(f"source must be an iterable or an async iterable, got {source!r}")
        workers = [self._process] * self._concurrency
        await run_group([partial(self._read, source), *workers], self.name, self._buffer.abandon)
        self.failures = dict(sorted(self.failures.items()))
        log_failures(self.name, self.failures, self.items)

    async def _read(self, source: Any) -> None:
        buffer = self._buffer
        is_async = hasattr(type(source), "__aiter__")
        items = aiter(source) if is_async else iter(source)
        try:
            if is_async:
                async for item in items:
                    if buffer.add(item) and not await buffer.has_space():
                        break
            else:
                for item in items:
                    if buffer.add(item) and not await buffer.has_space():
                        break
            buffer.close()
        finally:
            await _close(items)

    async def _process(self) -> None:
        buffer, work, keep = self._buffer, self._work, self._keep
        position, value = 0, None
        try:
            while buffer.items or await buffer.has_item():
                item = buffer.take()
                position = self.items
                self.items = position + 1
                if keep:
                    self.values.append(None)
                value = await awaitable_of(work, item)
                if type(value) is Failed:
                    set_note(value.error, f"item {position}")
                    self.failures[position] = value.error
                elif keep:
                    self.values[position] = value
        except Exception as exc:  # not a cancellation, which passes
            set_note(exc, f"item {position}")
            raise
        finally:
            # From Python 3.12 on the traceback of a failure leads to this frame: no cycle.
            del self, value


async def _close(items: Any) -> None:
    close = getattr(items, "aclose", None) or getattr(items, "close", None)
    if close is not None:
        closing = close()
        if is_awaitable(closing):
            await closing


class Buffer:
    """A bounded queue of one reader and several workers, for asyncio and trio.

    No item marks the end, so each value may be an item.  After ``close`` or ``abandon`` no call
    waits.
    """

    __slots__ = ("_closed", "_full", "_idle", "_new_event", "_size", "items")

    def __init__(self, size: int) -> None:
        self.items: deque[Any] = deque()
        self._size = size
        self._closed = False
        self._new_event = _event_class()
        self._idle: deque[Any] = deque()  # an event for each worker that waits for an item
        self._full: Any = None  # the event of the reader while it waits

    def add(self, item: Any) -> bool:
        """Add an item; whether the reader must wait before it reads the next one."""
        items = self.items
        items.append(item)
        if self._idle:
            self._idle.popleft().set()
        return len(items) >= self._size or self._closed

    async def has_space(self) -> bool:
        """Wait until an item is taken; False if no worker is left."""
        while len(self.items) >= self._size and not self._closed:
            self._full = self._new_event()
            await self._full.wait()
        return not self._closed

    async def has_item(self) -> bool:
        """Wait for an item; False if there will be none."""
        while not self.items:
            if self._closed:
                return False
            event = self._new_event()
            self._idle.append(event)
            await event.wait()
        return True

    def take(self) -> Any:
        """Remove the oldest item."""
        if self._full is not None:
            self._full.set()
            self._full = None
        return self.items.popleft()

    def close(self) -> None:
        """The reader adds no more items."""
        self._closed = True
        for event in self._idle:
            event.set()
        if self._full is not None:
            self._full.set()

    def abandon(self) -> None:
        """No further item is processed."""
        self.items.clear()
        self.close()


def _event_class() -> Callable[[], Any]:
    """The class of events of the running loop."""
    if in_trio():
        import trio

        return trio.Event
    import asyncio

    return asyncio.Event
