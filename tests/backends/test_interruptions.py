"""Interruptions of a step: a signal, a cancellation, a transaction that is rolled back."""

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest
from redis.connection import Connection
from sqlalchemy import event, text

from retrytemplate import (
    CacheUnavailableError,
    MisuseError,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SQLRetryContextCache,
)
from tests.backends.conftest import failing

KEY = "work/s:m1"


def test_signal_before_the_answer_is_read_drops_the_answer(valkey, monkeypatch):
    cache = valkey.cache()
    template = RetryTemplate(cache=cache, name="work")
    template.execute(lambda context: "warm", state=RetryState("m0"))

    def cuts_in(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Connection, "read_response", cuts_in)
    with pytest.raises(KeyboardInterrupt):
        cache.peek(KEY)
    assert template.execute(lambda context: "handled", state=RetryState("m1")) == "handled"


def test_signal_in_a_statement_leaves_no_lock_on_a_file(sqlite):
    cache, other = sqlite.cache(), sqlite.cache(timeout=0.2)
    cache.peek(KEY)

    def interrupt(*_):
        event.remove(cache._store.engine, "after_cursor_execute", interrupt)
        raise KeyboardInterrupt

    event.listen(cache._store.engine, "after_cursor_execute", interrupt)
    # The error is held meanwhile, with all that its traceback holds.
    with pytest.raises(KeyboardInterrupt) as _caught:
        cache.begin(KEY, worker="one")
    assert other.begin("another", worker="two")


def test_cancelled_task_leaves_no_lock_on_a_file(sqlite):
    async def main():
        cache = sqlite.async_cache(timeout=1.0)
        template = RetryTemplate(cache=cache, name="work")
        for number in range(40):
            task = asyncio.create_task(template.execute_async(int, state=RetryState(number)))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(write)
        await cache.close()

    def write():
        path = sqlite.engine.url.database
        with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")

    asyncio.run(main())


def test_cancelled_task_continues_after_the_end_of_its_statement(sqlite):
    async def main():
        cache = sqlite.async_cache(timeout=2.0)
        await cache.peek(KEY)
        with closing(sqlite3.connect(sqlite.engine.url.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(cache.begin(KEY, worker="one"))
            for _ in range(50):
                await asyncio.sleep(0)
            for _ in range(3):
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()  # the statement waits for the lock
            other.execute("ROLLBACK")
        await asyncio.wait([task])
        assert task.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await cache.close()

    asyncio.run(main())


def test_unreadable_record_leaves_its_key_unchanged(made, store):
    cache = made()
    claim = cache.begin(KEY, worker="one")
    cache.fail(claim, failing(claim))
    store.change(KEY, record='{"format": 99}')
    with pytest.raises(CacheUnavailableError, match="format 99"):
        cache.begin(KEY, worker="one")
    with pytest.raises(CacheUnavailableError, match="format 99"):  # not in progress
        cache.begin(KEY, worker="two")
    assert store.row(KEY)["worker"] is None
    assert store.row(KEY)["lost"] is None


class Looks(RetryListener):
    """Records whether the claim is renewed during the wait for the next attempt."""

    def __init__(self, cache):
        self.leases = cache._renewer._leases
        self.renewed = []

    def on_backoff(self, context, delay):
        self.renewed.append(self.leases.has(context._claim))


def test_attempt_is_renewed_after_a_rollback_of_its_end(database, work):
    cache = database.cache()
    looks = Looks(cache)
    template = RetryTemplate(name="work", cache=cache, listeners=[looks])

    def handle(context):
        if context.attempt == 2:
            return "handled"
        with database.engine.begin() as connection:
            work(connection)
            context.complete_in(connection)
            raise ValueError

    assert template.execute(handle, state=RetryState("m1", rollback_for=())) == "handled"
    assert looks.renewed == [True]


@pytest.fixture
def work(database):
    database.sql("CREATE TABLE {0}_work (id integer)")
    insert = text(f"INSERT INTO {database.prefix}_work VALUES (1)")
    yield lambda connection: connection.execute(insert)
    database.sql("DROP TABLE {0}_work")


def test_unavailable_store_in_complete_in_is_an_ordinary_failure(database, work):
    template = RetryTemplate(SimpleRetryPolicy(3), cache=database.cache(), name="work")
    calls = []

    def handle(context):
        calls.append(context.attempt)
        if len(calls) == 1:
            raise CacheUnavailableError("complete_in was cut")
        return "handled"

    state = RetryState("m1", rollback_for=())
    assert template.execute(handle, recovery=lambda context: "dead", state=state) == "handled"
    assert calls == [1, 2]


def test_complete_in_needs_an_open_transaction(database, work):
    template = RetryTemplate(cache=database.cache(), name="work")
    by_itself = database.engine.execution_options(isolation_level="AUTOCOMMIT")

    def commits_by_itself(context):
        with by_itself.connect() as connection:
            context.complete_in(connection)

    with pytest.raises(MisuseError, match="in a transaction, got one in autocommit mode"):
        template.execute(commits_by_itself, state=RetryState("m1"))
    with pytest.raises(MisuseError, match="needs a connection with an open transaction, got None"):
        template.execute(lambda context: context.complete_in(None), state=RetryState("m1"))


def test_engine_of_the_caller_stays_open(sqlite):
    engine = sqlite.engine
    before = engine.pool
    with SQLRetryContextCache(engine, prefix=sqlite.prefix) as cache:
        cache.peek(KEY)
    assert engine.pool is before


def test_password_in_the_query_of_a_url_is_not_shown():
    cache = SQLRetryContextCache("postgresql://me@127.0.0.1:1/db?password=s3cret")
    assert "s3cret" not in repr(cache)
    cache.close()


def test_thread_that_could_not_be_started_is_started_again(sqlite, monkeypatch):
    cache = sqlite.cache()

    def refused(thread):
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    claims = [cache.begin(each, worker="one") for each in (KEY, "another")]
    assert all(cache._renewer._leases.has(claim) for claim in claims)
    assert cache._renewer._leases.thread.is_alive()
    cache.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 5), ("max_attempts", 2.0), ("max_attempts", -1), ("no_recovery", 1)],
)
def test_context_value_of_any_kind_can_be_read_again(store, field, value):
    template = RetryTemplate(SimpleRetryPolicy(5), cache=store.cache(), name="work")

    def handle(context):
        setattr(context, field, value)
        raise ValueError

    for failures in (1, 2):
        with pytest.raises(ValueError):
            template.execute(handle, state=RetryState("m1"))
        assert template.cache.peek(KEY).failures == failures
