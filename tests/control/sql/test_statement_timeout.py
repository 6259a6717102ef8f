"""Statements cancelled by the database: at their own limit, or at the deadline."""

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from retrytemplate import (
    AttemptTimeoutError,
    Deadline,
    DeadlineExceededError,
    MisuseError,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import statement_limit
from retrytemplate.control.sql.statement_timeout import milliseconds
from retrytemplate.testing import VirtualClock, no_waiting

ENDLESS = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
)
SLEEPS = text("SELECT pg_sleep(60)")
CUT = "the database cancelled a statement after 0.02 seconds"


@pytest.fixture
def sqlite(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/a.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (n integer)"))
    yield engine
    engine.dispose()


@pytest.fixture
def postgres(postgres_url):
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS limited (n integer)"))
        connection.execute(text("DELETE FROM limited"))
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request):
    """An engine, and a statement that does not end."""
    engine = request.getfixturevalue(request.param)
    return engine, ENDLESS if request.param == "sqlite" else SLEEPS


@contextmanager
def fails(kind, limit=None):
    with pytest.raises(DeadlineExceededError) as raised:
        yield raised
    assert raised.value.kind == kind
    if limit is not None:
        assert raised.value.limit == limit


def works(connection):
    return connection.scalar(text("SELECT 17")) == 17


# -- both databases --------------------------------------------------------------------------------


@pytest.mark.statement("S1-32")
def test_statement_is_cut_at_its_own_limit(database):
    engine, endless = database
    with engine.connect() as connection:
        with fails("database statement", 0.02) as raised, statement_limit(connection, seconds=0.02):
            connection.execute(endless)
        assert isinstance(raised.value.__cause__, DBAPIError)
        assert not raised.value.outcome_unknown, "it had no effect"
        connection.rollback()
        assert works(connection)


@pytest.mark.statement("S1-32")
def test_statement_is_cut_at_the_remaining_time_of_the_deadline(database):
    engine, endless = database
    with (
        engine.connect() as connection,
        fails("request", 0.05),
        Deadline(0.05, kind="request"),
        statement_limit(connection, seconds=60.0, minimum=0),
    ):
        connection.execute(endless)


def test_deadline_argument_precedes_the_current_deadline(database):
    engine, endless = database
    mine = Deadline.after(0.05, kind="mine")
    with (
        engine.connect() as connection,
        fails("mine"),
        Deadline(60.0),
        statement_limit(connection, deadline=mine, minimum=0),
    ):
        connection.execute(endless)


def test_statement_cut_by_the_attempt_timeout_fails_the_attempt(database):
    engine, endless = database
    template = RetryTemplate(SimpleRetryPolicy(2), attempt_timeout=0.03)

    def ask():
        with engine.connect() as connection, statement_limit(connection, minimum=0):
            connection.execute(endless)

    outcome = template.outcome(ask)
    assert (type(outcome.exception), outcome.attempts) == (AttemptTimeoutError, 2)


def test_limit_of_a_thread_delayed_before_its_statement_is_named(tmp_path):
    engine, limit = create_engine(f"sqlite:///{tmp_path}/a.db"), 0.03
    with (
        engine.connect() as connection,
        fails("database statement"),
        statement_limit(connection, seconds=limit) as held_up,
    ):
        held_up._database.set = then_held_up(held_up._database.set, limit / 2)
        connection.execute(ENDLESS)
    engine.dispose()


def then_held_up(call, seconds):
    def held_up(*args):
        call(*args)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    return held_up


def test_statement_rejected_by_the_attempt_limit_leaves_the_connection(database):
    engine, _ = database
    template = RetryTemplate(SimpleRetryPolicy(1), attempt_timeout=1.0, clock=VirtualClock())

    def ask(connection):
        with statement_limit(connection):
            template.clock.advance(0.97)
            works(connection)

    with engine.connect() as connection:
        assert type(template.outcome(ask, connection).exception) is AttemptTimeoutError
        assert not connection.invalidated
        assert works(connection)


@pytest.mark.statement("S1-33")
def test_statement_without_enough_time_is_not_sent(database):
    engine, _ = database
    clock = VirtualClock()
    with engine.connect() as connection, Deadline(1.0, kind="request", clock=clock):
        with fails("request"), statement_limit(connection):
            assert works(connection)
            clock.advance(0.97)
            connection.scalar(text("SELECT 17"))
        clock.advance(1.0)
        with fails("request"), statement_limit(connection):
            pytest.fail("the block was entered")


@pytest.mark.statement("S1-24")
def test_statements_of_a_block_share_the_remaining_time(database):
    engine, _ = database
    clock, seen = VirtualClock(), []
    with engine.connect() as connection, Deadline(4.0, clock=clock), statement_limit(connection):
        for _ in range(3):
            seen.append(settings(connection)[0][0])
            clock.advance(1.0)
    assert seen in (["4s", "3s", "2s"], [4000, 3000, 2000])


def test_connection_settings_are_restored_after_the_block(database):
    engine, _ = database
    with engine.connect() as connection:
        before = settings(connection)
        with statement_limit(connection, seconds=0.5, lock=0.25):
            works(connection)
            assert settings(connection) != before
        assert settings(connection) == before
        with pytest.raises(ZeroDivisionError), statement_limit(connection, seconds=0.5):
            works(connection)
            raise ZeroDivisionError
        assert settings(connection) == before
        assert not [name for name in connection.info if "limit" in str(name)]


def settings(connection):
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql("PRAGMA busy_timeout").all()
    return connection.exec_driver_sql(
        "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
    ).all()


def test_transaction_may_begin_and_end_within_the_block(database):
    engine, _ = database
    with engine.connect() as connection, statement_limit(connection, seconds=5.0):
        for _ in range(2):
            with connection.begin():
                assert works(connection)


@pytest.mark.parametrize(("seconds", "given"), [(0.0299, 30), (0.00001, 1), (5, 5000)])
def test_limit_is_rounded_up_to_whole_milliseconds(seconds, given):
    assert milliseconds(seconds) == given  # an earlier cancellation would be of another limit


def test_settings_stay_unchanged_without_any_limit(database):
    engine, _ = database
    with engine.connect() as connection:
        before = settings(connection)
        with statement_limit(connection):
            assert settings(connection) == before


def test_other_statement_error_is_raised_unchanged(database):
    engine, _ = database
    with engine.connect() as connection:
        with pytest.raises(DBAPIError), statement_limit(connection, seconds=5.0):
            connection.execute(text("SELECT * FROM absent"))
        connection.rollback()
        assert works(connection)


def test_blocks_on_one_connection_cannot_be_nested(database):
    engine, _ = database
    with engine.connect() as connection, statement_limit(connection, seconds=5.0):
        with pytest.raises(MisuseError, match="already"), statement_limit(connection, seconds=1.0):
            pytest.fail("it was entered")
        assert works(connection)


def test_connection_closed_in_the_block_is_not_reset(database):
    engine, _ = database
    with engine.connect() as connection, statement_limit(connection, seconds=5.0):
        assert works(connection)
        connection.close()
    with engine.connect() as connection, statement_limit(connection, seconds=5.0):
        assert works(connection)


@pytest.mark.parametrize("end", ["close", "invalidate"])
def test_error_on_a_closed_connection_is_raised_unchanged(end, database):
    engine, _ = database
    with (
        engine.connect() as connection,
        pytest.raises(ZeroDivisionError),
        statement_limit(connection, seconds=5.0),
    ):
        assert works(connection)
        getattr(connection, end)()
        raise ZeroDivisionError


# -- PostgreSQL ------------------------------------------------------------------------------------


@pytest.mark.statement("S1-32")
def test_lock_is_waited_for_at_most_the_limit(postgres):
    with postgres.begin() as holder, postgres.connect() as waiting:
        holder.execute(text("LOCK TABLE limited"))
        with fails("lock acquire", 0.02), statement_limit(waiting, seconds=60.0, lock=0.02):
            waiting.execute(text("SELECT * FROM limited"))


def test_cancellation_by_another_session_is_not_a_limit(postgres):
    cancel = text(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
        "WHERE pid = :pid AND state = 'active' AND query = 'SELECT pg_sleep(60)'"
    )
    with postgres.connect() as connection, postgres.connect() as other:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        other = other.execution_options(isolation_level="AUTOCOMMIT")

        def sleeps():
            with statement_limit(connection, seconds=50.0):
                connection.execute(SLEEPS)

        async def both():
            sleeping = asyncio.ensure_future(asyncio.to_thread(sleeps))
            while not await asyncio.to_thread(other.scalar, cancel, {"pid": pid}):
                assert not sleeping.done()
            await sleeping

        with pytest.raises(OperationalError, match="user request"):
            asyncio.run(both())


def test_autocommit_connection_is_rejected(postgres):
    with postgres.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        limit = statement_limit(connection, seconds=1.0)
        with pytest.raises(MisuseError, match="needs a transaction"), limit:
            pytest.fail("it was entered")
        assert works(connection)


def test_streamed_result_is_limited(postgres):
    with postgres.connect() as connection, statement_limit(connection, seconds=5.0):
        rows = connection.execution_options(stream_results=True).execute(
            text("SELECT generate_series(1, 3)")
        )
        assert [row[0] for row in rows] == [1, 2, 3]


def test_savepoint_that_is_rolled_back_leaves_no_limit(postgres):
    with postgres.connect() as connection, connection.begin():
        before = settings(connection)
        with fails("database statement"), statement_limit(connection, seconds=0.02):
            works(connection)
            with connection.begin_nested():
                connection.execute(SLEEPS)
        assert settings(connection) == before


# -- SQLite ----------------------------------------------------------------------------------------


@pytest.mark.statement("S1-32")
def test_busy_file_is_waited_for_at_most_the_limit(sqlite):
    with sqlite.connect() as waiting, sqlite.connect() as holder:
        holder.exec_driver_sql("BEGIN IMMEDIATE")
        with fails("lock acquire", 0.02), statement_limit(waiting, lock=0.02):
            waiting.execute(text("INSERT INTO t VALUES (1)"))
        with (
            fails("request", 0.04),
            Deadline(0.04, kind="request"),
            statement_limit(waiting, minimum=0),
        ):
            waiting.execute(text("INSERT INTO t VALUES (1)"))


def test_lock_limit_never_lengthens_the_wait(sqlite):
    with sqlite.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 7")
        with statement_limit(connection, lock=60.0):
            works(connection)
            assert settings(connection) == [(7,)]


@pytest.fixture
def pooled(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/c.db", pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


LONG = text(str(ENDLESS).replace("FROM n)", "FROM n LIMIT 100000)"))


@pytest.mark.parametrize("end", [KeyboardInterrupt, GeneratorExit, ZeroDivisionError])
def test_pooled_connection_after_an_interrupt_has_no_limit(end, pooled):
    with pooled.connect() as connection, pytest.raises(end):
        before = settings(connection)
        with statement_limit(connection, seconds=0.001, lock=0.001):
            assert works(connection)
            raise end
    with pooled.connect() as connection:
        assert connection.scalar(LONG) == 100_000
        assert settings(connection) == before


def test_keyboard_interrupt_in_a_statement_is_not_its_failure(pooled):
    with no_waiting() as clock:
        clock.advance(1)  # from here on the system's own time is a function in Python
    began, over, here = threading.Event(), threading.Event(), threading.get_ident()

    def press():
        began.wait(60)
        while not (over.is_set() or sys._current_frames()[here].f_code.co_name == "do_execute"):
            time.sleep(0)  # still in the function: what is raised there is the statement's failure
        os.kill(os.getpid(), signal.SIGINT)

    def begin():
        began.set()
        return 1

    presses = threading.Thread(target=press)
    presses.start()
    with pooled.connect() as connection, pytest.raises(KeyboardInterrupt):
        connection.connection.dbapi_connection.create_function("begin", 0, begin)
        with statement_limit(connection, seconds=0.1):
            try:
                connection.scalar(text(f"SELECT begin() + ({ENDLESS})"))
            finally:
                over.set()
                presses.join()


# -- asyncio ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def async_database(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/b.db", ENDLESS
    url = make_url(request.getfixturevalue("postgres_url"))
    return url.set(drivername="postgresql+psycopg"), SLEEPS


@pytest.mark.statement("S1-32")
def test_asyncio_statement_is_cut(async_database):
    url, endless = async_database

    async def main():
        engine = create_async_engine(url)
        async with engine.connect() as connection:
            with fails("database statement", 0.02):
                async with statement_limit(connection, seconds=0.02):
                    await connection.execute(endless)
            await connection.rollback()
            with fails("request"), Deadline(0.05, kind="request"):
                async with statement_limit(connection, minimum=0):
                    await connection.execute(endless)
            await connection.rollback()
            assert await connection.scalar(text("SELECT 17")) == 17
            limit = statement_limit(connection)
            with pytest.raises(MisuseError, match="takes: async with"), limit:
                pytest.fail("it was entered")
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize(("statement", "own"), [(ENDLESS, 0.1), (None, 0.001)])
def test_asyncio_cancellation_passes_and_leaves_no_limit(statement, own, tmp_path):
    began = []

    async def work(engine):
        async with engine.connect() as connection, statement_limit(connection, seconds=own):
            assert await connection.scalar(text("SELECT 17")) == 17
            began.append(True)
            if statement is None:
                await asyncio.Event().wait()
            await connection.scalar(statement)

    async def main():
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path}/d.db", pool_size=1, max_overflow=0
        )
        task = asyncio.create_task(work(engine))
        while not began:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with engine.connect() as connection:
            assert await connection.scalar(LONG) == 100_000
        await engine.dispose()

    asyncio.run(main())


def test_blocking_connection_in_async_with_is_misuse(sqlite):
    async def main():
        with sqlite.connect() as connection, pytest.raises(MisuseError, match="takes: with"):
            async with statement_limit(connection):
                pytest.fail("it was entered")

    asyncio.run(main())


# -- wrong use -------------------------------------------------------------------------------------


def test_unsupported_database_is_rejected_by_name(sqlite, monkeypatch):
    with sqlite.connect() as connection:
        monkeypatch.setattr(connection.dialect, "name", "oracle")
        with pytest.raises(NotImplementedError, match="knows postgresql and sqlite, not oracle"):
            statement_limit(connection)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"seconds": 0}, "seconds must be"),
        ({"lock": "long"}, "lock must be"),
        ({"minimum": -1}, "minimum must be"),
        ({"deadline": 5.0}, "deadline must be"),
    ],
)
def test_wrong_limits_are_rejected(sqlite, given, problem):
    with sqlite.connect() as connection, pytest.raises((TypeError, ValueError), match=problem):
        statement_limit(connection, **given)


def test_wrong_type_of_connection_is_rejected(sqlite):
    for other in (sqlite, 17, sqlite3.connect(":memory:")):
        with pytest.raises(TypeError, match="a Connection or an AsyncConnection"):
            statement_limit(other)
        if isinstance(other, sqlite3.Connection):
            other.close()
