"""Size limit of a record as JSON, and the order in which its history is dropped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import evolve

from retrytemplate._internal.validation import check_int
from retrytemplate.caches.record import MARK, Record, shortened, to_json, to_text
from retrytemplate.errors import RecordedFailure
from retrytemplate.history import HISTORY_FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["RECORD_LIMIT", "check_record_limit", "truncate_to_limit"]

RECORD_LIMIT = 64 * 1024
"""Bytes; the default of durable caches."""

# The counts and the shortened latest failure fit into it in any language.
LEAST_LIMIT = 8 * 1024
# Characters of a shortened message, with the mark that says how many were dropped.
SHORT = 160 + MARK


def check_record_limit(limit: object) -> None:
    """Raise unless the limit is one that a record without attributes can keep."""
    check_int("record_limit", limit, LEAST_LIMIT)


def truncate_to_limit(record: Record, limit: int) -> Record:
    """The record without the parts of its history that do not fit into *limit* bytes of JSON.

    The oldest of the middle of the history is dropped first, then the tracebacks, then all but the
    beginning of the messages, then the first failures and the causes.  The latest one stays.

    :raises ValueError: the rest does not fit; the error names the largest part and its size.
    """
    smaller, size = record, 0
    for smaller in _truncation_steps(record):
        size = len(to_text(smaller))
        if size <= limit:
            return smaller
    part, takes = max(_parts(smaller), key=lambda each: each[1])
    raise ValueError(
        f"{part} of a stateful context takes {takes} bytes as JSON, the whole record {size}, "
        f"its past given up; record_limit is {limit}"
    )


def _truncation_steps(record: Record) -> Iterator[Record]:
    yield record
    history = record.history
    while len(history) > HISTORY_FIRST + 1:
        history = history[:HISTORY_FIRST] + history[HISTORY_FIRST + 1 :]
        yield evolve(record, history=history)
    for field, rest in (("traceback", _only_a_mark), ("message", _in_short)):
        for place, attempt in enumerate(history):
            left: Any = {field: rest(getattr(attempt, field))}
            history = (*history[:place], evolve(attempt, **left), *history[place + 1 :])
            yield evolve(record, history=history)
    last = _failure_in_short(record.last)
    yield evolve(record, history=history, last=last)
    if last is not None:
        last = RecordedFailure(last.type_name, last.message)
    yield evolve(record, history=history[-1:], last=last)


def _only_a_mark(traceback: str) -> str:
    return shortened(traceback, MARK).lstrip()


def _in_short(message: str) -> str:
    return shortened(message, SHORT)


def _failure_in_short(failure: RecordedFailure | None) -> RecordedFailure | None:
    if failure is None:
        return None
    cause = _failure_in_short(failure.cause)
    return RecordedFailure(failure.type_name, _in_short(failure.message), cause)


def _parts(record: Record) -> Iterator[tuple[str, int]]:
    """The parts that are never dropped, and the size of each."""
    for name, value in (record.attributes or {}).items():
        yield f"attribute {name!r}", len(json.dumps({name: value}))
    data = to_json(record)
    for name, part in (
        ("policy_state", "the policy's state"),
        ("backoff_state", "the backoff's state"),
        ("name", "the name"),
        ("last", "the last failure"),
        ("history", "the history"),
    ):
        yield part, len(json.dumps(data[name]))
