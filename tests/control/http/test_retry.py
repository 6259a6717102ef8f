"""Calls over HTTP by real clients to a real server, on a virtual clock."""

import asyncio
import socket
from contextlib import suppress
from email.utils import formatdate
from random import Random

import aiohttp
import httpx
import httpx2
import pytest
import trio

from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    NoBackoff,
    Rejected,
    RetryListener,
    RetryTemplate,
)
from retrytemplate._internal.awaitables import in_trio
from retrytemplate.control import TRANSIENT_ERRORS, http_retry
from retrytemplate.testing import (
    ClassifierConformance,
    GuardConformance,
    VirtualClock,
    run,
    run_trio,
)
from tests.support.gc_probe import left_by
from tests.support.http_service import (
    AIOHTTP,
    HTTPX,
    REQUESTS,
    RESET,
    SENT,
    URLLIB,
    Page,
    every_client,
    with_each,
    with_method,
)
from tests.support.postgres import free_port

KEY = {"Idempotency-Key": "order-17"}
NORMAL = FixedBackoff(1000.0)
"""A wait that must not happen."""


class Service(Page):
    """A path of the shop, and the outcomes of its calls."""

    def by(self, client, method="GET", headers=None, **settings):
        """The outcome of one call through a template."""
        settings = {"backoff": NORMAL, "jitter": 0.0, "idempotent": True} | settings
        template = http_retry(clock=self.clock, **settings)
        return self.through(client, template, method, headers)

    def through(self, client, template, method="GET", headers=None):
        return client.outcome(template, method, self.url, headers or {})


@pytest.fixture
def service(server):
    return Service(server)


def rejected(status, after, **headers):
    return status, {"Retry-After": str(after), **headers}


def in_seconds(seconds):
    return formatdate(SENT + seconds, usegmt=True)


# Retry-After.


@every_client
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.statement("S3-09")
def test_retry_waits_for_retry_after(service, client, status):
    service.answers(rejected(status, 17), rejected(status, 3))
    assert service.by(client).attempts == 3
    assert service.times == [0.0, 17.0, 20.0]


@every_client
@pytest.mark.statement("S3-09")
def test_retry_waits_until_the_date_of_the_server(service, client):
    service.answers(
        rejected(503, in_seconds(30), Date=in_seconds(0)), rejected(503, in_seconds(50))
    )
    assert service.by(client).attempts == 3
    assert service.times == [0.0, 30.0, 50.0]


@every_client
@pytest.mark.statement("S3-09")
def test_callers_with_the_same_retry_after_return_apart_and_never_early(server, client):
    came = []
    for seed in range(8):
        service = Service(server)
        service.answers(rejected(429, 30))
        template = http_retry(backoff=NORMAL, idempotent=True, clock=service.clock, jitter=0.5)
        service.through(client, template.with_(random=Random(seed)))
        came.append(service.times[1])
    assert all(30.0 <= at <= 45.0 for at in came)
    assert len(set(came)) == len(came)


@every_client
def test_wait_above_the_limit_is_rejected_with_retry_after(service, client):
    service.answers(rejected(429, 86_400))
    outcome = service.by(client, give_up_above=120.0)
    assert (outcome.attempts, service.clock.sleeps) == (1, [])
    assert outcome.exception.retry_after == 86_400.0
    assert "86400 s" in outcome.exception.__notes__[0]


@every_client
def test_wait_beyond_the_deadline_is_rejected_with_retry_after(service, client):
    service.answers(rejected(503, 40))
    with Deadline(30.0, clock=service.clock):
        outcome = service.by(client)
    assert (outcome.attempts, service.clock.sleeps) == (1, [])
    assert isinstance(outcome.exception, DeadlineExceededError)
    assert outcome.exception.__cause__.retry_after == 40.0


@every_client
def test_backoff_applies_without_a_hint(service, client):
    service.answers(500, rejected(503, "soon"))
    assert service.by(client, backoff=FixedBackoff(5.0)).attempts == 3
    assert service.times == [0.0, 5.0, 10.0]


@every_client
@pytest.mark.statement("S3-24")
def test_shorter_backoff_does_not_precede_retry_after(service, client):
    service.answers(rejected(429, 30))
    impatient = http_retry(idempotent=True, clock=service.clock).with_(backoff=NoBackoff())
    outcome = service.through(client, impatient)
    assert len(service.requests) == 1
    assert isinstance(outcome.exception, Rejected)
    assert (outcome.exception.name, outcome.exception.retry_after) == ("Retry-After", 30.0)


@pytest.mark.statement("S3-24")
def test_longer_backoff_is_waited(service):
    service.answers(rejected(429, 30))
    slow = http_retry(clock=service.clock).with_(backoff=FixedBackoff(31.0))
    assert service.through(HTTPX, slow).attempts == 2


# What is retried.


@every_client
@pytest.mark.parametrize(
    ("status", "attempts"),
    [(500, 2), (502, 2), (504, 2), (408, 2), (400, 1), (401, 1), (403, 1), (404, 1), (422, 1)],
)
@pytest.mark.statement("S3-06")
def test_status_decides(service, client, status, attempts):
    service.answers(status)
    assert service.by(client).attempts == len(service.requests) == attempts


@every_client
@pytest.mark.statement("S3-06")
def test_reset_connection_is_retried(service, client):
    service.answers(RESET, RESET)
    outcome = service.by(client, "POST")  # a lost GET aiohttp makes once more by itself
    assert outcome.exception is None
    assert len(service.requests) == outcome.attempts == 3


@with_method
@pytest.mark.parametrize(
    ("method", "headers", "attempts"),
    [
        ("GET", {}, 2),
        ("HEAD", {}, 2),
        ("OPTIONS", {}, 2),
        ("PUT", {}, 2),
        ("DELETE", {}, 2),
        ("POST", {}, 1),
        ("PATCH", {}, 1),
        ("POST", KEY, 2),
        ("POST", {"idempotency-key": "order-17"}, 2),
        ("POST", {"Idempotency-Key": ""}, 1),
    ],
)
@pytest.mark.statement("S3-07", "S3-23")
def test_method_and_key_decide(service, client, method, headers, attempts):
    service.answers(503)
    outcome = service.by(client, method, headers, idempotent=False)
    assert outcome.attempts == len(service.requests) == attempts


@with_each(HTTPX, REQUESTS)
@pytest.mark.parametrize(("method", "attempts"), [("GET", 2), ("POST", 1)])
@pytest.mark.statement("S3-07", "S3-23")
def test_method_decides_without_a_response(service, client, method, attempts):
    service.answers(RESET)
    assert service.by(client, method, idempotent=False).attempts == attempts


@pytest.mark.parametrize(("method", "attempts"), [("PATCH", 1), ("PUT", 2)])
@pytest.mark.statement("S3-07", "S3-23")
def test_method_of_aiohttp_decides_without_a_response(service, method, attempts):
    service.answers(RESET, RESET)  # aiohttp sends some methods a second time by itself
    assert service.by(AIOHTTP, method, idempotent=False).attempts == attempts


# Attempts that are cancelled at their limit.


async def never(request):
    """A transport that never responds."""
    await sleep_for_ever()


async def by_httpx(method, url, headers, library=httpx):
    transport = library.MockTransport(never)
    async with library.AsyncClient(transport=transport, trust_env=False) as client:
        await client.request(method, url, headers=headers)


async def by_httpx2(method, url, headers):
    await by_httpx(method, url, headers, httpx2)


async def by_aiohttp(method, url, headers):
    async with aiohttp.ClientSession() as session:
        await session.request(method, url, headers=headers)


async def streamed_by_httpx(method, url, headers):
    class Body(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield b"a first piece"
            await sleep_for_ever()

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Body()))
    async with (
        httpx.AsyncClient(transport=transport, trust_env=False) as client,
        client.stream(method, url, headers=headers) as response,
    ):
        await response.aread()


async def sleep_for_ever():
    await (trio.sleep_forever() if in_trio() else asyncio.Event().wait())


@pytest.fixture
def silent():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


each_async_client = pytest.mark.parametrize(
    "fetch", [by_httpx, by_httpx2, by_aiohttp, streamed_by_httpx], ids=lambda each: each.__name__
)
each_method = pytest.mark.parametrize(
    ("method", "headers", "attempts"),
    [("GET", {}, 2), ("PUT", {}, 2), ("POST", {}, 1), ("PATCH", {}, 1), ("POST", KEY, 2)],
)


@each_async_client
@each_method
def test_attempt_cancelled_at_its_limit_is_retried_by_method(
    silent, fetch, method, headers, attempts
):
    clock = VirtualClock()
    template = http_retry(2, attempt_timeout=2.0, clock=clock)
    call = template.outcome_async(fetch, method, silent, headers)
    outcome = run(call, clock=clock)
    assert (type(outcome.exception), outcome.attempts) == (AttemptTimeoutError, attempts)


@each_method
def test_attempt_cancelled_in_trio_is_retried_by_method(method, headers, attempts):
    clock = VirtualClock()
    template = http_retry(2, attempt_timeout=2.0, clock=clock)
    outcome = run_trio(
        template.outcome_async, by_httpx, method, "http://shop.test/", headers, clock=clock
    )
    assert (type(outcome.exception), outcome.attempts) == (AttemptTimeoutError, attempts)


@pytest.mark.parametrize(("method", "attempts"), [("GET", 2), ("POST", 1)])
def test_block_cancelled_at_its_limit_is_retried_by_method(method, attempts):
    clock, made = VirtualClock(), []
    template = http_retry(2, attempt_timeout=2.0, clock=clock)

    async def main():
        with pytest.raises(AttemptTimeoutError):
            async for attempt in template.attempts():
                async with attempt:
                    made.append(method)
                    await by_httpx(method, "http://shop.test/", {})

    run(main(), clock=clock)
    assert len(made) == attempts


def test_search_for_the_request_leaves_no_garbage():
    template = http_retry(2, attempt_timeout=0.001)

    async def main():
        with suppress(AttemptTimeoutError):
            await template.call_async(by_httpx, "POST", "http://shop.test/", {})

    with asyncio.Runner() as runner:
        assert left_by(lambda: runner.run(main())) == 0


def test_request_of_the_caller_does_not_decide_for_the_one_it_makes():
    clock = VirtualClock()
    template = http_retry(2, attempt_timeout=2.0, clock=clock)

    async def handler():
        request = httpx.Request("GET", "http://own.test/")
        await by_httpx("POST", "http://shop.test/", {})
        return request

    assert run(template.outcome_async(handler), clock=clock).attempts == 1


def test_attempt_cancelled_outside_of_a_client_is_not_retried():
    clock = VirtualClock()
    template = http_retry(2, attempt_timeout=2.0, clock=clock)
    assert run(template.outcome_async(sleep_for_ever), clock=clock).attempts == 1


def test_redirected_post_that_is_cancelled_is_not_retried():
    clock = VirtualClock()
    template = http_retry(2, attempt_timeout=2.0, clock=clock)

    async def redirects(request):
        if request.method == "POST":
            return httpx.Response(303, headers={"Location": "/"}, request=request)
        await sleep_for_ever()

    async def post():
        transport = httpx.MockTransport(redirects)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            await client.post("http://shop.test/")

    assert run(template.outcome_async(post), clock=clock).attempts == 1


@pytest.mark.parametrize(
    ("client", "method", "answer"),
    [
        pytest.param(URLLIB, "GET", 503, id="GET by urllib"),
        pytest.param(URLLIB, "POST", 503, id="POST by urllib"),
        pytest.param(URLLIB, "POST", RESET, id="POST by urllib, without an answer"),
    ],
)
@pytest.mark.statement("S3-23")
def test_request_without_method_is_repeated_only_if_idempotent(server, client, method, answer):
    for declared, attempts in ((False, 1), (True, 2)):
        service = Service(server)
        service.answers(answer)
        assert service.by(client, method, idempotent=declared).attempts == attempts


@every_client
@pytest.mark.statement("S3-07", "S3-23")
def test_request_never_sent_is_repeated_with_any_method(service, client):
    template = http_retry(3, NORMAL, clock=service.clock)
    unreachable = f"http://127.0.0.1:{free_port()}/"
    assert client.outcome(template, "POST", unreachable, {}).attempts == 3


@with_method
@pytest.mark.statement("S3-23")
def test_redirect_does_not_turn_post_into_get(service, client):
    service.answers((303, {"Location": service.path}), 503)
    assert service.by(client, "POST", idempotent=False).attempts == 1
    assert [method for method, _ in service.requests] == ["POST", "GET"]


def test_key_header_can_have_another_name(service):
    service.answers(503)
    named = {"Request-Id": "17"}
    assert service.by(HTTPX, "POST", named, idempotent=False).attempts == 1
    service.answers(503)
    outcome = service.by(HTTPX, "POST", named, idempotent=False, key_header="Request-Id")
    assert outcome.attempts == 2


def failed(method, status=503, headers=None):
    request = httpx.Request(method, "http://shop.test/", headers=headers)
    response = httpx.Response(status, request=request)
    return httpx.HTTPStatusError(f"{status}", request=request, response=response)


def attempts_at(failure, **settings):
    template = http_retry(2, clock=VirtualClock(), **settings)
    return template.outcome(raising, failure).attempts


def raising(failure):
    raise failure


@pytest.mark.statement("S3-23")
def test_every_call_of_a_group_must_be_repeatable():
    assert attempts_at(ExceptionGroup("parts", [failed("GET"), failed("PUT")])) == 2
    assert attempts_at(ExceptionGroup("parts", [failed("GET"), failed("POST")])) == 1
    assert attempts_at(ExceptionGroup("parts", [failed("GET"), failed("GET", 404)])) == 1


def test_request_of_a_cause_is_used():
    for method, attempts in (("GET", 2), ("POST", 1)):
        failure = ConnectionError("no stock")
        failure.__cause__ = failed(method)
        assert attempts_at(failure) == attempts


@pytest.mark.parametrize("history", [None, {"first": 1}, {1}, 7, ()], ids=str)
def test_history_of_another_type_has_no_redirects(history):
    failure = failed("GET")
    failure.history = history
    assert attempts_at(failure) == 2


@pytest.mark.statement("S3-20")
def test_programming_error_is_not_retried():
    assert attempts_at(TypeError("bug"), idempotent=True) == 1


def test_default_backoff_is_used_without_a_hint():
    clock = VirtualClock()
    http_retry(clock=clock, random=Random(1)).outcome(raising, failed("GET"))
    assert len(clock.sleeps) == 4
    ceilings = (0.2, 0.4, 0.8, 1.6)
    assert all(0 <= delay <= top for delay, top in zip(clock.sleeps, ceilings, strict=True))


def test_template_accepts_template_settings():
    class Recorded(RetryListener):
        closed = 0

        def close(self, context, exception):
            self.closed += 1

    listener = Recorded()
    template = http_retry(name="shop", listeners=[listener])
    assert isinstance(template, RetryTemplate)
    assert template.name == "shop"
    template.call(int, "1")
    assert listener.closed == 1


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be an int >= 1, got 0"),
        ({"idempotent": "yes"}, TypeError, "idempotent must be True or False, got 'yes'"),
        ({"key_header": ""}, TypeError, "key_header must be a non-blank str"),
        (
            {"retryable": (OSError,)},
            TypeError,
            "retryable must be an ExceptionClassifier or None, got ",
        ),
        ({"guards": None}, TypeError, "guards must be a list or tuple, got None"),
        ({"give_up_above": -1}, ValueError, "give_up_above must be a number of seconds"),
        ({"backoff": 3}, TypeError, "backoff must be a Backoff or None, got 3"),
        ({"jitter": -1}, ValueError, "jitter must be a number >= 0"),
        ({"retries": 3}, TypeError, "retries"),
        (
            {"policy": None},
            TypeError,
            "policy must be left out: it is made of max_attempts, ",
        ),
    ],
)
def test_wrong_arguments_are_rejected(settings, error, message):
    with pytest.raises(error, match=message):
        http_retry(**settings)


class TestClassifier(ClassifierConformance):
    def make(self):
        return http_retry().policy.classifier


class TestGuard(GuardConformance):
    def make(self):
        return http_retry().guards[0]


def test_policy_uses_the_transient_classifier():
    assert http_retry().policy.classifier.of is TRANSIENT_ERRORS
