"""A shop that is called over HTTP, by the real libraries, and fails as configured."""

import asyncio
import json
import select
import socket
import struct
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import httpx
import pytest
import requests

from retrytemplate.testing import VirtualClock

RESET = "reset"
SILENCE = "silence"
PATIENCE = 20.0
SENT = 1_700_000_000.0


class Shop(BaseHTTPRequestHandler):
    """Responds as configured, then with 200; each test has its own path.

    An answer is a status, its headers, and a body for JSON, if there is one.
    """

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        clock, answers, requests = self.server.scripts[self.path]
        requests.append((self.command, clock.monotonic()))
        status, headers, *content = answers.pop(0) if answers else (200, {})
        body = json.dumps(content[0]).encode() if content else b""
        if status == SILENCE:
            select.select([self.connection], [], [], PATIENCE)  # until the client hangs up
            self.close_connection = True
            return
        if status == RESET:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.shutdown(socket.SHUT_RD)
            self.close_connection = True
            return
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_OPTIONS = do_PUT = do_DELETE = do_POST = do_PATCH = answer

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


class Sync:
    """A library whose calls block."""

    def __init__(self, name, call):
        self.name, self.call = name, call

    def outcome(self, template, *request):
        return template.outcome(self.call, *request)


def by_httpx(method, url, headers):
    with httpx.Client(trust_env=False, verify=False, follow_redirects=True) as client:
        client.request(method, url, headers=headers).raise_for_status()


def by_requests(method, url, headers):
    with requests.Session() as session:
        session.trust_env = False
        session.request(method, url, headers=headers, timeout=10).raise_for_status()


def by_urllib(method, url, headers):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        opener.open(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise


class ByAiohttp:
    """The same without blocking."""

    name = "aiohttp"

    def outcome(self, template, method, url, headers):
        async def main():
            async with aiohttp.ClientSession() as session:

                async def call():
                    async with session.request(method, url, headers=headers) as response:
                        response.raise_for_status()

                return await template.outcome_async(call)

        return asyncio.run(main())


HTTPX, REQUESTS = Sync("httpx", by_httpx), Sync("requests", by_requests)
AIOHTTP, URLLIB = ByAiohttp(), Sync("urllib", by_urllib)


def with_each(*clients):
    return pytest.mark.parametrize("client", clients, ids=lambda client: client.name)


every_client = with_each(HTTPX, REQUESTS, AIOHTTP, URLLIB)
with_method = with_each(HTTPX, REQUESTS, AIOHTTP)


class Page:
    """A path of the shop, its responses, and the times of its requests."""

    def __init__(self, server, below=""):
        self.clock = VirtualClock(epoch=SENT)
        self.requests = []
        self.server = server
        self.base = f"/{len(server.scripts)}"
        self.path = self.base + below
        self.answers()

    def answers(self, *answers):
        script = [each if isinstance(each, tuple) else (each, {}) for each in answers]
        self.server.scripts[self.path] = self.clock, script, self.requests

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}{self.base}"

    @property
    def times(self):
        """The times of the requests by the template's clock."""
        return [at for _, at in self.requests]
