"""Connections to a database, and statements on them."""

from __future__ import annotations

import gc
from contextlib import asynccontextmanager
from functools import partial
from os.path import samefile
from traceback import clear_frames
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from retrytemplate._storage import sql_engine
from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.fork_safety import register, retain
from retrytemplate._storage.operation_runner import operation_name, perform
from retrytemplate._storage.sql_dialect import IDENTITY, TRANSACTION
from retrytemplate._storage.sql_engine import unavailable
from retrytemplate._storage.store_role import CONTEXT_CACHE
from retrytemplate.errors import CacheUnavailableError, MisuseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeVar

    from sqlalchemy import Connection
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.sql_schema import Order, Rows
    from retrytemplate._storage.store_role import StoreRole

    T = TypeVar("T")

__all__ = ["AsyncDatabase", "Database"]


class _Database:
    """The connections of one owner to a database.

    :param url: of the database, or an engine of SQLAlchemy.
    :param timeout: seconds to wait for a connection or a lock.
    """

    asynchronous = False

    def __init__(self, url: Any, timeout: float, owner: StoreRole = CONTEXT_CACHE) -> None:
        self.engine: Any = sql_engine.engine(url, timeout, owner, asynchronous=self.asynchronous)
        self._is_pool_shared = self.engine.pool is getattr(url, "pool", None)
        self._owner = owner
        self._timeout = timeout
        register(self)

    def __str__(self) -> str:
        """The database, without what may be a password."""
        return str(self.engine.url.set(query={}))

    def _transactional_engine(self) -> Any:
        """The engine, on the same connections, for transactions of several statements."""
        return self.engine.execution_options(isolation_level=TRANSACTION[self.engine.dialect.name])

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
            with self._transactional_engine().connect() as own:
                try:
                    with own.begin():
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


# By pool: the event loop of the latest use, and the lock of its tasks.
_locks: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


class AsyncDatabase(_Database):
    """Connections for the tasks of one event loop."""

    asynchronous = True

    async def ask(self, order: Order, step: str, connection: AsyncConnection | None = None) -> Rows:
        """The rows of a statement, in a transaction of its own or in the caller's."""
        from sqlalchemy.exc import SQLAlchemyError

        statement, parameters = order
        try:
            if connection is not None:
                return _rows(await connection.execute(statement, parameters))
            rows = self._run_own(order)
            return await (run_to_completion(rows) if self._is_sqlite else rows)
        except SQLAlchemyError as exc:
            raise self._failed(step, parameters, exc) from exc

    async def run_in_transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Await a function in one transaction of its own: an error undoes all of it.

        A cancellation is raised after the end: cancelled statements may keep a lock of SQLite.
        """
        return await run_to_completion(self._run_in_transaction(work))

    async def _run_in_transaction(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            async with self._transactional_engine().connect() as own, self._in_order(), own.begin():
                return await work(own)
        except SQLAlchemyError as exc:
            raise unavailable(exc, "a transaction", self._owner) from exc

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

    @property
    def _is_sqlite(self) -> bool:
        return bool(self.engine.dialect.name == "sqlite")

    async def _run_own(self, order: Order) -> Rows:
        async with self.engine.connect() as own, self._in_order():
            return _rows(await own.execute(*order))

    @asynccontextmanager
    async def _in_order(self) -> AsyncIterator[None]:
        """In SQLite the tasks use the file one after the other.

        A connection that waits for the lock of the file polls it, some at most ten times a second:
        of many connections a few would wait until their timeout.
        """
        if not self._is_sqlite:
            yield
            return
        import asyncio

        loop, pool = asyncio.get_running_loop(), self.engine.pool
        user, lock = _locks.get(pool, (None, None))
        if user is not loop:
            lock = asyncio.Lock()
            _locks[pool] = loop, lock
        try:
            async with asyncio.timeout(self._timeout):
                await lock.acquire()
        except TimeoutError:  # perhaps a transaction waits for this statement
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def check_connection(self, connection: Any) -> None:
        """Raise if a given connection is not an asynchronous one in a transaction."""
        from sqlalchemy.ext.asyncio import AsyncConnection

        _check(connection, AsyncConnection)

    async def close(self) -> None:
        """Close the connections that are the owner's; the next use opens others."""
        if not self._is_pool_shared:
            await self.engine.dispose()


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
