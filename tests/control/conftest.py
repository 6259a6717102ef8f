"""What the tests of control objects share."""

import sys

import pytest


@pytest.fixture
def switching():
    """Threads take turns after every few steps: where a lock is missing, it shows."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
