"""Checks of a step's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate import _checks
from retrytemplate._checks import checked_by, is_async
from retrytemplate.batch.letters import LONGEST, storable
from retrytemplate.batch.skip import SkipPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._checks import Validator

__all__ = [
    "at_least_one",
    "codec",
    "database",
    "function",
    "function_or_none",
    "key",
    "listeners",
    "name",
    "one_of",
    "skip_policy",
    "text_or_none",
    "tuple_of",
]


def _name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a non-empty str, got {value!r}")
    if len(value) > LONGEST:
        raise ValueError(f"{name} must have {LONGEST} characters at most, got {len(value)}")
    _storable(name, value)


def _storable(name: str, value: str) -> None:
    if storable(value) != value:
        raise ValueError(f"{name} must be a text that a database can store, got {value!r}")


def _text_or_none(name: str, value: Any) -> None:
    _checks.text_or_none(name, value)
    if value is not None:
        _storable(name, value)


def _key(name: str, value: Any) -> None:
    _function_or_none(name, value)
    if is_async(value):
        raise TypeError(f"{name} must be a plain function, got coroutine {value!r}")


def _function(name: str, value: Any) -> None:
    if not callable(value) or isinstance(value, type):
        raise TypeError(f"{name} must be a function, got {value!r}")


def _function_or_none(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function or None, got {value!r}")


def one_of(*words: str) -> Validator:
    """One of these words."""

    def check(name: str, value: Any) -> None:
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")

    return checked_by(check)


def tuple_of(value: Iterable[Any]) -> tuple[Any, ...]:
    """As a tuple."""
    return tuple(value)


def _codec(name: str, value: Any) -> None:
    _checks.has_methods(name, value, "encode", "decode")


def _listeners(name: str, value: Any) -> None:
    for each in value:
        _checks.has_methods(name, each, "on_event")


def skip_policy(value: Any) -> Any:
    """The policy; None is one that skips nothing."""
    return SkipPolicy() if value is None else value


def _database(name: str, value: Any) -> None:
    if value is not None and not (hasattr(value, "connect") and hasattr(value, "dialect")):
        raise TypeError(f"{name} must be an engine of sqlalchemy or None, got {value!r}")


name = checked_by(_name)
function = checked_by(_function)
function_or_none = checked_by(_function_or_none)
codec = checked_by(_codec)
listeners = checked_by(_listeners)
database = checked_by(_database)
at_least_one = checked_by(_checks.at_least_one)
text_or_none = checked_by(_text_or_none)
key = checked_by(_key)
