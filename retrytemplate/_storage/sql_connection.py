"""Connections to a database, and statements on them."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import cached_property, partial
from os.path import samefile
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from retrytemplate._storage import sql_engine
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.fork_safety import register, retain
from retrytemplate._storage.operation_runner import Operation, operation_name, perform
from retrytemplate._storage.sql_dialect import IDENTITY, START, TRANSACTION
from retrytemplate._storage.sql_engine import unavailable
from retrytemplate._storage.store_role import CONTEXT_CACHE, StoreRole
from retrytemplate.errors import CacheUnavailableError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy import Connection
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection

    from retrytemplate._storage.sql_schema import Order, Rows

    T = TypeVar("T")


class _Database:
    """The connections of one owner to a database.

    :param url: of the database, or an engine of SQLAlchemy.
    :param timeout: seconds to wait for a connection or a lock.
    """

    asynchronous = False

    def __init__(self, url: Any, timeout: float, owner: StoreRole = CONTEXT_CACHE) -> None:
        self.engine: Any = sql_engine.engine(url, timeout, owner, asynchronous=self.asynchronous)
        # The same connections, for transactions of several statements.
        self._transactions: Any = self.engine
        self._start: str | None = START[self.engine.dialect.name]
        if not sql_engine.commits_each_statement(self.engine):
            level = TRANSACTION[self.engine.dialect.name]
            self._transactions = self.engine.execution_options(isolation_level=level)
            self._start = None
        self._is_pool_shared = self.engine.pool is getattr(url, "pool", None)
        self._owner = owner
        self._timeout = timeout
        register(self)

    def __str__(self) -> str:
        """The database, without what may be a password."""
        return str(self.engine.url.set(query={}))

    def reopen(self) -> object:
        """Use new connections from now on; return the previous ones, which stay open."""
        engine = getattr(self.engine, "sync_engine", self.engine)
        before: object = engine.pool
        engine.dispose(close=False)
        return before

    def _forked(self) -> None:
        retain(self.reopen())

    def _failed(self, step: str, parameters: dict[str, Any], error: SQLAlchemyError) -> Exception:
        key = parameters.get("key")
        return unavailable(error, step if key is None else f"{step} of {key!r}", self._owner)


class Database(_Database):
    """Connections for threads."""

    def ask(self, order: Order, step: str, connection: Connection | None = None) -> Rows:
        """The rows of a statement, in a transaction of its own or in the caller's."""
        from sqlalchemy.exc import SQLAlchemyError

        statement, parameters = order
        try:
            if connection is not None:
                return _rows(connection.execute(statement, parameters))
            with self.engine.connect() as own:
                try:
                    return _rows(own.execute(statement, parameters))
                except SQLAlchemyError:
                    raise
                except BaseException as exc:
                    _cut_off(own, exc)
                    raise
        except SQLAlchemyError as exc:
            raise self._failed(step, parameters, exc) from exc

    def run_in_transaction(self, step: Operation[T]) -> T:
        """Perform an operation in one transaction of its own: an error undoes all of it."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._transactions.connect() as own:
                try:
                    with own.begin():
                        if self._start is not None:
                            own.exec_driver_sql(self._start)
                        return perform(step, partial(self.ask, connection=own))
                except (SQLAlchemyError, CacheUnavailableError):
                    raise
                except BaseException as exc:
                    _cut_off(own, exc)
                    raise
        except SQLAlchemyError as exc:
            raise unavailable(exc, operation_name(step), self._owner) from exc

    def check_connection(self, connection: Any) -> None:
        """Raise if a given connection is not one of SQLAlchemy in a transaction."""
        from sqlalchemy import Connection

        _check(connection, Connection)

    def close(self) -> None:
        """Close the connections that are the owner's; the next use opens others."""
        if not self._is_pool_shared:
            self.engine.dispose()


# The drivers that statements are sent to without the asynchronous layer of SQLAlchemy, which takes
# most of the time of a short statement.
DIRECT = "aiosqlite", "psycopg", "psycopg_async"

# By connection in a transaction of ours: that of aiosqlite.
_drivers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class AsyncDatabase(_Database):
    """Connections for the tasks of one event loop."""

    asynchronous = True

    async def ask(
        self, order: Order | list[Order], step: str, connection: AsyncConnection | None = None
    ) -> Any:
        """The rows of a statement, in a transaction of its own or in the caller's.

        A list is one transaction, which ends at the first statement without rows; returned are the
        rows of each.
        """
        from sqlalchemy.exc import SQLAlchemyError

        orders = order if isinstance(order, list) else [order]
        try:
            if connection is not None:
                rows = [await self._ask_in(connection, each) for each in orders]
            else:
                own = self._run_own(orders)
                rows = await (run_to_completion(own) if self._is_sqlite else own)
        except SQLAlchemyError as exc:
            raise self._failed(step, orders[0][1], exc) from exc
        return rows if isinstance(order, list) else rows[0]

    async def _ask_in(self, connection: AsyncConnection, order: Order) -> Rows:
        driver = _drivers.get(connection.sync_connection)
        if driver is None:
            return _rows(await connection.execute(*order))
        from retrytemplate._storage.sqlite_writer import execute

        return await execute(driver, order)

    async def run_in_transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Await a function in one transaction of its own: an error undoes all of it.

        A cancellation is raised after the end: cancelled statements may keep a lock of SQLite.
        """
        return await run_to_completion(self._run_in_transaction(work))

    async def _run_in_transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return await self._transaction(work)
        except SQLAlchemyError as exc:
            raise unavailable(exc, "a transaction", self._owner) from exc

    async def _transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._turn(), self._transactions.connect() as own, own.begin():
            await self._begin(own)
            return await work(own)

    async def _begin(self, own: AsyncConnection) -> None:
        """Begin a transaction on a connection in autocommit mode."""
        if self._start is None:
            return
        if self._is_sqlite and self._uses_driver:
            _drivers[own.sync_connection] = (await own.get_raw_connection()).driver_connection
        from sqlalchemy import text

        await self._ask_in(own, (text(self._start), {}))

    async def is_same(self, other: AsyncDatabase, table: str) -> bool:
        """Whether a table is the same one through the connections of another owner."""
        if self.engine.pool is other.engine.pool:
            return True
        if self.engine.dialect.name != other.engine.dialect.name:
            return False
        from sqlalchemy import text

        order = text(IDENTITY[self.engine.dialect.name]), {"table": table}
        ours, theirs = [(await each.ask(order, "open"))[0] for each in (self, other)]
        return samefile(ours[0], theirs[0]) if self._is_sqlite else ours == theirs

    @cached_property
    def _has_driver(self) -> bool:
        is_its_own = sql_engine.commits_each_statement(self.engine)
        if not is_its_own or self.engine.dialect.driver not in DIRECT:
            return False
        if not self._is_sqlite:
            return True
        from retrytemplate._storage.sqlite_writer import is_supported

        return is_supported()

    @property
    def _uses_driver(self) -> bool:
        """Whether statements go to the driver directly."""
        return self._has_driver and not _is_observed(self.engine)

    @property
    def _is_sqlite(self) -> bool:
        return bool(self.engine.dialect.name == "sqlite")

    def _run_own(self, orders: list[Order]) -> Awaitable[list[Rows]]:
        kind, *_ = orders[0][0].text.split(maxsplit=1)
        is_direct = self._uses_driver and (self._is_sqlite or len(orders) == 1)
        # A PRAGMA may have no effect in a transaction with other statements.
        if not is_direct or kind == "PRAGMA":
            return self._run_in_sqlalchemy(orders, is_read=kind == "SELECT")
        if not self._is_sqlite:
            from retrytemplate._storage.psycopg_statements import run

            return run(self.engine, orders[0])
        from retrytemplate._storage.sqlite_writer import read, writer_of

        if kind == "SELECT":
            return read(self.engine, orders)
        return writer_of(self.engine.pool).write(self.engine, orders, self._timeout)

    async def _run_in_sqlalchemy(self, orders: list[Order], *, is_read: bool) -> list[Rows]:
        if len(orders) > 1:
            return await self._transaction(partial(self._run_in_turn, orders))
        # Readers of SQLite wait for no writer: the file has a write-ahead log.
        async with nullcontext() if is_read else self._turn(), self.engine.connect() as own:
            return [_rows(await own.execute(*orders[0]))]

    async def _run_in_turn(self, orders: list[Order], own: AsyncConnection) -> list[Rows]:
        """The rows of each statement, until one has none."""
        rows: list[Rows] = [()] * len(orders)
        for number, order in enumerate(orders):
            rows[number] = await self._ask_in(own, order)
            if not rows[number]:
                break
        return rows

    def _turn(self) -> AbstractAsyncContextManager[None]:
        """In SQLite the tasks write to the file one after the other."""
        if not self._is_sqlite:
            return nullcontext()
        from retrytemplate._storage.sqlite_writer import writer_of

        return writer_of(self.engine.pool).turn(self._timeout)

    def check_connection(self, connection: Any) -> None:
        """Raise if a given connection is not an asynchronous one in a transaction."""
        from sqlalchemy.ext.asyncio import AsyncConnection

        _check(connection, AsyncConnection)

    async def close(self) -> None:
        """Close the connections that are the owner's; the next use opens others."""
        if not self._is_pool_shared:
            await self.engine.dispose()


OBSERVED = "before_execute", "before_cursor_execute", "after_cursor_execute"


def _is_observed(engine: Any) -> bool:
    """Whether a listener of SQLAlchemy, such as that of a tracer, expects the statements."""
    dispatch = engine.sync_engine.dispatch
    return any(getattr(dispatch, name) for name in OBSERVED)


def _cut_off(connection: Connection, error: BaseException) -> None:
    """After a signal: release the locks of the statement or transaction."""
    connection.invalidate()
    if connection.dialect.name == "sqlite":
        # SQLite closes no connection with an open cursor: frames and reference cycles hold cursors.
        clear_frames(error.__traceback__)
        gc.collect()


def _check(connection: Any, kind: type) -> None:
    if connection is None:
        return
    if not isinstance(connection, kind):
        raise MisuseError(
            f"connection must be a {kind.__module__.partition('.')[0]} {kind.__name__}, "
            f"got {connection!r}"
        )
    inner: Any = getattr(connection, "sync_connection", None) or connection
    options = inner.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise MisuseError("connection must be in a transaction, got one in autocommit mode")


def _rows(result: Any) -> Rows:
    rows: Rows = result.fetchall() if result.returns_rows else ()
    return rows
