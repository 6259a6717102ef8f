"""A server on which rate limiters share their limits."""

import os
from itertools import count

import pytest
from sqlalchemy import make_url

from retrytemplate.control import RateLimiter, RedisRateLimitStore
from tests.support import valkey

numbers = count(1)


class Sharing:
    """Limits on a server, under a prefix of their own."""

    def __init__(self, url):
        self.url = url
        self.prefix = f"r{os.getpid()}_{next(numbers)}"
        self.client = valkey.opened(url)
        self.made = []

    def store(self, url=None, **settings):
        self.made.append(
            RedisRateLimitStore(url or self.url, self.prefix, **{"timeout": 20.0} | settings)
        )
        return self.made[-1]

    def limiter(self, store=None, **settings):
        settings = {"permits": 1, "per": 3600.0, "on_store_error": "raise"} | settings
        self.made.append(RateLimiter("billing", store=store or self.store(), **settings))
        return self.made[-1]

    def key(self, *parts):
        return ":".join([f"{self.prefix}:rate:{{billing}}", *parts])

    @property
    def port(self):
        return make_url(self.url).port

    def close(self):
        for each in reversed(self.made):
            each.close()
        self.client.close()


@pytest.fixture
def sharing(valkey_url):
    made = Sharing(valkey_url)
    yield made
    made.close()
