"""A server on which breakers share circuits."""

import os

import pytest

from tests.control.breaker.redis.shared import Sharing

# Processes that are forked.
if not hasattr(os, "fork"):
    collect_ignore = ["test_processes.py"]


@pytest.fixture
def sharing(valkey_url):
    made = Sharing(valkey_url)
    yield made
    made.close()
