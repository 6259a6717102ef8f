"""Contexts on SQL, where the processes of several machines share them: SQLite and PostgreSQL."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from retrytemplate._checks import (
    SECONDS,
    check_at_least,
    duration,
    limit_or_none,
    plain,
    whole,
)
from retrytemplate.clock import given_or_system
from retrytemplate.errors import MisuseError
from retrytemplate.stores import engines
from retrytemplate.stores.performers import perform, perform_async
from retrytemplate.stores.renewers import RenewingTask, RenewingThread
from retrytemplate.stores.steps import SQLClaim, Steps

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType
    from typing import Self, TypeVar

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from retrytemplate._checks import Seconds
    from retrytemplate.caches.base import Claim
    from retrytemplate.caches.record import Record
    from retrytemplate.clock import Clock
    from retrytemplate.stores.steps import Step

    T = TypeVar("T")

__all__ = ["AsyncSQLRetryContextCache", "SQLRetryContextCache"]

PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,39}")
LEAST = 0.01
PAGE = 1000


class _Settings:
    """What both caches are made of."""

    durable = True

    def __init__(
        self,
        lease: Seconds,
        ttl: Seconds | None,
        prefix: Any,
        timeout: Seconds,
        redact: Callable[[str], str] | None,
        clock: Clock | None,
    ) -> None:
        self.lease: float = _seconds("lease", lease)
        seconds: float | None = duration(ttl)
        limit_or_none("ttl", seconds)
        self.ttl = seconds
        if not isinstance(prefix, str) or PREFIX.fullmatch(prefix) is None:
            raise ValueError(
                "prefix must be 1 to 40 of a-z, 0-9 and _, with no digit at the beginning, "
                f"got {prefix!r}"
            )
        self.prefix: str = prefix
        self.timeout: float = _seconds("timeout", timeout)
        if redact is not None:
            plain("redact", redact)
        self.redact = redact
        self._monotonic = given_or_system(clock).monotonic

    def _steps_on(self, dialect: str) -> Steps:
        return Steps(dialect, self.prefix, self.lease, self.ttl)


def _seconds(name: str, value: Any) -> float:
    seconds: float = duration(value)
    allowed = f"{SECONDS} >= {LEAST} and finite"
    check_at_least(name, seconds, LEAST, allowed=allowed, finite=True)
    return seconds


class SQLRetryContextCache(_Settings):
    """Contexts in a database: they outlive the process, and several processes share them.

    :param url: of the database, as SQLAlchemy writes it, or an ``Engine``.  SQLite serves the
        processes of one machine, PostgreSQL those of many.
    :param lease: seconds for which an attempt holds its key.  They are renewed while the process
        lives; an attempt whose lease ran out is taken for lost.
    :param ttl: seconds after the last write when a key is forgotten; None: never.
    :param prefix: of the names of the tables, which are made on first use.
    :param timeout: seconds to wait for a connection or a lock.
    :param redact: applied to the traceback texts and messages that are kept.
    :param clock: times the renewals.  Leases and times to live are measured by the database.

    Each step is one statement in a transaction of its own.  Safe for threads, and across a fork.
    It needs the extra ``sql``, for PostgreSQL ``postgresql``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with SQLRetryContextCache(f"sqlite:///{folder}/retry.db") as cache:
    ...         "charge/s:order-17" in cache
    False
    """

    blocking = True
    asynchronous_twin = "AsyncSQLRetryContextCache"

    def __init__(
        self,
        url: str | Engine,
        lease: Seconds = 30.0,
        ttl: Seconds | None = None,
        prefix: str = "retry",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(lease, ttl, prefix, timeout, redact, clock)
        self._engine = engines.engine(url, self.timeout)
        self._steps = self._steps_on(self._engine.dialect.name)
        self._renewer = RenewingThread(self.renew, self._monotonic)
        _open.add(self)

    def __repr__(self) -> str:
        return f"<SQLRetryContextCache {self._engine.url} prefix={self.prefix!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the renewals and the connections.  What is used after that opens them anew."""
        self._renewer.stop()
        self._engine.dispose()

    def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key: one statement."""
        seconds = None if lease is None else _seconds("lease", lease)
        claim = self._perform(self._steps.begin(key, worker, seconds, fresh))
        self._renewer.add(claim)
        return claim

    def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        self._perform(self._steps.renew(_ours(claim)))

    def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        if record.worker is None:
            self._renewer.drop(claim)
        self._perform(self._steps.fail(_ours(claim), record))

    def succeed(
        self, claim: Claim, *, connection: Connection | None = None, remember: float | None = None
    ) -> None:
        """End the claim and forget the record, or leave a mark for *remember* seconds.

        :param connection: the caller's own, to the same database: commits with what it commits.
        """
        self._renewer.drop(claim)
        self._perform(self._steps.succeed(_ours(claim), remember), connection)

    def release(self, claim: Claim) -> None:
        """End the claim; the key is as it was before."""
        self._renewer.drop(claim)
        self._perform(self._steps.release(_ours(claim)))

    def forget(self, key: str) -> None:
        """Drop whatever is kept under the key, the claim of a running execution included."""
        self._perform(self._steps.forget(key))

    def peek(self, key: str) -> Record | None:
        """The record, or None."""
        return self._perform(self._steps.peek(key))

    def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        return self._perform(self._steps.swap(key, record, version))

    def holds(self, claim: Claim) -> bool:
        """Whether the claim is the one in force, its lease included."""
        return self._perform(self._steps.holds(_ours(claim)))

    def purge(self) -> int:
        """Delete what its time to live is over for; the number of keys."""
        return self._perform(self._steps.purge())

    def keys(self, *, after: str = "", limit: int = PAGE) -> list[str]:
        """The keys that have a record, in order: at most *limit*, from the one after *after*."""
        whole("limit", limit, 1)
        return self._perform(self._steps.keys(after, limit))

    def __iter__(self) -> Iterator[str]:
        after = ""
        while page := self.keys(after=after):
            yield from page
            after = page[-1]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.peek(key) is not None

    def _perform(self, step: Step[T], connection: Connection | None = None) -> T:
        return perform(self._engine, step, connection)

    def _forked(self) -> None:
        """In the child: the connections, the thread and the claims are the parent's."""
        _inherited.append(self._engine.pool)
        self._engine.dispose(close=False)
        self._renewer = RenewingThread(self.renew, self._monotonic)


class AsyncSQLRetryContextCache(_Settings):
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

    def __init__(
        self,
        url: str | AsyncEngine,
        lease: Seconds = 30.0,
        ttl: Seconds | None = None,
        prefix: str = "retry",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(lease, ttl, prefix, timeout, redact, clock)
        self._engine = engines.async_engine(url, self.timeout)
        self._steps = self._steps_on(self._engine.dialect.name)
        self._renewer = RenewingTask(self.renew, self._monotonic)
        self._loop: AbstractEventLoop | None = None
        _open.add(self)

    def __repr__(self) -> str:
        return f"<AsyncSQLRetryContextCache {self._engine.url} prefix={self.prefix!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the renewals and the connections.  What is used after that opens them anew."""
        await self._renewer.stop()
        await self._engine.dispose()
        self._loop = None

    async def begin(
        self, key: str, *, worker: str, lease: float | None = None, fresh: bool = False
    ) -> Claim:
        """Load or create the record, count the attempt and take the key: one statement."""
        seconds = None if lease is None else _seconds("lease", lease)
        claim = await self._perform(self._steps.begin(key, worker, seconds, fresh))
        self._renewer.add(claim)
        return claim

    async def renew(self, claim: Claim) -> None:
        """Extend the lease; LeaseLostError when the key was taken over."""
        await self._perform(self._steps.renew(_ours(claim)))

    async def fail(self, claim: Claim, record: Record) -> None:
        """Write the record after a failed attempt; ``record.worker`` None ends the claim."""
        if record.worker is None:
            self._renewer.drop(claim)
        await self._perform(self._steps.fail(_ours(claim), record))

    async def succeed(
        self,
        claim: Claim,
        *,
        connection: AsyncConnection | None = None,
        remember: float | None = None,
    ) -> None:
        """End the claim and forget the record, or leave a mark for *remember* seconds.

        :param connection: the caller's own, to the same database: commits with what it commits.
        """
        self._renewer.drop(claim)
        await self._perform(self._steps.succeed(_ours(claim), remember), connection)

    async def release(self, claim: Claim) -> None:
        """End the claim; the key is as it was before."""
        self._renewer.drop(claim)
        await self._perform(self._steps.release(_ours(claim)))

    async def forget(self, key: str) -> None:
        """Drop whatever is kept under the key, the claim of a running execution included."""
        await self._perform(self._steps.forget(key))

    async def peek(self, key: str) -> Record | None:
        """The record, or None."""
        return await self._perform(self._steps.peek(key))

    async def swap(self, key: str, record: Record, version: int) -> bool:
        """Write a shared record if its version still is *version* (0: there was none)."""
        return await self._perform(self._steps.swap(key, record, version))

    async def holds(self, claim: Claim) -> bool:
        """Whether the claim is the one in force, its lease included."""
        return await self._perform(self._steps.holds(_ours(claim)))

    async def purge(self) -> int:
        """Delete what its time to live is over for; the number of keys."""
        return await self._perform(self._steps.purge())

    async def keys(self, *, after: str = "", limit: int = PAGE) -> list[str]:
        """The keys that have a record, in order: at most *limit*, from the one after *after*."""
        whole("limit", limit, 1)
        return await self._perform(self._steps.keys(after, limit))

    async def __aiter__(self) -> AsyncIterator[str]:
        after = ""
        while page := await self.keys(after=after):
            for key in page:
                yield key
            after = page[-1]

    async def _perform(self, step: Step[T], connection: AsyncConnection | None = None) -> T:
        self._check_loop()
        return await perform_async(self._engine, step, connection)

    def _check_loop(self) -> None:
        """Raise unless this is the loop that the connections belong to."""
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise MisuseError(f"{type(self).__name__} needs an event loop of asyncio") from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise MisuseError(
                f"{type(self).__name__} is in use by another event loop: close() it there first"
            )

    def _forked(self) -> None:
        """In the child: the connections, the task and the claims are the parent's."""
        _inherited.append(self._engine.sync_engine.pool)
        self._engine.sync_engine.dispose(close=False)
        self._renewer = RenewingTask(self.renew, self._monotonic)
        self._loop = None


def _ours(claim: Claim) -> SQLClaim:
    if not isinstance(claim, SQLClaim):
        raise TypeError(f"claim must be one that a SQL cache gave, got {claim!r}")
    return claim


_open: WeakSet[SQLRetryContextCache | AsyncSQLRetryContextCache] = WeakSet()
# Let go of here, the child would close them, and the parent's end of them with it.
_inherited: list[Any] = []


def _after_fork() -> None:
    for cache in _open:
        cache._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
