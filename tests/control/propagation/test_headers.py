"""Numbers and times in headers: their format, and arbitrary input."""

import email.message

import aiohttp
import httpx
import multidict
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.control.propagation.propagation import (
    MOST_MILLISECONDS,
    collect_headers,
    read_attempt,
    read_flag,
    read_number,
    read_timeout,
    write_attempt,
    write_timeout,
)

NAMES = ["X-Request-Timeout-Ms", "grpc-timeout"]
TOO_LONG = "9" * 100_000


def message():
    made = email.message.Message()
    made["X-RETRY-DEPTH"], made["x-retry-depth"] = "3", "2"
    return made


@pytest.mark.parametrize(
    "headers",
    [
        {"x-retry-depth": "3, 2"},
        {"X-Retry-Depth": "3,\t2 "},
        [("X-Retry-Depth", "3"), ("x-RETRY-depth", "2")],
        [(b"x-retry-depth", b"3"), (b"accept", b"\xff"), (b"x-retry-depth", b"2")],
        message(),
        httpx.Headers([("X-Retry-Depth", "3"), ("x-retry-depth", "2")]),
        requests.structures.CaseInsensitiveDict({"X-Retry-Depth": "3,2"}),
        multidict.CIMultiDict([("X-Retry-Depth", "3"), ("x-retry-depth", "2")]),
    ],
    ids=["dict", "spaces", "pairs", "asgi", "http.server", "httpx", "requests", "aiohttp"],
)
def test_header_is_found_in_any_case_and_container(headers):
    assert collect_headers(headers, ["X-Retry-Depth"]) == {"x-retry-depth": ["3", "2"]}


@pytest.mark.parametrize("headers", [None, {}, (), {"X-Other": "1", 5: "2", "X-Retry-Depth": 7}])
def test_header_that_is_not_text_is_ignored(headers):
    found = collect_headers(headers, ["X-Retry-Depth"])["x-retry-depth"]
    assert [read_number(each, 9) for each in found] in ([], [None])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("7", 7), ("007", 7), ("16", 16), ("17", 16), (TOO_LONG, 16), ("000", 0)),
        *((text, None) for text in ("", "-1", "+1", "1.5", "1e3", "nan", "inf", "0x1", "1_0")),
        *((text, None) for text in ("\u0663", "\u00b2", "1 2", "one", "1\n")),
    ],
    ids=ascii,
)
def test_number_is_read_and_bounded_and_other_values_are_ignored(text, number):
    assert read_number(text, 16) == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("1500m", 1.5), ("2S", 2.0), ("3M", 180.0), ("1H", 3600.0), ("5u", 5e-6), ("1n", 1e-9)),
        *((text, None) for text in ("1500", "m", "-1m", "1.5S", "123456789m", "1s", "1mm", "nanS")),
    ],
)
def test_grpc_timeout_is_read(text, seconds):
    assert read_timeout("Grpc-Timeout", text) == pytest.approx(seconds)


def test_other_timeouts_are_milliseconds():
    assert read_timeout("x-envoy-expected-rq-timeout-ms", "1500") == 1.5
    assert read_timeout("X-Request-Timeout-Ms", "1500m") is None
    assert read_timeout("X-Request-Timeout-Ms", TOO_LONG) == MOST_MILLISECONDS / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "1n"), (0.0004, "1n"), (1.5, "1500m"), (99_999.0, "99999000m")),
        *((100_000.0, "100000S"), (1e8, "1666666M"), (1e10, "2777777H"), (1e300, "99999999H")),
    ],
)
def test_grpc_timeout_has_eight_digits_and_is_never_zero(seconds, text):
    assert write_timeout("grpc-timeout", seconds) == text


@pytest.mark.parametrize("name", NAMES)
@given(seconds=st.floats(0, 1e300))
def test_timeout_read_back_is_at_most_the_written_time(name, seconds):
    again = read_timeout(name, write_timeout(name, seconds))
    assert again is not None
    assert again <= max(seconds, 1e-9)
    if seconds < 99_999:
        assert seconds - again <= 0.001 + 1e-9 * seconds


@given(number=st.integers(1, 1000))
def test_attempt_is_read_as_it_was_written(number):
    assert read_attempt("X-Retry-Attempt", write_attempt("X-Retry-Attempt", number)) == number
    grpc = write_attempt("grpc-previous-rpc-attempts", number)
    assert grpc == (None if number == 1 else str(number - 1))
    if grpc:
        assert read_attempt("grpc-previous-rpc-attempts", grpc) == number


@given(text=st.text() | st.binary())
def test_invalid_header_values_do_not_raise(text):
    for value in collect_headers([("x", text), (text, text)], ["x"])["x"]:
        read_flag("x", value)
        number = read_number(value, 16)
        assert number is None or 0 <= number <= 16
        for name in NAMES:
            seconds = read_timeout(name, value)
            assert seconds is None or 0 <= seconds <= 1e12


@pytest.mark.parametrize(("text", "flag"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_flag_is_1_or_true(text, flag):
    assert read_flag("X-No-Retry", text) is flag


def test_http_libraries_accept_the_written_headers():
    headers = {"X-Retry-Depth": "1", "X-Request-Timeout-Ms": "1500"}
    for made in (
        httpx.Request("GET", "http://127.0.0.1", headers=headers).headers,
        requests.Request("GET", "http://127.0.0.1", headers=headers).prepare().headers,
        aiohttp.client_reqrep.CIMultiDict(headers),
    ):
        assert collect_headers(made, NAMES)["x-request-timeout-ms"] == ["1500"]
