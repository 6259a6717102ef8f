"""Checks of a step's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs.validators import optional

from retrytemplate._internal import validation
from retrytemplate._internal.awaitables import is_async, only_generates
from retrytemplate._internal.validation import checked_by
from retrytemplate.batch.journal.letters import LONGEST, sanitize_text
from retrytemplate.batch.skip import SkipPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from retrytemplate._internal.validation import Validator

__all__ = [
    "at_least_one",
    "called",
    "codec",
    "database",
    "function",
    "function_or_none",
    "ids",
    "ids_or_none",
    "key",
    "listeners",
    "name",
    "number",
    "number_or_none",
    "one_of",
    "one_of_or_none",
    "page",
    "plain",
    "skip_policy",
    "text_or_none",
    "tuple_of",
]


BITS = 64  # of an int in a database


def _name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a non-empty str, got {value!r}")
    if len(value) > LONGEST:
        raise ValueError(f"{name} must have {LONGEST} characters at most, got {len(value)}")
    _storable(name, value)


def _storable(name: str, value: str) -> None:
    if sanitize_text(value) != value:
        raise ValueError(f"{name} must be a text that a database can store, got {value!r}")


def _text_or_none(name: str, value: Any) -> None:
    validation.check_text_or_none(name, value)
    if value is not None:
        _storable(name, value)


def _called(name: str, value: Any, allowed: str = "a function") -> None:
    if not callable(value):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    if only_generates(value):
        raise TypeError(f"{name} must be {allowed}, got the generator function {value!r}")


def _plain(name: str, value: Any, allowed: str = "a function") -> None:
    _called(name, value, allowed)
    if is_async(value):
        raise TypeError(f"{name} must be a plain function, got coroutine {value!r}")


def _key(name: str, value: Any) -> None:
    if value is not None:
        _plain(name, value, "a function or None")


def _function(name: str, value: Any) -> None:
    _called(name, value)
    if isinstance(value, type):
        raise TypeError(f"{name} must be a function, got {value!r}")


def _function_or_none(name: str, value: Any) -> None:
    if value is not None:
        _called(name, value, "a function or None")


def number(name: str, value: Any, more: str = "") -> None:
    """Raise unless the value can be the number of a row."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int{more}, got {value!r}")
    if not _fits(value):
        raise ValueError(f"{name} must be an int of 64 bits{more}, got {value!r}")


def number_or_none(name: str, value: Any) -> None:
    """Raise unless the value is such a number, or None."""
    if value is not None:
        number(name, value, " or None")


def page(after: Any, limit: Any) -> None:
    """Raise unless these can be the last number of a page and the size of the next one."""
    validation.check_int("after", after, 0)
    validation.check_at_least_one("limit", limit)
    number("after", after)
    number("limit", limit)


def _fits(value: Any) -> bool:
    return bool(value.bit_length() < BITS)


def ids(name: str, value: Any, allowed: str = "a sequence of ints") -> None:
    """Raise unless the value is a list of such numbers, or the like."""
    # Bytes are a sequence of ints, too, and an empty text is one of anything.
    text = isinstance(value, str | bytes | bytearray | memoryview)
    listed = isinstance(value, Sequence) and not text
    if not (listed and all(type(each) is int for each in value)):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    for each in value:
        if not _fits(each):
            raise ValueError(f"{name} must be ints of 64 bits, got {each!r}")


def _ids_or_none(name: str, value: Any) -> None:
    if value is not None:
        ids(name, value, "a sequence of ints or None")


def one_of(*words: str, more: str = "") -> Validator:
    """One of these words."""

    def check(name: str, value: Any) -> None:
        if value not in words:
            allowed = f"{', '.join(map(repr, words))}{more}"
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")

    return checked_by(check)


def one_of_or_none(*words: str) -> Validator:
    """One of these words, or None."""
    return optional(one_of(*words, more=" or None"))


def tuple_of(value: Iterable[Any]) -> tuple[Any, ...]:
    """As a tuple."""
    return tuple(value)


def _codec(name: str, value: Any) -> None:
    validation.check_methods(name, value, "encode", "decode")


def _listeners(name: str, value: Any) -> None:
    for each in value:
        validation.check_methods(name, each, "on_event")


def skip_policy(value: Any) -> Any:
    """The policy; None is one that skips nothing."""
    return SkipPolicy() if value is None else value


def _database(name: str, value: Any) -> None:
    if value is not None and not (hasattr(value, "connect") and hasattr(value, "dialect")):
        raise TypeError(f"{name} must be an engine of sqlalchemy or None, got {value!r}")


name = checked_by(_name)
called = checked_by(_called)
plain = checked_by(_plain)
function = checked_by(_function)
function_or_none = checked_by(_function_or_none)
codec = checked_by(_codec)
listeners = checked_by(_listeners)
database = checked_by(_database)
at_least_one = checked_by(validation.check_at_least_one)
text_or_none = checked_by(_text_or_none)
key = checked_by(_key)
ids_or_none = checked_by(_ids_or_none)
