"""From a URL to the engines of a job repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._internal.imports import extra
from retrytemplate.batch.errors import JobRepositoryError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["async_engine", "check_url", "engine", "read_only_engine"]

DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}
ASYNC_DRIVERS = DRIVERS | {"sqlite": "aiosqlite"}


def check_url(value: Any) -> URL:
    """The URL, if a repository can be there."""
    with extra("batch", "a job repository"):
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(value)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        shown = "a text that is none" if isinstance(value, str) else repr(value)
        raise TypeError(
            f"url must be a database URL or an engine of sqlalchemy, got {shown}"
        ) from None
    name = url.get_backend_name()
    if name not in DRIVERS:
        raise ValueError(f"url must be one of SQLite or PostgreSQL, got {url.drivername!r}")
    database = url.database or ""
    if name == "sqlite" and (
        database in ("", ":memory:") or ":memory:" in database or url.query.get("mode") == "memory"
    ):
        raise ValueError(
            "url must name a file, got a SQLite database in memory: a journal there "
            "would die with the process"
        )
    return url


def engine(url: URL, timeout: float) -> Engine:
    """An engine for the calls of threads."""
    from sqlalchemy import create_engine

    made: Engine = _made(create_engine, _with_driver(url, DRIVERS), timeout)
    _prepare(made, timeout)
    return made


def read_only_engine(url: URL, timeout: float) -> Engine:
    """An engine for reading alone: no transaction stays open, no lock is taken.

    :raises JobRepositoryError: there is no such file.
    """
    from sqlalchemy import create_engine

    from retrytemplate.backends.sql.inspection import missing_file

    missing = missing_file(url)
    if missing:
        raise JobRepositoryError(f"there is no file {missing}")
    made: Engine = _made(create_engine, _with_driver(url, DRIVERS), timeout)
    return made.execution_options(isolation_level="AUTOCOMMIT")


def async_engine(url: URL, timeout: float) -> AsyncEngine:
    """An engine for the tasks of one event loop."""
    with extra("batch", "a job repository under asyncio"):
        from sqlalchemy.ext.asyncio import create_async_engine

    made: AsyncEngine = _made(create_async_engine, _with_driver(url, ASYNC_DRIVERS), timeout)
    _prepare(made.sync_engine, timeout)
    return made


def _with_driver(url: URL, drivers: dict[str, str]) -> URL:
    """The driver that the URL names, where it can serve; else the usual one."""
    name = url.get_backend_name()
    if "+" in url.drivername and url.get_driver_name() in drivers.values():
        return url
    return url.set(drivername=f"{name}+{drivers[name]}")


def _made(create: Any, url: URL, timeout: float) -> Any:
    name, driver = url.get_backend_name(), url.get_driver_name()
    arguments = (
        {"timeout": timeout} if name == "sqlite" else {"connect_timeout": max(2, int(timeout))}
    )
    with extra("batch" if name == "sqlite" else "postgresql", f"{name} by {driver}"):
        return create(url, connect_args=arguments, hide_parameters=True)


def _prepare(made: Engine, timeout: float) -> None:
    """On SQLite a transaction takes the write lock when it begins: a chunk is sure to write.

    On PostgreSQL no statement waits longer than this for a lock, as the driver of SQLite does not.
    """
    from sqlalchemy import event

    if made.dialect.name == "postgresql":

        @event.listens_for(made, "connect")
        def limited(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(f"SET lock_timeout = {max(1, int(timeout * 1000))}")
            cursor.close()
            connection.commit()

        return

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
