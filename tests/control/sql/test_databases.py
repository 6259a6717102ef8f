"""Classification of failures of real databases, and detection of open transactions."""

import asyncio
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from retrytemplate import (
    FixedBackoff,
    MisuseError,
    NoBackoff,
    Rejected,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import TRANSIENT_ERRORS, OpenTransaction, in_transaction
from retrytemplate.testing import GuardConformance, VirtualClock
from tests.support.accounts_db import bank

WORTH = SimpleRetryPolicy(3, classifier=TRANSIENT_ERRORS)
TEMPLATE = RetryTemplate(WORTH, NoBackoff())


@pytest.fixture(scope="module")
def postgresql(postgres_url):
    with bank(postgres_url, "failures") as made:
        yield made


@pytest.mark.statement("S0-33")
def test_deadlock_victim_is_retried(postgresql):
    survivor, victim = postgresql.deadlock(TEMPLATE)
    assert (survivor.exception, survivor.attempts) == (None, 1)
    assert (victim.exception, victim.attempts) == (None, 2)
    assert "deadlock detected" in victim.history[0].message


@pytest.mark.statement("S0-33")
def test_serialization_failure_is_retried(postgresql):
    outcome = TEMPLATE.outcome(postgresql.overtaken)
    assert (outcome.exception, outcome.attempts) == (None, 2)


@pytest.mark.statement("S0-33")
def test_dropped_connection_is_opened_again(postgresql):
    outcome = TEMPLATE.outcome(postgresql.cut_off)
    assert (outcome.value, outcome.attempts) == (17, 2)


@pytest.mark.statement("S0-33")
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO account VALUES (1, 0)",
        "INSERT INTO account VALUES (NULL, 0)",
        "SELECT * FROM no_such_table",
        "SELECT 1 / 0",
    ],
)
def test_statement_error_is_not_retried(postgresql, statement):
    def work():
        with postgresql.engine.begin() as connection:
            connection.execute(sa.text(statement))

    outcome = TEMPLATE.outcome(work)
    assert outcome.attempts == 1
    assert isinstance(outcome.exception, sa.exc.DBAPIError)


def test_database_errors_are_classified_without_sqlalchemy(postgres_url):
    def work(statement):
        with psycopg.connect(postgres_url) as connection:
            connection.execute(statement)

    assert TEMPLATE.outcome(work, "SELECT 1 / 0").attempts == 1
    port = psycopg.conninfo.conninfo_to_dict(postgres_url)["port"]
    nobody = postgres_url.replace(f":{port}", ":1")
    assert TEMPLATE.outcome(psycopg.connect, nobody).attempts == 3


# SQLite.


class Frees(RetryListener):
    """Ends the transaction of another connection before a retry."""

    def __init__(self, connection):
        self.connection = connection

    def on_backoff(self, context, delay):
        self.connection.rollback()


@pytest.mark.statement("S0-33")
@pytest.mark.parametrize("library", ["sqlite3", "sqlalchemy"])
def test_busy_database_is_retried(tmp_path, library):
    path = tmp_path / "shop.db"
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0}, poolclass=NullPool)
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE item (id UNIQUE); BEGIN IMMEDIATE")

        def insert():
            if library == "sqlalchemy":
                with engine.begin() as connection:
                    connection.execute(sa.text("INSERT INTO item VALUES (1)"))
            else:
                with closing(sqlite3.connect(path, timeout=0)) as connection, connection:
                    connection.execute("INSERT INTO item VALUES (1)")

        busy = TEMPLATE.with_(listeners=[Frees(other)]).outcome(insert)
        assert (busy.exception, busy.attempts) == (None, 2)
        again = TEMPLATE.outcome(insert)
        assert again.attempts == 1
        assert "UNIQUE constraint failed" in str(again.exception)


# Transactions that are open.


@pytest.fixture
def engine(tmp_path):
    made = sa.create_engine(f"sqlite:///{tmp_path / 'items.db'}", poolclass=NullPool)
    with made.begin() as connection:
        connection.execute(sa.text("CREATE TABLE item (id)"))
    return made


def guarded(connection):
    return RetryTemplate(SimpleRetryPolicy(3, TimeoutError), guards=[OpenTransaction(connection)])


def failing(connection):
    """An attempt that fails after half of its work."""

    def work():
        connection.execute(sa.text("INSERT INTO item VALUES (1)"))
        raise TimeoutError

    return work


@pytest.mark.statement("S0-35")
def test_open_transaction_prevents_the_retry(engine):
    with engine.connect() as connection:
        with connection.begin() as transaction:
            outcome = guarded(lambda: connection).outcome(failing(connection))
            assert connection.scalar(sa.text("SELECT count(*) FROM item")) == 1
            transaction.rollback()
        assert outcome.attempts == 1
        assert isinstance(outcome.exception, Rejected)
        assert outcome.exception.name == "open transaction"
        assert isinstance(outcome.exception.__cause__, TimeoutError)
        assert connection.scalar(sa.text("SELECT count(*) FROM item")) == 0


@pytest.mark.statement("S0-35")
def test_transaction_inside_the_attempt_allows_the_retry(engine):
    with engine.connect() as connection:

        def work():
            with connection.begin():
                connection.execute(sa.text("INSERT INTO item VALUES (1)"))
                if current_context().attempt < 3:
                    raise TimeoutError

        outcome = guarded(lambda: connection).outcome(work)
        assert (outcome.exception, outcome.attempts) == (None, 3)
        assert connection.scalar(sa.text("SELECT count(*) FROM item")) == 1


@pytest.mark.statement("S0-35")
def test_stateful_retry_is_the_answer(engine):
    with engine.connect() as connection:
        template = guarded(lambda: connection)
        for state in (RetryState("message-1"), RetryState("message-1"), RetryState.untracked()):
            with pytest.raises(TimeoutError), connection.begin():
                template.execute(lambda context: failing(connection)(), state=state)
        in_place = RetryState("message-2", rollback_for=())
        with pytest.raises(Rejected), connection.begin():
            template.execute(lambda context: failing(connection)(), state=in_place)
        assert connection.scalar(sa.text("SELECT count(*) FROM item")) == 0


@pytest.mark.statement("S0-35")
def test_stateful_retry_waits_before_its_failure_leaves(engine):
    clock = VirtualClock()
    with engine.connect() as connection:
        template = guarded(lambda: connection).with_(backoff=FixedBackoff(5.0), clock=clock)
        with pytest.raises(TimeoutError), connection.begin():
            template.execute(lambda context: failing(connection)(), state=RetryState("message-1"))
    assert clock.sleeps == [5.0]


def test_retry_without_a_connection_is_not_rejected():
    assert guarded(lambda: None).outcome(raising).attempts == 3


def raising():
    raise TimeoutError


def test_session_reports_its_transaction(engine):
    with Session(engine) as session:
        assert not in_transaction(session)
        session.execute(sa.text("SELECT 1"))
        assert in_transaction(session)
        session.commit()
        assert not in_transaction(session)


def test_scoped_session_reports_its_transaction(engine):
    sessions = scoped_session(sessionmaker(engine))
    assert guarded(sessions).outcome(raising).attempts == 3
    sessions.execute(sa.text("SELECT 1"))
    assert guarded(sessions).outcome(raising).attempts == 1
    sessions.remove()


async def test_asynchronous_session_reports_its_transaction(tmp_path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}", poolclass=NullPool)
    async with AsyncSession(engine) as session:
        template = guarded(lambda: session)
        assert (await template.outcome_async(asyncio.sleep, "x")).attempts == 1
        assert not in_transaction(session)
        await session.execute(sa.text("SELECT 1"))
        assert in_transaction(session)

        async def work():
            raise TimeoutError

        assert (await template.outcome_async(work)).attempts == 1
    await engine.dispose()


def test_psycopg_connection_reports_its_transaction(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        assert not in_transaction(connection)
        connection.execute("SELECT 1")
        assert in_transaction(connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1 / 0")
        assert in_transaction(connection)
        connection.rollback()
        assert not in_transaction(connection)


def test_closed_connection_has_no_transaction(engine, postgres_url):
    connection = sqlite3.connect(":memory:")
    connection.execute("BEGIN")
    connection.close()
    assert not in_transaction(connection)
    assert guarded(lambda: connection).outcome(raising).attempts == 3
    with engine.connect() as of_sqlalchemy:
        of_sqlalchemy.execute(sa.text("SELECT 1"))
    assert not in_transaction(of_sqlalchemy)
    with psycopg.connect(postgres_url) as of_psycopg:
        of_psycopg.execute("SELECT 1")
    assert not in_transaction(of_psycopg)


def test_connection_dropped_by_the_server_has_no_transaction(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        assert not in_transaction(connection)


def test_connection_released_to_its_pool_has_no_transaction():
    class Released:  # as asyncpg's
        def is_in_transaction(self):
            raise RuntimeError("it is released back to the pool")

    assert not in_transaction(Released())


@pytest.mark.parametrize("answer", [True, False])
def test_asyncpg_and_django_connections_report_their_transaction(answer):
    assert in_transaction(SimpleNamespace(is_in_transaction=lambda: answer)) is answer
    assert in_transaction(SimpleNamespace(in_atomic_block=answer)) is answer


@pytest.mark.parametrize(
    "connection",
    [object(), SimpleNamespace(in_transaction="maybe"), SimpleNamespace(info=None)],
    ids=["silent", "undecided", "without a status"],
)
def test_object_without_transaction_state_is_misuse(connection):
    with pytest.raises(MisuseError, match="does not say whether a transaction is open on it"):
        in_transaction(connection)
    with pytest.raises(MisuseError, match="does not say whether a transaction is open on it"):
        guarded(lambda: connection).call(raising)


@pytest.mark.parametrize(
    "current", [None, "connection", asyncio.sleep], ids=["None", "text", "async"]
)
def test_function_that_returns_no_connection_is_rejected(current):
    with pytest.raises(TypeError, match="current must be"):
        OpenTransaction(current)


class TestOpenTransaction(GuardConformance):
    def make(self):
        return OpenTransaction(lambda: None)
