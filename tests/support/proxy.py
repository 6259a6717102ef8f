"""A TCP proxy between a cache and its server: it counts the requests, and cuts connections."""

import re
import select
import socket
import threading
from contextlib import suppress

from attrs import define

__all__ = ["Proxy"]

AT_ONCE = 65536
# PostgreSQL: psycopg names a statement that it repeats, and sends only the name from then on.
NAMED = re.compile(rb"P.{4}(_pg3_\d+)\0([^\0]+)\0", re.DOTALL)
REPEATED = re.compile(rb"B.{4}\0(_pg3_\d+)\0", re.DOTALL)


@define
class Order:
    """To cut connections at certain requests.

    :param skipped: matching requests that pass first.
    :param times: cuts; None: each matching request until ``heal``.
    """

    when: str
    words: tuple[bytes, ...]
    skipped: int
    times: int | None

    def applies(self, when, request):
        if when != self.when or not all(word in request for word in self.words):
            return False
        self.skipped -= 1
        return self.skipped < 0


class Proxy:
    """Passes on what a client and a server say, whatever their language.

    A request is what the client says until the server answers; ``requests`` is their number.
    The text of a prepared statement of PostgreSQL counts as part of each request that repeats it.
    ``cuts`` counts the connections that were cut by ``cut()``.
    """

    def __init__(self, port, host="127.0.0.1"):
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._orders = []
        self._open = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.port = self._listener.getsockname()[1]
        self.requests = 0
        self.cuts = 0
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def cut(self, when, *words, skipped=0, times=1):
        """Cut the connection at the next request that has all the *words* (bytes) in it.

        *when* is "before": the server never sees the request; or "after": it has answered, which
        the client never sees.

        :param skipped: matching requests that pass first.
        :param times: cuts; None: each matching request until ``heal``.
        """
        assert when in ("before", "after"), when
        with self._lock:
            self._orders.append(Order(when, words, skipped, times))

    def heal(self):
        """Cut no connection any more."""
        with self._lock:
            self._orders.clear()

    def redirect(self, port):
        """Connect the clients that come from now on to another server."""
        self._server = (self._server[0], port)

    def close(self):
        """Cut every connection, and take no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with suppress(OSError):  # the client has closed it
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client):
        try:
            with socket.create_connection(self._server) as server:
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pass_on(client, server)
        except OSError:  # one of them is gone: so is the other then
            pass
        finally:
            with self._lock:
                self._open.discard(client)
                client.close()

    def _pass_on(self, client, server):
        request, answered, statements = b"", True, {}
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(AT_ONCE)
                if not data:
                    return
                if ready is client:
                    self.requests += answered
                    request = data if answered else request + data
                    answered = False
                    statements.update(NAMED.findall(request))
                    repeated = [statements.get(name, b"") for name in REPEATED.findall(data)]
                    request = b"".join([request, *repeated])
                    if self._is_cut("before", request):
                        return
                    server.sendall(data)
                else:
                    if not answered and self._is_cut("after", request):
                        return
                    answered = True
                    client.sendall(data)

    def _is_cut(self, when, request):
        with self._lock:
            for order in self._orders:
                if order.applies(when, request):
                    if order.times is not None:
                        order.times -= 1
                    if order.times == 0:
                        self._orders.remove(order)
                    self.cuts += 1
                    return True
        return False
