"""Operations of a step: generators that one driver runs blocking, the other in a task.

An operation yields the result of each call that may have to be awaited, and is sent the value.  An
exception that interrupts the driver itself is thrown into it, so that its cleanup runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.awaitables import is_awaitable

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    T = TypeVar("T")
    Operation = Generator[Any, Any, T]

__all__ = ["Operation", "perform", "perform_async"]


def perform(operation: Operation[T]) -> T:
    """Run an operation to its end in this thread: each yielded value is sent back."""
    resume: Any = operation.send
    value: Any = None
    try:
        while True:
            try:
                value = resume(value)
                resume = operation.send
            except StopIteration as end:
                result: T = end.value
                return result
            except BaseException as exc:
                if _is_over(operation):
                    raise
                resume, value = operation.throw, exc
    finally:
        del value  # of an exception: its traceback holds this frame


def _is_over(operation: Any) -> bool:
    return operation.gi_frame is None


async def perform_async(operation: Operation[T]) -> T:
    """Run an operation in a task: each yielded awaitable is awaited."""
    resume: Any = operation.send
    value: Any = None
    try:
        while True:
            try:
                value = resume(value)
                resume = operation.send
                if is_awaitable(value):
                    value = await value
            except StopIteration as end:
                result: T = end.value
                return result
            except BaseException as exc:
                if _is_over(operation):
                    raise
                resume, value = operation.throw, exc
    finally:
        del value
