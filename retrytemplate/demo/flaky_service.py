"""A pricing service for the demo: real HTTP on a loopback port, with injected faults.

The fault of a request depends only on the seed, the item (its ``Idempotency-Key``) and the number
of earlier requests for the item: a seed gives the same faults in any order of work.
"""

from __future__ import annotations

import json
import select
import socket
import socketserver
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import cycle, islice
from random import Random
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from retrytemplate._internal.threads import Threads, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOST = "127.0.0.1"
PATH = "/prices"

CATALOGUE = {f"SKU-{number:04}": 99 + number * 7919 % 20_000 for number in range(1, 401)}
"""Unit prices in cents."""

POISONED = 0.003
FAULTY = 0.13
MAX_FAULTS = 3
KINDS = ("unavailable", "reset", "slow")
WEIGHTS = (0.73, 0.26, 0.01)
RETRY_AFTER_SHARE = 0.2
DATED = 0.1
# Seconds after which a slow response is sent, unless the client closes the connection first.
MAX_DELAY = 10.0
MAX_REQUEST = 65_536


@frozen
class Fault:
    """The fault of one request: ``unavailable`` (a 503), ``reset`` or ``slow``.

    *retry_after* is the ``Retry-After`` of a 503 in whole seconds, as a number or, if *dated*, as a
    date: RFC 9110, section 10.2.3.
    """

    kind: str
    retry_after: int = 0
    dated: bool = False


def faults(seed: int, key: str) -> Iterator[Fault]:
    """The faults of an item, in order.  Then it is served; a poison item never is.

    >>> list(faults(1, "line-2"))
    []
    """
    random = Random(f"{seed}/{key}")
    if random.random() < POISONED:
        yield from cycle((Fault("unavailable"), Fault("reset")))
    for _ in range(MAX_FAULTS):
        if random.random() >= FAULTY:
            return
        kind = random.choices(KINDS, WEIGHTS)[0]
        yield Fault(kind, int(random.random() < RETRY_AFTER_SHARE), random.random() < DATED)


class PricingService:
    """``POST /prices`` with ``{"sku": ..., "quantity": ...}`` answers ``{"cents": ...}``.

    :param seed: selects the faults of the items.
    :param port: 0 takes a free one; a port in use raises ``OSError``.

    It listens from construction on and serves inside the ``with`` block.  ``sent`` counts the
    responses: ``priced``, ``rejected`` (4xx), ``unavailable``, ``reset``, ``slow``.
    """

    def __init__(self, *, seed: int = 0, port: int = 0) -> None:
        self._server = _Server((HOST, port), seed)
        serve = partial(self._server.serve_forever, 0.02)
        self._thread = Threads("pricing-service", [serve])
        self.seed = seed
        self.host = HOST
        self.port: int = self._server.server_address[1]

    @property
    def sent(self) -> dict[str, int]:
        """The responses so far, by kind; final after the block."""
        with self._server.lock:
            return dict(self._server.sent)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        uninterrupted(self._close)

    def _close(self) -> None:
        if not self._thread.wait(0):
            self._server.shutdown()
            self._thread.wait()
        self._server.hang_up()
        self._server.server_close()  # waits for the threads that serve requests

    def __enter__(self) -> PricingService:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self.seed = seed
        self.lock = threading.Lock()
        self.sent: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._connections: set[Any] = set()
        super().__init__(address, _Handler)

    def next_fault(self, key: str) -> Fault | None:
        with self.lock:
            before = self._requests[key]
            self._requests[key] += 1
        return next(islice(faults(self.seed, key), before, None), None)

    def count(self, kind: str, by: int = 1) -> None:
        with self.lock:
            self.sent[kind] += by

    def hang_up(self) -> None:
        with self.lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # it may be closed already
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        # The inherited method calls shutdown(), which sends a FIN; a reset must not.
        with self.lock:
            self._connections.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects; print other errors."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    unconfirmed: str | None = None

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            # The client closed without reading the response: its timeout expired.
            if self.unconfirmed is not None:
                self._pricing.count(self.unconfirmed, -1)
                self._pricing.count("slow")

    def do_POST(self) -> None:
        self.unconfirmed = None
        key = self.headers.get("Idempotency-Key")
        order = self._read_order()
        if self.path != PATH or key is None or order is None:
            self._answer("rejected", 400, {"error": f"POST {PATH} with a key, a sku, a quantity"})
            return
        fault = self._pricing.next_fault(key)
        if fault is None:
            self._price(*order)
        elif fault.kind == "unavailable":
            wait = self._retry_after(fault)
            self._answer("unavailable", 503, {"error": "overloaded"}, {"Retry-After": wait})
        elif fault.kind == "reset":
            self._reset()
        else:
            self._hold_back(order)

    @property
    def _pricing(self) -> _Server:
        return cast("_Server", self.server)

    def _read_order(self) -> tuple[str, int] | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or int(length[:9]) > MAX_REQUEST:
            self.close_connection = True  # the rest would be read as the next request
            return None
        try:
            body = json.loads(self.rfile.read(int(length)))
            return str(body["sku"]), int(body["quantity"])
        except (ValueError, TypeError, LookupError):
            return None

    def _price(self, sku: str, quantity: int) -> None:
        unit = CATALOGUE.get(sku)
        if unit is None:
            self._answer("rejected", 404, {"error": f"no product {sku}"})
        else:
            self._answer("priced", 200, {"cents": unit * quantity})

    def _answer(
        self, kind: str, status: int, body: Mapping[str, Any], more: Mapping[str, str] | None = None
    ) -> None:
        if self._client_is_gone():
            kind, self.close_connection = "slow", True
        else:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in (more or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.unconfirmed = kind
        self._pricing.count(kind)

    def _retry_after(self, fault: Fault) -> str:
        if fault.dated:
            return self.date_time_string(int(time.time()) + fault.retry_after)
        return str(fault.retry_after)

    def _reset(self) -> None:
        # Lingering for zero seconds turns the close into a RST.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._pricing.count("slow" if self._client_is_gone() else "reset")
        self.close_connection = True

    def _hold_back(self, order: tuple[str, int]) -> None:
        select.select([self.connection], [], [], MAX_DELAY)
        if self._client_is_gone():
            self._pricing.count("slow")
            self.close_connection = True
        else:
            self._price(*order)

    def _client_is_gone(self) -> bool:
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the command prints the results."""
