"""Checks of arguments: the error names the field, the allowed values and the value given.

A check is called with a name and a value, and raises.  ``checked_by``, ``instance_of`` and
``NumberOrCallable`` make validators for attrs.
"""

from __future__ import annotations

import math
import sys
from inspect import isgeneratorfunction
from typing import TYPE_CHECKING, Any

from attrs import field, fields

from retrytemplate._internal.awaitables import call_targets, is_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import attrs

    Seconds = float | timedelta
    Check = Callable[[str, Any], None]
    Validator = Callable[[Any, attrs.Attribute[Any], Any], None]

__all__ = [
    "SECONDS",
    "NumberOrCallable",
    "accepts",
    "check_at_least",
    "check_at_least_one",
    "check_choice",
    "check_delay",
    "check_flag",
    "check_function",
    "check_index",
    "check_int",
    "check_late_result",
    "check_limit",
    "check_limit_or_none",
    "check_methods",
    "check_number",
    "check_seconds",
    "check_span",
    "check_span_or_none",
    "check_text",
    "check_text_or_none",
    "check_wait",
    "checked_by",
    "instance_of",
    "number_field",
    "read_number",
    "read_numbers",
    "read_seconds",
    "to_seconds",
    "to_tuple",
]


SECONDS = "a number of seconds or a datetime.timedelta"


def to_seconds(value: Any) -> Any:
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


def check_number(name: str, value: Any, allowed: str, fits: Callable[[Any], bool]) -> None:
    """Raise unless *value* is a number that fits; *allowed* describes those numbers."""
    _number(name, value, allowed)
    if not fits(value):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_at_least(
    name: str, value: Any, minimum: float, *, allowed: str | None = None, finite: bool = False
) -> None:
    """Raise unless *value* is a number of at least *minimum*."""
    allowed = allowed or f"a number >= {minimum:g}{' and finite' if finite else ''}"
    _number(name, value, allowed)
    if value < minimum or (finite and math.isinf(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_limit(name: str, value: Any) -> None:
    """Raise unless *value* is a number of seconds of at least zero; infinity means no limit."""
    check_at_least(name, value, 0, allowed=f"{SECONDS} >= 0")


def check_limit_or_none(name: str, value: Any) -> None:
    """Raise unless *value* is a limit or None."""
    if value is not None:
        check_at_least(name, value, 0, allowed=f"{SECONDS} >= 0, or None")


def check_delay(name: str, value: Any) -> None:
    """Raise unless *value* is a finite number of seconds of at least zero."""
    check_at_least(name, value, 0, allowed=f"{SECONDS} >= 0 and finite", finite=True)


def read_seconds(name: str, value: Any, check: Check = check_delay) -> Any:
    """The seconds of a duration, checked."""
    made = to_seconds(value)
    check(name, made)
    return made


def check_span(name: str, value: Any, allowed: str = f"{SECONDS} > 0") -> None:
    """Raise unless *value* is a number of seconds above zero."""
    _number(name, value, allowed)
    if value <= 0:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_span_or_none(name: str, value: Any) -> None:
    """Raise unless *value* is a span or None."""
    if value is not None:
        check_span(name, value, f"{SECONDS} > 0, or None")


def check_int(name: str, value: Any, minimum: int) -> None:
    """Raise unless *value* is an int of at least *minimum*."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int >= {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be an int >= {minimum}, got {value!r}")


def check_at_least_one(name: str, value: Any) -> None:
    """Raise unless the value is an int of at least one."""
    check_int(name, value, 1)


def check_choice(name: str, value: Any, *choices: str | None) -> None:
    """Raise unless *value* is one of the choices, of which one may be None."""
    if not isinstance(value, str | None) or value not in choices:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def check_late_result(name: str, value: Any) -> None:
    """Raise unless *value* is a known setting for a result that was returned after its limit."""
    check_choice(name, value, "return", "discard")


def check_text(name: str, value: Any) -> None:
    """Raise unless *value* is a str that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} must be a non-blank str, got {value!r}")


def check_index(name: str, value: Any) -> None:
    """Raise unless it is a position in a list, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be an int or None, got {value!r}")


def check_text_or_none(name: str, value: Any) -> None:
    """Raise unless *value* is a str that is not empty, or None."""
    if value is not None and (not isinstance(value, str) or not value):
        raise TypeError(f"{name} must be a non-empty str or None, got {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Raise unless *value* is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def to_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """The objects of an iterable, checked: no text, and no single object."""
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a list or tuple, got {value!r}")
    return tuple(value)


def check_methods(name: str, value: Any, *methods: str) -> None:
    """Raise unless *value* is an object (not a class) with these methods."""
    missing = [each for each in methods if not callable(getattr(value, each, None))]
    if missing or isinstance(value, type):
        raise TypeError(
            f"{name} must be an object with the methods {', '.join(methods)}, got {value!r}"
        )


def checked_by(check: Callable[..., None], *bounds: Any, **options: Any) -> Validator:
    """Make a validator of a check, with its further arguments."""

    def validate(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        check(attribute.alias or attribute.name, value, *bounds, **options)

    return validate


def instance_of(kind: type | tuple[type, ...], allowed: str) -> Validator:
    """Create a validator of a type; *allowed* describes it in the error message."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {allowed}, got {value!r}")

    return checked_by(check)


class NumberOrCallable:
    """Validator of a number, or of a plain function that returns it at run time."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def __call__(self, instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        name = attribute.alias or attribute.name
        if not callable(value) or isinstance(value, type):
            self.check(name, value)
            return
        check_function(name, value)
        if accepts(value, 0, follow_wrapped=False) is False:
            raise TypeError(
                f"{name} must be a number, or a function without parameters, got {value!r}"
            )


def accepts(
    function: Callable[..., Any], count: int, *, follow_wrapped: bool = True
) -> bool | None:
    """Whether a function can be called with this number of arguments; None if it is not known.

    :param follow_wrapped: False: a decorated function has the parameters of its wrapper.
    """
    from inspect import signature

    try:
        parameters = signature(function, follow_wrapped=follow_wrapped)
    except (TypeError, ValueError):  # a function in C
        return None
    try:
        parameters.bind(*range(count))
    except TypeError:
        return False
    return True


def number_field(default: float, check: Check, converter: Callable[[Any], Any]) -> Any:
    """A field for a number, or for a plain function that returns it at run time."""
    return field(default=default, converter=converter, validator=NumberOrCallable(check))


def check_function(name: str, value: Any) -> None:
    """Raise unless *value* is a callable, but not a coroutine or generator function or a class.

    The objects that those return are always true.  ``bool`` is accepted.
    """
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}")
    if is_async(value):
        raise TypeError(f"{name} must be a plain function, got the coroutine function {value!r}")
    runs = call_targets(value)
    if any(map(isgeneratorfunction, runs)):
        raise TypeError(f"{name} must be a plain function, got the generator function {value!r}")
    if isinstance(runs[0], type) and runs[0] is not bool:
        raise TypeError(f"{name} must be a plain function, got the class {value!r}")


def read_number(name: str, value: Any, check: Check) -> Any:
    """The number, or the checked result of the callable."""
    if callable(value):
        value = to_seconds(value())
        check(name, value)
    return value


def read_numbers(owner: Any) -> dict[str, Any]:
    """The numbers of an object as arguments of its class, functions replaced by their results."""
    return {
        each.alias: read_number(each.alias, getattr(owner, each.name), each.validator.check)
        for each in fields(type(owner))
        if isinstance(each.validator, NumberOrCallable)
    }


MIN_SECONDS = 0.01
MAX_WAIT_SECONDS = 1_000_000  # twice that in milliseconds fits into 32 bits


def check_seconds(name: str, value: Any) -> float:
    """The seconds of a duration, checked: at least MIN_SECONDS and finite."""
    made: float = to_seconds(value)
    allowed = f"{SECONDS} >= {MIN_SECONDS} and finite"
    check_at_least(name, made, MIN_SECONDS, allowed=allowed, finite=True)
    return made


def check_wait(name: str, value: Any) -> float:
    """The seconds of a duration, checked: within the limits of every database and client driver."""
    made: float = to_seconds(value)
    allowed = f"{SECONDS} from {MIN_SECONDS} to {MAX_WAIT_SECONDS}"
    check_number(name, made, allowed, lambda number: MIN_SECONDS <= number <= MAX_WAIT_SECONDS)
    return made
