"""Size limit of a record: the order in which its history is dropped, and rejected records."""

import json
import re

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AttemptRecord,
    MemoryRetryContextCache,
    RecordedFailure,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.caches.record import Record, from_json, to_text
from retrytemplate.caches.record_limit import LEAST_LIMIT, RECORD_LIMIT, truncate_to_limit

LONG = 8 * 1024


def attempt(number, message="x", traceback="y"):
    return AttemptRecord(number, 1.0, 2.0, "OSError", message, traceback, "host", 17)


def record(attempts, message="x", traceback="y", **fields):
    """The record after that number of failures, without the middle of the history."""
    numbers = [n for n in range(1, attempts + 1) if n <= 3 or n > attempts - 13]
    history = tuple(attempt(number, message, traceback) for number in numbers)
    last = RecordedFailure("OSError", message, RecordedFailure("KeyError", message))
    return Record(failures=attempts, attempts=attempts, last=last, history=history, **fields)


def numbers(fitted):
    return [each.number for each in fitted.history]


def kept(fitted, field):
    """Which attempts still have their traceback, or message, whole."""
    return [each.number for each in fitted.history if "cut]" not in getattr(each, field)]


# -- the order of dropping -----------------------------------------------------------------------


def test_record_within_the_limit_is_unchanged():
    whole = record(16)
    assert truncate_to_limit(whole, len(to_text(whole))) is whole


def test_record_one_byte_over_loses_its_oldest_middle_attempt():
    whole = record(20)
    fitted = truncate_to_limit(whole, len(to_text(whole)) - 1)

    assert numbers(whole) == [1, 2, 3, *range(8, 21)]
    assert numbers(fitted) == [1, 2, 3, *range(9, 21)]


def test_middle_attempts_are_removed_before_tracebacks():
    fitted = truncate_to_limit(record(20, "m", "t" * LONG), 4 * LONG + 8192)

    assert numbers(fitted) == [1, 2, 3, 20]
    assert kept(fitted, "traceback") == [1, 2, 3, 20]


def test_tracebacks_are_removed_after_the_middle_oldest_first():
    fitted = truncate_to_limit(record(20, "m", "t" * LONG), 2 * LONG + 4096)

    assert numbers(fitted) == [1, 2, 3, 20]
    assert kept(fitted, "traceback") == [3, 20]
    assert fitted.history[0].traceback == "[8192 characters cut]"


def test_messages_are_cut_when_no_traceback_is_left():
    fitted = truncate_to_limit(record(20, "m" * LONG, "t" * LONG), 5 * LONG)

    assert numbers(fitted) == [1, 2, 3, 20]
    assert kept(fitted, "traceback") == []
    assert kept(fitted, "message") == [3, 20]
    assert re.fullmatch(r"m{160} \[8032 characters cut\]", fitted.history[0].message)


def test_long_cause_is_cut_before_a_first_failure_is_removed():
    last = RecordedFailure("OSError", "short", RecordedFailure("KeyError", "c" * LONG))
    fitted = truncate_to_limit(evolve(record(20), last=last), LEAST_LIMIT)

    assert numbers(fitted) == [1, 2, 3, 20]
    assert (fitted.last.message, len(fitted.last.cause.message)) == ("short", 182)


def test_causes_and_first_failures_are_removed_last():
    fitted = truncate_to_limit(record(20, "𝄞" * LONG, "t" * LONG), LEAST_LIMIT)

    assert numbers(fitted) == [20]
    assert fitted.last.message == fitted.history[0].message
    assert fitted.last.cause is None


def test_short_tracebacks_and_messages_are_left_as_they_are():
    whole = record(4, "short", "", attributes={"fill": "x" * LEAST_LIMIT})
    fitted = truncate_to_limit(whole, len(to_text(whole)) - 1)
    assert {(each.message, each.traceback) for each in fitted.history} == {("short", "")}


TEXTS = st.text(st.characters(exclude_categories=()), max_size=12).map(lambda text: text * 700)


@given(
    attempts=st.integers(0, 20),
    message=TEXTS,
    traceback=TEXTS,
    limit=st.integers(LEAST_LIMIT, 2 * RECORD_LIMIT),
)
def test_last_failure_and_counts_fit_any_limit(attempts, message, traceback, limit):
    whole = record(attempts, message, traceback, name="charge", version=7, fence=5, worker="one")
    fitted = truncate_to_limit(whole, limit)

    assert len(to_text(fitted).encode()) <= limit
    assert (fitted.failures, fitted.attempts, fitted.worker) == (attempts, attempts, "one")
    assert (fitted.version, fitted.fence, fitted.name) == (7, 5, "charge")
    assert numbers(fitted)[-1:] == numbers(whole)[-1:]
    assert from_json(json.loads(to_text(fitted))).history == fitted.history


# -- rejected records ----------------------------------------------------------------------------


def test_attribute_beyond_the_limit_is_named_with_its_size():
    whole = record(5, attributes={"page": 7, "orders": "x" * 9000})
    says = (
        r"attribute 'orders' of a stateful context takes 9014 bytes as JSON, the whole record "
        r"9\d\d\d, its past given up; record_limit is 8192"
    )
    with pytest.raises(ValueError, match=says):
        truncate_to_limit(whole, 8192)


def test_largest_of_too_large_attributes_is_named():
    whole = record(1, attributes={f"part {n}": "x" * (n * 1000) for n in range(1, 6)})
    with pytest.raises(ValueError, match=r"attribute 'part 5' .* takes 5014 bytes as JSON"):
        truncate_to_limit(whole, 8192)


@pytest.mark.parametrize(
    ("field", "part"),
    [("policy_state", "the policy's state"), ("backoff_state", "the backoff's state")],
)
def test_state_over_the_limit_is_named(field, part):
    with pytest.raises(ValueError, match=f"{part} of a stateful context takes 9002 bytes"):
        truncate_to_limit(record(5, **{field: "x" * 9000}), 8192)


# -- in memory -----------------------------------------------------------------------------------


def test_record_in_memory_has_no_limit():
    cache = MemoryRetryContextCache()
    template = RetryTemplate(SimpleRetryPolicy(50), name="pins", cache=cache)
    for _ in range(20):
        with pytest.raises(ValueError):
            template.execute(failing, state=RetryState("key"))
    assert len(to_text(cache.peek("pins/s:key"))) > RECORD_LIMIT


def failing(context):
    raise ValueError("no price " * 2000)
