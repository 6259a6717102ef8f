"""Synchronous and asynchronous durable caches pass their conformance kits on every store."""

from contextlib import contextmanager
from functools import partial

import pytest

from retrytemplate.testing import AsyncCacheConformance, CacheConformance


def each_of(kit):
    return pytest.mark.parametrize("test", kit.names_of_tests())


@each_of(CacheConformance)
def test_synchronous_cache_passes_its_kit(store, test):
    class Kit(CacheConformance):
        def make(self):
            return store.cache()

    getattr(Kit(), test)()


@each_of(AsyncCacheConformance)
def test_asynchronous_cache_passes_its_kit(store, test):
    check(store.async_cache, test)


@each_of(AsyncCacheConformance)
def test_cache_with_a_shared_pipeline_passes_the_kit(valkey, test):
    check(partial(valkey.async_cache, pipeline=True), test)


def check(make_cache, test):
    class Kit(AsyncCacheConformance):
        def make(self):
            return make_cache()

        @contextmanager
        def opened(self):
            with super().opened() as waiting:
                yield waiting
                waiting.close()

    getattr(Kit(), test)()
