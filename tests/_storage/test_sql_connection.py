"""Statements of tasks in SQLite: sent to the driver, unless a listener expects them."""

from contextlib import asynccontextmanager

import aiosqlite.core
import pytest
from sqlalchemy import event, text

from retrytemplate._storage.sql_connection import AsyncDatabase
from retrytemplate._storage.sql_schema import LockedError
from retrytemplate.errors import CacheUnavailableError

READ = text("SELECT value FROM numbers"), {}


def write(value):
    return text("INSERT INTO numbers VALUES (:value)"), {"value": value}


@asynccontextmanager
async def opened(url, timeout=5.0):
    database = AsyncDatabase(url, timeout)
    try:
        yield database
    finally:
        await database.close()


@pytest.fixture
async def database(tmp_path):
    async with opened(f"sqlite:///{tmp_path}/store.db") as made:
        await made.ask((text("CREATE TABLE numbers (value integer UNIQUE)"), {}), "create")
        yield made


async def values(database):
    return [value for (value,) in await database.ask(READ, "read")]


async def test_statement_needs_no_cursor_of_its_own(database, monkeypatch):
    calls = []
    execute = aiosqlite.core.Connection._execute

    async def count(self, function, *args, **kwargs):
        calls.append(function.__name__)
        return await execute(self, function, *args, **kwargs)

    monkeypatch.setattr(aiosqlite.core.Connection, "_execute", count)
    await database.ask(write(1), "write")
    assert calls == ["_commit_together"]
    calls.clear()

    async def work(connection):
        await database.ask(write(2), "write", connection)
        await database.ask(write(3), "write", connection)

    await database.run_in_transaction(work)
    assert calls == [*["fetch"] * 3, "commit"]
    assert await values(database) == [1, 2, 3]


async def test_listener_of_the_engine_gets_each_statement(database):
    statements = []
    event.listen(
        database.engine.sync_engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *_: statements.append(statement.split()[0]),
    )

    async def work(connection):
        await database.ask(write(1), "write", connection)

    await database.run_in_transaction(work)
    assert await values(database) == [1]
    assert statements == ["BEGIN", "INSERT", "SELECT"]


async def test_error_undoes_the_statements_of_a_transaction(database):
    async def work(connection):
        await database.ask(write(1), "write", connection)
        raise KeyError(1)

    with pytest.raises(KeyError):
        await database.run_in_transaction(work)
    assert await values(database) == []


async def test_error_of_the_driver_is_one_of_the_store(database):
    await database.ask(write(1), "write")
    with pytest.raises(CacheUnavailableError, match=r"write failed .* UNIQUE constraint"):
        await database.ask(write(1), "write")


async def test_lock_of_another_connection_is_reported(database):
    url = str(database.engine.url)
    async with opened(url, timeout=0.05) as other:

        async def work(connection):
            await database.ask(write(1), "write", connection)
            await other.ask(write(2), "write")

        with pytest.raises(LockedError):
            await database.run_in_transaction(work)


async def test_closed_connection_is_an_error_of_the_store(database):
    async with database.engine.connect() as connection:
        driver = connection.sync_connection.connection.driver_connection
    await driver.close()
    with pytest.raises(CacheUnavailableError, match=r"no active connection|Connection closed"):
        await database.ask(READ, "read")
