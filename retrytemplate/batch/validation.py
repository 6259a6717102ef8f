"""Checks of a step's settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs.validators import optional

from retrytemplate._internal import validation
from retrytemplate._internal.awaitables import is_async, only_generates
from retrytemplate._internal.validation import checked_by
from retrytemplate.batch.journal.letters import LONGEST, sanitize_text
from retrytemplate.batch.skip import SkipPolicy
from retrytemplate.control.isolation_gate.gate import PROCESS_GATE, ProcessGate

if TYPE_CHECKING:
    from retrytemplate._internal.validation import Validator

BITS = 64  # of an int in a database


def _check_name(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a non-empty str, got {value!r}")
    if len(value) > LONGEST:
        raise ValueError(f"{name} must have {LONGEST} characters at most, got {len(value)}")
    _check_storable(name, value)


def _check_storable(name: str, value: str) -> None:
    if sanitize_text(value) != value:
        raise ValueError(f"{name} must be a string that a database can store, got {value!r}")


def _check_text_or_none(name: str, value: Any) -> None:
    validation.check_text_or_none(name, value)
    if value is not None:
        _check_storable(name, value)


def _check_callable(name: str, value: Any, allowed: str = "a function") -> None:
    if not callable(value):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    if only_generates(value):
        raise TypeError(f"{name} must be {allowed}, got the generator function {value!r}")


def _check_plain_function(name: str, value: Any, allowed: str = "a function") -> None:
    _check_callable(name, value, allowed)
    if is_async(value):
        raise TypeError(f"{name} must be a plain function, got the coroutine function {value!r}")


def _check_function(name: str, value: Any) -> None:
    _check_callable(name, value)
    if isinstance(value, type):
        raise TypeError(f"{name} must be a function, got {value!r}")


def check_number(name: str, value: Any, more: str = "") -> None:
    """Raise unless the value is a signed 64-bit int."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int{more}, got {value!r}")
    if not _fits(value):
        raise ValueError(f"{name} must be a signed 64-bit int{more}, got {value!r}")


def check_page(after: Any, limit: Any) -> None:
    """Raise unless *after* is a row number, and *limit* the size of a page."""
    validation.check_int("after", after, 0)
    validation.check_at_least_one("limit", limit)
    check_number("after", after)
    check_number("limit", limit)


def _fits(value: Any) -> bool:
    return bool(value.bit_length() < BITS)


def check_ids(name: str, value: Any, allowed: str = "a sequence of ints") -> None:
    """Raise unless the value is a sequence of signed 64-bit ints."""
    # Bytes are a sequence of ints, too, and an empty text is one of anything.
    text = isinstance(value, str | bytes | bytearray | memoryview)
    listed = isinstance(value, Sequence) and not text
    if not (listed and all(type(each) is int for each in value)):
        raise TypeError(f"{name} must be {allowed}, got {value!r}")
    for each in value:
        if not _fits(each):
            raise ValueError(f"{name} must be signed 64-bit ints, got {each!r}")


def one_of(*words: str) -> Validator:
    """One of these words."""
    return checked_by(validation.check_choice, *words)


def one_of_or_none(*words: str) -> Validator:
    """One of these words, or None."""
    return checked_by(validation.check_choice, *words, None)


def tuple_of(value: Iterable[Any]) -> tuple[Any, ...]:
    """As a tuple."""
    return tuple(value)


def _check_listeners(name: str, value: Any) -> None:
    for each in value:
        validation.check_methods(name, each, "on_event")


def skip_policy(value: Any) -> Any:
    """The policy; None is one that skips nothing."""
    return SkipPolicy() if value is None else value


def gate(value: Any) -> Any:
    """The gate; None is that of the process."""
    made = PROCESS_GATE if value is None else value
    if not isinstance(made, ProcessGate):
        raise TypeError(f"gate must be a ProcessGate, a HostGate or None, got {value!r}")
    return made


def _check_database(name: str, value: Any) -> None:
    if value is not None and not (hasattr(value, "connect") and hasattr(value, "dialect")):
        raise TypeError(f"{name} must be an engine of sqlalchemy or None, got {value!r}")


name = checked_by(_check_name)
called = checked_by(_check_callable)
plain = checked_by(_check_plain_function)
function = checked_by(_check_function)
function_or_none = optional(checked_by(_check_callable, "a function or None"))
codec = checked_by(validation.check_methods, "encode", "decode")
listeners = checked_by(_check_listeners)
database = checked_by(_check_database)
at_least_one = checked_by(validation.check_at_least_one)
text_or_none = checked_by(_check_text_or_none)
key = optional(checked_by(_check_plain_function, "a function or None"))
number_or_none = optional(checked_by(check_number, " or None"))
