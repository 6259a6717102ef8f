"""Context caches in SQLite and PostgreSQL, shared by several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from retrytemplate._internal.validation import check_limit_or_none, read_seconds
from retrytemplate._storage.column_keys import TABLE_PREFIXES
from retrytemplate._storage.sql_connection import AsyncDatabase, Database
from retrytemplate.backends.durable import (
    PAGE,
    AwaitedCache,
    BlockingCache,
    DurableCache,
)
from retrytemplate.backends.sql.operations import SQLClaim, Steps
from retrytemplate.caches.record_limit import RECORD_LIMIT
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.backends.durable import OnStoreError
    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Record
    from retrytemplate.clock import Clock

E = TypeVar("E", bound="Engine | AsyncEngine")


class _OnSQL(DurableCache, Generic[E]):
    """Common base of both caches."""

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
        super().__init__(url, lease, prefix, timeout, redact, record_limit, clock, on_store_error)
        self.ttl: float | None = read_seconds("ttl", ttl, check_limit_or_none)
        dialect = self._store.engine.dialect.name
        self._steps = Steps(dialect, self.prefix, self.lease, self.ttl)
        self._begin_life()

    def _check_connection(self, connection: Any) -> None:
        self._store.check_connection(connection)


class SQLRetryContextCache(_OnSQL["Engine"], BlockingCache):
    """Contexts in a database: they outlive the process, and several processes share them.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param lease: seconds for which an attempt holds its key, renewed while the process lives.  An
        attempt whose lease has ended counts as lost.
    :param ttl: seconds after the last write when a key is deleted; None: never.
    :param prefix: of the names of the tables, which are created on first use.
    :param timeout: seconds to wait for a connection or a lock.
    :param redact: applied to the traceback texts and messages that are stored.
    :param record_limit: bytes of a record; the oldest history of a larger one is dropped.
    :param clock: times the renewals.  Leases and times to live are measured by the database.
    :param on_store_error: if the database is unavailable when a key is taken: "raise"
        ``CacheUnavailableError``, or "run_unguarded": run without the key, and do not count.

    Each operation is one statement in a transaction of its own.  Safe for threads, and across a
    fork.  It needs the extra ``sql``, for PostgreSQL ``postgresql``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with SQLRetryContextCache(f"sqlite:///{folder}/retry.db") as cache:
    ...         "charge/s:order-17" in cache
    False
    """

    asynchronous_twin = "AsyncSQLRetryContextCache"
    _store_class = Database

    def __iter__(self) -> Iterator[str]:
        after = ""
        while page := self.keys(after=after, limit=PAGE):
            yield from page
            after = page[-1]


class AsyncSQLRetryContextCache(_OnSQL["AsyncEngine"], AwaitedCache):
    """The asynchronous twin of ``SQLRetryContextCache``, for asyncio.

    The settings are the same; an engine is an ``AsyncEngine``.  One event loop at a time can use
    it: ``await cache.close()`` there before it is used in another one.  A callback that blocks the
    loop for longer than the lease loses its key.

    >>> import asyncio
    >>> from tempfile import TemporaryDirectory
    >>> async def main():
    ...     with TemporaryDirectory() as folder:
    ...         async with AsyncSQLRetryContextCache(f"sqlite:///{folder}/retry.db") as cache:
    ...             return await cache.peek("charge/s:order-17")
    >>> asyncio.run(main())
    """

    _store_class = AsyncDatabase

    async def is_in(self, database: AsyncDatabase) -> bool:
        """Whether the tables are in the database of these connections, as its server sees it.

        Then a transaction there can contain ``succeed(connection=)`` and ``fail(connection=)``.
        """
        steps: Any = self._steps
        try:
            await self._perform(steps.prepare())
            is_same: bool = await self._store.is_same(database, f"{self.prefix}_contexts")
        except CacheUnavailableError:
            return False
        return is_same

    async def succeed_with(
        self,
        claim: Claim,
        statement: str,
        parameters: dict[str, Any],
        *,
        remember: float | None = None,
        record: Record | None = None,
    ) -> bool:
        """``succeed``, together with another statement on the same server: one round trip.

        :param statement: it returns rows.  PostgreSQL: it changes nothing unless the table
            ``ended`` has a row.
        :return: whether the statement returned a row.
        :raises LeaseLostError: another claim holds the key; the statement has changed nothing.
        """
        self._renewer.drop(claim)
        steps: Any = self._steps
        ours = self._ours(claim)
        order = steps.succeed_with(ours, statement, parameters, remember, record)
        done: bool = await self._perform(order)
        return done

    async def __aiter__(self) -> AsyncIterator[str]:
        after = ""
        while page := await self.keys(after=after, limit=PAGE):
            for key in page:
                yield key
            after = page[-1]
