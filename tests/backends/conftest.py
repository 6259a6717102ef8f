"""The stores on which the durable caches are tested."""

import asyncio

import pytest

from retrytemplate.caches import Record
from tests.support.redis_caches import ValkeyStore
from tests.support.sql_caches import SQLStore

KINDS = ("sqlite", "postgresql", "valkey")


def opened(kind, request):
    """A store of this kind; SQLite gets its own folder."""
    if kind == "valkey":
        return ValkeyStore(request.getfixturevalue("valkey_url"))
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
        url = f"sqlite:///{folder}/retry.db"
    else:
        url = request.getfixturevalue("postgres_url")
    return SQLStore(kind, url)


@pytest.fixture(params=KINDS)
def store(request):
    """A store of each kind."""
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """A store of each kind that is on SQL."""
    made = opened(request.param, request)
    yield made
    made.close()


@pytest.fixture
def sqlite(request):
    made = opened("sqlite", request)
    yield made
    made.close()


@pytest.fixture
def postgresql(request):
    made = opened("postgresql", request)
    yield made
    made.close()


@pytest.fixture(name="valkey")
def on_valkey(request):
    made = opened("valkey", request)
    yield made
    made.close()


@pytest.fixture
def cache(store):
    return store.cache()


class Awaited:
    """An asynchronous cache for synchronous tests: every method runs to its end in one loop."""

    def __init__(self, cache):
        self.cache = cache
        self.runner = asyncio.Runner()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def __getattr__(self, name):
        def method(*args, **kwargs):
            async def call():
                return await getattr(self.cache, name)(*args, **kwargs)

            return self.run(call())

        return method

    def close(self):
        self.run(self.cache.close())
        self.runner.close()


@pytest.fixture
def made(store):
    """A factory of caches: the synchronous one, on PostgreSQL also the asynchronous one."""
    caches = []

    def make(**settings):
        if store.kind != "postgresql":
            return store.cache(**settings)
        caches.append(Awaited(store.async_cache(**settings)))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()


def failing(claim, failures=1, *, held=False, **fields):
    """The record that a failed attempt leaves under a claim."""
    return Record(
        failures=failures,
        attempts=failures,
        version=claim.version + 1,
        fence=claim.fence,
        worker=claim.worker if held else None,
        **fields,
    )
