"""Runners of operations on a store: one blocks, the other awaits.

An operation is a generator: it yields orders and receives the replies.  An error of the store is
thrown in at the ``yield``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from typing import TypeVar

    T = TypeVar("T")
    Operation = Generator[Any, Any, T]

__all__ = ["AnswerLateError", "AnswerLostError", "Operation", "operation_name", "perform"]
__all__ += ["perform_async", "retry_once_if_answer_lost", "translate_errors"]


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


def perform(step: Operation[T], ask: Callable[[Any, str], Any]) -> T:
    """Run an operation to its end.

    :param ask: sends an order to the store; gets the name of the operation for its errors, and
        raises ``CacheUnavailableError`` if the store fails.  Its exceptions, a cancellation
        included, are thrown into the operation.
    """
    name = operation_name(step)
    try:
        order = next(step)
        while True:
            try:
                reply = ask(order, name)
            except BaseException as exc:
                order = step.throw(exc)
            else:
                order = step.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def perform_async(step: Operation[T], ask: Callable[[Any, str], Awaitable[Any]]) -> T:
    """Run an operation in a task of asyncio; the effect of a cancelled order is unknown."""
    name = operation_name(step)
    try:
        order = next(step)
        while True:
            try:
                reply = await ask(order, name)
            except BaseException as exc:
                order = step.throw(exc)
            else:
                order = step.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
