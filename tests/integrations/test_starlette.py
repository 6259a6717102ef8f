"""FastAPI and Starlette on a real server: statuses, headers and limits of requests."""

import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from retrytemplate import (
    AttemptInProgressError,
    AttemptTimeoutError,
    BulkheadFullError,
    CacheUnavailableError,
    CircuitOpenError,
    CircuitStoreError,
    Deadline,
    DeadlineExceededError,
    IdempotencyKeyReusedError,
    IdempotencyRequiredError,
    KillSwitchActiveError,
    MisuseError,
    RateLimitedError,
    RateLimitStoreError,
    RetryBudgetExhaustedError,
    RetryLater,
    SwitchStoreError,
)
from retrytemplate.control import Propagation, RateLimiter, RedisRateLimitStore, http_status
from retrytemplate.integrations.starlette import (
    PropagationMiddleware,
    RateLimitMiddleware,
    add_exception_handlers,
)
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT
from tests.support.polling import wait_until
from tests.support.postgres import free_port


class OwnRejection(RateLimitedError):
    """A subclass, covered by its base."""


def in_progress():
    return AttemptInProgressError("x", lease_until=time.time() + 29.5)


# By path: the error, its status, and whether the header Retry-After is sent, and which.
ROWS = {
    "circuit": (lambda: CircuitOpenError("x", name="db", retry_after=27.2), 503, "28"),
    "bulkhead": (lambda: BulkheadFullError("x", name="db"), 503, None),
    "budget": (lambda: RetryBudgetExhaustedError("x", name="db"), 503, None),
    "switch": (lambda: KillSwitchActiveError("x", retry_after=0.0), 503, "1"),
    "outbound": (lambda: RateLimitedError("x", name="db", retry_after=0.02), 503, "1"),
    "subclass": (lambda: OwnRejection("x", retry_after=3.0), 503, "3"),
    "later": (lambda: RetryLater("x", retry_after=4.5), 503, "5"),
    "cache": (lambda: CacheUnavailableError("x"), 503, None),
    "circuits": (lambda: CircuitStoreError("x"), 503, None),
    "switches": (lambda: SwitchStoreError("x"), 503, None),
    "limits": (lambda: RateLimitStoreError("x"), 503, None),
    "deadline": (lambda: DeadlineExceededError("x"), 504, None),
    "attempt": (lambda: AttemptTimeoutError("x"), 504, None),
    "progress": (in_progress, 409, "30"),
    "unkeyed": (lambda: IdempotencyRequiredError("x", retry_after=3.0), 400, None),
    "reused": (lambda: IdempotencyKeyReusedError("x"), 422, None),
}


@contextmanager
def serving(app):
    """A client of the application on a real server."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=JOIN_TIMEOUT) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(JOIN_TIMEOUT)


def fastapi_app():
    app = FastAPI()

    @app.get("/errors/{name}")
    async def fails(name: str):
        raise ROWS[name][0]()

    @app.get("/fine")
    def fine():
        return "fine"

    return app


async def failing(request):
    raise ROWS[request.path_params["name"]][0]()


def fine(request):
    return PlainTextResponse("fine")


def starlette_app():
    routes = [Route("/{name}", failing)]
    return Starlette(routes=[Route("/fine", fine), Mount("/errors", routes=routes)])


apps = pytest.mark.parametrize("make", [fastapi_app, starlette_app], ids=["fastapi", "starlette"])


@apps
def test_each_error_has_its_status_and_retry_after(make):
    app = make()
    add_exception_handlers(app)
    with serving(app) as client:
        for name, (_, status, retry_after) in ROWS.items():
            response = client.get(f"/errors/{name}")
            assert (name, response.status_code) == (name, status)
            assert response.headers.get("Retry-After") == retry_after
            assert response.headers["Content-Type"] == "application/problem+json"
            body = response.json()
            assert body.pop("title")
            assert body == {"type": "about:blank", "status": status}
        assert client.get("/fine").status_code == 200


@pytest.mark.parametrize("name", ROWS)
def test_http_status_has_the_same_table(name):
    error, status, retry_after = ROWS[name]
    expected = {} if retry_after is None else {"Retry-After": retry_after}
    assert http_status(error()) == (status, expected)


def test_http_status_of_another_error_is_500():
    assert http_status(ValueError("x")) == (500, {})
    assert http_status(AttemptInProgressError("x")) == (409, {})


def test_names_are_shown_on_request_only():
    app = starlette_app()
    add_exception_handlers(app, expose_names=True, statuses={ZeroDivisionError: 502})

    async def divides(request):
        return 1 / 0

    app.routes.append(Route("/divides", divides))
    with serving(app) as client:
        body = client.get("/errors/circuit").json()
        assert (body["detail"], body["component"], body["name"]) == ("x", "circuit breaker", "db")
        response = client.get("/divides")
    assert (response.status_code, response.json()["detail"]) == (502, "division by zero")
    assert "component" not in response.json()


def test_error_of_the_application_stays_500():
    app = starlette_app()
    add_exception_handlers(app)

    async def breaks(request):
        raise ConnectionError("all attempts failed")

    app.routes.append(Route("/breaks", breaks))
    with serving(app) as client:
        assert client.get("/breaks").status_code == 500


def test_nested_application_has_handlers_of_its_own():
    inner = starlette_app()
    add_exception_handlers(inner)
    with serving(Starlette(routes=[Mount("/inner", app=inner)])) as client:
        response = client.get("/inner/errors/circuit")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "28")


async def test_error_of_a_websocket_is_raised():
    async def fails(websocket):
        raise CircuitOpenError("open")

    app = Starlette(routes=[WebSocketRoute("/ws", fails)])
    add_exception_handlers(app)
    scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b""}
    with pytest.raises(CircuitOpenError):
        await app(scope, None, None)


# -- inbound limits --------------------------------------------------------------------------------


def client_name(request):
    return request.headers.get("X-Client")


async def client_name_async(request):
    return client_name(request)


@apps
@pytest.mark.parametrize("key", [client_name, client_name_async])
def test_client_above_its_limit_gets_429(make, key):
    app = make()
    limiter = RateLimiter("clients", permits=2, per=3600.0, per_key=True)
    app.add_middleware(RateLimitMiddleware, limiter=limiter, key=key)
    with serving(app) as client:
        responses = [client.get("/fine", headers={"X-Client": "kim"}) for _ in range(3)]
        assert client.get("/fine", headers={"X-Client": "lee"}).status_code == 200
        assert client.get("/fine").status_code == 200
    assert [each.status_code for each in responses] == [200, 200, 429]
    rejected = responses[2]
    assert 1790 <= int(rejected.headers["Retry-After"]) <= 1800
    assert rejected.headers["Content-Type"] == "application/problem+json"
    assert rejected.json() == {"type": "about:blank", "title": "Too Many Requests", "status": 429}


def test_inbound_and_outbound_limits_have_different_statuses():
    app, partner = Starlette(), RateLimiter("partner", permits=1, per=3600.0)

    async def calls(request):
        await partner.call_async(int)
        return PlainTextResponse("called")

    app.routes.append(Route("/", calls))
    add_exception_handlers(app)
    app.add_middleware(RateLimitMiddleware, limiter=RateLimiter("inbound", permits=2, per=3600.0))
    with serving(app) as client:
        statuses = [client.get("/").status_code for _ in range(3)]
    assert statuses == [200, 503, 429]


def test_request_waits_for_its_permit():
    app = starlette_app()
    limiter = RateLimiter("clients", permits=1, per=0.05, max_wait=JOIN_TIMEOUT)
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    with serving(app) as client:
        assert [client.get("/fine").status_code for _ in range(3)] == [200] * 3


def test_unavailable_store_of_an_inbound_limit_is_503():
    app = starlette_app()
    store = RedisRateLimitStore(f"redis://127.0.0.1:{free_port()}", timeout=0.5)
    limiter = RateLimiter("clients", store=store, on_store_error="raise")
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    with serving(app) as client:
        assert client.get("/fine").status_code == 503
    store.close()


def test_key_without_a_limit_per_key_is_a_misuse():
    limiter = RateLimiter("clients")
    with pytest.raises(MisuseError, match="one limit for all keys"):
        RateLimitMiddleware(starlette_app(), limiter=limiter, key=client_name)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: RateLimitMiddleware(None, limiter=17), "limiter must be a RateLimiter"),
        (
            lambda: RateLimitMiddleware(
                None, limiter=RateLimiter("clients", per_key=True), key="kim"
            ),
            "key must be callable",
        ),
        (lambda: PropagationMiddleware(fine, propagation=17), "propagation must be"),
        (lambda: add_exception_handlers(Starlette(), statuses={17: 500}), "exception classes"),
        (lambda: add_exception_handlers(Starlette(), statuses={OSError: 200}), "statuses: each"),
        (lambda: add_exception_handlers(Starlette(), statuses={OSError: 600}), "at most 599"),
        (lambda: add_exception_handlers(Starlette(), expose_names=1), "expose_names must be"),
    ],
)
def test_wrong_arguments_are_rejected(make, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        make()


# -- propagation -----------------------------------------------------------------------------------


def test_propagation_and_limits_work_together():
    app, seen = Starlette(), []

    async def shows(request):
        seen.append(Deadline.current().remaining())
        return PlainTextResponse("fine")

    app.routes.append(Route("/", shows))
    add_exception_handlers(app)
    app.add_middleware(PropagationMiddleware, propagation=Propagation(max_timeout=10.0))
    limiter = RateLimiter("inbound", permits=2, per=3600.0)
    app.add_middleware(RateLimitMiddleware, limiter=limiter)
    with serving(app) as client:
        statuses = [
            client.get("/", headers=headers).status_code
            for headers in ({"X-Request-Timeout-Ms": "5000"}, {}, {})
        ]
    assert statuses == [200, 200, 429]
    assert seen[0] <= 5.0 < seen[1] <= 10.0


def test_deadline_of_the_caller_limits_the_wait_for_a_permit():
    app, partner = Starlette(), RateLimiter("partner", permits=1, per=60.0, max_wait=60.0)
    partner.acquire()

    async def calls(request):
        await partner.call_async(int)
        return PlainTextResponse("called")

    app.routes.append(Route("/", calls))
    add_exception_handlers(app)
    app.add_middleware(PropagationMiddleware)
    with serving(app) as client:
        response = client.get("/", headers={"X-Request-Timeout-Ms": "500"})
    assert response.status_code == 503
    assert 50 <= int(response.headers["Retry-After"]) <= 60
