"""Contexts on SQL, where the processes of several machines share them: SQLite and PostgreSQL."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from retrytemplate._internal.validation import check_limit_or_none, to_seconds
from retrytemplate._storage import sql_connection, sql_engine
from retrytemplate.backends.durable import (
    PAGE,
    TABLE_PREFIXES,
    AwaitedCache,
    BlockingCache,
    DurableCache,
)
from retrytemplate.backends.sql.operations import SQLClaim, Steps
from retrytemplate.caches.record_limit import RECORD_LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.sql_schema import Order, Rows
    from retrytemplate.backends.durable import OnStoreError
    from retrytemplate.clock import Clock

E = TypeVar("E", bound="Engine | AsyncEngine")

__all__ = ["AsyncSQLRetryContextCache", "SQLRetryContextCache"]


class _OnSQL(DurableCache, Generic[E]):
    """What both caches on SQL are made of."""

    prefixes = TABLE_PREFIXES

    _claims = SQLClaim

    def __init__(
        self,
        url: str | E,
        lease: Seconds = 30.0,
        ttl: Seconds | None = None,
        prefix: str = "retry",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        record_limit: int = RECORD_LIMIT,
        clock: Clock | None = None,
        on_store_error: OnStoreError = "raise",
    ) -> None:
        super().__init__(lease, prefix, timeout, redact, record_limit, clock, on_store_error)
        self._engine: E = self._engine_of(url)
        self._others = self._engine.pool is getattr(url, "pool", None)
        self.ttl: float | None = to_seconds(ttl)
        check_limit_or_none("ttl", self.ttl)
        self._steps = Steps(self._engine.dialect.name, self.prefix, self.lease, self.ttl)
        self._begin_life()

    @abstractmethod
    def _engine_of(self, url: str | E) -> E:
        """The engine that is given, or one made for the URL."""

    def _place(self) -> object:
        return sql_engine.where(self._engine)

    def _reconnect(self) -> object:
        engine: Any = self._engine
        return sql_engine.detach_pool(getattr(engine, "sync_engine", engine))


class SQLRetryContextCache(_OnSQL["Engine"], BlockingCache):
    """Contexts in a database: they outlive the process, and several processes share them.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param lease: seconds for which an attempt holds its key.  They are renewed while the process
        lives; an attempt whose lease ran out is taken for lost.
    :param ttl: seconds after the last write when a key is forgotten; None: never.
    :param prefix: of the names of the tables, which are made on first use.
    :param timeout: seconds to wait for a connection or a lock.
    :param redact: applied to the traceback texts and messages that are kept.
    :param record_limit: bytes of a record; of one with more the past is given up bit by bit.
    :param clock: times the renewals.  Leases and times to live are measured by the database.
    :param on_store_error: where the database is away when a key is to be taken: "raise"
        ``CacheUnavailableError``, or "run_unguarded", without a hold on the key and uncounted.

    Each step is one statement in a transaction of its own.  Safe for threads, and across a fork.
    It needs the extra ``sql``, for PostgreSQL ``postgresql``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with SQLRetryContextCache(f"sqlite:///{folder}/retry.db") as cache:
    ...         "charge/s:order-17" in cache
    False
    """

    asynchronous_twin = "AsyncSQLRetryContextCache"

    def _engine_of(self, url: str | Engine) -> Engine:
        made: Engine = sql_engine.engine(url, self.timeout)
        return made

    def __iter__(self) -> Iterator[str]:
        after = ""
        while page := self.keys(after=after, limit=PAGE):
            yield from page
            after = page[-1]

    def _ask(self, connection: Any, order: Order, name: str) -> Rows:
        return sql_connection.run(self._engine, connection, order, name)

    def _check_connection(self, connection: Any) -> None:
        sql_connection.check_connection(connection)

    def _disconnect(self) -> None:
        if not self._others:
            self._engine.dispose()


class AsyncSQLRetryContextCache(_OnSQL["AsyncEngine"], AwaitedCache):
    """The asynchronous twin of ``SQLRetryContextCache``, for asyncio.

    The settings are the same; an engine is an ``AsyncEngine``.  One event loop at a time can use
    it: ``await cache.close()`` there before another one does.  A callback that blocks the loop for
    longer than the lease loses its key.

    >>> import asyncio
    >>> from tempfile import TemporaryDirectory
    >>> async def main():
    ...     with TemporaryDirectory() as folder:
    ...         async with AsyncSQLRetryContextCache(f"sqlite:///{folder}/retry.db") as cache:
    ...             return await cache.peek("charge/s:order-17")
    >>> asyncio.run(main())
    """

    def _engine_of(self, url: str | AsyncEngine) -> AsyncEngine:
        made: AsyncEngine = sql_engine.engine(url, self.timeout, asynchronous=True)
        return made

    async def __aiter__(self) -> AsyncIterator[str]:
        after = ""
        while page := await self.keys(after=after, limit=PAGE):
            for key in page:
                yield key
            after = page[-1]

    async def _ask(self, connection: Any, order: Order, name: str) -> Rows:
        return await sql_connection.run_async(self._engine, connection, order, name)

    def _check_connection(self, connection: Any) -> None:
        sql_connection.check_async_connection(connection)

    async def _disconnect(self) -> None:
        if not self._others:
            await self._engine.dispose()
