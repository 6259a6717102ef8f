"""Whether a callable is asynchronous, whether a value must be awaited."""

from __future__ import annotations

import sys
from functools import partial
from inspect import (
    CO_ITERABLE_COROUTINE,
    isasyncgenfunction,
    iscoroutinefunction,
    isgeneratorfunction,
)
from types import FunctionType, GeneratorType
from typing import Any

__all__ = [
    "PLAIN",
    "call_targets",
    "close_unawaited",
    "in_trio",
    "is_async",
    "is_awaitable",
    "only_generates",
]


def is_async(function: Any) -> bool:
    """Whether the result of a call must be awaited, as far as the function shows."""
    if type(function) is FunctionType:  # most are; it has no ``__call__`` of its own
        return iscoroutinefunction(function) or isasyncgenfunction(function)
    return any(
        iscoroutinefunction(each) or isasyncgenfunction(each) for each in call_targets(function)
    )


def only_generates(function: Any) -> bool:
    """Whether a call only creates a generator, and runs none of the function's code."""
    return any(isasyncgenfunction(each) or _is_generator(each) for each in call_targets(function))


def _is_generator(function: Any) -> bool:
    if not isgeneratorfunction(function):
        return False
    return not function.__code__.co_flags & CO_ITERABLE_COROUTINE  # of types.coroutine


def call_targets(function: Any) -> tuple[Any, Any]:
    """The function that a call runs, without its partials, and the ``__call__`` of its type."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004  # whether or not it is


# Common types that are not awaitable, so that most values need no further check.
PLAIN = {type(None), bool, int, float, str, bytes, list, dict, tuple, set}


def is_awaitable(value: Any) -> bool:
    """Whether the value must be awaited."""
    kind = type(value)
    if kind in PLAIN:
        return False
    if kind is GeneratorType:  # types.coroutine makes generators awaitable without __await__
        return bool(value.gi_code.co_flags & CO_ITERABLE_COROUTINE)
    return hasattr(kind, "__await__")


def close_unawaited(value: Any) -> None:
    """Close a value that is not awaited: a coroutine would warn."""
    close = getattr(value, "close", None)
    if close is not None:
        close()


def in_trio() -> bool:
    """Whether the caller runs in a trio task.  Does not import trio."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()
