"""Fixtures that the tests of control objects share."""

import sys
import threading

import pytest

from tests.support.http_service import Server, Shop


@pytest.fixture
def switching():
    """Switch threads after every few instructions, to reveal missing locks."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(scope="module")
def server():
    with Server(("127.0.0.1", 0), Shop) as listening:
        listening.scripts = {}
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()
