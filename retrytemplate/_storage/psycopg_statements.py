"""Statements of tasks that are sent to psycopg directly."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from psycopg import Error
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import greenlet_spawn

if TYPE_CHECKING:
    from retrytemplate._storage.sql_schema import Order, Rows


async def run(engine: Any, order: Order) -> list[Rows]:
    """The rows of a statement in a transaction of its own.

    :raises SQLAlchemyError: from an error of the driver.
    """
    statement, parameters = order
    try:
        connection = await engine.raw_connection()
    except Error as exc:
        raise DBAPIError(None, None, exc) from exc
    try:
        query = _compiled(statement, engine.dialect)
        cursor = await connection.driver_connection.execute(query, parameters)
        return [await cursor.fetchall() if cursor.pgresult.nfields else ()]
    except Error as exc:
        lost = await greenlet_spawn(_is_lost, engine, connection)
        raise DBAPIError(None, None, exc, connection_invalidated=lost) from exc
    except BaseException:  # perhaps a cancellation, which psycopg sends to the server
        connection.invalidate(soft=True)  # the next use replaces it
        raise
    finally:
        connection.close()


@lru_cache(maxsize=1000)
def _compiled(statement: Any, dialect: Any) -> str:
    """The statement with the parameters of psycopg."""
    return str(statement.compile(dialect=dialect))


def _is_lost(engine: Any, connection: Any) -> bool:
    """Whether the connection is closed; then SQLAlchemy replaces all of the pool."""
    if not connection.driver_connection.closed:
        return False
    with Connection(engine.sync_engine, connection) as own:
        try:
            own.exec_driver_sql("SELECT 1")
        except DBAPIError as exc:
            return exc.connection_invalidated
    return False
