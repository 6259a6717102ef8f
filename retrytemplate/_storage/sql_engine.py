"""SQLAlchemy engines from URLs, and the translation of their errors."""

from __future__ import annotations

from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.imports import extra
from retrytemplate._storage.operation_runner import AnswerLostError
from retrytemplate._storage.sql_dialect import DIALECTS
from retrytemplate._storage.sql_schema import LockedError
from retrytemplate._storage.store_role import CONTEXT_CACHE
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from sqlalchemy import URL, Engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate._storage.store_role import StoreRole

__all__ = ["apply_read_timeout", "async_engine", "detach_pool", "engine", "unavailable", "where"]


AUTOCOMMIT: Literal["AUTOCOMMIT"] = "AUTOCOMMIT"
# Where the URL names none.
DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}
ASYNC_DRIVERS = DRIVERS | {"sqlite": "aiosqlite"}

LOCKED = "55P03"  # PostgreSQL: lock_not_available
BUSY = 5  # SQLite, in the lower byte


def engine(url: Any, timeout: float, owner: StoreRole = CONTEXT_CACHE) -> Engine:
    """The engine that is given, or one made for the URL; a statement is a transaction."""
    with extra("sql", f"a {owner.name} on SQL"):
        from sqlalchemy import Engine, create_engine
    if isinstance(url, Engine):
        _check(url.url, owner)
        return url.execution_options(isolation_level=AUTOCOMMIT)
    complete = _complete(url, Engine, DRIVERS, owner)
    if complete.get_dialect().is_async:
        raise _wrong_driver(complete, "blocks")
    made: Engine = _made(create_engine, complete, timeout)
    _apply_statement_timeouts(made, timeout)
    return made


def async_engine(url: Any, timeout: float) -> AsyncEngine:
    """The same for asyncio."""
    with extra("sql", f"a {CONTEXT_CACHE.name} on SQL"):
        import_module("greenlet")  # SQLAlchemy asks for it late, and speaks of its own extra
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    if isinstance(url, AsyncEngine):
        _check(url.url, CONTEXT_CACHE)
        return url.execution_options(isolation_level=AUTOCOMMIT)
    complete = _complete(url, AsyncEngine, ASYNC_DRIVERS, CONTEXT_CACHE)
    if not complete.get_dialect().get_async_dialect_cls(complete).is_async:
        raise _wrong_driver(complete, "can be awaited")
    made: AsyncEngine = _made(create_async_engine, complete, timeout)
    _apply_statement_timeouts(made.sync_engine, timeout)
    return made


def _complete(url: Any, kind: type, drivers: Mapping[str, str], owner: StoreRole) -> URL:
    """The URL with a driver; an error where it cannot serve."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        made = make_url(url)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        raise TypeError(
            f"url must be a database URL or a sqlalchemy {kind.__name__}, got {_shown(url)}"
        ) from None
    _check(made, owner)
    if "+" not in made.drivername:
        name = made.get_backend_name()
        made = made.set(drivername=f"{name}+{drivers[name]}")
    try:
        made.get_dialect()
    except ArgumentError:
        raise ValueError(f"url must name a known driver, got {made.drivername!r}") from None
    return made


def _check(url: URL, owner: StoreRole) -> None:
    name = url.get_backend_name()
    if name not in DIALECTS:
        raise ValueError(f"url must be one of SQLite or PostgreSQL, got {url.drivername!r}")
    if name == "sqlite" and _in_memory(url):
        raise ValueError(
            f"url must name a file, got a SQLite database in memory: {owner.in_memory}"
        )


def _in_memory(url: URL) -> bool:
    file = (url.database or "").removeprefix("file:")
    mode, system = url.query.get("mode"), url.query.get("vfs")
    return file in ("", ":memory:") or mode == "memory" or system == "memdb"


def _shown(url: Any) -> str:
    """What was given; of a text nothing, since a password may be in it."""
    return "a text that is none" if isinstance(url, str) else repr(url)


def _wrong_driver(url: URL, wanted: str) -> ValueError:
    return ValueError(f"url must name a driver that {wanted}, or none, got {url.drivername!r}")


def _made(create: Any, url: URL, timeout: float) -> Any:
    name, driver = url.get_backend_name(), url.get_driver_name()
    with extra("sql" if name == "sqlite" else "postgresql", f"{name} by {driver}"):
        return create(
            url,
            connect_args=_connect_args(driver, timeout),
            isolation_level=AUTOCOMMIT,
            pool_timeout=timeout,
            pool_reset_on_return=None,  # no transaction is ever left open
            hide_parameters=True,  # records are for those who may read the tables
        )


def _connect_args(driver: str, timeout: float) -> dict[str, Any]:
    if driver in ("pysqlite", "aiosqlite"):
        return {"timeout": timeout}  # for the file's lock
    if driver in ("psycopg", "psycopg2"):
        waits = _milliseconds(2 * timeout)
        return {"connect_timeout": max(2, waits // 2000), "tcp_user_timeout": waits}
    return {}


def _apply_statement_timeouts(made: Engine, timeout: float) -> None:
    """Let no statement wait longer than the cache does."""
    from sqlalchemy import event

    if made.dialect.name != "postgresql":
        return

    @event.listens_for(made, "connect")
    def limited(connection: Any, record: Any) -> None:
        if made.dialect.driver in ("psycopg", "psycopg_async"):
            apply_read_timeout(record.driver_connection, 3 * timeout)
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {_milliseconds(timeout)}")
        cursor.execute(f"SET statement_timeout = {_milliseconds(2 * timeout)}")
        cursor.close()
        connection.commit()


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def where(engine: Engine | AsyncEngine) -> URL:
    """The database, without what may be a password."""
    return engine.url.set(query={})


def detach_pool(engine: Engine) -> object:
    """Have connections of one's own from now on; those before, which are left open."""
    before = engine.pool
    engine.dispose(close=False)
    return before


def unavailable(
    error: SQLAlchemyError, tried: str, owner: StoreRole = CONTEXT_CACHE
) -> CacheUnavailableError:
    """A database's error as the cache raises it; without what was to be written."""
    origin = getattr(error, "orig", None)
    message = f"{tried} failed in the store of the {owner.name}: {summary(origin or error)}"
    if getattr(origin, "sqlstate", None) == LOCKED:
        return LockedError(message)
    if getattr(origin, "sqlite_errorcode", 0) & 0xFF == BUSY:
        return LockedError(f"{message}; a transaction is open on this file: {owner.locked}")
    if getattr(error, "connection_invalidated", False):
        return AnswerLostError(message)
    return CacheUnavailableError(message)


def apply_read_timeout(connection: Any, seconds: float) -> None:
    """Close the connection where the server takes longer than this to answer.

    A server whose process is stopped does not cancel what it is asked to, and its machine
    acknowledges all that is sent to it.
    """
    wait = connection.wait

    def bounded(generator: Any, *args: Any, **settings: Any) -> Any:
        until = monotonic() + seconds
        return wait(_until(until, generator, connection.pgconn), *args, **settings)

    connection.wait = bounded


def _until(until: float, generator: Any, pgconn: Any) -> Generator[Any, Any, Any]:
    """What psycopg asks for, and is told many times a second, ready or not."""
    from psycopg import OperationalError

    try:
        wanted = next(generator)
        while True:
            ready = yield wanted
            if not ready and monotonic() > until:
                pgconn.finish()
                raise OperationalError("the server did not answer in time")
            wanted = generator.send(ready)
    except StopIteration as stop:
        return stop.value
