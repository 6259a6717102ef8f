"""The two that run a step, whatever the store: one blocks, the other awaits.

A step is a generator: it yields orders and is sent the replies.  What the store refuses is thrown
in at the ``yield``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from typing import TypeVar

    T = TypeVar("T")
    Operation = Generator[Any, Any, T]

__all__ = ["AnswerLateError", "AnswerLostError", "Operation", "operation_name", "perform"]
__all__ += ["perform_async", "retry_once_if_answer_lost"]


class AnswerLostError(CacheUnavailableError):
    """Raised by a cache: no connection to a primary, or it was cut; the effect is unknown."""


class AnswerLateError(CacheUnavailableError):
    """Raised by a cache: the server did not answer in time, and it is not known what was done."""


def retry_once_if_answer_lost(order: Any) -> Operation[Any]:
    """Give an order that does no more when it comes twice: once more where the answer was lost."""
    try:
        return (yield order)
    except AnswerLostError:
        return (yield order)


def operation_name(step: Operation[Any]) -> str:
    """The name of a step, for the message of an error."""
    name: str = getattr(step, "__name__", "a step")
    return name


def perform(step: Operation[T], ask: Callable[[Any, str], Any]) -> T:
    """Run a step to its end.

    :param ask: gives an order of the step, which it is told the name of, to the store; what goes
        wrong there is a ``CacheUnavailableError``.
    """
    name = operation_name(step)
    try:
        order = next(step)
        while True:
            try:
                reply = ask(order, name)
            except CacheUnavailableError as exc:
                order = step.throw(exc)
            else:
                order = step.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def perform_async(step: Operation[T], ask: Callable[[Any, str], Awaitable[Any]]) -> T:
    """The same in a task of asyncio; what a cancelled order did is not known."""
    name = operation_name(step)
    try:
        order = next(step)
        while True:
            try:
                reply = await ask(order, name)
            except CacheUnavailableError as exc:
                order = step.throw(exc)
            else:
                order = step.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
