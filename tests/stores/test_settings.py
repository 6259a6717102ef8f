"""What the caches on SQL are made of; what cannot serve is refused when they are made."""

import asyncio
import re
import subprocess
import sys
from datetime import timedelta

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import (
    AsyncSQLRetryContextCache,
    MisuseError,
    RetryState,
    RetryTemplate,
    SQLRetryContextCache,
)
from retrytemplate._checks import SECONDS
from retrytemplate.testing import run_trio

FILE = "sqlite:///retry.db"
KINDS = [SQLRetryContextCache, AsyncSQLRetryContextCache]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lease": 0}, ValueError, f"lease must be {SECONDS} >= 0.01 and finite, got 0"),
        ({"lease": None}, TypeError, f"lease must be {SECONDS} >= 0.01 and finite, got"),
        ({"lease": float("inf")}, ValueError, "lease must be .* finite, got inf"),
        ({"ttl": -1}, ValueError, f"ttl must be {SECONDS} >= 0, or None, got -1"),
        ({"ttl": "1"}, TypeError, f"ttl must be {SECONDS} >= 0, or None, got '1'"),
        ({"timeout": 0}, ValueError, f"timeout must be {SECONDS} >= 0.01 and finite"),
        ({"prefix": ""}, ValueError, "prefix must be 1 to 40 of a-z, 0-9 and _, .* got ''"),
        ({"prefix": "drop table"}, ValueError, "prefix must be .* got 'drop table'"),
        ({"prefix": "1a"}, ValueError, "prefix must be .* got '1a'"),
        ({"prefix": None}, ValueError, "prefix must be .* got None"),
        ({"redact": "x"}, TypeError, "redact must be callable, got 'x'"),
        ({"clock": 1}, TypeError, "clock must be an object with the methods monotonic, .* got 1"),
    ],
)
def test_a_senseless_setting_is_refused(kind, settings, error, message):
    with pytest.raises(error, match=message):
        kind(FILE, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (None, TypeError, "url must be a database URL or a sqlalchemy (Async)?Engine, got None"),
        ("retry.db", TypeError, "got a text that is none"),
        ("mysql://localhost/retry", ValueError, "SQLite or PostgreSQL, got 'mysql'"),
        ("sqlite://", ValueError, "url must name a file, .* use MemoryRetryContextCache"),
        ("sqlite:///:memory:", ValueError, "url must name a file"),
        ("sqlite:///file:x?mode=memory&uri=true", ValueError, "url must name a file"),
    ],
)
def test_a_url_that_cannot_serve_is_refused(kind, url, error, message):
    with pytest.raises(error, match=message):
        kind(url)


@pytest.mark.parametrize(
    ("kind", "url", "message"),
    [
        (KINDS[0], "sqlite+aiosqlite:///retry.db", "driver that blocks, or none, got 'sqlite+aio"),
        (KINDS[1], "sqlite+pysqlite:///retry.db", "driver that can be awaited, or none, got 'sql"),
        (KINDS[0], "postgresql+fast://localhost/db", "a known driver, got 'postgresql+fast'"),
    ],
)
def test_a_driver_of_the_other_kind_is_refused(kind, url, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(url)


def test_a_password_in_what_is_no_url_is_not_shown():
    with pytest.raises(TypeError) as caught:
        SQLRetryContextCache("postgres//me:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_times_may_be_timedeltas(kind):
    minute = timedelta(minutes=1)
    cache = kind(FILE, lease=minute, ttl=minute, timeout=minute)
    assert (cache.lease, cache.ttl, cache.timeout) == (60.0, 60.0, 60.0)


def test_the_lease_of_one_claim_is_checked_too(sqlite):
    with pytest.raises(ValueError, match="lease must be"):
        sqlite.cache().begin("any", worker="one", lease=0)


def test_the_number_of_keys_on_a_page_is_checked(sqlite):
    with pytest.raises(ValueError, match="limit must be an int >= 1, got 0"):
        sqlite.cache().keys(limit=0)


def test_what_is_no_key_is_not_contained(sqlite):
    assert 17 not in sqlite.cache()


def test_an_engine_will_do(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/retry.db")
    with SQLRetryContextCache(engine) as cache:
        cache.begin("any", worker="one")
        assert cache.begin("any", worker="one").lost is None


async def test_an_asynchronous_engine_will_do(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/retry.db")
    async with AsyncSQLRetryContextCache(engine) as cache:
        await cache.begin("any", worker="one")


def test_an_engine_of_the_other_kind_will_not():
    with pytest.raises(TypeError, match="a database URL or a sqlalchemy AsyncEngine, got Engine"):
        AsyncSQLRetryContextCache(create_engine(FILE))


def test_a_durable_cache_needs_a_name_for_its_keys(sqlite):
    assert sqlite.cache().durable
    with pytest.raises(ValueError, match="name is required with a durable cache"):
        RetryTemplate(cache=sqlite.cache())


async def test_the_blocking_one_is_refused_in_asynchronous_use(sqlite):
    template = RetryTemplate(cache=sqlite.cache(), name="work")
    with pytest.raises(MisuseError, match="SQLRetryContextCache blocks"):
        await template.execute_async(lambda context: 1, state=RetryState("m1"))
    assert SQLRetryContextCache.asynchronous_twin == AsyncSQLRetryContextCache.__name__


def test_the_asynchronous_one_is_refused_where_nothing_awaits_it(sqlite):
    template = RetryTemplate(cache=sqlite.async_cache(), name="work")
    with pytest.raises(MisuseError, match="returned an awaitable in synchronous use"):
        template.execute(lambda context: 1, state=RetryState("m1"))


def test_the_asynchronous_one_serves_one_loop_at_a_time(made_once):
    cache, one, two = made_once
    one.run(cache.peek("any"))
    with pytest.raises(MisuseError, match=r"in use by another event loop: close\(\) it there"):
        two.run(cache.peek("any"))
    one.run(cache.close())
    assert two.run(cache.peek("any")) is None
    two.run(cache.close())


@pytest.fixture
def made_once(store):
    with asyncio.Runner() as one, asyncio.Runner() as two:
        yield store.async_cache(), one, two


def test_the_asynchronous_one_says_that_it_needs_asyncio(sqlite):
    cache = sqlite.async_cache()
    with pytest.raises(MisuseError, match="needs an event loop of asyncio"):
        run_trio(lambda: cache.peek("any"))


def run_apart(script):
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_missing_package_is_an_error_that_names_the_extra():
    script = """if True:
        import sys
        sys.modules["sqlalchemy"] = sys.modules["sqlalchemy.ext.asyncio"] = None
        from retrytemplate import AsyncSQLRetryContextCache, MissingExtraError, SQLRetryContextCache
        for kind in (SQLRetryContextCache, AsyncSQLRetryContextCache):
            try:
                kind("sqlite:///retry.db")
            except MissingExtraError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.count("a context cache on SQL needs sqlalchemy") == 2, done.stderr
    assert done.stdout.count("pip install 'retrytemplate[sql]'") == 2


def test_a_missing_driver_is_an_error_that_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'retrytemplate\[postgresql\]'"):
        SQLRetryContextCache("postgresql://localhost/retry")


def test_importing_the_names_loads_no_database():
    script = "import sys, retrytemplate.stores.sql; print('sqlalchemy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr
