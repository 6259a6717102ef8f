"""Context caches in Redis or Valkey, shared by several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from retrytemplate._internal.validation import check_flag, check_seconds
from retrytemplate._storage.column_keys import KEY_PREFIXES, from_column_key
from retrytemplate._storage.redis_connection import AsyncConnections, Connections
from retrytemplate._storage.redis_pipeline import PipelinedConnections
from retrytemplate.backends.durable import AwaitedCache, BlockingCache, DurableCache, OnStoreError
from retrytemplate.backends.redis.operations import END, Steps
from retrytemplate.caches.in_process import refuse_connection
from retrytemplate.caches.record_limit import RECORD_LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock

C = TypeVar("C", bound="Redis | AsyncRedis")

DAY = 86400


class _OnRedis(DurableCache, Generic[C]):
    """Common base of both caches."""

    prefixes = KEY_PREFIXES

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
        super().__init__(url, lease, prefix, timeout, redact, record_limit, clock, on_store_error)
        self.ttl: float = check_seconds("ttl", ttl)
        self._use_new_steps()
        self._begin_life()

    def _use_new_steps(self) -> None:
        steps = Steps(self.prefix, self.lease, self.ttl)
        self._steps, self._page = steps, steps.page

    def _check_connection(self, connection: Any) -> None:
        refuse_connection(self, connection)

    def _begin_anew(self) -> None:
        self._use_new_steps()  # with tokens of their own
        super()._begin_anew()


class RedisRetryContextCache(_OnRedis["Redis"], BlockingCache):
    """Contexts in Redis or Valkey: they outlive the process, and several processes share them.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and timeouts are
        used; the cache keeps the connections that it has taken until it is closed.
    :param lease: seconds for which an attempt holds its key, renewed while the process lives.  An
        attempt whose lease has ended counts as lost.
    :param ttl: seconds after the last write when a key is deleted; never before its lease ends.
    :param prefix: of the keys: a context is one key, ``prefix:{key}``; its text decides about its
        slot in a cluster.
    :param timeout: seconds to wait for a connection, and for an answer.
    :param redact: applied to the traceback texts and messages that are stored.
    :param record_limit: bytes of a record; the oldest history of a larger one is dropped.
    :param clock: times the renewals.  Leases and times to live are measured by the server.
    :param on_store_error: if the server is unavailable when a key is taken: "raise"
        ``CacheUnavailableError``, or "run_unguarded": run without the key, and do not count.

    Each operation is one script.  Safe for threads, and across a fork.  It needs the extra
    ``redis``, and Redis 6.2 or Valkey, or a later version.

    The constructor does not connect:

    >>> RedisRetryContextCache("redis://:secret@localhost")
    <RedisRetryContextCache localhost:6379/0 prefix='retry'>
    """

    asynchronous_twin = "AsyncRedisRetryContextCache"
    _store_class = Connections

    def __iter__(self) -> Iterator[str]:
        """Each key that has a record, in no order; a key may occur more than once."""
        cursor = None
        while cursor != END:
            cursor, page = self._perform(self._page(cursor or END))
            yield from map(from_column_key, page)


class AsyncRedisRetryContextCache(_OnRedis["AsyncRedis"], AwaitedCache):
    """The asynchronous twin of ``RedisRetryContextCache``, for asyncio.

    The settings are the same; a client is a ``redis.asyncio.Redis``.  One event loop at a time can
    use it: ``await cache.close()`` there before it is used in another one.  A callback that blocks
    the loop for longer than the lease loses its key.

    :param pipeline: whether the commands of one turn of the loop are sent together, in order for
        each key: for many concurrent executions; default False.

    >>> AsyncRedisRetryContextCache("redis://localhost/7", prefix="orders:retry")
    <AsyncRedisRetryContextCache localhost:6379/7 prefix='orders:retry'>
    """

    def __init__(
        self,
        url: str | AsyncRedis,
        lease: Seconds = 30.0,
        ttl: Seconds = DAY,
        prefix: str = "retry",
        *,
        timeout: Seconds = 5.0,
        redact: Callable[[str], str] | None = None,
        record_limit: int = RECORD_LIMIT,
        clock: Clock | None = None,
        on_store_error: OnStoreError = "raise",
        pipeline: bool = False,
    ) -> None:
        check_flag("pipeline", pipeline)
        self._store_class = PipelinedConnections if pipeline else AsyncConnections
        super().__init__(
            url,
            lease,
            ttl,
            prefix,
            timeout=timeout,
            redact=redact,
            record_limit=record_limit,
            clock=clock,
            on_store_error=on_store_error,
        )

    async def __aiter__(self) -> AsyncIterator[str]:
        """Each key that has a record, in no order; a key may occur more than once."""
        cursor = None
        while cursor != END:
            cursor, page = await self._perform(self._page(cursor or END))
            for key in page:
                yield from_column_key(key)
