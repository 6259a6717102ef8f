"""Statements of tasks in PostgreSQL: sent to psycopg, unless a listener expects them."""

import asyncio

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from retrytemplate._storage.operation_runner import AnswerLostError
from retrytemplate._storage.sql_connection import AsyncDatabase
from retrytemplate.errors import CacheUnavailableError
from tests.support.postgres import free_port

PID = "SELECT pg_backend_pid()"
CLOSE = "SELECT pg_terminate_backend(CAST(:pid AS int))"
ACTIVE = "SELECT 1 FROM pg_stat_activity WHERE pid = CAST(:pid AS int) AND state = 'active'"
DIVIDE = "SELECT 1 / CAST(:number AS int)"


def order(statement, **parameters):
    return text(statement), parameters


@pytest.fixture
async def database(postgres_url):
    made = AsyncDatabase(postgres_url, 5.0)
    yield made
    await made.close()


async def ask(database, statement, **parameters):
    return list(await database.ask(order(statement, **parameters), "ask"))


async def test_statement_does_not_use_a_connection_of_sqlalchemy(database, monkeypatch):
    monkeypatch.delattr(AsyncEngine, "connect")
    values = {"word": "50%", "none": None}
    statement = "SELECT CAST(:word AS text), '1%', CAST(:none AS text)"
    assert await ask(database, statement, **values) == [("50%", "1%", None)]
    assert await ask(database, "SET search_path = public") == []


async def test_listener_of_the_engine_gets_each_statement(database):
    seen = []
    event.listen(
        database.engine.sync_engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, *_: seen.append(statement),
    )
    assert await ask(database, PID) != []
    assert seen == [PID]


async def test_error_of_the_driver_is_one_of_the_store(database):
    with pytest.raises(CacheUnavailableError, match=r"ask failed .* division by zero"):
        await ask(database, DIVIDE, number=0)
    assert await ask(database, DIVIDE, number=1) == [(1,)]


async def test_closed_connection_replaces_all_of_the_pool(database, postgres_url):
    pids = await asyncio.gather(*(ask(database, f"{PID}, pg_sleep(0.05)") for _ in range(3)))
    other = AsyncDatabase(postgres_url, 5.0)
    for [(pid, _)] in pids:
        await ask(other, CLOSE, pid=pid)
    await other.close()
    with pytest.raises(AnswerLostError):
        await ask(database, PID)
    [(new,)] = await ask(database, PID)
    assert new not in [pid for [(pid, _)] in pids]


async def test_unreachable_server_has_lost_no_answer():
    database = AsyncDatabase(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", 5.0)
    with pytest.raises(CacheUnavailableError) as caught:
        await ask(database, PID)
    assert type(caught.value) is CacheUnavailableError


async def test_cancelled_statement_ends_and_its_connection_is_replaced(database):
    [(pid,)] = await ask(database, PID)
    task = asyncio.create_task(ask(database, "SELECT pg_sleep(60)"))
    other = AsyncDatabase(database.engine.url, 5.0)
    while not await ask(other, ACTIVE, pid=pid):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ask(other, ACTIVE, pid=pid) == []
    await other.close()
    assert await ask(database, PID) != [(pid,)]


async def test_list_is_one_transaction(database):
    [[(first,)], [(second,)]] = await database.ask(
        [order("SELECT pg_current_xact_id()")] * 2, "ask"
    )
    assert first == second
