"""``Retry-After`` and the HTTP status as real clients pass them on, from a real server."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

import aiohttp
import httpx
import pytest
import requests

from retrytemplate import ExceptionClassifier, FixedBackoff, RetryAfterBackoff
from tests.backoff.driving import delays

FALLBACK = 7.0
SENT = 1_700_000_000.0


class Unavailable(BaseHTTPRequestHandler):
    """Answers with the status of the path, and the headers of the query."""

    def do_GET(self):
        url = urlsplit(self.path)
        self.send_response_only(int(url.path.strip("/")))
        for name, values in parse_qs(url.query, keep_blank_values=True).items():
            self.send_header(name, values[0])
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def by_httpx(url):
    with httpx.Client(trust_env=False) as client:
        client.get(url).raise_for_status()


def by_requests(url):
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=10).raise_for_status()


def by_aiohttp(url):
    async def get():
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            response.raise_for_status()

    asyncio.run(get())


def by_urllib(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10):
        pass


CLIENTS = {
    "httpx": (by_httpx, httpx.HTTPStatusError, "httpx.HTTPStatusError"),
    "requests": (by_requests, requests.HTTPError, "requests.HTTPError"),
    "aiohttp": (by_aiohttp, aiohttp.ClientResponseError, "aiohttp.ClientResponseError"),
    "urllib": (by_urllib, urllib.error.HTTPError, "urllib.error.HTTPError"),
}


@pytest.fixture(params=CLIENTS)
def client(request):
    return CLIENTS[request.param]


@pytest.fixture
def failure(client, server):
    """Sends a request that fails; returns the exception of the client."""
    call, kind, _ = client
    raised = []

    def make(status, **headers):
        query = "&".join(f"{name.replace('_', '-')}={quote(v)}" for name, v in headers.items())
        with pytest.raises(kind) as caught:
            call(f"{server}/{status}?{query}")
        raised.append(caught.value)
        return caught.value

    yield make
    for error in raised:
        if isinstance(error, urllib.error.HTTPError):
            error.close()


def wait(error, **settings):
    backoff = RetryAfterBackoff(FixedBackoff(FALLBACK), jitter=0.0, **settings)
    return delays(backoff, 1, failure=error)[0]


@pytest.mark.statement("S3-10")
@pytest.mark.parametrize("status", [429, 503])
def test_seconds_are_read(failure, status):
    assert wait(failure(status, Retry_After="17")) == 17.0


@pytest.mark.statement("S3-10")
def test_date_is_read(failure):
    later = formatdate(SENT + 90, usegmt=True)
    assert wait(failure(503, Retry_After=later, Date=formatdate(SENT, usegmt=True))) == 90.0


def test_header_name_may_be_lower_case(failure):
    assert wait(failure(503, retry_after="17")) == 17.0


def test_milliseconds_take_precedence_over_seconds(failure):
    assert wait(failure(429, retry_after_ms="1250.5", Retry_After="2")) == 1.2505


@pytest.mark.parametrize("rubbish", ["soon", "-1", "inf", ""])
def test_invalid_milliseconds_leave_the_seconds(failure, rubbish):
    assert wait(failure(429, retry_after_ms=rubbish, Retry_After="2")) == 2.0


def test_invalid_milliseconds_are_noted(failure):
    error = failure(429, retry_after_ms="soon")
    assert wait(error) == FALLBACK
    assert error.__notes__ == ["retry-after-ms ignored, not a time in the future: 'soon'"]


@pytest.mark.statement("S3-10")
def test_invalid_value_is_ignored_with_a_note(failure):
    error = failure(503, Retry_After="when-it-suits")
    assert wait(error) == FALLBACK
    assert error.__notes__ == ["Retry-After ignored, not a time in the future: 'when-it-suits'"]


def test_fallback_applies_without_the_header(failure):
    assert wait(failure(503)) == FALLBACK


@pytest.mark.statement("S3-10")
def test_delay_above_limit_ends_attempts_with_delay_on_the_error(failure):
    error = failure(503, Retry_After="86400")
    assert wait(error, give_up_above=120.0) is None
    assert error.retry_after == 86400.0
    assert "86400 s" in error.__notes__[0]


@pytest.mark.parametrize(("status", "worth_it"), [(503, True), (429, True), (404, False)])
def test_configured_classifier_reads_the_status(failure, client, status, worth_it):
    _, _, name = client
    rules = ExceptionClassifier.from_config({name: {"status": {"5xx": True, 429: True}}})
    assert rules.classify(failure(status)) is worth_it
