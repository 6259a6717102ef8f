"""The record of a key: conversion to JSON and back, and stored parts of a context."""

import json
import os
import platform
import re
from traceback import format_exception

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AttemptRecord,
    AttemptTimeout,
    CacheUnavailableError,
    MemoryRetryContextCache,
    RecordedFailure,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.caches.record import FORMAT, Record, describe, from_json, json_copy, to_json
from retrytemplate.testing import VirtualClock
from tests.support import runners
from tests.support.runners import every_driver, made

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
    retry_allowed=st.booleans(),
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
def test_record_equals_itself_after_json(record):
    back = travelled(record)

    for each in fields(Record):
        before, after = getattr(record, each.name), getattr(back, each.name)
        if each.name == "last":
            before, after = chain(before), chain(after)
        assert (type(after), after) == (type(before), before), each.name
    assert to_json(back) == to_json(record)


def test_attempt_record_equals_itself_after_json():
    attempt = AttemptRecord(3, 1.5, 2.25, "httpx.ReadTimeout", "zu spät ⏰", "Trace", "host", 4711)
    [back] = travelled(Record(history=(attempt,))).history

    assert back == attempt
    assert type(back) is AttemptRecord
    assert back.duration == 0.75


def test_json_of_a_record_names_its_format():
    assert to_json(Record())["format"] == FORMAT == 1


def test_newer_format_is_rejected():
    data = to_json(Record()) | {"format": FORMAT + 1, "what": "unknown yet"}
    with pytest.raises(CacheUnavailableError, match="format 2, this version reads up to 1"):
        from_json(data)


def test_missing_field_of_a_record_gets_its_default():
    data = to_json(Record(failures=3))
    del data["no_recovery"], data["fence"]

    assert from_json(data) == Record(failures=3)


def test_record_without_fields_equals_a_new_record():
    record = from_json({"format": 1, "last": None, "history": []})
    assert (record.failures, record.attempts, record.fence, record.version) == (0, 0, 0, 1)
    assert (record.phase, record.retry_allowed, record.backoff_started) == ("idle", True, False)
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
def test_invalid_record_is_named_in_the_error(data):
    with pytest.raises(CacheUnavailableError, match="no record of a retry context"):
        from_json(data)


ATTEMPT = {"number": 1, "started": None, "ended": 2.5, "type_name": "OSError", "message": "x"}


def record_with(**changes):
    return to_json(Record()) | changes


def attempt_with(**changes):
    return record_with(history=[ATTEMPT, ATTEMPT | changes])


def cause_with(**changes):
    cause = {"type": "KeyError", "message": "x", "cause": None}
    return record_with(last={"type": "OSError", "message": "x", "cause": cause | changes})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "it must be a JSON object, got None"),
        ([], r"it must be a JSON object, got \[\]"),
        (record_with(format="1"), "format must be an int >= 1, got '1'"),
        (record_with(format=True), "format must be an int >= 1, got True"),
        (record_with(format=1.0), "format must be an int >= 1, got 1.0"),
        (record_with(format=-1), "format must be an int >= 1, got -1"),
        ({}, "format must be an int >= 1, got None"),
        ({"format": 1, "history": []}, "last is missing"),
        (record_with(colour="red"), "colour is unknown"),
        (record_with(phase="gone"), "phase must be one of idle, attempting, .*, got 'gone'"),
        (record_with(phase=[]), "phase must be one of"),
        (record_with(name=5), "name must be a string or null, got 5"),
        (record_with(failures="three"), "failures must be an int >= 0, got 'three'"),
        (record_with(failures=-1), "failures must be an int >= 0, got -1"),
        (record_with(attempts=1.5), "attempts must be an int >= 0, got 1.5"),
        (record_with(attempts=True), "attempts must be an int >= 0, got True"),
        (record_with(retry_allowed="yes"), "retry_allowed must be true or false, got 'yes'"),
        (record_with(no_recovery=None), "no_recovery must be true or false, got None"),
        (record_with(gave_up=1), "gave_up must be true or false, got 1"),
        (record_with(max_attempts="3"), "max_attempts must be an int >= 0 or null, got '3'"),
        (record_with(attributes=[]), r"attributes must be a JSON object or null, got \[\]"),
        (record_with(backoff_started=0), "backoff_started must be true or false, got 0"),
        (record_with(not_before="now"), "not_before must be a finite number or null, got 'now'"),
        (record_with(not_before=float("nan")), "not_before must be a finite number or null"),
        (record_with(not_before=True), "not_before must be a finite number or null, got True"),
        (record_with(not_before=10**400), "not_before must be a finite number or null"),
        (record_with(fingerprint=None), "fingerprint must be a string, got None"),
        (record_with(version="1"), r"version must be an int from 0 to 2\*\*62, got '1'"),
        (record_with(fence=None), r"fence must be an int from 0 to 2\*\*62, got None"),
        (record_with(worker=7), "worker must be a string or null, got 7"),
        (record_with(last="OSError"), "last must be a JSON object or null, got 'OSError'"),
        (record_with(last={"type": "OSError"}), "last.message is missing"),
        (cause_with(type=5), "last.cause.type must be a string, got 5"),
        (cause_with(cause=[]), r"last.cause.cause must be a JSON object or null, got \[\]"),
        (cause_with(colour="red"), "last.cause.colour is unknown"),
        (record_with(history={}), r"history must be a list, got \{\}"),
        (record_with(history=[5]), r"history\[0\] must be a JSON object, got 5"),
        (record_with(history=[{}]), r"history\[0\]\.number is missing"),
        (attempt_with(colour="red"), r"history\[1\]\.colour is unknown"),
        (attempt_with(number=-1), r"history\[1\]\.number must be an int >= 0, got -1"),
        (attempt_with(started="now"), r"history\[1\]\.started must be a finite number or null"),
        (attempt_with(ended=[]), r"history\[1\]\.ended must be a finite number or null, got"),
        (attempt_with(type_name=None), r"history\[1\]\.type_name must be a string, got None"),
        (attempt_with(message=["x"]), r"history\[1\]\.message must be a string, got \['x'\]"),
        (attempt_with(traceback=0), r"history\[1\]\.traceback must be a string, got 0"),
        (attempt_with(host=0), r"history\[1\]\.host must be a string, got 0"),
        (attempt_with(process="1"), r"history\[1\]\.process must be an int >= 0 or null, got '1'"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_invalid_record_is_rejected_with_its_field(data, says):
    with pytest.raises(CacheUnavailableError, match=f"no record of a retry context: {says}"):
        from_json(data)


def test_invalid_record_is_shortened_in_the_error():
    with pytest.raises(CacheUnavailableError) as caught:
        from_json(record_with(failures="x" * 100_000))
    assert len(str(caught.value)) < 200


def test_int_in_place_of_float_is_accepted():
    record = from_json(record_with(not_before=2, history=[ATTEMPT | {"started": 1, "ended": 3}]))
    assert (record.not_before, record.history[0].duration) == (2, 2)


def test_reading_leaves_the_data_alone():
    data = to_json(Record(last=RecordedFailure("ValueError", "x")))
    before = json.dumps(data)
    from_json(data)
    assert json.dumps(data) == before


def test_recorded_failure_does_not_import_its_class():
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
def test_attribute_that_is_not_json_is_named(value):
    with pytest.raises(TypeError, match="attribute 'orders' of a stateful context must be a JSON"):
        json_copy({"fine": 1, "orders": value})


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**5000, "one of type int: ValueError: Exc"),
        (nested(100_000), "one of type list: RecursionError: max"),
    ],
    ids=["huge", "deep"],
)
def test_attribute_that_json_cannot_hold_is_named(value, shown):
    with pytest.raises(TypeError, match=f"attribute 'orders' .* every key a str, got {shown}"):
        json_copy({"fine": 1, "orders": value})


@pytest.mark.parametrize("name", [1, None, True, ("a", 1), b"page"], ids=repr)
def test_attribute_name_must_be_a_str(name):
    says = "attribute names of a stateful context must be str, got "
    with pytest.raises(TypeError, match=re.escape(says + repr(name))):
        json_copy({"fine": 1, name: 2})


@pytest.mark.parametrize(
    "value", [{1: "a"}, {None: 1}, {True: 1}, [{1.5: 1}], ({"a": {2: 1}},)], ids=repr
)
def test_attribute_with_keys_other_than_strings_is_named(value):
    with pytest.raises(TypeError, match=r"attribute 'orders' .* JSON value, every key a str, got"):
        json_copy({"fine": {"a": 1}, "orders": value})


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


def test_traceback_has_place_and_message():
    text = describe(caught(), None)
    assert text.startswith("Traceback (most recent call last)")
    assert "in deep" in text
    assert text.endswith("ValueError: secret 4711\n")


def of_pool():
    """A failure that a retry inside the attempt lets through."""
    return RetryTemplate(SimpleRetryPolicy(1)).call(deep, 0, "empty pool")


def fails_behind(context):
    try:
        deep(0, "rejected")
    except ValueError as error:
        raise LookupError("no pool") from error


@every_driver
def test_stored_traceback_begins_with_the_frame_of_the_callback(driver):
    cache = MemoryRetryContextCache()
    template = made(3, name="pins", cache=cache)
    with pytest.raises(LookupError):
        driver(template, fails_behind, state=RetryState("key"))
    [attempt] = cache.peek("pins/s:key").history
    places = re.findall(r'File "(.*?)", line \d+, in (\w+)', attempt.traceback)
    assert places[-1] == (__file__, "fails_behind")
    assert {file for file, _ in places} <= {__file__, runners.__file__}


def test_traceback_keeps_the_frames_of_the_library_behind_the_callback():
    def attempt():
        return of_pool()

    failure = made(1).outcome(attempt).exception
    functions = re.findall(r"in (\w+)\n", describe(failure, None))
    assert functions[0] == "attempt"
    assert "call" in functions


def test_failure_made_by_the_library_alone_has_no_frames():
    clock = VirtualClock()
    limit = AttemptTimeout(1.0, on_late_result="discard")
    failure = made(1, clock=clock, attempt_timeout=limit).outcome(clock.advance, 2.0).exception
    assert describe(failure, None).splitlines() == [
        "retrytemplate.errors.AttemptTimeoutError: the attempt took longer than 1 seconds"
    ]


def cut(text):
    """The number of cut characters that a text reports, and the text without that note."""
    [number] = re.findall(r"\[(\d+) characters cut\]", text)
    return int(number), re.sub(r"\s?\[\d+ characters cut\]\s?", "", text)


def test_long_traceback_keeps_its_end_and_counts_the_rest():
    failure = caught(message="x" * 20_000 + " the end")
    text = describe(failure, None)
    assert len(text) <= 8 * 1024
    assert text.endswith("xxx the end\n")
    number, kept = cut(text)
    assert number + len(kept) == len("".join(format_exception(failure)))


def test_exception_group_deeper_than_the_stack_has_a_traceback():
    failure = caught()
    for _ in range(10_000):
        failure = ExceptionGroup("nested", [failure])
    assert "ExceptionGroup: nested (1 sub-exception)" in describe(failure, None)


def test_texts_are_redacted_before_they_are_shortened():
    secret = "begins here" + "x" * 8 * 1024 + "ends here"
    text = describe(caught(message=secret), lambda text: text.replace(secret, "(secret)"))
    assert text.endswith("ValueError: (secret)\n")


class OddClass(type):
    __module__ = property(lambda cls: 1 / 0)


class OddName(ValueError, metaclass=OddClass):
    pass


class OddTruth(ValueError):
    def __bool__(self):
        raise RuntimeError("neither true nor false")


class OddText(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


class OddCause(ValueError):
    @property
    def __cause__(self):
        raise RuntimeError("no cause")


ODD = [OddName, OddTruth, OddText, OddCause]
odd_failures = pytest.mark.parametrize(
    "kind", ODD, ids=["its class", "its truth", "its text", "its cause"]
)


@odd_failures
def test_error_raised_by_describing_an_exception_is_suppressed(kind):
    assert isinstance(describe(kind(), None), str)


def test_exception_that_cannot_be_described_has_a_substitute_text():
    assert describe(OddTruth(), None) == "<no traceback: format_exception failed>"


# -- a stored context ----------------------------------------------------------------------------


def hide(text):
    return text.replace("4711", "(pin)")


def failing(context):
    try:
        raise KeyError("4711")
    except KeyError as exc:
        raise ValueError("wrong pin 4711") from exc


def at_rest(callback=failing, deliveries=1, redact=None, rollback_for=None):
    """The stored record after several failed deliveries."""
    cache = MemoryRetryContextCache(redact=redact)
    template = RetryTemplate(SimpleRetryPolicy(3), name="pins", cache=cache, clock=VirtualClock())
    for _ in range(deliveries):
        with pytest.raises(ValueError):
            template.execute(callback, state=RetryState("key", rollback_for=rollback_for))
    return cache.peek("pins/s:key")


def test_stored_attempt_has_its_host_and_its_end():
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


@odd_failures
def test_failure_that_cannot_be_described_is_counted(kind):
    def callback(context):
        raise kind("x")

    record = at_rest(callback, deliveries=2)
    assert (record.failures, len(record.history)) == (2, 2)


def test_each_stored_attempt_has_its_traceback():
    history = at_rest(deliveries=2).history
    assert [attempt.number for attempt in history] == [1, 2]
    assert all("wrong pin" in attempt.traceback for attempt in history)


def test_attempts_in_place_have_their_tracebacks():
    def callback(context):
        if context.attempt < 3:
            raise OSError(f"in place {context.attempt}")
        raise ValueError("rolled back")

    history = at_rest(callback, rollback_for=ValueError).history
    ends = [attempt.traceback.splitlines()[-1] for attempt in history]
    assert ends == ["OSError: in place 1", "OSError: in place 2", "ValueError: rolled back"]


def test_stored_traceback_is_shortened():
    def callback(context):
        raise ValueError("x" * 20_000)

    [attempt] = at_rest(callback).history
    assert len(attempt.traceback) <= 8 * 1024


@pytest.mark.parametrize("deliveries", [1, 2])
def test_long_stored_message_keeps_its_start_and_counts_the_rest(deliveries):
    message = "no price " * 100_000

    def callback(context):
        raise ValueError(message) from KeyError(message)

    record = at_rest(callback, deliveries)
    texts = [attempt.message for attempt in record.history]
    for text in (*texts, record.last.message, record.last.cause.message):
        assert len(text) <= 8 * 1024
        number, kept = cut(text)
        assert number + len(kept) in (len(message), len(repr(message)))
        assert kept.strip("'").startswith("no price no price")


def test_message_of_the_maximum_length_is_kept_whole():
    def callback(context):
        raise ValueError("x" * 8 * 1024)

    assert at_rest(callback).last.message == "x" * 8 * 1024


def test_message_is_redacted_before_it_is_cut():
    secret = "begins here" + "x" * 8 * 1024 + "ends here"

    def callback(context):
        raise ValueError(f"no price for {secret}")

    record = at_rest(callback, redact=lambda text: text.replace(secret, "(secret)"))
    assert record.last.message == record.history[0].message == "no price for (secret)"


def test_stored_last_failure_holds_no_live_exception():
    last = at_rest().last
    assert chain(last) == [
        (RecordedFailure, "ValueError", "wrong pin 4711"),
        (RecordedFailure, "KeyError", "'4711'"),
    ]
    assert last.__traceback__ is None


@pytest.mark.parametrize("deliveries", [1, 2, 3])
def test_all_stored_texts_are_redacted(deliveries):
    record = at_rest(deliveries=deliveries, redact=hide)
    text = json.dumps(to_json(record))

    assert "4711" not in text
    assert text.count("(pin)") > 3 * deliveries
    assert [attempt.message for attempt in record.history] == ["wrong pin (pin)"] * deliveries


def test_record_is_not_redacted_by_default():
    assert "4711" in json.dumps(to_json(at_rest()))


def test_raised_exception_is_not_redacted():
    cache = MemoryRetryContextCache(redact=hide)
    template = RetryTemplate(name="pins", cache=cache)
    with pytest.raises(ValueError, match="wrong pin 4711"):
        template.execute(failing, state=RetryState("key"))
