"""The attempt's end in the caller's own transaction: it commits with the work, or not at all."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    CacheUnavailableError,
    LeaseLostError,
    MisuseError,
    RetryState,
    RetryTemplate,
)
from tests.backends.conftest import failing

KEY = "charge/s:order-17"


@pytest.fixture
def store(database):
    return database


class Deliberate(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def work(store):
    """A function that counts the rows of the caller's table in the same database."""
    store.sql("CREATE TABLE {0}_work (id integer)")
    yield lambda: len(store.sql("SELECT id FROM {0}_work"))
    store.sql("DROP TABLE {0}_work")


def do_work(store, connection):
    connection.execute(text(f"INSERT INTO {store.prefix}_work VALUES (1)"))


def asynchronous_engine(store):
    driver = "sqlite+aiosqlite" if store.kind == "sqlite" else "postgresql+psycopg"
    return create_async_engine(store.engine.url.set(drivername=driver))


def templates(store, **settings):
    return RetryTemplate(cache=store.cache(**settings), name="work")


def test_end_of_an_attempt_commits_with_its_work(store, cache, work):
    claim = cache.begin(KEY, worker="one")
    with store.engine.begin() as connection:
        do_work(store, connection)
        cache.succeed(claim, connection=connection)
    assert work() == 1
    assert store.row(KEY) is None


def test_end_of_an_attempt_rolls_back_with_its_work(store, cache, work):
    claim = cache.begin(KEY, worker="one")
    with pytest.raises(Deliberate), store.engine.begin() as connection:
        do_work(store, connection)
        cache.succeed(claim, connection=connection, remember=60)
        raise Deliberate
    assert work() == 0
    assert cache.holds(claim)
    cache.fail(claim, failing(claim))
    assert cache.begin(KEY, worker="two").record.failures == 1


def test_failure_commits_with_the_work(store, cache, work):
    claim = cache.begin(KEY, worker="one")
    with store.engine.begin() as connection:
        do_work(store, connection)
        cache.fail(claim, failing(claim, 2), connection=connection)
    assert work() == 1
    assert not cache.holds(claim)
    assert not cache._renewer._leases.has(claim)
    cache.release(claim)  # too late
    assert cache.begin(KEY, worker="two").record.failures == 2


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("then", ["release", "fail", "fail in a transaction"])
def test_failure_rolls_back_with_the_work(store, cache, work, failures, then):
    claim = cache.begin(KEY, worker="one")
    if failures:
        cache.fail(claim, failing(claim))
        claim = cache.begin(KEY, worker="one")
    with pytest.raises(Deliberate), store.engine.begin() as connection:
        do_work(store, connection)
        cache.fail(claim, failing(claim, 9), connection=connection)
        raise Deliberate
    assert (work(), cache.holds(claim)) == (0, True)
    if then == "release":
        cache.release(claim)
    elif then == "fail":
        cache.fail(claim, failing(claim, failures := 3))
    else:
        with store.engine.begin() as connection:
            cache.fail(claim, failing(claim, failures := 3), connection=connection)
    kept = cache.peek(KEY)
    assert (kept and kept.failures) == (failures or None)
    assert (store.row(KEY) is None) == (failures == 0)


def test_late_holder_cannot_commit_its_failure(store, cache, work):
    late = cache.begin(KEY, worker="one")
    cache.begin(KEY, worker="two", takeover="one")
    with pytest.raises(LeaseLostError), store.engine.begin() as connection:
        do_work(store, connection)
        cache.fail(late, failing(late), connection=connection)
    assert work() == 0


def test_failure_that_keeps_the_claim_needs_a_statement_of_its_own(store, cache):
    claim = cache.begin(KEY, worker="one")
    with store.engine.begin() as connection, pytest.raises(MisuseError, match="must end its"):
        cache.fail(claim, failing(claim, held=True), connection=connection)
    assert cache._renewer._leases.has(claim)


def test_success_is_remembered_in_the_transaction_of_the_work(store, cache, work):
    claim = cache.begin(KEY, worker="one")
    with store.engine.begin() as connection:
        do_work(store, connection)
        cache.succeed(claim, connection=connection, remember=60)
    with pytest.raises(AlreadyCompletedError):
        cache.begin(KEY, worker="two")


def test_completion_marker_commits_with_the_work(store, cache, work):
    claim = cache.begin(KEY, worker="one")
    kept = failing(claim, phase="done", attributes={"result": 17})
    with pytest.raises(Deliberate), store.engine.begin() as connection:
        cache.succeed(claim, connection=connection, remember=60, record=kept)
        raise Deliberate
    assert cache.peek(KEY) is None
    with store.engine.begin() as connection:
        cache.succeed(claim, connection=connection, remember=60, record=kept)
    assert cache.peek(KEY) == kept


def test_late_holder_cannot_commit_its_work(store, cache, work):
    late = cache.begin(KEY, worker="one")
    store.age(31)
    cache.begin(KEY, worker="two")
    with pytest.raises(LeaseLostError), store.engine.begin() as connection:
        do_work(store, connection)
        cache.succeed(late, connection=connection)
    assert work() == 0


def test_key_is_in_progress_while_its_transaction_is_open(store, cache):
    claim = cache.begin(KEY, worker="one")
    other = store.cache(timeout=0.1)
    with store.engine.begin() as connection:
        cache.succeed(claim, connection=connection)
        with pytest.raises(AttemptInProgressError, match="by one"):
            other.begin(KEY, worker="two")
    assert other.begin(KEY, worker="two").record is None


@pytest.mark.parametrize("connection", ["retry.db", object()])
def test_connection_of_another_kind_is_rejected(sqlite, connection):
    cache = sqlite.cache()
    claim = cache.begin(KEY, worker="one")
    with pytest.raises(MisuseError, match="connection must be a sqlalchemy Connection, got"):
        cache.succeed(claim, connection=connection)
    assert cache.holds(claim)


def test_template_completes_an_attempt_in_a_transaction(store, work):
    template = templates(store)

    def handle(context):
        with store.engine.begin() as connection:
            do_work(store, connection)
            context.complete_in(connection)
        return "handled"

    state = RetryState("m1", remember=60)
    assert template.execute(handle, state=state) == "handled"
    with pytest.raises(AlreadyCompletedError):
        template.execute(handle, state=state)
    assert work() == 1


async def test_asynchronous_template_completes_an_attempt_in_a_transaction(store, work):
    cache = store.async_cache()
    template = RetryTemplate(cache=cache, name="work")

    async def handle(context):
        async with cache._store.engine.begin() as connection:
            await connection.run_sync(lambda sync: do_work(store, sync))
            await context.complete_in(connection)
        return await context.still_mine()

    state = RetryState("m1", remember=60)
    try:
        assert await template.execute_async(handle, state=state) is False
        with pytest.raises(AlreadyCompletedError):
            await template.execute_async(handle, state=state)
    finally:
        await cache.close()
    assert work() == 1


def test_failure_after_the_commit_is_raised_unchanged(store, work):
    template = templates(store)

    def handle(context):
        with store.engine.begin() as connection:
            do_work(store, connection)
            context.complete_in(connection)
        raise Deliberate

    with pytest.raises(Deliberate) as caught:
        template.execute(handle, state=RetryState("m1"))
    assert "the attempt was completed before it failed" in caught.value.__notes__
    assert work() == 1


def test_rolled_back_transaction_leaves_failed_attempt_and_free_key(store, work):
    template = templates(store)

    def handle(context):
        with store.engine.begin() as connection:
            do_work(store, connection)
            context.complete_in(connection)
            raise Deliberate

    for failures in (1, 2):
        with pytest.raises(Deliberate):
            template.execute(handle, state=RetryState("m1", remember=60))
        assert template.cache.peek(template.scoped_key("m1")).failures == failures
    assert store.row(template.scoped_key("m1"))["worker"] is None
    assert work() == 0


def test_signal_that_rolls_back_the_transaction_frees_the_key(store, work):
    template = templates(store)

    def handle(context):
        with store.engine.begin() as connection:
            do_work(store, connection)
            context.complete_in(connection)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        template.execute(handle, state=RetryState("m1", remember=60))
    assert template.execute(lambda context: "next", state=RetryState("m1")) == "next"
    assert work() == 0


def without_commit(engine, context):
    with engine.connect() as connection:
        context.complete_in(connection)


def in_a_savepoint_that_rolls_back(engine, context):
    with engine.begin() as connection:
        savepoint = connection.begin_nested()
        context.complete_in(connection)
        savepoint.rollback()


@pytest.mark.parametrize("ends", [without_commit, in_a_savepoint_that_rolls_back])
@pytest.mark.parametrize("failures", [0, 1])
def test_attempt_that_returns_after_a_rollback_of_its_end_is_misuse(store, ends, failures):
    template = templates(store)
    state = RetryState("m1", remember=60)
    for _ in range(failures):
        with pytest.raises(ZeroDivisionError):
            template.execute(lambda context: 1 / 0, state=state)
    with pytest.raises(MisuseError, match=r"of complete_in\(\) was rolled back: .* not counted"):
        template.execute(lambda context: ends(store.engine, context), state=state)
    row = store.row(template.scoped_key("m1"))
    assert row is None if not failures else row["worker"] is None
    assert template.execute(lambda context: context.retry_count, state=state) == failures


async def test_asynchronous_rollback_is_noted(store):
    engine = asynchronous_engine(store)
    async with store.async_cache() as cache:
        template = RetryTemplate(cache=cache, name="work")

        async def handle(context):
            async with engine.connect() as connection:
                await context.complete_in(connection)

        with pytest.raises(MisuseError, match="was rolled back"):
            await template.execute_async(handle, state=RetryState("m1"))
        assert store.row(template.scoped_key("m1")) is None
    await engine.dispose()


def test_attempt_can_end_in_another_transaction_after_a_rollback(store):
    template = templates(store)

    def handle(context):
        without_commit(store.engine, context)
        with store.engine.begin() as connection:
            context.complete_in(connection)
        return "handled"

    state = RetryState("m1", remember=60)
    assert template.execute(handle, state=state) == "handled"
    with pytest.raises(AlreadyCompletedError):
        template.execute(handle, state=state)


@pytest.mark.parametrize("remember", [None, 60])
def test_rollback_after_the_commit_does_not_undo_the_end(store, remember):
    template = templates(store)

    def handle(context):
        with store.engine.connect() as connection:
            with connection.begin():
                savepoint = connection.begin_nested()
                context.complete_in(connection)
                savepoint.commit()
                connection.begin_nested().rollback()
            with connection.begin() as other:
                other.rollback()
        return "handled"

    assert template.execute(handle, state=RetryState("m1", remember=remember)) == "handled"
    row = store.row(template.scoped_key("m1"))
    assert (row and row["phase"]) == (remember and "done")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_exit_after_a_rolled_back_end_leaves_the_key_unchanged(store, work, kind):
    template = templates(store)

    def handle(context):
        with store.engine.begin() as connection:
            do_work(store, connection)
            context.complete_in(connection)
            raise kind

    with pytest.raises(kind):
        template.execute(handle, state=RetryState("m1"))
    assert store.row(template.scoped_key("m1")) is None
    assert work() == 0


def test_failure_after_the_commit_names_the_completed_attempt(store, cache):
    claim = cache.begin(KEY, worker="one")
    with store.engine.begin() as connection:
        cache.succeed(claim, connection=connection)
        claim.completed = True  # as the context notes
    with pytest.raises(LeaseLostError, match="was completed: later events"):
        cache.fail(claim, failing(claim))


def test_transaction_on_the_file_of_the_cache_is_rejected(sqlite):
    template = templates(sqlite, timeout=0.05)
    sqlite.cache().peek("any")  # the tables are there
    with sqlite.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
        connection.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(CacheUnavailableError, match="give the cache a file of its own"):
            template.execute(lambda context: "never", state=RetryState("m1"))


async def test_asynchronous_cache_ends_attempt_in_asynchronous_transaction(store):
    async with store.async_cache() as cache:
        engine = asynchronous_engine(store)
        try:
            claim = await cache.begin(KEY, worker="one")
            with pytest.raises(Deliberate):
                async with engine.begin() as connection:
                    await cache.succeed(claim, connection=connection)
                    raise Deliberate
            assert await cache.holds(claim)
            async with engine.begin() as connection:
                await cache.fail(claim, failing(claim), connection=connection)
            claim = await cache.begin(KEY, worker="one")
            assert claim.record.failures == 1
            async with engine.begin() as connection:
                await cache.succeed(claim, connection=connection)
            assert store.row(KEY) is None
        finally:
            await engine.dispose()


async def test_asynchronous_cache_rejects_a_blocking_connection(sqlite):
    async with sqlite.async_cache() as cache:
        claim = await cache.begin(KEY, worker="one")
        with sqlite.engine.connect() as connection, pytest.raises(MisuseError, match="AsyncConn"):
            await cache.succeed(claim, connection=connection)


def test_completion_with_a_connection_is_rejected_in_valkey(valkey):
    cache = valkey.cache()
    claim = cache.begin(KEY, worker="one")
    with pytest.raises(MisuseError, match=r"RedisRetryContextCache has no database .* a SQL cache"):
        cache.succeed(claim, connection=valkey.client.pipeline())
    with pytest.raises(MisuseError, match=r"RedisRetryContextCache has no database"):
        cache.fail(claim, failing(claim), connection=valkey.client.pipeline())
    assert cache.holds(claim)
    assert cache._renewer._leases.has(claim)


async def test_asynchronous_completion_with_a_connection_is_rejected_in_valkey(valkey):
    async with valkey.async_cache() as cache:
        claim = await cache.begin(KEY, worker="one")
        with pytest.raises(MisuseError, match="AsyncRedisRetryContextCache has no database"):
            await cache.succeed(claim, connection=object())
        assert await cache.holds(claim)
