"""SQLAlchemy engines from URLs, and the translation of their errors."""

from __future__ import annotations

from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.imports import extra
from retrytemplate._storage.operation_runner import AnswerLostError
from retrytemplate._storage.sql_dialect import DIALECTS
from retrytemplate._storage.sql_schema import LockedError
from retrytemplate._storage.store_role import CONTEXT_CACHE, StoreRole
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import URL, Engine
    from sqlalchemy.exc import SQLAlchemyError


AUTOCOMMIT: Literal["AUTOCOMMIT"] = "AUTOCOMMIT"
# Used if the URL names no driver.
DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}
ASYNC_DRIVERS = DRIVERS | {"sqlite": "aiosqlite"}

CONNECTIONS = 15  # of an engine, at most
LOCKED = "55P03"  # PostgreSQL: lock_not_available
BUSY = 5  # SQLite, in the lower byte


def engine(
    url: Any, timeout: float, owner: StoreRole = CONTEXT_CACHE, *, asynchronous: bool = False
) -> Any:
    """The given engine, or a new one for the URL; each statement is a transaction."""
    kind, create = _engine_class(owner, asynchronous)
    if isinstance(url, kind):
        given: Any = url
        _check(given.url, owner)
        if commits_each_statement(given):
            return given
        return given.execution_options(isolation_level=AUTOCOMMIT)
    url = parse_url(url, owner, kind.__name__)
    if "+" not in url.drivername:
        url = _with_driver(url, asynchronous)
    _check_driver(url, asynchronous)
    made = _create(
        create,
        url,
        timeout,
        owner,
        isolation_level=AUTOCOMMIT,
        pool_timeout=timeout,
        pool_reset_on_return=None,  # no transaction is ever left open
        # No overflow: its connections are closed after each use, also while others are opened.
        pool_size=CONNECTIONS,
        max_overflow=0,
    )
    _apply_timeouts(made, timeout)
    _autocommitting.add(made.dialect)
    return made


# Of the engines whose connections are opened in autocommit mode.
_autocommitting: WeakSet[Any] = WeakSet()


def commits_each_statement(engine: Any) -> bool:
    """Whether the connections of an engine are in autocommit mode without an option.

    The option sets the mode at each use of a connection, and resets it: with SQLite these are two
    calls of the driver's thread.
    """
    return (
        engine.dialect in _autocommitting
        and "isolation_level" not in engine.get_execution_options()
    )


def transaction_engine(
    url: URL, timeout: float, owner: StoreRole, *, asynchronous: bool = False
) -> Any:
    """A new engine for transactions of several statements."""
    made = _plain_engine(url, timeout, owner, asynchronous)
    _apply_timeouts(made, timeout, locks_only=True)
    if made.dialect.name == "sqlite":
        _begin_with_write_lock(getattr(made, "sync_engine", made))
    return made


def read_only_engine(url: URL, timeout: float, owner: StoreRole) -> Engine:
    """A new engine for reading: no transaction stays open, no lock is taken."""
    made: Engine = _plain_engine(url, timeout, owner).execution_options(isolation_level=AUTOCOMMIT)
    return made


def single_use_engine(url: URL, timeout: float, owner: StoreRole) -> Engine:
    """A new engine that keeps no connection, and bounds every wait on PostgreSQL."""
    from sqlalchemy.pool import NullPool

    made: Engine = _plain_engine(url, timeout, owner, poolclass=NullPool)
    _apply_timeouts(made, timeout)
    return made


def _plain_engine(
    url: URL, timeout: float, owner: StoreRole, asynchronous: bool = False, **options: Any
) -> Any:
    _, create = _engine_class(owner, asynchronous)
    return _create(create, _with_driver(url, asynchronous), timeout, owner, **options)


def _engine_class(owner: StoreRole, asynchronous: bool) -> tuple[type, Any]:
    """The class of engines and the function that creates one."""
    with extra(owner.extra, f"a {owner.name} on SQL"):
        if asynchronous:
            import_module("greenlet")  # SQLAlchemy imports it late; its error names another extra
            from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

            return AsyncEngine, create_async_engine
        from sqlalchemy import Engine, create_engine

        return Engine, create_engine


def parse_url(url: Any, owner: StoreRole, kind: str = "Engine") -> URL:
    """The URL of a database that the owner can use.

    :param kind: the class of SQLAlchemy that the error names beside a URL.
    """
    with extra(owner.extra, f"a {owner.name} on SQL"):
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

    try:
        made = make_url(url)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        shown = (
            "an invalid URL (not shown: it may contain a password)"
            if isinstance(url, str)
            else repr(url)
        )
        raise TypeError(f"url must be a database URL or a sqlalchemy {kind}, got {shown}") from None
    _check(made, owner)
    return made


def missing_file(url: URL) -> str | None:
    """The missing file of a SQLite database, which a connection would create; else None."""
    if url.get_backend_name() != "sqlite":
        return None
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    name = str(url.database)
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    return None if Path(name).exists() else name


def _with_driver(url: URL, asynchronous: bool) -> URL:
    """The URL with a driver that the library knows."""
    drivers = ASYNC_DRIVERS if asynchronous else DRIVERS
    if "+" in url.drivername and url.get_driver_name() in drivers.values():
        return url
    name = url.get_backend_name()
    return url.set(drivername=f"{name}+{drivers[name]}")


def _check_driver(url: URL, asynchronous: bool) -> None:
    from sqlalchemy.exc import ArgumentError

    try:
        dialect: Any = url.get_dialect()
    except ArgumentError:
        raise ValueError(f"url must name a known driver, got {url.drivername!r}") from None
    if asynchronous:
        dialect = dialect.get_async_dialect_cls(url)
    if dialect.is_async != asynchronous:
        wanted = "can be awaited" if asynchronous else "blocks"
        raise ValueError(f"url must name a driver that {wanted}, or none, got {url.drivername!r}")


def _check(url: URL, owner: StoreRole) -> None:
    name = url.get_backend_name()
    if name not in DIALECTS:
        raise ValueError(
            f"url must be a URL of SQLite or PostgreSQL, got scheme {url.drivername!r}"
        )
    if name == "sqlite" and _in_memory(url):
        raise ValueError(
            f"url must name a file, got a SQLite database in memory: {owner.in_memory}"
        )


def _in_memory(url: URL) -> bool:
    file = (url.database or "").removeprefix("file:")
    mode, system = url.query.get("mode"), url.query.get("vfs")
    return file in ("", ":memory:") or mode == "memory" or system == "memdb"


def _create(create: Any, url: URL, timeout: float, owner: StoreRole, **options: Any) -> Any:
    name, driver = url.get_backend_name(), url.get_driver_name()
    with extra(owner.extra if name == "sqlite" else "postgresql", f"{name} by {driver}"):
        return create(
            url,
            connect_args=_connect_args(driver, timeout),
            hide_parameters=True,  # records are for those who may read the tables
            **options,
        )


def _connect_args(driver: str, timeout: float) -> dict[str, Any]:
    if driver in ("pysqlite", "aiosqlite"):
        return {"timeout": timeout}  # for the file's lock
    if driver in ("psycopg", "psycopg2"):
        waits = _milliseconds(2 * timeout)
        return {"connect_timeout": max(2, waits // 2000), "tcp_user_timeout": waits}
    return {}


def _apply_timeouts(made: Any, timeout: float, *, locks_only: bool = False) -> None:
    """Bound the waits of statements on PostgreSQL, as the driver of SQLite bounds its own."""
    from sqlalchemy import event

    if made.dialect.name != "postgresql":
        return

    @event.listens_for(getattr(made, "sync_engine", made), "connect")
    def limited(connection: Any, record: Any) -> None:
        if not locks_only and made.dialect.driver in ("psycopg", "psycopg_async"):
            apply_read_timeout(record.driver_connection, 3 * timeout)
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {max(1, _milliseconds(timeout))}")
        if not locks_only:
            cursor.execute(f"SET statement_timeout = {_milliseconds(2 * timeout)}")
        cursor.close()
        connection.commit()


def _begin_with_write_lock(made: Engine) -> None:
    """A transaction takes the write lock of SQLite when it begins: a chunk always writes."""
    from sqlalchemy import event

    @event.listens_for(made, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(made, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def unavailable(
    error: SQLAlchemyError | TimeoutError, tried: str, owner: StoreRole = CONTEXT_CACHE
) -> CacheUnavailableError:
    """The error of a store for one of SQLAlchemy, or for a wait; without the parameters."""
    origin = getattr(error, "orig", None)
    message = f"{tried} failed in the store of the {owner.name}: {summary(origin or error)}"
    if getattr(origin, "sqlstate", None) == LOCKED:
        return LockedError(message)
    if isinstance(error, TimeoutError) or getattr(origin, "sqlite_errorcode", 0) & 0xFF == BUSY:
        return LockedError(f"{message}; a transaction is open on this file: {owner.locked}")
    if getattr(error, "connection_invalidated", False):
        return AnswerLostError(message)
    return CacheUnavailableError(message)


def apply_read_timeout(connection: Any, seconds: float) -> None:
    """Close the connection if the server takes longer than this to answer.

    A server whose process is stopped cancels no statement, and its machine acknowledges each
    packet: neither ``statement_timeout`` nor ``tcp_user_timeout`` applies.
    """
    wait = connection.wait

    def bounded(generator: Any, *args: Any, **settings: Any) -> Any:
        until = monotonic() + seconds
        return wait(_until(until, generator, connection.pgconn), *args, **settings)

    connection.wait = bounded


def _until(until: float, generator: Any, pgconn: Any) -> Generator[Any, Any, Any]:
    """Pass the waits of psycopg on; it polls several times a second."""
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
