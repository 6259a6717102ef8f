"""From a URL to an engine of SQLAlchemy, with bounded waits; and what its errors mean here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.errors import CacheUnavailableError
from retrytemplate.extras import extra
from retrytemplate.stores.statements import DIALECTS
from retrytemplate.stores.steps import LockedError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["async_engine", "engine", "unavailable"]

# The driver where the URL names none, and the extra that it comes with.
DRIVERS = {"sqlite": ("pysqlite", "sql"), "postgresql": ("psycopg", "postgresql")}
ASYNC_DRIVERS = DRIVERS | {"sqlite": ("aiosqlite", "sql")}

LOCKED = "55P03"  # PostgreSQL: lock_not_available
BUSY = 5  # SQLite, in the lower byte


def engine(url: Any, timeout: float) -> Engine:
    """The engine that is given, or one made for the URL; a statement is a transaction."""
    with extra("sql", "a context cache on SQL"):
        from sqlalchemy import Engine, create_engine
    if isinstance(url, Engine):
        _check(url.url)
        made = url
    else:
        made = _made(create_engine, _complete(url, Engine, DRIVERS), timeout, DRIVERS)
    return made.execution_options(isolation_level="AUTOCOMMIT")


def async_engine(url: Any, timeout: float) -> AsyncEngine:
    """The same for asyncio."""
    with extra("sql", "a context cache on SQL"):
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    if isinstance(url, AsyncEngine):
        _check(url.url)
        made = url
    else:
        complete = _complete(url, AsyncEngine, ASYNC_DRIVERS)
        made = _made(create_async_engine, complete, timeout, ASYNC_DRIVERS)
    return made.execution_options(isolation_level="AUTOCOMMIT")


def _complete(url: Any, kind: type, drivers: dict[str, tuple[str, str]]) -> URL:
    """The URL with a driver; an error where it cannot serve."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        made = make_url(url)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        raise TypeError(
            f"url must be a database URL or a sqlalchemy {kind.__name__}, got {_shown(url)}"
        ) from None
    _check(made)
    if "+" not in made.drivername:
        name = made.get_backend_name()
        made = made.set(drivername=f"{name}+{drivers[name][0]}")
    return made


def _check(url: URL) -> None:
    name = url.get_backend_name()
    if name not in DIALECTS:
        raise ValueError(f"url must be one of SQLite or PostgreSQL, got {url.drivername!r}")
    memory = url.database in (None, "", ":memory:") or "mode=memory" in str(url)
    if name == "sqlite" and memory:
        raise ValueError(
            "url must name a file, got a SQLite database in memory: for contexts that live as "
            "long as the process use MemoryRetryContextCache"
        )


def _shown(url: Any) -> str:
    """What was given; of a text nothing, since a password may be in it."""
    return "a text that is none" if isinstance(url, str) else repr(url)


def _made(create: Any, url: URL, timeout: float, drivers: dict[str, tuple[str, str]]) -> Any:
    from sqlalchemy import event

    name = url.get_backend_name()
    _, needed = drivers[name]
    with extra(needed, f"{name} by {url.get_driver_name()}"):
        made = create(
            url,
            connect_args=_connect_args(url.get_driver_name(), timeout),
            pool_timeout=timeout,
            pool_reset_on_return=None,  # no transaction is ever left open
            hide_parameters=True,  # what failed is nobody's business but the reader's of the record
        )
    if name == "postgresql":

        @event.listens_for(getattr(made, "sync_engine", made), "connect")
        def bound(connection: Any, _: Any) -> None:
            """Let no statement wait longer than the cache does."""
            cursor = connection.cursor()
            cursor.execute(f"SET lock_timeout = {int(timeout * 1000)}")
            cursor.execute(f"SET statement_timeout = {int(timeout * 2000)}")
            cursor.close()
            connection.commit()

    return made


def _connect_args(driver: str, timeout: float) -> dict[str, Any]:
    if driver in ("pysqlite", "aiosqlite"):
        return {"timeout": timeout}  # for the file's lock
    if driver in ("psycopg", "psycopg2"):
        milliseconds = int(timeout * 2000)
        return {"connect_timeout": max(2, round(timeout)), "tcp_user_timeout": milliseconds}
    return {}


def unavailable(error: SQLAlchemyError, tried: str) -> CacheUnavailableError:
    """A database's error as the cache raises it; without what was to be written."""
    origin = getattr(error, "orig", None)
    text = str(origin or error).strip().partition("\n")[0]
    message = f"{tried} failed in the store of the context cache: {text}"
    if getattr(origin, "sqlstate", None) == LOCKED:
        return LockedError(message)
    if getattr(origin, "sqlite_errorcode", 0) & 0xFF == BUSY:
        return LockedError(
            f"{message}; a transaction is open on this file: where it is the one around execute(), "
            "give the cache a file of its own"
        )
    return CacheUnavailableError(message)
