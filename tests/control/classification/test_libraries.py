"""Presets and the libraries that they are for: real errors, from real servers, on no real time."""

import asyncio

import aiohttp
import httpx
import httpx2
import pytest
import requests

from retrytemplate.control import (
    AIOHTTP,
    HTTPX,
    REQUESTS,
)
from tests.support.http_service import RESET, SILENCE, Page
from tests.support.postgres import free_port

KEY = {"Idempotency-Key": "order-17"}


@pytest.fixture
def asked(server):
    return Page(server)


class Client:
    """One of the libraries, with its preset; each call is one request."""

    def __init__(self, made, call):
        self.preset, self.call = made, call

    def outcome(self, asked, method="GET", headers=None, *, url=None, seconds=10.0, **changes):
        template = self.preset.with_(**changes).template(clock=asked.clock)
        request = (method, url or asked.url, headers or {}, seconds)
        if asyncio.iscoroutinefunction(self.call):
            return asyncio.run(template.outcome_async(self.call, *request))
        return template.outcome(self.call, *request)


def by_httpx(method, url, headers, seconds):
    with httpx.Client(trust_env=False, verify=False, timeout=seconds) as client:
        client.request(method, url, headers=headers).raise_for_status()


def by_httpx2(method, url, headers, seconds):
    with httpx2.Client(trust_env=False, verify=False, timeout=seconds) as client:
        client.request(method, url, headers=headers).raise_for_status()


async def by_async_httpx(method, url, headers, seconds):
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=seconds) as client:
        (await client.request(method, url, headers=headers)).raise_for_status()


def by_requests(method, url, headers, seconds):
    with requests.Session() as session:
        session.trust_env = False
        session.request(method, url, headers=headers, timeout=seconds).raise_for_status()


async def by_aiohttp(method, url, headers, seconds):
    timeout = aiohttp.ClientTimeout(sock_read=seconds)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, url, headers=headers) as response,
    ):
        response.raise_for_status()


CLIENTS = {
    "httpx": Client(HTTPX, by_httpx),
    "httpx2": Client(HTTPX, by_httpx2),
    "httpx, asynchronous": Client(HTTPX, by_async_httpx),
    "requests": Client(REQUESTS, by_requests),
    "aiohttp": Client(AIOHTTP, by_aiohttp),
}
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@every_client
@pytest.mark.statement("S0-32")
@pytest.mark.parametrize(
    ("status", "attempts"),
    [(408, 2), (429, 2), (500, 2), (401, 1), (404, 1)],
)
def test_the_status_decides(asked, client, status, attempts):
    asked.answers(status)
    assert client.outcome(asked).attempts == len(asked.requests) == attempts


@every_client
def test_the_server_says_when(asked, client):
    asked.answers((429, {"Retry-After": "7"}), (503, {"Retry-After": "9"}))
    assert client.outcome(asked).attempts == 3
    first, second = asked.clock.sleeps
    assert 7.0 <= first <= 7.7
    assert 9.0 <= second <= 9.9


@every_client
def test_a_wait_that_is_too_long_is_not_waited(asked, client):
    asked.answers((429, {"Retry-After": "3600"}))
    outcome = client.outcome(asked)
    assert (outcome.attempts, outcome.exception.retry_after) == (1, 3600.0)


@every_client
@pytest.mark.parametrize(
    ("method", "headers", "attempts"), [("PUT", {}, 2), ("POST", {}, 1), ("POST", KEY, 2)]
)
def test_a_post_comes_twice_only_with_a_key(asked, client, method, headers, attempts):
    asked.answers(503)
    assert client.outcome(asked, method, headers).attempts == attempts


@every_client
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_call_to_a_closed_port_is_retried(asked, client, method):
    nobody = f"http://127.0.0.1:{free_port()}/"
    outcome = client.outcome(asked, method, url=nobody)
    assert (outcome.attempts, len(asked.clock.sleeps)) == (4, 3)


@every_client
def test_a_connection_that_is_lost(asked, client):
    asked.answers(RESET)
    # A POST: aiohttp makes others once more by itself, and its failure does not say what it was.
    outcome = client.outcome(asked, "POST", idempotent=True)
    assert (outcome.exception, outcome.attempts) == (None, 2)


@every_client
def test_a_client_s_own_timeout(asked, client):
    asked.answers(SILENCE)
    outcome = client.outcome(asked, "PUT", seconds=0.05, idempotent=True)
    assert outcome.exception is None
    assert outcome.attempts > 1  # a busy machine may exceed the real timeout once more
