"""The connections of a store on Redis."""

import sys
from pathlib import Path

import pytest

from retrytemplate import CacheUnavailableError
from retrytemplate._storage.redis_connection import Connections

POOL_FILES = {"queue.py", "redis_connection.py"}


@pytest.mark.timeout(30)
def test_connection_can_be_taken_while_its_thread_takes_one():
    """A signal handler runs between two instructions of the pool, and asks the store itself."""
    connections = Connections("redis://127.0.0.1:9/0", timeout=0.2)
    interrupted = []

    def ask():
        with pytest.raises(CacheUnavailableError, match="Error 111 connecting"):
            connections.ask((None, ("PING",), True), "ping")

    def interrupt(frame, event, argument):
        if Path(frame.f_code.co_filename).name not in POOL_FILES:
            return None
        place = frame.f_code, frame.f_lineno
        if event == "line" and place not in interrupted:
            interrupted.append(place)
            sys.settrace(None)
            ask()
            sys.settrace(interrupt)
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        ask()
    finally:
        sys.settrace(before)
    assert len(interrupted) > 10
    connections.close()
