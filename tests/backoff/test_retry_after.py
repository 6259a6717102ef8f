import email.message
import io
import sys
import time
import urllib.error
from datetime import timedelta
from random import Random

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    CircuitOpenError,
    ExponentialBackoff,
    FixedBackoff,
    NoBackoff,
    RetryAfterBackoff,
)
from retrytemplate.testing import ScriptedRandom, VirtualClock
from tests.backoff.driving import delays

FALLBACK = 7.0
NAN, INF = float("nan"), float("inf")
NOW = "Sun, 06 Nov 1994 08:49:37 GMT"
NOW_SECONDS = 784111777.0


def failed(value, **headers):
    """An error whose response says ``Retry-After``."""
    headers = {name.title(): text for name, text in headers.items()}
    if value is not None:
        headers["Retry-After"] = value
    request = httpx.Request("GET", "http://shop.test/")
    response = httpx.Response(503, headers=headers, request=request)
    return httpx.HTTPStatusError("503", request=request, response=response)


class At(VirtualClock):
    """A clock that is constant at one date."""

    def time(self):
        return NOW_SECONDS


def waited(failure, **settings):
    settings = {"jitter": 0.0, "clock": At()} | settings
    return delays(RetryAfterBackoff(FixedBackoff(FALLBACK), **settings), 1, failure=failure)[0]


def notes(failure):
    return getattr(failure, "__notes__", [])


@pytest.mark.statement("S3-10")
@pytest.mark.parametrize(
    ("value", "seconds"), [("120", 120.0), ("0", 0.0), (" 3 ", 3.0), ("1.5", 1.5)]
)
def test_seconds_are_read(value, seconds):
    failure = failed(value)
    assert waited(failure) == seconds
    assert not notes(failure)


class RpcError(Exception):
    """Like gRPC's: a status and trailing metadata."""

    def __init__(self, *trailing):
        self.trailing = trailing

    def trailing_metadata(self):
        return self.trailing


@pytest.mark.parametrize(("value", "seconds"), [("250", 0.25), ("0", 0.0)])
def test_grpc_pushback_is_the_delay(value, seconds):
    failure = RpcError(("region", "eu"), ("grpc-retry-pushback-ms", value))
    assert waited(failure) == seconds
    assert failure.retry_after == seconds


@pytest.mark.parametrize("value", ["-1", "", "soon", "1.5", b"250"])
def test_grpc_pushback_without_a_delay_ends_the_attempts(value):
    failure = RpcError(("grpc-retry-pushback-ms", value))
    assert waited(failure) is None
    assert notes(failure) == ["grpc-retry-pushback-ms: the server requests no retry"]


@pytest.mark.parametrize("trailing", [(), (("region", "eu"),), (17,)])
def test_fallback_applies_without_a_pushback(trailing):
    assert waited(RpcError(*trailing)) == FALLBACK


def test_status_without_metadata_requests_no_delay():
    failure = RpcError()
    failure.trailing = None
    assert waited(failure) == FALLBACK


def test_longest_of_joined_header_values_applies():
    assert waited(failed("7, 60,5")) == 60.0


@pytest.mark.statement("S3-10")
@pytest.mark.parametrize(
    "date",
    [
        "Sun, 06 Nov 1994 08:51:37 GMT",
        "Sunday, 06-Nov-94 08:51:37 GMT",
        "Sun Nov  6 08:51:37 1994",
    ],
    ids=["as today", "as in RFC 850", "as of asctime"],
)
def test_date_is_read_in_each_form_of_http(date):
    assert waited(failed(date, date=NOW)) == 120.0
    assert waited(failed(date)) == 120.0


def test_date_without_a_zone_is_utc_in_every_time_zone(monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert waited(failed("Sun Nov  6 08:51:37 1994", date=NOW)) == 120.0
    time.tzset()


def test_date_with_a_zone_is_read_in_that_zone():
    assert waited(failed("Sun, 06 Nov 1994 10:49:47 +0200", date=NOW)) == 10.0


def test_date_is_compared_with_date_of_response_not_with_clock():
    class Wrong(VirtualClock):
        def time(self):
            return NOW_SECONDS + 99_999

    assert waited(failed("Sun, 06 Nov 1994 08:49:47 GMT", date=NOW), clock=Wrong()) == 10.0


def test_invalid_date_of_response_is_replaced_by_the_clock():
    assert waited(failed("Sun, 06 Nov 1994 08:49:47 GMT", date="today")) == 10.0


GARBAGE = [
    "",
    "soon",
    "-5",
    "1e3",
    "1.2.3",
    "٣",
    "NaN",
    "inf",
    "Sun, 06 Nov 1994 08:49:36 GMT",
    "Sun, 99 Nov 1994 08:49:37 GMT",
    "5, soon",
    "5,",
]


@pytest.mark.statement("S3-10")
@pytest.mark.parametrize("value", GARBAGE)
def test_value_not_in_the_future_is_ignored_and_noted_on_the_failure(value):
    headers = email.message.Message()
    headers["Retry-After"] = value
    failure = urllib.error.HTTPError("http://shop.test/", 503, "no", headers, io.BytesIO())
    assert waited(failure) == FALLBACK
    assert waited(failure) == FALLBACK
    assert notes(failure) == [f"Retry-After ignored, not a time in the future: {value[:100]!r}"]


@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_headers_may_be_a_plain_dictionary(name):
    failure = OSError()
    failure.headers = {name: "5"}
    assert waited(failure) == 5.0


@given(st.text(max_size=40))
def test_arbitrary_header_value_raises_nothing(value):
    class Odd(Exception):
        headers = {"retry-after": value}  # noqa: RUF012  # it is read only

    assert 0 <= waited(Odd()) < float("inf")


def test_failure_has_requested_delay_also_after_the_wait():
    failure = failed("17")
    assert waited(failure) == failure.retry_after == 17.0
    assert not notes(failure)
    silent = failed(None)
    waited(silent)
    assert not hasattr(silent, "retry_after")


@pytest.mark.statement("S3-10")
@pytest.mark.parametrize("limit", [120, 120.0, timedelta(minutes=2)])
def test_delay_above_limit_ends_attempts_with_a_note(limit):
    failure = failed("86400")
    assert waited(failure, give_up_above=limit) is None
    assert failure.retry_after == 86400.0
    assert notes(failure) == ["Retry-After: 86400 s, longer than give_up_above=120 s"]
    assert waited(failed("120"), give_up_above=limit) == 120.0


@pytest.mark.parametrize("value", ["99", "soon"])
def test_frozen_exception_is_accepted(value):
    class Frozen(Exception):
        headers = {"Retry-After": value}  # noqa: RUF012  # it is read only

        def __setattr__(self, name, value):
            raise AttributeError(name)

    assert waited(Frozen(), give_up_above=1) == (None if value == "99" else FALLBACK)


def test_delay_without_a_limit_is_waited():
    assert waited(failed("86400")) == 86400.0


def test_delay_is_at_least_requested_and_longer_by_jitter():
    backoff = RetryAfterBackoff(NoBackoff())
    waits = [delays(backoff, 1, Random(seed), failed("10"))[0] for seed in range(200)]
    assert len(set(waits)) == 200
    assert all(10 <= each <= 11 for each in waits)
    assert waited(failed("10"), jitter=0.5, clock=At()) == 10 + 5 * Random(0).random()


def test_fallback_state_changes_only_when_the_fallback_applies():
    backoff = RetryAfterBackoff(ExponentialBackoff(1, 2, 8), jitter=0)
    state, waits = backoff.start(), []
    for failure in (OSError(), failed("50"), OSError(), failed(None), failed("60")):
        delay, state = backoff.next(state, failure, ScriptedRandom([]))
        waits.append(delay)
    assert waits == [1, 50, 2, 4, 60]


def test_fallback_that_gives_up_ends_the_attempts():
    class Enough(NoBackoff):
        def next(self, state, failure, random):
            return None, state

    assert delays(RetryAfterBackoff(Enough()), 1) == [None]


def test_requested_delay_of_a_cause_applies():
    failure = ValueError("no price")
    failure.__cause__ = failed("5")
    assert waited(failure) == 5.0


def test_invalid_delay_does_not_hide_that_of_the_cause():
    failure = failed("soon")
    failure.__cause__ = failed("5")
    assert waited(failure) == 5.0


def caused(failure, cause):
    failure.__cause__ = cause
    return failure


def test_group_as_cause_is_read():
    group = ExceptionGroup("g", [failed("5"), caused(OSError(), failed("9"))])
    assert waited(caused(ValueError(), group)) == 9.0


def test_cause_of_a_group_is_read():
    group = ExceptionGroup("g", [failed("5"), OSError()])
    assert waited(caused(group, failed("9"))) == 9.0
    assert waited(caused(ExceptionGroup("g", [OSError()]), failed("9"))) == 9.0


def test_own_group_class_is_read():
    group = ExceptionGroup("g", [failed("5")])
    group.response = failed("9").response
    assert waited(group) == 9.0


def test_group_that_is_cause_of_its_member_is_read_once():
    member = failed(None)
    group = ExceptionGroup("g", [member, failed("5")])
    member.__cause__ = group
    assert waited(group) == 5.0


def test_deeply_nested_groups_are_read():
    group = failed("5")
    for _ in range(5000):
        group = ExceptionGroup("g", [group])
    assert waited(group) == 5.0


def test_longest_delay_of_a_group_applies():
    group = ExceptionGroup("g", [failed("5"), OSError(), ExceptionGroup("i", [failed("9")])])
    assert waited(group) == 9.0
    assert waited(ExceptionGroup("g", [OSError()])) == FALLBACK


def test_rejection_of_the_library_has_a_delay():
    assert waited(CircuitOpenError(retry_after=3.5)) == 3.5
    assert waited(CircuitOpenError(retry_after=0.25)) == 0.25
    assert waited(CircuitOpenError(retry_after=0.0)) == 0.0
    assert waited(CircuitOpenError()) == FALLBACK
    assert waited(CircuitOpenError(retry_after=-1.0)) == FALLBACK


def test_headers_of_another_type_are_ignored():
    for headers in (None, 7, ["Retry-After"], "Retry-After: 5", {"Retry-After": None}):
        failure = OSError()
        failure.headers = headers
        assert waited(failure) == FALLBACK


def test_error_whose_properties_raise_requests_no_delay():
    bodiless = urllib.error.HTTPError("http://shop.test/", 503, "no", email.message.Message(), None)
    assert waited(bodiless) == FALLBACK

    class Broken(Exception):
        @property
        def response(self):
            raise RuntimeError("no response yet")

    assert waited(Broken()) == FALLBACK


class WithHeaders(Exception):
    """A failure with these headers."""

    def __init__(self, headers):
        super().__init__("busy")
        self.headers = headers


def kind(value):
    return type(value).__name__


def test_bytes_value_is_read():
    assert waited(WithHeaders({"Retry-After": b"5"})) == 5.0


@pytest.mark.parametrize(
    "value",
    [b"soon", b"\xff", ["5"], "1e400", timedelta(seconds=5), True, object()],
    ids=kind,
)
def test_header_that_is_not_text_is_ignored(value):
    assert waited(WithHeaders({"Retry-After": value})) == FALLBACK


class Textless:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Locked(dict):
    def get(self, *_):
        raise RuntimeError("locked")


def test_headers_that_raise_request_no_delay():
    assert waited(WithHeaders({"Retry-After": Textless()})) == FALLBACK
    assert waited(WithHeaders(Locked())) == FALLBACK
    assert waited(CircuitOpenError(retry_after=Textless())) == FALLBACK


@pytest.mark.parametrize(
    "value", ["5", "soon", -INF, NAN, True, object(), -timedelta(seconds=5)], ids=kind
)
def test_rejection_without_retry_after_requests_no_delay(value):
    assert waited(CircuitOpenError(retry_after=value)) == FALLBACK
    assert waited(CircuitOpenError(retry_after=value), give_up_above=60.0) == FALLBACK


@pytest.mark.parametrize(
    "failure",
    [
        failed("9" * 400),
        CircuitOpenError(retry_after=INF),
        CircuitOpenError(retry_after=10**400),
        ExceptionGroup("g", [failed("5"), failed("9" * 400)]),
    ],
)
def test_time_beyond_every_float_is_the_longest_delay(failure):
    assert waited(failure) == sys.float_info.max
    assert waited(failure, jitter=0.5) == sys.float_info.max
    assert waited(failure, give_up_above=60.0) is None
    assert failure.retry_after == sys.float_info.max


def test_rejection_may_have_a_timedelta():
    assert waited(CircuitOpenError(retry_after=timedelta(minutes=1))) == 60.0


def test_rejection_with_unreadable_retry_after_requests_no_delay():
    class Unreadable(CircuitOpenError):
        @property
        def retry_after(self):
            raise RuntimeError("not known")

        @retry_after.setter
        def retry_after(self, value): ...

    assert waited(Unreadable()) == FALLBACK


def test_last_date_of_the_calendar_is_above_every_limit():
    far = "Fri, 31 Dec 9999 23:59:59 GMT"
    assert waited(failed(far, date=NOW)) == 253402300799.0 - NOW_SECONDS
    assert waited(failed(far), give_up_above=86400) is None


def test_delay_with_jitter_stays_finite():
    assert waited(failed("1" + "0" * 308), jitter=1.0) < INF


@pytest.mark.parametrize("value", ["99", "soon"])
def test_exception_that_accepts_no_note_is_accepted(value):
    class Sealed(Exception):
        headers = {"Retry-After": value}  # noqa: RUF012  # it is read only

        @property
        def __notes__(self):
            raise RuntimeError("sealed")

        def add_note(self, note):
            raise RuntimeError("sealed")

        def __setattr__(self, name, value):
            raise RuntimeError("sealed")

    assert waited(Sealed(), give_up_above=1) == (None if value == "99" else FALLBACK)


def test_fallback_numbers_may_be_callables():
    backoff = RetryAfterBackoff(FixedBackoff(lambda: 3), give_up_above=9)
    assert backoff.dynamic
    assert backoff.resolved() == RetryAfterBackoff(FixedBackoff(3), give_up_above=9)
    steady = RetryAfterBackoff(NoBackoff())
    assert not steady.dynamic
    assert steady.resolved() is steady
    assert not steady.never_waits


@pytest.mark.statement("S0-66")
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"give_up_above": -1}, ValueError, "give_up_above must be a number of seconds .* >= 0"),
        ({"give_up_above": "1h"}, TypeError, "give_up_above must be a number of seconds"),
        ({"jitter": -0.1}, ValueError, "jitter must be a number >= 0 and finite, got -0.1"),
        ({"jitter": "full"}, TypeError, "jitter must be a number >= 0 and finite, got 'full'"),
        ({"fallback": 1.0}, TypeError, "fallback must be a Backoff, got 1.0"),
        ({"clock": 7}, TypeError, "clock must be an object with the methods monotonic, .*, got 7"),
    ],
)
def test_invalid_settings_are_rejected(settings, error, message):
    with pytest.raises(error, match=message):
        RetryAfterBackoff(**{"fallback": NoBackoff()} | settings)
