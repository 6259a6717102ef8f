"""Runners of operations: one blocks, the other awaits.

An operation is a generator: it yields orders to a store, or calls that may have to be awaited, and
receives the replies.  An error, of the store or in the runner, is thrown in at the ``yield``, so
that the cleanup of the operation runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from types import coroutine
from typing import Any, TypeVar

from retrytemplate._internal.awaitables import is_awaitable
from retrytemplate.errors import CacheUnavailableError

T = TypeVar("T")
Operation = Generator[Any, Any, T]


class AnswerLostError(CacheUnavailableError):
    """Raised by a cache: no connection to a primary, or it was closed; the effect is unknown."""


class AnswerLateError(CacheUnavailableError):
    """Raised by a cache: the server did not answer in time; the effect is unknown."""


def retry_once_if_answer_lost(order: Any) -> Operation[Any]:
    """Send an idempotent order, and send it again if the answer was lost."""
    try:
        return (yield order)
    except AnswerLostError:
        return (yield order)


@contextmanager
def translate_errors(kind: type[Exception]) -> Iterator[None]:
    """Raise the errors of the store as *kind*, with their message and cause."""
    try:
        yield
    except CacheUnavailableError as exc:
        raise kind(str(exc)) from exc.__cause__


def operation_name(step: Operation[Any]) -> str:
    """The name of an operation, for error messages."""
    name: str = getattr(step, "__name__", "a step")
    return name


async def awaited(value: Any, _: str = "") -> Any:
    """The value, or the result of an awaitable."""
    return await value if is_awaitable(value) else value


def perform(step: Operation[T], ask: Callable[[Any, str], Any] | None = None) -> T:
    """Run an operation to its end in this thread.

    :param ask: sends an order to the store; gets the name of the operation for its errors, and
        raises ``CacheUnavailableError`` if the store fails.  None: an order is its own reply.
        Exceptions, those of a signal or a cancellation included, are thrown into the operation.
    """
    try:
        value: T = next(_steps(step, ask, is_awaited=False))  # it ends without a yield
    except StopIteration as stop:
        value = stop.value
    return value


async def perform_async(
    step: Operation[T], ask: Callable[[Any, str], Awaitable[Any]] = awaited
) -> T:
    """Run an operation in a task of asyncio; the effect of a cancelled order is unknown.

    :param ask: as that of ``perform``.  Default: an order that is awaitable is awaited.
    """
    value: T = await _awaitable_steps(step, ask, is_awaited=True)
    return value


def _steps(
    step: Any, ask: Callable[[Any, str], Any] | None, *, is_awaited: bool
) -> Generator[Any, Any, Any]:
    """A generator that yields only what ``ask`` awaits."""
    name, resume = operation_name(step), step.send
    value: Any = None
    try:
        while True:
            try:
                value = resume(value)
                if ask is not None:
                    value = ask(value, name)
                if is_awaited:
                    value = yield from value
                resume = step.send
            except BaseException as exc:
                if step.gi_frame is None:  # the operation has ended
                    if isinstance(exc, StopIteration):
                        return exc.value
                    raise
                resume, value = step.throw, exc
    finally:
        del value  # of an exception: its traceback holds this frame


_awaitable_steps = coroutine(_steps)
