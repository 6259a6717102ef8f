"""A server on which breakers share circuits."""

import os
import sys

import pytest

from tests.control.breaker.redis.shared import Sharing

# Workers that die, and many of them at once: on one version, and where a process can be forked.
if sys.version_info[:2] != (3, 11) or not hasattr(os, "fork"):
    collect_ignore = ["test_processes.py"]


@pytest.fixture
def sharing(valkey_url):
    made = Sharing(valkey_url)
    yield made
    made.close()
