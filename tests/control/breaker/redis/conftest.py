"""A server on which breakers share circuits."""

import pytest

from tests.control.breaker.redis.shared import Sharing


@pytest.fixture
def sharing(valkey_url):
    made = Sharing(valkey_url)
    yield made
    made.close()
