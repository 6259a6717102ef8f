"""Statements of tasks for aiosqlite: writes to a file that wait are committed together."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from retrytemplate._storage.cancellation import run_to_completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from retrytemplate._storage.sql_schema import Order, Rows

    # The rows of each statement of one write, or its error.
    Answer = list[Rows] | Exception

AT_ONCE = 100  # writes of a commit: other processes wait for it
CLOSED = "no active connection", "connection closed"
# aiosqlite has no public way to call a function in the thread of a connection.
PRIVATE = "_execute", "_conn"


class FileInUseError(SQLAlchemyError, TimeoutError):
    """Other tasks used the file until the timeout of this one."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"other tasks used the file for {timeout:g} s")


class _Write(NamedTuple):
    """Statements of one task, and what ends its wait for other tasks."""

    orders: list[Order]
    answer: asyncio.Future[list[Rows]]
    timer: asyncio.TimerHandle


class Writer:
    """The writes of the tasks of one event loop to a file, one transaction after the other.

    A connection that waits for the lock of the file polls it, some at most ten times a second: of
    many connections a few would wait until their timeout.  A commit waits for the disk: the
    statements that arrive meanwhile share the next one.  An error of one undoes only that one, and
    no task gets its rows before the commit.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting: list[_Write] = []
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self, timeout: float = inf) -> AsyncIterator[None]:
        """Let no other task write during a block.

        :raises FileInUseError: the tasks before this one take longer than *timeout* seconds.
        """
        try:
            async with asyncio.timeout(None if timeout == inf else timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise FileInUseError(timeout) from None
        try:
            yield
        finally:
            self._lock.release()

    def write(self, engine: Any, orders: list[Order], timeout: float) -> asyncio.Future[list[Rows]]:
        """The rows of each statement, after their commit; they end at the first without rows.

        An error of the driver is one of SQLAlchemy; ``FileInUseError`` as in ``turn``.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Rows]] = loop.create_future()
        timer = loop.call_later(timeout, self._expire, answer, timeout)
        self._waiting.append(_Write(orders, answer, timer))
        if self._task is None:
            # An empty context: that of the first task would live as long as the others write.
            self._task = loop.create_task(self._run(engine), context=Context())
        return answer

    def _expire(self, answer: asyncio.Future[list[Rows]], timeout: float) -> None:
        self._waiting = [write for write in self._waiting if write.answer is not answer]
        answer.set_exception(FileInUseError(timeout))

    async def _run(self, engine: Any) -> None:
        batch: list[_Write] = []
        try:
            while self._waiting:
                async with self.turn():
                    batch = self._waiting[:AT_ONCE]
                    del self._waiting[:AT_ONCE]
                    for write in batch:
                        write.timer.cancel()
                    answers = await _commit(engine, [write.orders for write in batch])
                for write, answer in zip(batch, answers, strict=True):
                    _answer(write.answer, answer)
        except asyncio.CancelledError:  # the event loop ends
            for write in batch + self._waiting:
                write.timer.cancel()
                write.answer.cancel()
            self._waiting.clear()
            raise
        finally:
            self._task = None


def _answer(future: asyncio.Future[list[Rows]], answer: Answer) -> None:
    if isinstance(answer, Exception):
        future.set_exception(_translated(answer))
    else:
        future.set_result(answer)


async def _commit(engine: Any, writes: list[list[Order]]) -> list[Answer]:
    if not writes:
        return []
    try:
        answers: list[Answer] = await _with_connection(engine, _commit_together, writes)
    except Exception as exc:  # no cancellation: that is of an ending loop
        return [exc] * len(writes)
    return answers


def is_supported() -> bool:
    """Whether the connections of this version of aiosqlite have what ``_call`` uses."""
    from aiosqlite import Connection

    return all(hasattr(Connection, name) for name in PRIVATE)


# By pool: the event loop of the latest use, and the writer of its tasks.
_writers: WeakKeyDictionary[Any, tuple[Any, Writer]] = WeakKeyDictionary()


def writer_of(pool: Any) -> Writer:
    """The writer of this event loop to the file of a pool."""
    loop = asyncio.get_running_loop()
    user, writer = _writers.get(pool, (None, None))
    if writer is None or user is not loop:
        writer = Writer()
        _writers[pool] = loop, writer
    return writer


async def read(engine: Any, orders: list[Order]) -> list[Rows]:
    """The rows of statements that do not write: they wait for no writer.

    :raises SQLAlchemyError: from an error of the driver.
    """
    with _translated_errors():
        return [await _with_connection(engine, fetch, order) for order in orders]


async def execute(driver: Any, order: Order) -> Rows:
    """The rows of a statement in the transaction of a connection of aiosqlite.

    :raises DBAPIError: of SQLAlchemy, from an error of the driver.
    """
    with _translated_errors():
        rows: Rows = await _call(driver, fetch, order)
    return rows


async def _with_connection(engine: Any, function: Callable[..., Any], *args: Any) -> Any:
    connection = await engine.raw_connection()
    try:
        return await _call(connection.driver_connection, function, *args)
    finally:
        connection.close()


async def _call(driver: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with the connection of SQLite, in the thread of that of aiosqlite.

    Each call is one round trip to the thread, which takes most of the time of a short statement.
    For a statement SQLAlchemy makes four: open a cursor, execute, fetch, close the cursor.
    """
    # The thread keeps its latest call.  This one does not refer to the connection of aiosqlite,
    # which the garbage collector can close then, without its event loop.
    try:
        return await driver._execute(function, driver._conn, *args)
    except asyncio.CancelledError:  # an event loop ends: it must not close before the call returns
        await run_to_completion(driver._execute(_wait_for_calls))
        raise


def _wait_for_calls() -> None:
    """Called in the thread after the calls before it."""


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError) as exc:
        made = _translated(exc)
        if made is exc:
            raise
        raise made from exc


def _translated(error: Exception) -> Exception:
    """The error of SQLAlchemy for one of the driver; others unchanged."""
    is_closed = isinstance(error, ValueError) and str(error).lower() in CLOSED
    return DBAPIError(None, None, error) if is_closed or isinstance(error, sqlite3.Error) else error


# -- in the thread of a connection


def fetch(connection: sqlite3.Connection, order: Order) -> Rows:
    """The rows of a statement."""
    statement, parameters = order
    return connection.execute(statement.text, parameters).fetchall()


def _commit_together(connection: sqlite3.Connection, writes: list[list[Order]]) -> list[Answer]:
    """Write all in one transaction; an error of one write undoes that one only."""
    if len(writes) == len(writes[0]) == 1:
        return [[fetch(connection, writes[0][0])]]
    connection.execute("BEGIN IMMEDIATE")
    try:
        answers = [_write(connection, orders) for orders in writes]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answers


def _write(connection: sqlite3.Connection, orders: list[Order]) -> Answer:
    connection.execute("SAVEPOINT one")
    rows: list[Rows] = [()] * len(orders)
    error: Exception | None = None
    try:
        for number, order in enumerate(orders):
            rows[number] = fetch(connection, order)
            if not rows[number]:
                break
    except Exception as exc:  # no cancellation: this is a thread
        if not connection.in_transaction:  # SQLite has undone the others, too
            raise
        error = exc
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")
    return rows if error is None else error
