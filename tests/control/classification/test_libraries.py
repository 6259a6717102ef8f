"""Presets for client libraries: real errors from real servers, in virtual time."""

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
def service(server):
    return Page(server)


class Client:
    """One of the libraries, with its preset; each call is one request."""

    def __init__(self, made, call):
        self.preset, self.call = made, call

    def outcome(self, service, method="GET", headers=None, *, url=None, seconds=10.0, **changes):
        template = self.preset.with_(**changes).template(clock=service.clock)
        request = (method, url or service.url, headers or {}, seconds)
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
def test_status_decides(service, client, status, attempts):
    service.answers(status)
    assert client.outcome(service).attempts == len(service.requests) == attempts


@every_client
def test_retry_after_of_the_server_is_used(service, client):
    service.answers((429, {"Retry-After": "7"}), (503, {"Retry-After": "9"}))
    assert client.outcome(service).attempts == 3
    first, second = service.clock.sleeps
    assert 7.0 <= first <= 7.7
    assert 9.0 <= second <= 9.9


@every_client
def test_retry_after_over_the_limit_is_not_waited(service, client):
    service.answers((429, {"Retry-After": "3600"}))
    outcome = client.outcome(service)
    assert (outcome.attempts, outcome.exception.retry_after) == (1, 3600.0)


@every_client
@pytest.mark.parametrize(
    ("method", "headers", "attempts"), [("PUT", {}, 2), ("POST", {}, 1), ("POST", KEY, 2)]
)
def test_post_is_repeated_only_with_a_key(service, client, method, headers, attempts):
    service.answers(503)
    assert client.outcome(service, method, headers).attempts == attempts


@every_client
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_call_to_a_closed_port_is_retried(service, client, method):
    unreachable = f"http://127.0.0.1:{free_port()}/"
    outcome = client.outcome(service, method, url=unreachable)
    assert (outcome.attempts, len(service.clock.sleeps)) == (4, 3)


@every_client
def test_lost_connection_is_retried(service, client):
    service.answers(RESET)
    # A POST: aiohttp makes others once more by itself, and its failure does not say what it was.
    outcome = client.outcome(service, "POST", idempotent=True)
    assert (outcome.exception, outcome.attempts) == (None, 2)


@every_client
def test_timeout_of_the_client_is_retried(service, client):
    service.answers(SILENCE)
    outcome = client.outcome(service, "PUT", seconds=0.05, idempotent=True)
    assert outcome.exception is None
    assert outcome.attempts > 1  # a busy machine may exceed the real timeout once more
