"""One statement to a database: blocking, or awaited."""

from __future__ import annotations

import gc
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

from retrytemplate._storage.cancellation import run_to_completion
from retrytemplate._storage.operation_runner import operation_name, perform
from retrytemplate._storage.sql_engine import unavailable
from retrytemplate._storage.store_role import CONTEXT_CACHE
from retrytemplate.errors import CacheUnavailableError, MisuseError

if TYPE_CHECKING:
    from typing import TypeVar

    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.sql_schema import Order, Rows
    from retrytemplate._storage.store_role import StoreRole

    T = TypeVar("T")

__all__ = ["check_async_connection", "check_connection", "run", "run_async", "run_in_transaction"]


def run(
    engine: Engine,
    connection: Connection | None,
    order: Order,
    step: str,
    owner: StoreRole = CONTEXT_CACHE,
) -> Rows:
    """The rows of a statement, in a transaction of its own or in the caller's."""
    from sqlalchemy.exc import SQLAlchemyError

    statement, parameters = order
    try:
        if connection is not None:
            return _rows(connection.execute(statement, parameters))
        with engine.connect() as own:
            try:
                return _rows(own.execute(statement, parameters))
            except SQLAlchemyError:
                raise
            except BaseException as exc:
                _cut_off(own, exc)
                raise
    except SQLAlchemyError as exc:
        raise _failed(step, parameters, exc, owner) from exc


def run_in_transaction(engine: Engine, step: Operation[T], owner: StoreRole = CONTEXT_CACHE) -> T:
    """Perform a step in one transaction of its own: what it raises undoes all of it."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with engine.connect() as own:
            try:
                with own.begin():
                    return perform(step, partial(run, engine, own, owner=owner))
            except (SQLAlchemyError, CacheUnavailableError):
                raise
            except BaseException as exc:
                _cut_off(own, exc)
                raise
    except SQLAlchemyError as exc:
        raise unavailable(exc, operation_name(step), owner) from exc


def _cut_off(connection: Connection, error: BaseException) -> None:
    """A signal came: what a statement or a transaction holds must not stay held."""
    connection.invalidate()
    if connection.dialect.name == "sqlite":
        # It closes no connection while there is a cursor: frames have it, and results in cycles.
        clear_frames(error.__traceback__)
        gc.collect()


async def run_async(
    engine: AsyncEngine, connection: AsyncConnection | None, order: Order, step: str
) -> Rows:
    """The same in a task of asyncio."""
    from sqlalchemy.exc import SQLAlchemyError

    statement, parameters = order
    try:
        if connection is not None:
            return _rows(await connection.execute(statement, parameters))
        rows = _run_own(engine, order)
        return await (run_to_completion(rows) if engine.dialect.name == "sqlite" else rows)
    except SQLAlchemyError as exc:
        raise _failed(step, parameters, exc, CONTEXT_CACHE) from exc


async def _run_own(engine: AsyncEngine, order: Order) -> Rows:
    async with engine.connect() as own:
        return _rows(await own.execute(*order))


def check_connection(connection: Any) -> None:
    """Raise unless it is None or a connection of SQLAlchemy."""
    from sqlalchemy import Connection

    _check(connection, Connection)


def check_async_connection(connection: Any) -> None:
    """Raise unless it is None or an asynchronous connection of SQLAlchemy."""
    from sqlalchemy.ext.asyncio import AsyncConnection

    _check(connection, AsyncConnection)


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
        raise MisuseError("connection must be in a transaction, got one that commits by itself")


def _rows(result: Any) -> Rows:
    rows: Rows = result.fetchall() if result.returns_rows else ()
    return rows


def _failed(
    step: str, parameters: dict[str, Any], error: SQLAlchemyError, owner: StoreRole
) -> CacheUnavailableError:
    key = parameters.get("key")
    return unavailable(error, step if key is None else f"{step} of {key!r}", owner)
