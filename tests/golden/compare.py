"""Comparison of expected and actual traces: every field of every record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tests.golden.model import JSON

TOLERANCE = 1e-9


def differences(expected: JSON, actual: JSON) -> list[str]:
    """The differences between two traces (lists of records), one line each."""
    if not isinstance(expected, list) or not all(isinstance(record, dict) for record in expected):
        return [f"trace: expected {expected!r}, which is not a list of records"]
    blank: JSON = {}
    pairs = zip_longest(expected, actual, fillvalue=blank)
    adjusted = [_adjusted(theirs, ours) for theirs, ours in pairs]
    return list(_of_lists(expected, adjusted[: len(actual)], "trace"))


def _adjusted(expected: JSON, actual: JSON) -> JSON:
    adjusted = expected.get("context")
    if stopped_in_open(actual) and isinstance(adjusted, dict) and "max_attempts" not in adjusted:
        # The original had not called the policy yet; ours returns what it knows.
        return actual | {"context": _without(actual["context"], "max_attempts")}
    return actual


def _of(expected: JSON, actual: JSON, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        yield from _of_objects(expected, actual, path)
    elif isinstance(expected, list) and isinstance(actual, list):
        yield from _of_lists(expected, actual, path)
    elif not _same_leaf(expected, actual):
        yield f"{path}: expected {expected!r}, got {actual!r}"


def _of_objects(expected: JSON, actual: JSON, path: str) -> Iterator[str]:
    for key in sorted(expected.keys() | actual.keys()):
        if key not in actual:
            yield f"{path}.{key}: expected {expected[key]!r}, got no such field"
        elif key not in expected:
            yield f"{path}.{key}: expected no such field, got {actual[key]!r}"
        else:
            yield from _of(expected[key], actual[key], f"{path}.{key}")


def _of_lists(expected: JSON, actual: JSON, path: str) -> Iterator[str]:
    for index, (left, right) in enumerate(zip(expected, actual, strict=False)):
        yield from _of(left, right, f"{path}[{index}]")
    if len(expected) != len(actual):
        shorter = min(len(expected), len(actual))
        yield f"{path}: expected {expected[shorter:]!r} at the end, got {actual[shorter:]!r}"


def same(expected: JSON, actual: JSON) -> bool:
    """Whether there is no difference; numbers have a tolerance, and True is not 1."""
    return next(_of(expected, actual, ""), None) is None


def _same_leaf(expected: JSON, actual: JSON) -> bool:
    if is_number(expected) and is_number(actual):
        return bool(abs(expected - actual) <= TOLERANCE)
    return type(expected) is type(actual) and bool(expected == actual)


def is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without(record: JSON, *keys: str) -> JSON:
    return {key: value for key, value in record.items() if key not in keys}


def stopped_in_open(record: JSON) -> bool:
    """Whether a record's execution ended in ``open``: a veto, or an exception out of it."""
    return any(
        event[0] == "open" and event[-1] in ("veto", "raise") for event in record.get("events", ())
    )


UNHEARD = {"open", "success", "error", "close"}


def unheard(record: JSON) -> JSON:
    """The part of a record that exists without listeners."""
    return record | {"events": [event for event in record["events"] if event[0] not in UNHEARD]}


def contextless(record: JSON) -> JSON:
    """The part of a record that exists if neither a listener nor the callback sees the context."""
    events = []
    for event in unheard(record)["events"]:
        if event[0] == "callback":
            events.append(event[:2])
        elif event[0] == "nested":
            events.append(["nested", contextless(event[1])])
        else:
            events.append(event)
    return _without(record, "context", "stats") | {"events": events}
