"""Converters and validators for constructor arguments: field, value and range in every message."""

from __future__ import annotations

import math
import sys
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import attrs

    Seconds = float | timedelta

__all__ = [
    "at_least",
    "at_least_one",
    "check_at_least",
    "delay",
    "duration",
    "instance_of",
    "is_async",
    "limit",
    "number_or_callable",
    "plain",
    "plain_function",
    "positive",
    "read",
    "whole",
]

SECONDS = "a number of seconds or a datetime.timedelta"


def duration(value: Any) -> Any:
    """Turn a ``timedelta`` into seconds, leave everything else to the validator."""
    datetime = sys.modules.get("datetime")  # not loaded: then there is no timedelta
    if datetime is not None and isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value


def _number(name: str, value: Any, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    try:
        nan = math.isnan(value)
    except OverflowError:
        raise ValueError(f"{name} must be {allowed}, got an int too large for a float") from None
    if nan:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def at_least(
    minimum: float, *, what: str = "a number", finite: bool = False
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Validate a number of at least *minimum*."""
    allowed = f"{what} >= {minimum:g}" + (" and finite" if finite else "")

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_at_least(attribute.name, value, minimum, allowed=allowed, finite=finite)

    return validate


def check_at_least(
    name: str, value: Any, minimum: float, *, allowed: str | None = None, finite: bool = False
) -> None:
    """Raise unless *value* is a number of at least *minimum*."""
    allowed = allowed or f"a number >= {minimum:g}"
    _number(name, value, allowed)
    if value < minimum or (finite and math.isinf(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def limit(name: str, value: Any) -> None:
    """Raise unless *value* is a number of seconds of at least zero; infinity is no limit."""
    check_at_least(name, value, 0, allowed=f"{SECONDS} >= 0")


def delay(name: str, value: Any) -> None:
    """Raise unless *value* is a finite number of seconds of at least zero."""
    check_at_least(name, value, 0, allowed=f"{SECONDS} >= 0 and finite", finite=True)


def positive(what: str = "a number") -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Validate a number above zero."""
    allowed = f"{what} > 0"

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        _number(attribute.name, value, allowed)
        if value <= 0:
            raise ValueError(f"{attribute.name} must be {allowed}, got {value!r}")

    return validate


def whole(name: str, value: Any, minimum: int) -> None:
    """Raise unless *value* is an int of at least *minimum*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int >= {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be an int >= {minimum}, got {value!r}")


def at_least_one(name: str, value: Any) -> None:
    """Raise unless the value is an int of at least one."""
    whole(name, value, 1)


def has_methods(name: str, value: Any, *methods: str) -> None:
    """Raise unless *value* is an object (no class) with these methods."""
    missing = [each for each in methods if not callable(getattr(value, each, None))]
    if missing or isinstance(value, type):
        raise TypeError(
            f"{name} must be an object with the methods {', '.join(methods)}, got {value!r}"
        )


CLOCK_METHODS = ("monotonic", "time", "sleep", "sleep_async")


def instance_of(
    kind: type | tuple[type, ...], allowed: str
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Validate the type of a value; *allowed* says in words what would do."""

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{attribute.name} must be {allowed}, got {value!r}")

    return validate


def number_or_callable(
    check: Callable[[str, Any], None],
) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Validate a number, or let a plain function pass that will give it at run time."""

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        name = attribute.alias or attribute.name
        if callable(value):
            plain(name, value)
        else:
            check(name, value)

    return validate


def plain_function(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Validate a callable that answers by itself: no coroutine function."""
    plain(attribute.name, value)


def plain(name: str, value: Any) -> None:
    """Raise unless *value* is a callable that answers by itself."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}")
    if is_async(value):
        raise TypeError(f"{name} must be a plain function, got coroutine {value!r}")


def is_async(function: Any) -> bool:
    """Whether what it returns must be awaited, as far as can be told beforehand."""
    while isinstance(function, partial):
        function = function.func
    method = getattr(type(function), "__call__", None)  # noqa: B004  # not whether it is callable
    return any(iscoroutinefunction(each) or isasyncgenfunction(each) for each in (function, method))


def read(name: str, value: Any, check: Callable[[str, Any], None]) -> Any:
    """The number itself, or what its callable gives now, checked alike."""
    if callable(value):
        value = duration(value())
        check(name, value)
    return value
