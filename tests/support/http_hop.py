"""A service that calls the next one with retry: a process of three in ``test_propagation.py``.

``python -m tests.support.http_hop [PORT]``: the port of the next one; the last has none, and fails.
"""

import http.client
import sys
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from retrytemplate import NoBackoff, RetryTemplate, SimpleRetryPolicy
from retrytemplate.control import NestedRetries, Propagation

PROPAGATION = Propagation()
PLAIN = RetryTemplate(SimpleRetryPolicy(3, retry_on=ConnectionError), NoBackoff())
TEMPLATES = {"/plain": PLAIN, "/guarded": PLAIN.with_(guards=[NestedRetries()])}
calls = []


def call_next(port, path):
    if port is None:  # the backend: it counts its calls, and is down
        calls.append(PROPAGATION.outgoing().get("X-Retry-Attempt", ""))
        raise ConnectionError("down")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        headers = PROPAGATION.outgoing() if path == "/guarded" else {}
        connection.request("GET", path, headers=headers)
        if connection.getresponse().status != 200:
            raise ConnectionError("bad gateway")
    finally:
        connection.close()


class Layer(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/calls":
            return self.answer(200, "\n".join(calls))
        guarded = self.path == "/guarded"
        with PROPAGATION.incoming(self.headers) if guarded else nullcontext():
            ended = TEMPLATES[self.path].outcome(call_next, self.server.next_port, self.path)
        return self.answer(200 if ended.ok else 503, "")

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        """Print nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Layer) as server:
        server.next_port = int(sys.argv[1]) if sys.argv[1:] else None
        print(server.server_port, flush=True)
        server.serve_forever()
