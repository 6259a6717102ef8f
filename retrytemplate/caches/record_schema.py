"""Types of the fields of a record in JSON.  Loaded with the first record that is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, get_args

from retrytemplate._internal.values import MAX_STORED_INT
from retrytemplate.history import Phase

__all__ = [
    "ANY",
    "ATTEMPT",
    "COUNT",
    "FAILURE",
    "FLAG",
    "FORMAT_NUMBER",
    "LIST",
    "OBJECT",
    "OF_EVERY_ATTEMPT",
    "OF_EVERY_RECORD",
    "RECORD",
    "SERIAL",
    "TEXT",
    "TIME",
    "check",
    "check_all",
    "fault",
    "loads",
    "objects",
    "one_of",
    "or_null",
]


# A check of a value, and the description of valid values.
Field = tuple[Callable[[Any], bool], str]


def _is_time(value: Any) -> bool:
    try:
        return type(value) in (int, float) and isfinite(value)
    except OverflowError:
        return False


def or_null(field: Field) -> Field:
    fits, allowed = field
    return lambda value: value is None or fits(value), f"{allowed} or null"


def one_of(*choices: Any) -> Field:
    return lambda value: value in choices, f"one of {', '.join(choices)}"


PHASES = get_args(Phase)

ANY: Field = (lambda value: True, "a JSON value")


COUNT: Field = (lambda value: type(value) is int and value >= 0, "an int >= 0")
SERIAL: Field = (
    lambda value: type(value) is int and 0 <= value <= MAX_STORED_INT,
    "an int from 0 to 2**62",
)
FLAG: Field = (lambda value: isinstance(value, bool), "true or false")
FORMAT_NUMBER: Field = (lambda value: type(value) is int and value >= 1, "an int >= 1")
LIST: Field = (lambda value: isinstance(value, list), "a list")
OBJECT: Field = (lambda value: isinstance(value, dict), "a JSON object")
PHASE: Field = one_of(*PHASES)
TEXT: Field = (lambda value: isinstance(value, str), "a string")
TIME: Field = (_is_time, "a finite number")

RECORD: Mapping[str, Field] = {
    "format": FORMAT_NUMBER,
    "phase": PHASE,
    "name": or_null(TEXT),
    "failures": COUNT,
    "attempts": COUNT,
    "retry_allowed": FLAG,
    "no_recovery": FLAG,
    "gave_up": FLAG,
    "max_attempts": or_null(COUNT),
    "last": or_null(OBJECT),
    "history": LIST,
    "attributes": or_null(OBJECT),
    "policy_state": ANY,
    "backoff_state": ANY,
    "backoff_started": FLAG,
    "not_before": or_null(TIME),
    "fingerprint": TEXT,
    "version": SERIAL,
    "fence": SERIAL,
    "worker": or_null(TEXT),
}
FAILURE: Mapping[str, Field] = {"type": TEXT, "message": TEXT, "cause": or_null(OBJECT)}
ATTEMPT: Mapping[str, Field] = {
    "number": COUNT,
    "started": or_null(TIME),
    "ended": or_null(TIME),
    "type_name": TEXT,
    "message": TEXT,
    "traceback": TEXT,
    "host": TEXT,
    "process": or_null(COUNT),
}
# The other fields have a default.
OF_EVERY_RECORD = ("last", "history")
OF_EVERY_ATTEMPT = ("number", "started", "ended", "type_name", "message")


def loads(text: str | bytes) -> Any:
    """The value of a JSON text.

    :raises ValueError: it is not JSON, or has a number that is not finite.
    :raises TypeError: it is not a string.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def check(name: str, value: Any, field: Field) -> None:
    """Raise ``ValueError`` unless the value fits."""
    _raise(_misfit(name, value, field))


def check_all(
    place: str, data: dict[str, Any], fields: Mapping[str, Field], needed: Iterable[str]
) -> None:
    """Raise ``ValueError`` unless every field is known and fits, and all *needed* ones exist."""
    _raise(fault(place, data, fields, needed))


def fault(
    place: str, data: dict[str, Any], fields: Mapping[str, Field], needed: Iterable[str]
) -> str | None:
    """The first fault: a missing or unknown field, or a value that is not valid; None: no fault.

    >>> fault("", {"text": 17}, {"text": TEXT}, ["text"])
    'text must be a string, got 17'
    """
    for name in needed:
        if name not in data:
            return f"{place}{name} is missing"
    for name, value in data.items():
        if name not in fields:
            return f"{place}{name} is unknown"
        wrong = _misfit(place + name, value, fields[name])
        if wrong:
            return wrong
    return None


def objects(data: Any, fields: Mapping[str, Field], needed: Iterable[str]) -> list[dict[str, Any]]:
    """The objects of a JSON list, each with these fields."""
    wrong = fault("", {"it": data}, {"it": LIST}, ())
    for place, each in enumerate(() if wrong else data):
        wrong = wrong or fault("", {f"[{place}]": each}, {f"[{place}]": OBJECT}, ())
        wrong = wrong or fault(f"[{place}].", each, fields, needed)
    _raise(wrong)
    return list(data)


def _misfit(name: str, value: Any, field: Field) -> str | None:
    fits, allowed = field
    if fits(value):
        return None
    import reprlib

    return f"{name} must be {allowed}, got {reprlib.repr(value)}"


def _raise(why: str | None) -> None:
    if why is not None:
        raise ValueError(why)
