"""Where contexts outlive the process: durable caches.  What each needs comes with an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._lazy import lazily

if TYPE_CHECKING:
    from retrytemplate.stores.redis import AsyncRedisRetryContextCache, RedisRetryContextCache
    from retrytemplate.stores.sql import AsyncSQLRetryContextCache, SQLRetryContextCache

__getattr__ = lazily(
    __name__,
    {
        "retrytemplate.stores.redis": ("AsyncRedisRetryContextCache", "RedisRetryContextCache"),
        "retrytemplate.stores.sql": ("AsyncSQLRetryContextCache", "SQLRetryContextCache"),
    },
)

__all__ = [
    "AsyncRedisRetryContextCache",
    "AsyncSQLRetryContextCache",
    "RedisRetryContextCache",
    "SQLRetryContextCache",
]
