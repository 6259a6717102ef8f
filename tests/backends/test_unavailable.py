"""A store that is unreachable, or holds an unreadable record."""

import pickle

import pytest
from redis import RedisError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from retrytemplate import (
    CacheUnavailableError,
    RetryState,
    RetryTemplate,
)
from retrytemplate._storage.sql_engine import unavailable
from retrytemplate.testing import Recorder
from tests.backends.conftest import failing
from tests.support import postgres
from tests.support.cache_kinds import awaited, blocking
from tests.support.polling import driver_has_ended

KEY = "charge/s:order-17"


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def nowhere(request, tmp_path):
    """A file without its folder, a port without a server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/absent/retry.db"
    return f"{request.param}://me:secret@127.0.0.1:{postgres.free_port()}/1"


def test_unreachable_store_error_has_the_database_error_as_cause(nowhere):
    with blocking(nowhere) as cache:
        with pytest.raises(CacheUnavailableError, match=r"begin .*failed in the store") as caught:
            cache.begin(KEY, worker="one")
        assert isinstance(caught.value.__cause__, (DBAPIError, RedisError))
        assert "secret" not in str(caught.value) + repr(cache)


async def test_asynchronous_step_names_the_unavailable_store(nowhere):
    async with awaited(nowhere) as cache:
        with pytest.raises(CacheUnavailableError) as caught:
            await cache.begin(KEY, worker="one")
        assert isinstance(caught.value.__cause__, (DBAPIError, RedisError))
    await driver_has_ended()


def test_callback_is_not_called_when_the_store_is_unavailable(nowhere):
    with blocking(nowhere) as cache:
        template = RetryTemplate(cache=cache, name="work")
        with pytest.raises(CacheUnavailableError):
            template.execute(pytest.fail, state=RetryState("m1"))


def test_callback_runs_unguarded_without_the_store_if_configured(nowhere):
    listener = Recorder()
    with blocking(nowhere, on_store_error="run_unguarded") as cache:
        template = RetryTemplate(cache=cache, name="work", listeners=[listener])
        value = template.execute(lambda context: context.fence, state=RetryState("m1"))
    assert value is None
    assert listener.hooks == [
        "open",
        "on_store_error",
        "before_attempt",
        "on_success",
        "on_first_success",
        "close",
    ]


async def test_asynchronous_callback_runs_unguarded_when_allowed(nowhere):
    async def handle(context):
        return "handled"

    async with awaited(nowhere, on_store_error="run_unguarded") as cache:
        template = RetryTemplate(cache=cache, name="work")
        assert await template.execute_async(handle, state=RetryState("m1")) == "handled"
    await driver_has_ended()


def test_store_that_fails_during_the_callback_keeps_its_value(store):
    listener, cache = Recorder(), store.cache()
    template = RetryTemplate(cache=cache, name="work", listeners=[listener])
    key = template.scoped_key("m1")
    cache.peek(key)

    def handle(context):
        store.spoil(key)
        return "handled"

    assert template.execute(handle, state=RetryState("m1")) == "handled"
    assert listener.hooks[-3:] == ["on_store_error", "on_first_success", "close"]


def test_store_that_fails_during_the_callback_keeps_its_failure(store):
    listener, cache = Recorder(), store.cache()
    template = RetryTemplate(cache=cache, name="work", listeners=[listener])
    key = template.scoped_key("m1")
    cache.peek(key)
    failure = ValueError("the callback's own")

    def handle(context):
        store.spoil(key)
        raise failure

    with pytest.raises(ValueError) as caught:
        template.execute(handle, state=RetryState("m1"))
    assert caught.value is failure
    assert listener.hooks.count("on_store_error") == 1


@pytest.mark.parametrize(
    ("cause", "message"),
    [(OSError(), "OSError"), (ValueError("no\x1b[2J\nsuch"), "ValueError: no\\x1b[2J")],
)
def test_error_of_a_database_is_named_in_one_line(cause, message):
    error = unavailable(DBAPIError("SELECT 1", None, cause), "begin of 'k'")
    assert str(error) == f"begin of 'k' failed in the store of the context cache: {message}"


def test_deleted_tables_are_an_error(database):
    cache = database.cache()
    cache.peek(KEY)
    database.spoil(KEY)
    with pytest.raises(CacheUnavailableError, match=f"{database.prefix}_contexts"):
        cache.peek(KEY)


@pytest.mark.parametrize("step", ["begin", "peek", "forget"])
def test_key_of_another_application_is_an_error(valkey, step):
    valkey.spoil(KEY)
    options = {"worker": "one"} if step == "begin" else {}
    with pytest.raises(CacheUnavailableError, match=f"{step} of '{KEY}' failed .*WRONGTYPE"):
        getattr(valkey.cache(), step)(KEY, **options)
    assert valkey.client.get(valkey.name(KEY)) == "no context"


@pytest.mark.parametrize("kept", ["", "[", "{}", '{"format": 99}', "[" * 100_000])
def test_unreadable_record_is_named(made, store, kept):
    cache = made()
    claim = cache.begin(KEY, worker="one")
    cache.fail(claim, failing(claim))
    store.change(KEY, record=kept)
    with pytest.raises(CacheUnavailableError, match=f"the record under '{KEY}' cannot be read"):
        cache.peek(KEY)


def test_errors_do_not_show_stored_values(store, cache):
    claim = cache.begin(KEY, worker="one")
    store.spoil(KEY)
    record = failing(claim, attributes={"card": "4242"})
    with pytest.raises(CacheUnavailableError) as caught:
        cache.fail(claim, record)
    assert "4242" not in str(caught.value) + str(caught.value.__cause__)


def test_cache_unavailable_error_can_be_pickled(store, cache):
    cache.peek(KEY)
    store.spoil(KEY)
    with pytest.raises(CacheUnavailableError) as caught:
        cache.peek(KEY)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  # made here
    assert str(again) == str(caught.value)


def test_claim_whose_last_write_failed_is_not_renewed(store, cache):
    claim = cache.begin(KEY, worker="one")
    store.spoil(KEY)
    with pytest.raises(CacheUnavailableError):
        cache.succeed(claim)
    assert not cache._renewer._leases.has(claim)


def test_connections_that_were_cut_are_replaced(postgresql):
    cache = postgresql.cache()
    with cache._store.engine.connect() as connection:  # the only one of its pool
        (pid,) = connection.execute(text("SELECT pg_backend_pid()")).one()
    postgresql.sql("SELECT pg_terminate_backend(:pid)", pid=pid)
    assert cache.begin(KEY, worker="one").record is None
