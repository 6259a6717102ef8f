"""The two that run a step's statements: one blocks, the other awaits."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from retrytemplate.errors import MisuseError
from retrytemplate.stores.engines import unavailable

if TYPE_CHECKING:
    from typing import TypeVar

    from sqlalchemy import Connection, Engine, TextClause
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate.stores.steps import Rows, Step

    T = TypeVar("T")

__all__ = ["perform", "perform_async"]


def perform(engine: Engine, step: Step[T], connection: Connection | None = None) -> T:
    """Run a step, each statement in a transaction of its own, or all in the caller's."""
    from sqlalchemy import Connection
    from sqlalchemy.exc import SQLAlchemyError

    _check(connection, Connection)
    try:
        statement, parameters = next(step)
        while True:
            try:
                if connection is None:
                    with engine.connect() as own:
                        rows = _rows(own.execute(_text(statement), parameters))
                else:
                    rows = _rows(connection.execute(_text(statement), parameters))
            except SQLAlchemyError as exc:
                statement, parameters = step.throw(_failed(step, parameters, exc))
            else:
                statement, parameters = step.send(rows)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def perform_async(
    engine: AsyncEngine, step: Step[T], connection: AsyncConnection | None = None
) -> T:
    """The same in a task of asyncio; what a cancelled statement did is not known."""
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection

    _check(connection, AsyncConnection)
    try:
        statement, parameters = next(step)
        while True:
            try:
                if connection is None:
                    async with engine.connect() as own:
                        rows = _rows(await own.execute(_text(statement), parameters))
                else:
                    rows = _rows(await connection.execute(_text(statement), parameters))
            except SQLAlchemyError as exc:
                statement, parameters = step.throw(_failed(step, parameters, exc))
            else:
                statement, parameters = step.send(rows)
    except StopIteration as stop:
        value: T = stop.value
        return value


@lru_cache(maxsize=256)
def _text(statement: str) -> TextClause:
    from sqlalchemy import text

    return text(statement)


def _rows(result: Any) -> Rows:
    rows: Rows = result.fetchall() if result.returns_rows else ()
    return rows


def _failed(step: Step[Any], parameters: dict[str, Any], error: SQLAlchemyError) -> Exception:
    """A database's error as the step is told of it."""
    key = parameters.get("key")
    name = getattr(step, "__name__", "a step")
    failed = unavailable(error, name if key is None else f"{name} of {key!r}")
    failed.__cause__ = error
    return failed


def _check(connection: Any, kind: type) -> None:
    if connection is not None and not isinstance(connection, kind):
        raise MisuseError(
            f"connection must be a {kind.__module__.partition('.')[0]} {kind.__name__}, "
            f"got {connection!r}"
        )
