"""Writes of tasks to a file of SQLite that wait for each other: they share a commit."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from threading import Event

import pytest
from sqlalchemy import event, text

from retrytemplate._storage import sqlite_writer
from retrytemplate._storage.sql_connection import AsyncDatabase
from retrytemplate._storage.sql_schema import LockedError
from retrytemplate.errors import CacheUnavailableError

TABLES = (
    "CREATE TABLE numbers (value integer UNIQUE, parent integer "
    "REFERENCES numbers (value) DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE words (word text)",
)
INSERT = "INSERT INTO numbers (value) VALUES (:value) RETURNING value"
ORPHAN = "INSERT INTO numbers VALUES (:value, -1)"  # the commit finds that -1 is missing
ABORT = "INSERT OR ROLLBACK INTO numbers (value) VALUES (:value)"
ADD = "UPDATE words SET word = word || :letter RETURNING word"


def order(statement, **parameters):
    return text(statement), parameters


def number(value):
    return order(INSERT, value=value)


@pytest.fixture
async def database(tmp_path):
    made = AsyncDatabase(f"sqlite:///{tmp_path}/store.db", 5.0)

    @event.listens_for(made.engine.sync_engine, "connect")
    def connected(connection, _):
        connection.execute("PRAGMA foreign_keys = ON").close()

    for each in TABLES:
        await made.ask(order(each), "create")
    yield made
    await made.close()


@pytest.fixture
def commits(monkeypatch):
    """The number of writes of each commit."""
    sizes = []
    commit = sqlite_writer._commit_together

    def count(connection, writes):
        sizes.append(len(writes))
        return commit(connection, writes)

    monkeypatch.setattr(sqlite_writer, "_commit_together", count)
    return sizes


@asynccontextmanager
async def waiting(database, *orders):
    """Tasks that write; all wait until the end of the block."""
    async with sqlite_writer.writer_of(database.engine.pool).turn():
        tasks = [asyncio.create_task(database.ask(each, "write")) for each in orders]
        await asyncio.sleep(0)
        yield tasks
    await asyncio.wait(tasks)


async def values(database):
    read = await database.ask(order("SELECT value FROM numbers ORDER BY value"), "read")
    return [value for (value,) in read]


async def test_writes_that_wait_share_a_commit(database, commits):
    async with waiting(database, *map(number, range(5))) as tasks:
        pass
    assert [task.result() for task in tasks] == [[(value,)] for value in range(5)]
    assert commits == [5]


async def test_commit_has_at_most_100_writes(database, commits):
    async with waiting(database, *map(number, range(250))):
        pass
    assert commits == [100, 100, 50]
    assert await values(database) == list(range(250))


async def test_rows_are_committed_when_a_task_gets_them(database):
    seen = []

    async def look(task):
        await task
        with closing(sqlite3.connect(database.engine.url.database)) as other:
            seen.append(other.execute("SELECT count(*) FROM numbers").fetchone())

    async with waiting(database, number(1), number(2)) as tasks:
        looks = [asyncio.create_task(look(task)) for task in tasks]
    await asyncio.gather(*looks)
    assert seen == [(2,), (2,)]


@pytest.mark.parametrize(
    "wrong, error",
    [(number(1), CacheUnavailableError), (number(2**63), OverflowError)],
    ids=["of SQLite", "of the driver"],
)
async def test_error_of_a_write_undoes_that_write_only(database, commits, wrong, error):
    async with waiting(database, number(1), wrong, number(2)) as tasks:
        pass
    assert [type(task.exception()) for task in tasks] == [type(None), error, type(None)]
    assert await values(database) == [1, 2]
    assert commits == [3]


async def test_failed_commit_is_the_error_of_all_writes(database):
    async with waiting(database, number(1), order(ORPHAN, value=2), number(3)) as tasks:
        pass
    errors = [task.exception() for task in tasks]
    assert [type(error) for error in errors] == [CacheUnavailableError] * 3
    assert len(set(map(id, errors))) == 3
    assert await values(database) == []
    await database.ask(number(4), "write")  # the connection has no open transaction
    assert await values(database) == [4]


async def test_error_that_undoes_the_transaction_is_one_of_all(database):
    async with waiting(database, number(1), order(ABORT, value=1), number(2)) as tasks:
        pass
    assert all(isinstance(task.exception(), CacheUnavailableError) for task in tasks)
    assert await values(database) == []


async def test_cancelled_waiter_ends_after_its_write(database, commits):
    async with waiting(database, number(1), number(2)) as tasks:
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert not tasks[0].done()
    assert tasks[0].cancelled()
    assert tasks[1].result() == [(2,)]
    assert await values(database) == [1, 2]
    assert commits == [2]


async def test_writes_are_made_in_the_order_of_their_calls(database):
    await database.ask(order("INSERT INTO words VALUES ('')"), "write")
    letters = "sequence"
    async with waiting(database, *(order(ADD, letter=letter) for letter in letters)) as tasks:
        pass
    expected = [letters[: end + 1] for end in range(len(letters))]
    assert [task.result()[0][0] for task in tasks] == expected


async def test_list_is_one_write(database, commits):
    rows = await database.ask([number(1), number(2)], "write")
    assert rows == [[(1,)], [(2,)]]
    assert commits == [1]


async def test_list_ends_at_the_first_statement_without_rows(database):
    nothing = order("DELETE FROM numbers WHERE value = 7 RETURNING value")
    assert await database.ask([number(1), nothing, number(2)], "write") == [[(1,)], [], ()]
    assert await values(database) == [1]


async def test_error_of_a_list_undoes_the_list_only(database):
    async with waiting(database, number(1), [number(2), number(1)], number(3)) as tasks:
        pass
    assert isinstance(tasks[1].exception(), CacheUnavailableError)
    assert await values(database) == [1, 3]


async def test_list_is_one_transaction_where_a_listener_expects_it(database):
    event.listen(database.engine.sync_engine, "before_cursor_execute", lambda *_: None)
    with pytest.raises(CacheUnavailableError):
        await database.ask([number(1), number(1)], "write")
    nothing = order("DELETE FROM numbers WHERE value = 7 RETURNING value")
    assert await database.ask([number(2), nothing, number(3)], "write") == [[(2,)], [], ()]
    assert await values(database) == [2]


async def test_setting_of_the_file_is_no_part_of_a_transaction(database, commits):
    async with waiting(database, number(1), order("PRAGMA journal_mode = wal"), number(2)) as tasks:
        pass
    assert [task.exception() for task in tasks] == [None] * 3
    assert commits == [2]


async def test_write_that_waits_too_long_leaves_the_others(database):
    impatient = AsyncDatabase(database.engine, 0.01)
    async with waiting(database, number(1)) as tasks:
        with pytest.raises(LockedError, match=r"other tasks used the file for 0\.01 s"):
            await impatient.ask(number(2), "write")
    assert tasks[0].result() == [(1,)]
    assert await values(database) == [1]


def test_waiting_writes_are_cancelled_with_their_loop(tmp_path):
    async def main():
        database = AsyncDatabase(f"sqlite:///{tmp_path}/store.db", 5.0)
        await database.ask(order(TABLES[0]), "create")
        turn = sqlite_writer.writer_of(database.engine.pool).turn()
        await turn.__aenter__()
        task = asyncio.create_task(database.ask(number(1), "write"))
        await asyncio.sleep(0)
        await database.close()
        return task

    task = asyncio.run(main())
    assert task.cancelled()


async def test_other_version_of_aiosqlite_is_used_through_sqlalchemy(
    tmp_path, commits, monkeypatch
):
    monkeypatch.setattr(sqlite_writer, "PRIVATE", ("_removed",))
    made = AsyncDatabase(f"sqlite:///{tmp_path}/store.db", 5.0)
    await made.ask(order(TABLES[0]), "create")
    rows = await asyncio.gather(*(made.ask(number(value), "write") for value in range(3)))
    assert rows == [[(0,)], [(1,)], [(2,)]]
    assert await made.ask([number(3), number(4)], "write") == [[(3,)], [(4,)]]
    assert commits == []
    await made.close()


def test_event_loop_ends_after_the_write_in_progress(tmp_path, monkeypatch):
    begun, released = Event(), Event()
    commit = sqlite_writer._commit_together

    def wait(connection, writes):
        begun.set()
        released.wait(30)
        return commit(connection, writes)

    made = AsyncDatabase(f"sqlite:///{tmp_path}/store.db", 5.0)

    async def leave_a_write():
        await made.ask(order(TABLES[0]), "create")
        monkeypatch.setattr(sqlite_writer, "_commit_together", wait)
        task = asyncio.create_task(made.ask(number(1), "write"))
        while not begun.is_set():
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, released.set)
        return task

    try:
        assert asyncio.run(leave_a_write()).cancelled()
        assert released.is_set()  # by the event loop, while it waited
        monkeypatch.undo()
        assert asyncio.run(values(made)) == [1]
    finally:
        released.set()
        asyncio.run(made.close())
