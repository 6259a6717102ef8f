"""The record of a key: to JSON and back, and what of a context it keeps."""

import json
import os
import platform

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AttemptRecord,
    CacheUnavailableError,
    MemoryRetryContextCache,
    RecordedFailure,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.caches.record import FORMAT, Record, describe, from_json, json_copy, to_json
from retrytemplate.testing import VirtualClock

TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
COUNTS = st.integers(0, 10**12)
TIMES = st.floats(0, 1e12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=8,
)
FAILURES = st.recursive(
    st.builds(RecordedFailure, TEXTS, TEXTS),
    lambda cause: st.builds(RecordedFailure, TEXTS, TEXTS, cause),
    max_leaves=4,
)
ATTEMPTS = st.builds(
    AttemptRecord,
    number=COUNTS,
    started=st.none() | TIMES,
    ended=st.none() | TIMES,
    type_name=TEXTS,
    message=TEXTS,
    traceback=TEXTS,
    host=TEXTS,
    process=COUNTS,
)
RECORDS = st.builds(
    Record,
    phase=st.sampled_from(["idle", "attempting", "recovering", "done"]),
    name=st.none() | TEXTS,
    failures=COUNTS,
    attempts=COUNTS,
    verdict=st.booleans(),
    no_recovery=st.booleans(),
    gave_up=st.booleans(),
    max_attempts=st.none() | COUNTS,
    last=st.none() | FAILURES,
    history=st.lists(ATTEMPTS, max_size=4).map(tuple),
    attributes=st.none() | st.dictionaries(TEXTS, JSON, max_size=3),
    policy_state=JSON,
    backoff_state=JSON,
    backoff_started=st.booleans(),
    not_before=st.none() | TIMES,
    fingerprint=TEXTS,
    version=COUNTS,
    fence=COUNTS,
    worker=st.none() | TEXTS,
)


def chain(failure):
    """A recorded failure and what caused it, as texts."""
    texts = []
    while failure is not None:
        texts.append((type(failure), failure.type_name, failure.message))
        failure = failure.cause
    return texts


def travelled(record):
    return from_json(json.loads(json.dumps(to_json(record), allow_nan=False)))


# -- JSON and back -------------------------------------------------------------------------------


@given(record=RECORDS)
def test_every_record_comes_back_from_json_as_it_went_in(record):
    back = travelled(record)

    for each in fields(Record):
        before, after = getattr(record, each.name), getattr(back, each.name)
        if each.name == "last":
            before, after = chain(before), chain(after)
        assert (type(after), after) == (type(before), before), each.name
    assert to_json(back) == to_json(record)


def test_an_attempt_comes_back_whole():
    attempt = AttemptRecord(3, 1.5, 2.25, "httpx.ReadTimeout", "zu spät ⏰", "Trace", "host", 4711)
    [back] = travelled(Record(history=(attempt,))).history

    assert back == attempt
    assert type(back) is AttemptRecord
    assert back.duration == 0.75


def test_the_json_says_its_format():
    assert to_json(Record())["format"] == FORMAT == 1


def test_a_newer_format_is_refused():
    data = to_json(Record()) | {"format": FORMAT + 1, "what": "nobody knows yet"}
    with pytest.raises(CacheUnavailableError, match="format 2, this version reads up to 1"):
        from_json(data)


def test_what_an_older_version_left_out_has_its_default():
    data = to_json(Record(failures=3))
    del data["no_recovery"], data["fence"]

    assert from_json(data) == Record(failures=3)


def test_a_record_of_nothing_is_that_of_a_key_that_never_failed():
    record = from_json({"format": 1, "last": None, "history": []})
    assert (record.failures, record.attempts, record.fence, record.version) == (0, 0, 0, 1)
    assert (record.phase, record.verdict, record.backoff_started) == ("idle", True, False)
    assert (record.gave_up, record.no_recovery) == (False, False)


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "record",
        [],
        {},
        {"format": "1"},
        {"format": None},
        {"format": 1},
        {"format": 1, "last": None},
        {"format": 1, "last": None, "history": None},
        {"format": 1, "last": None, "history": [5]},
        {"format": 1, "last": None, "history": [{}]},
        {"format": 1, "last": None, "history": [{"number": 1, "colour": "red"}]},
        {"format": 1, "last": "ValueError", "history": []},
        {"format": 1, "last": {"type": "ValueError"}, "history": []},
        {"format": 1, "last": None, "history": [], "colour": "red"},
    ],
    ids=repr,
)
def test_what_is_no_record_is_said_to_be_none(data):
    with pytest.raises(CacheUnavailableError, match="no record of a retry context"):
        from_json(data)


def test_reading_leaves_the_data_alone():
    data = to_json(Record(last=RecordedFailure("ValueError", "x")))
    before = json.dumps(data)
    from_json(data)
    assert json.dumps(data) == before


def test_a_failure_from_another_process_is_no_class_imported_by_name():
    last = travelled(Record(last=RecordedFailure("os.system", "x"))).last
    assert type(last) is RecordedFailure


# -- attributes ----------------------------------------------------------------------------------


@given(attributes=st.dictionaries(TEXTS, JSON, max_size=4))
def test_attributes_are_copied(attributes):
    copy = json_copy(attributes)
    assert copy == (attributes or None)
    for name, value in (copy or {}).items():
        if isinstance(value, list | dict):
            assert value is not attributes[name]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan"), float("inf"), [object()]])
def test_an_attribute_that_is_no_json_is_named(value):
    with pytest.raises(TypeError, match="attribute 'orders' of a stateful context must be a JSON"):
        json_copy({"fine": 1, "orders": value})


# -- tracebacks ----------------------------------------------------------------------------------


def deep(levels, message):
    if levels:
        return deep(levels - 1, message)
    raise ValueError(message)


def caught(levels=0, message="secret 4711"):
    try:
        return deep(levels, message)
    except ValueError as exc:
        return exc


def test_a_traceback_says_where_and_what():
    text = describe(caught(), None)
    assert text.startswith("Traceback (most recent call last)")
    assert "in deep" in text
    assert text.endswith("ValueError: secret 4711\n")


def test_of_a_long_traceback_the_end_is_kept():
    message = "x" * 20_000 + " the end"
    text = describe(caught(message=message), None)
    assert len(text) == 8 * 1024
    assert text.endswith("xxx the end\n")


def test_what_is_redacted_is_redacted_before_it_is_cut():
    secret = "begins here" + "x" * 8 * 1024 + "ends here"
    text = describe(caught(message=secret), lambda text: text.replace(secret, "(secret)"))
    assert text.endswith("ValueError: (secret)\n")


# -- a context at rest ---------------------------------------------------------------------------


def hide(text):
    return text.replace("4711", "(pin)")


def failing(context):
    try:
        raise KeyError("4711")
    except KeyError as exc:
        raise ValueError("wrong pin 4711") from exc


def at_rest(callback=failing, deliveries=1, redact=None, rollback_for=None):
    """What the cache keeps after some deliveries that failed."""
    cache = MemoryRetryContextCache(redact=redact)
    template = RetryTemplate(SimpleRetryPolicy(3), name="pins", cache=cache, clock=VirtualClock())
    for _ in range(deliveries):
        with pytest.raises(ValueError):
            template.execute(callback, state=RetryState("key", rollback_for=rollback_for))
    return cache.peek("pins/s:key")


def test_an_attempt_at_rest_says_where_it_ran_and_how_it_ended():
    [attempt] = at_rest().history

    assert (attempt.number, attempt.type_name, attempt.message) == (
        1,
        "ValueError",
        "wrong pin 4711",
    )
    assert (attempt.host, attempt.process) == (platform.node(), os.getpid())
    assert "KeyError: '4711'" in attempt.traceback
    assert "direct cause" in attempt.traceback
    assert attempt.traceback.endswith("ValueError: wrong pin 4711\n")


def test_every_attempt_at_rest_has_its_traceback():
    history = at_rest(deliveries=2).history
    assert [attempt.number for attempt in history] == [1, 2]
    assert all("wrong pin" in attempt.traceback for attempt in history)


def test_attempts_in_place_have_their_tracebacks_too():
    def callback(context):
        if context.attempt < 3:
            raise OSError(f"in place {context.attempt}")
        raise ValueError("rolled back")

    history = at_rest(callback, rollback_for=ValueError).history
    ends = [attempt.traceback.splitlines()[-1] for attempt in history]
    assert ends == ["OSError: in place 1", "OSError: in place 2", "ValueError: rolled back"]


def test_a_traceback_at_rest_is_cut():
    def callback(context):
        raise ValueError("x" * 20_000)

    [attempt] = at_rest(callback).history
    assert len(attempt.traceback) == 8 * 1024


def test_the_last_failure_at_rest_holds_no_live_exception():
    last = at_rest().last
    assert chain(last) == [
        (RecordedFailure, "ValueError", "wrong pin 4711"),
        (RecordedFailure, "KeyError", "'4711'"),
    ]
    assert last.__traceback__ is None


@pytest.mark.parametrize("deliveries", [1, 2, 3])
def test_nothing_at_rest_escapes_redaction(deliveries):
    record = at_rest(deliveries=deliveries, redact=hide)
    text = json.dumps(to_json(record))

    assert "4711" not in text
    assert text.count("(pin)") > 3 * deliveries
    assert [attempt.message for attempt in record.history] == ["wrong pin (pin)"] * deliveries


def test_without_redaction_everything_is_kept():
    assert "4711" in json.dumps(to_json(at_rest()))


def test_the_exception_that_leaves_is_not_redacted():
    cache = MemoryRetryContextCache(redact=hide)
    template = RetryTemplate(name="pins", cache=cache)
    with pytest.raises(ValueError, match="wrong pin 4711"):
        template.execute(failing, state=RetryState("key"))
