"""Where contexts outlive the process: durable caches.  What each needs comes with an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate._internal.imports import lazy_attributes

if TYPE_CHECKING:
    from retrytemplate.backends.redis.cache import (
        AsyncRedisRetryContextCache,
        RedisRetryContextCache,
    )
    from retrytemplate.backends.sql.cache import AsyncSQLRetryContextCache, SQLRetryContextCache

__getattr__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.backends.redis.cache": (
            "AsyncRedisRetryContextCache",
            "RedisRetryContextCache",
        ),
        "retrytemplate.backends.sql.cache": (
            "AsyncSQLRetryContextCache",
            "SQLRetryContextCache",
        ),
    },
)

__all__ = [
    "AsyncRedisRetryContextCache",
    "AsyncSQLRetryContextCache",
    "RedisRetryContextCache",
    "SQLRetryContextCache",
]
