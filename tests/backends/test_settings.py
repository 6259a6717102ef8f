"""Settings of the durable caches; invalid ones are rejected at construction."""

import asyncio
import gc
import re
import subprocess
import sys
from datetime import timedelta

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import (
    AsyncRedisRetryContextCache,
    AsyncSQLRetryContextCache,
    MissingExtraError,
    MisuseError,
    RedisRetryContextCache,
    RetryState,
    RetryTemplate,
    SQLRetryContextCache,
)
from retrytemplate._internal.validation import SECONDS
from retrytemplate.testing import run_trio
from tests.backends.conftest import failing
from tests.support.polling import has_no_driver_thread, wait_until

FILE = "sqlite:///retry.db"
SERVER = "redis://localhost"
ON_SQL = [SQLRetryContextCache, AsyncSQLRetryContextCache]
ON_REDIS = [RedisRetryContextCache, AsyncRedisRetryContextCache]
KINDS = ON_SQL + ON_REDIS


def made_by(kind, **settings):
    """A cache that connects to nothing."""
    return kind(FILE if kind in ON_SQL else SERVER, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lease": 0}, ValueError, f"lease must be {SECONDS} >= 0.01 and finite, got 0"),
        ({"lease": None}, TypeError, f"lease must be {SECONDS} >= 0.01 and finite, got"),
        ({"lease": float("inf")}, ValueError, "lease must be .* finite, got inf"),
        ({"ttl": -1}, ValueError, f"ttl must be {SECONDS} >= 0.*, got -1"),
        ({"ttl": "1"}, TypeError, f"ttl must be {SECONDS} >= 0.*, got '1'"),
        ({"timeout": 0}, ValueError, f"timeout must be {SECONDS} from 0.01 to 1000000, got 0"),
        ({"timeout": timedelta(days=12)}, ValueError, "timeout must be .* to 1000000, got 1036800"),
        ({"prefix": ""}, ValueError, "prefix must be 1 to .* got ''"),
        ({"prefix": "drop table"}, ValueError, "prefix must be .* got 'drop table'"),
        ({"prefix": "a{b}"}, ValueError, "prefix must be .* got 'a{b}'"),
        ({"prefix": None}, ValueError, "prefix must be .* got None"),
        ({"redact": "x"}, TypeError, "redact must be callable, got 'x'"),
        ({"record_limit": 8191}, ValueError, "record_limit must be an int >= 8192, got 8191"),
        ({"record_limit": None}, TypeError, "record_limit must be an int >= 8192, got None"),
        ({"on_store_error": "ignore"}, ValueError, "must be .raise. or .run_unguarded., got .ig"),
        ({"clock": 1}, TypeError, "clock must be an object with the methods monotonic, .* got 1"),
    ],
)
def test_invalid_setting_is_rejected(kind, settings, error, message):
    with pytest.raises(error, match=message):
        made_by(kind, **settings)


@pytest.mark.parametrize("kind", ON_SQL)
def test_table_prefix_cannot_begin_with_a_digit(kind):
    with pytest.raises(ValueError, match=r"prefix must be 1 to 40 of a-z, .* got '1a'"):
        kind(FILE, prefix="1a")


@pytest.mark.parametrize("kind", ON_REDIS)
@pytest.mark.parametrize(("ttl", "error"), [(None, TypeError), (float("inf"), ValueError)])
def test_ttl_of_redis_caches_must_be_finite(kind, ttl, error):
    with pytest.raises(error, match=f"ttl must be {SECONDS} >= 0.01 and finite, got {ttl}"):
        kind(SERVER, ttl=ttl)


@pytest.mark.parametrize("kind", ON_SQL)
@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (None, TypeError, "url must be a database URL or a sqlalchemy (Async)?Engine, got None"),
        ("retry.db", TypeError, "got an invalid URL"),
        ("mysql://localhost/retry", ValueError, "SQLite or PostgreSQL, got scheme 'mysql'"),
        ("sqlite://", ValueError, "url must name a file, .* use MemoryRetryContextCache"),
        ("sqlite:///:memory:", ValueError, "url must name a file"),
        ("sqlite:///file:x?mode=memory&uri=true", ValueError, "url must name a file"),
        ("sqlite:///file::memory:?cache=shared&uri=true", ValueError, "url must name a file"),
        ("sqlite:///file:?uri=true", ValueError, "url must name a file"),
        ("sqlite:///file:/x?vfs=memdb&uri=true", ValueError, "url must name a file"),
    ],
)
def test_invalid_url_is_rejected(kind, url, error, message):
    with pytest.raises(error, match=message):
        kind(url)


@pytest.mark.parametrize("kind", ON_REDIS)
@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (None, TypeError, r"url must be a Redis URL or a redis(\.asyncio)?\.Redis, got None"),
        (
            "localhost",
            ValueError,
            "url must be redis://, rediss://, valkey://, valkeys:// or unix://, and what",
        ),
        (FILE, ValueError, "url must be redis://, rediss://"),
        ("redis://:secret@localhost:port", ValueError, "url must be redis://, [^@]*$"),
    ],
)
def test_invalid_redis_url_is_rejected(kind, url, error, message):
    with pytest.raises(error, match=message):
        kind(url)


@pytest.mark.parametrize("kind", ON_REDIS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("foo=1", "url must have options that redis-py knows, got 'foo'"),
        ("pasword=secret", "got 'pasword'$"),
        ("retry_on_error=OSError", "options that redis-py knows, got 'retry_on_error'"),
        ("max_connections=0", "max_connections in url must be an int >= 1, got 0"),
        ("max_connections=all", "max_connections in url must be as redis-py has it, got 'all'"),
        ("db=1&db=-1", "db in url must be an int >= 0, got -1"),
        ("health_check_interval=-1", "health_check_interval in url must be an int >= 0, got -1"),
        ("socket_read_size=0", "socket_read_size in url must be an int >= 1, got 0"),
        ("socket_timeout=0", f"socket_timeout in url must be {SECONDS} from 0.01 to 1000000, got"),
        ("socket_connect_timeout=9300000000", "socket_connect_timeout in url must be .*, got 9300"),
        ("timeout=-1", "timeout in url must be .*, got -1"),
        (
            "encoding=none",
            "url must have options that go together: LookupError: unknown encoding: none",
        ),
        ("protocol=9", "url must have options that go together: ConnectionError: protocol must be"),
        ("ssl_ca_certs=ca.pem", "url must have options that go together: .*'ssl_ca_certs'"),
    ],
)
def test_invalid_option_of_redis_url_is_rejected_at_construction(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(f"redis://me:secret@localhost?{options}")


@pytest.mark.parametrize("kind", ON_REDIS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost?db=3&socket_timeout=1.5&max_connections=4&client_name=retry&protocol=3",
        "redis://localhost?decode_responses=True&encoding=utf-8&retry_on_timeout=yes&timeout=1",
        "rediss://localhost?ssl_cert_reqs=none&ssl_check_hostname=no&password=secret",
    ],
)
def test_options_of_redis_py_are_accepted(kind, url):
    assert "localhost" in repr(kind(url))


@pytest.mark.parametrize("kind", ON_REDIS)
@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://", "localhost:6379/0"),
        ("redis://me:secret@[::1]:7000/3", "::1:7000/3"),
        ("unix:///run/valkey.sock?db=2", "/run/valkey.sock/2"),
    ],
)
def test_repr_of_a_redis_cache_has_place_and_no_password(kind, url, place):
    assert repr(kind(url)) == f"<{kind.__name__} {place} prefix='retry'>"


def test_repr_of_a_sentinel_cache_names_its_service():
    master = Sentinel([("localhost", 26379)]).master_for("orders", db=3)
    assert "RedisRetryContextCache orders/3 prefix" in repr(RedisRetryContextCache(master))


@pytest.mark.parametrize(
    ("kind", "url", "message"),
    [
        (KINDS[0], "sqlite+aiosqlite:///retry.db", "driver that blocks, or none, got 'sqlite+aio"),
        (KINDS[1], "sqlite+pysqlite:///retry.db", "driver that can be awaited, or none, got 'sql"),
        (KINDS[0], "postgresql+fast://localhost/db", "a known driver, got 'postgresql+fast'"),
    ],
)
def test_driver_of_the_other_kind_is_rejected(kind, url, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(url)


def test_password_in_an_invalid_url_is_not_shown():
    with pytest.raises(TypeError) as caught:
        SQLRetryContextCache("postgres//me:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_times_may_be_timedeltas(kind):
    minute = timedelta(minutes=1)
    cache = made_by(kind, lease=minute, ttl=minute, timeout=minute)
    assert (cache.lease, cache.ttl, cache.timeout) == (60.0, 60.0, 60.0)


def test_lease_of_one_claim_is_checked(made):
    with pytest.raises(ValueError, match="lease must be"):
        made().begin("any", worker="one", lease=0)


def test_page_limit_of_keys_is_checked(made):
    with pytest.raises(ValueError, match="limit must be an int >= 1, got 0"):
        made().keys(limit=0)


def test_contains_is_false_for_other_values_than_str(store):
    assert 17 not in store.cache()


def test_engine_argument_is_accepted_and_stays_open(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/retry.db")
    with SQLRetryContextCache(engine) as cache:
        cache.begin("any", worker="one")
        assert cache.begin("any", worker="one").lost is None
    assert engine.pool.checkedin() == 1  # open still: it is another's
    engine.dispose()


async def test_asynchronous_engine_is_accepted_and_stays_open(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/retry.db")
    async with AsyncSQLRetryContextCache(engine) as cache:
        await cache.begin("any", worker="one")
    assert engine.pool.checkedin() == 1  # open still: it is another's
    await engine.dispose()


def test_client_is_accepted_and_stays_open(valkey):
    client = redis.Redis.from_url(valkey.url, decode_responses=True)
    with RedisRetryContextCache(client, prefix=valkey.prefix) as cache:
        claim = cache.begin("any", worker="one")
        cache.fail(claim, failing(claim))
        assert list(cache) == cache.keys() == ["any"]
    (connection,) = client.connection_pool._available_connections
    assert connection.is_connected
    client.close()


async def test_asynchronous_client_is_accepted_and_stays_open(valkey):
    client = redis.asyncio.Redis.from_url(valkey.url)
    async with AsyncRedisRetryContextCache(client, prefix=valkey.prefix) as cache:
        await cache.begin("any", worker="one")
    (connection,) = client.connection_pool._available_connections
    assert connection.is_connected
    await client.aclose()


@pytest.mark.parametrize("kind", ON_REDIS)
def test_client_of_the_other_kind_is_rejected(kind):
    other = redis.asyncio.Redis() if kind is RedisRetryContextCache else redis.Redis()
    with pytest.raises(TypeError, match=r"a Redis URL or a redis(\.asyncio)?\.Redis, got <redis"):
        kind(other)


def test_engine_of_the_other_kind_is_rejected():
    with pytest.raises(TypeError, match="a database URL or a sqlalchemy AsyncEngine, got Engine"):
        AsyncSQLRetryContextCache(create_engine(FILE))


@pytest.mark.parametrize("kind", KINDS)
def test_durable_cache_requires_a_template_name(kind):
    cache = made_by(kind)
    assert cache.durable
    with pytest.raises(ValueError, match="name is required with a durable cache"):
        RetryTemplate(cache=cache)


@pytest.mark.parametrize("kinds", [ON_SQL, ON_REDIS])
async def test_blocking_cache_is_rejected_in_asynchronous_use(kinds):
    blocking, awaited = kinds
    template = RetryTemplate(cache=made_by(blocking), name="work")
    with pytest.raises(MisuseError, match=f"{blocking.__name__} blocks.* {awaited.__name__}"):
        await template.execute_async(lambda context: 1, state=RetryState("m1"))


def test_asynchronous_cache_is_rejected_in_synchronous_use(store):
    template = RetryTemplate(cache=store.async_cache(), name="work")
    with pytest.raises(MisuseError, match="returned an awaitable in synchronous use"):
        template.execute(lambda context: 1, state=RetryState("m1"))


def test_asynchronous_cache_serves_one_loop_at_a_time(made_once):
    cache, one, two = made_once
    one.run(cache.peek("any"))
    with pytest.raises(MisuseError, match=r"in use by another event loop: close\(\) it there"):
        two.run(cache.peek("any"))
    one.run(cache.close())
    assert two.run(cache.peek("any")) is None
    two.run(cache.close())


def test_asynchronous_cache_must_be_closed_in_its_loop(made_once):
    cache, one, two = made_once
    one.run(cache.peek("any"))
    with pytest.raises(MisuseError, match=r"in use by another event loop: close\(\) it there"):
        two.run(cache.close())
    one.run(cache.close())


# Of connections that stay open: aiosqlite's thread reports their end to a loop that may be closed.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("then", ["close", "continue"])
def test_asynchronous_cache_works_in_a_new_loop_without_close(store, then):
    cache = store.async_cache()

    async def handle():
        return await cache.begin("any", worker="one")

    first = asyncio.run(handle())
    if then == "close":
        asyncio.run(cache.close())

    async def go_on():
        async with cache:
            claim = await handle()
            assert not cache._renewer._leases.has(first)
            return claim

    assert asyncio.run(go_on()).fence > first.fence
    gc.collect()
    wait_until(has_no_driver_thread)


@pytest.fixture
def made_once(store):
    with asyncio.Runner() as one, asyncio.Runner() as two:
        yield store.async_cache(), one, two


def test_asynchronous_cache_rejects_trio(store):
    cache = store.async_cache()
    with pytest.raises(MisuseError, match=r"of asyncio; under trio call execute\(\) in"):
        run_trio(lambda: cache.peek("any"))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_package_is_named_with_its_extra(kind, monkeypatch):
    store, package = ("SQL", "sqlalchemy") if kind in ON_SQL else ("Redis", "redis")
    for module in list(sys.modules):
        if module.partition(".")[0] == package:
            monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        made_by(kind)
    extra = f"install retrytemplate[{store.lower()}]"
    assert str(caught.value).startswith(f"a context cache on {store} needs {package}")
    assert str(caught.value).endswith(extra)


def test_missing_driver_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"install retrytemplate\[postgresql\]"):
        SQLRetryContextCache("postgresql://localhost/retry")


def test_missing_greenlet_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)
    expected = r"on SQL needs greenlet: install retrytemplate\[sql\]"
    with pytest.raises(MissingExtraError, match=expected):
        AsyncSQLRetryContextCache(FILE)


def test_importing_the_names_loads_no_package():
    script = """if True:
        import sys, retrytemplate.backends.sql.cache, retrytemplate.backends.redis.cache
        print(bool({"sqlalchemy", "redis"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr
