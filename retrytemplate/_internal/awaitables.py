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
from types import GeneratorType
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
    """Whether what it returns must be awaited, as far as can be told beforehand."""
    return any(
        iscoroutinefunction(each) or isasyncgenfunction(each) for each in call_targets(function)
    )


def only_generates(function: Any) -> bool:
    """Whether a call runs nothing of it: it gives a generator that nobody awaits."""
    return any(isasyncgenfunction(each) or _is_generator(each) for each in call_targets(function))


def _is_generator(function: Any) -> bool:
    if not isgeneratorfunction(function):
        return False
    return not function.__code__.co_flags & CO_ITERABLE_COROUTINE  # of types.coroutine


def call_targets(function: Any) -> tuple[Any, Any]:
    """What a call runs: the function without its partials, or an object's ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004  # whether or not it is


# Types that are surely no awaitables: they spare the look at the class.
PLAIN = {type(None), bool, int, float, str, bytes, list, dict, tuple, set}


def is_awaitable(value: Any) -> bool:
    """Whether somebody has to await the value."""
    kind = type(value)
    if kind in PLAIN:
        return False
    if kind is GeneratorType:  # of types.coroutine: it can be awaited, and has no __await__
        return bool(value.gi_code.co_flags & CO_ITERABLE_COROUTINE)
    return hasattr(kind, "__await__")


def close_unawaited(value: Any) -> None:
    """Close what nobody awaits, where it is a coroutine: it would warn."""
    close = getattr(value, "close", None)
    if close is not None:
        close()


def in_trio() -> bool:
    """Whether the caller runs in a trio task; trio is asked only where it is loaded."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()
