"""A durable cache passes the kits of its seam, on every store, synchronous and not."""

from contextlib import contextmanager

import pytest

from retrytemplate.testing import AsyncCacheConformance, CacheConformance


def each_of(kit):
    return pytest.mark.parametrize("test", kit.names_of_tests())


@each_of(CacheConformance)
def test_the_synchronous_one(store, test):
    class Kit(CacheConformance):
        def make(self):
            return store.cache()

    getattr(Kit(), test)()


@each_of(AsyncCacheConformance)
def test_the_asynchronous_one(store, test):
    class Kit(AsyncCacheConformance):
        def make(self):
            return store.async_cache()

        @contextmanager
        def opened(self):
            with super().opened() as waiting:
                yield waiting
                waiting.close()

    getattr(Kit(), test)()
