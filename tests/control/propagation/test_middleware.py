"""Incoming values around each request: ASGI and WSGI applications on local servers."""

import asyncio
import json
import threading
import wsgiref.simple_server
from contextlib import contextmanager

import httpx
import pytest

from retrytemplate import Deadline, RetryTemplate
from retrytemplate.control import Nesting, Propagation
from retrytemplate.testing.conformance.base import JOIN_TIMEOUT

PROPAGATION = Propagation(max_timeout=30)
HEADERS = {"X-Retry-Depth": "2", "X-Retry-Attempt": "3", "X-Request-Timeout-Ms": "1500"}


def known():
    """The incoming values of the current request, as a line of JSON."""
    here, deadline = Nesting.current(), Deadline.current()
    left = None if deadline is None else deadline.remaining() <= 1.5
    return json.dumps([here.depth, here.attempt, left]).encode() + b"\n"


EXPECTED = {"none": [0, 1, False], "given": [2, 3, True]}


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("around", [PROPAGATION.asgi, PROPAGATION.wsgi], ids=["asgi", "wsgi"])
def test_wrong_type_of_application_is_rejected(around):
    with pytest.raises(TypeError, match="app must be callable, got None"):
        around(None)


# -- ASGI ------------------------------------------------------------------------------------------


@PROPAGATION.asgi
async def asgi_app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": known()})


async def serve(reader, writer):
    """A minimal HTTP server for the test."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()[1:-1]
    pairs = [line.split(": ", 1) for line in head]
    headers = [(name.lower().encode(), value.encode()) for name, value in pairs]

    async def send(event):
        if event["type"] == "http.response.start":
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        else:
            writer.write(event["body"])

    await asgi_app({"type": "http", "headers": headers}, None, send)
    writer.close()
    await writer.wait_closed()


def test_asgi_application_has_the_incoming_values():
    async def main():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with httpx.AsyncClient(trust_env=False, timeout=JOIN_TIMEOUT) as client:
                responses = await asyncio.gather(client.get(url), client.get(url, headers=HEADERS))
        return [json.loads(each.text) for each in responses]

    assert asyncio.run(main()) == [EXPECTED["none"], EXPECTED["given"]]


def test_asgi_transport_in_the_same_process_counts_no_layer_twice():
    async def main():
        transport = httpx.ASGITransport(app=asgi_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:

            async def fetch():
                return await client.get("/", headers=PROPAGATION.outgoing())

            return (await RetryTemplate().call_async(fetch)).json()

    assert asyncio.run(main()) == [1, 1, False]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_scope_that_is_not_a_request_has_no_limit(kind):
    seen = []

    async def app(scope, receive, send):
        seen.append((Nesting.current(), Deadline.current()))

    scope = {"type": kind, "headers": [(b"x-retry-depth", b"2")]}
    asyncio.run(PROPAGATION.asgi(app)(scope, None, None))
    assert seen == [(Nesting(), None)]


# -- WSGI ------------------------------------------------------------------------------------------


def as_a_list(environ, start_response):
    start_response("200 OK", [])
    return [known()]


def as_a_generator(environ, start_response):
    start_response("200 OK", [])
    yield known()
    yield known()


def with_write(environ, start_response):
    start_response("200 OK", [])(known())
    return ()


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        """Print nothing."""


@contextmanager
def served(app):
    with wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{server.server_port}",
                trust_env=False,
                timeout=JOIN_TIMEOUT,
            ) as client:
                yield client
        finally:
            server.shutdown()
            thread.join(JOIN_TIMEOUT)


@pytest.mark.parametrize("app", [as_a_list, as_a_generator, with_write])
def test_wsgi_application_has_the_incoming_values_until_its_body_ends(app):
    with served(PROPAGATION.wsgi(app)) as client:
        for case, headers in (("given", HEADERS), ("none", {}), ("given", HEADERS)):
            responses = lines(client.get("/", headers=headers).text)
            assert responses == [EXPECTED[case]] * (2 if app is as_a_generator else 1)


def test_header_name_may_have_an_underscore():
    propagation = Propagation(depth="x_retry_depth")
    seen = []
    app = propagation.wsgi(lambda environ, start_response: [seen.append(Nesting.current().depth)])
    app({"HTTP_X_RETRY_DEPTH": "2"}, None)
    assert seen == [2]


def test_wsgi_body_is_closed_inside_the_incoming_values():
    closed = []

    class Body:
        def __iter__(self):
            return iter([b"first", b"second"])

        def close(self):
            closed.append(Nesting.current().depth)

    app = PROPAGATION.wsgi(lambda environ, start_response: Body())
    body = app({"HTTP_X_RETRY_DEPTH": "2", "PATH_INFO": "/"}, None)
    assert next(iter(body)) == b"first"
    assert Nesting.current() == Nesting()
    assert Deadline.current() is None
    body.close()
    assert closed == [2]
    never_closed = app({"HTTP_X_RETRY_DEPTH": "2"}, None)
    assert list(never_closed) == [b"first", b"second"]
    assert Nesting.current() == Nesting()
