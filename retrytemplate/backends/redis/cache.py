"""Contexts on Redis or Valkey, where the processes of several machines share them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from retrytemplate._internal.validation import check_seconds
from retrytemplate._storage import redis_connection
from retrytemplate._storage.column_keys import from_column_key
from retrytemplate._storage.redis_connection import AsyncConnections, Connections
from retrytemplate.backends.durable import KEY_PREFIXES, AwaitedCache, BlockingCache, DurableCache
from retrytemplate.backends.redis.operations import END, Steps
from retrytemplate.caches.in_process import refuse_connection
from retrytemplate.caches.record_limit import RECORD_LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.redis_connection import Order
    from retrytemplate.backends.durable import OnStoreError
    from retrytemplate.clock import Clock

C = TypeVar("C", bound="Redis | AsyncRedis")

__all__ = ["AsyncRedisRetryContextCache", "RedisRetryContextCache"]

DAY = 86400


class _OnRedis(DurableCache, Generic[C]):
    """What both caches on Redis are made of."""

    prefixes = KEY_PREFIXES

    _pool: Any
    _connections: Any

    def __init__(
        self,
        url: str | C,
        lease: Seconds = 30.0,
        ttl: Seconds = DAY,
        prefix: str = "retry",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        record_limit: int = RECORD_LIMIT,
        clock: Clock | None = None,
        on_store_error: OnStoreError = "raise",
    ) -> None:
        super().__init__(lease, prefix, timeout, redact, record_limit, clock, on_store_error)
        self._url = url
        self.ttl: float = check_seconds("ttl", ttl)
        self._connect()
        self._begin_life()

    def _connect(self) -> None:
        """Have connections, and calls that no other process has made."""
        self._pool, self._connections = self._made()
        steps = Steps(self.prefix, self.lease, self.ttl)
        self._steps = steps
        self._page = steps.page

    @abstractmethod
    def _made(self) -> tuple[Any, Connections | AsyncConnections]:
        """A pool, and connections of it."""

    def _place(self) -> object:
        return redis_connection.where(self._pool)

    def _ask(self, connection: None, order: Order, name: str) -> Any:
        return self._connections.ask(order, name)

    def _check_connection(self, connection: Any) -> None:
        refuse_connection(self, connection)

    def _reconnect(self) -> object:
        before = self._pool, self._connections
        self._connect()
        return before


class RedisRetryContextCache(_OnRedis["Redis"], BlockingCache):
    """Contexts in Redis or Valkey: they outlive the process, and several processes share them.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and waits are used;
        it keeps those it has taken until it is closed.
    :param lease: seconds for which an attempt holds its key.  They are renewed while the process
        lives; an attempt whose lease ran out is taken for lost.
    :param ttl: seconds after the last write when a key is forgotten; never before its lease.
    :param prefix: of the keys: a context is one key, ``prefix:{key}``, whose slot in a cluster is
        that of its own text.
    :param timeout: seconds to wait for a connection, and for an answer.
    :param redact: applied to the traceback texts and messages that are kept.
    :param record_limit: bytes of a record; of one with more the past is given up bit by bit.
    :param clock: times the renewals.  Leases and times to live are measured by the server.
    :param on_store_error: where the server is away when a key is to be taken: "raise"
        ``CacheUnavailableError``, or "run_unguarded", without a hold on the key and uncounted.

    Each step is one script.  Safe for threads, and across a fork.  It needs the extra ``redis``,
    and Redis 6.2 or Valkey, or a later version.

    Making one connects to nothing yet:

    >>> RedisRetryContextCache("redis://:secret@localhost")
    <RedisRetryContextCache localhost:6379/0 prefix='retry'>
    """

    asynchronous_twin = "AsyncRedisRetryContextCache"

    def __iter__(self) -> Iterator[str]:
        """Every key that has a record, in no order; one more than once, maybe."""
        cursor = None
        while cursor != END:
            cursor, page = self._perform(self._page(cursor or END))
            yield from map(from_column_key, page)

    def _made(self) -> tuple[Any, Connections]:
        pool = redis_connection.pool(self._url, self.timeout)
        return pool, Connections(pool, self.timeout)

    def _disconnect(self) -> None:
        self._connections.release_idle()
        if isinstance(self._url, str):  # else they are another's
            self._pool.disconnect()


class AsyncRedisRetryContextCache(_OnRedis["AsyncRedis"], AwaitedCache):
    """The asynchronous twin of ``RedisRetryContextCache``, for asyncio.

    The settings are the same; a client is a ``redis.asyncio.Redis``.  One event loop at a time can
    use it: ``await cache.close()`` there before another one does.  A callback that blocks the loop
    for longer than the lease loses its key.

    >>> AsyncRedisRetryContextCache("redis://localhost/7", prefix="orders:retry")
    <AsyncRedisRetryContextCache localhost:6379/7 prefix='orders:retry'>
    """

    async def __aiter__(self) -> AsyncIterator[str]:
        """Every key that has a record, in no order; one more than once, maybe."""
        cursor = None
        while cursor != END:
            cursor, page = await self._perform(self._page(cursor or END))
            for key in page:
                yield from_column_key(key)

    def _made(self) -> tuple[Any, AsyncConnections]:
        pool = redis_connection.async_pool(self._url, self.timeout)
        return pool, AsyncConnections(pool, self.timeout)

    async def _disconnect(self) -> None:
        await self._connections.release_idle()
        if isinstance(self._url, str):  # else they are another's
            await self._pool.disconnect()
        self._connect()  # nothing of this loop is left for the next one
