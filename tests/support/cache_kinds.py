"""Which caches are for which URL."""

from retrytemplate import (
    AsyncRedisRetryContextCache,
    AsyncSQLRetryContextCache,
    RedisRetryContextCache,
    SQLRetryContextCache,
)

__all__ = ["awaited", "blocking"]


def blocking(url, **settings):
    """The synchronous cache on the store of a URL."""
    kind = RedisRetryContextCache if url.startswith("redis:") else SQLRetryContextCache
    return kind(url, **settings)


def awaited(url, **settings):
    """The asynchronous one."""
    kind = AsyncRedisRetryContextCache if url.startswith("redis:") else AsyncSQLRetryContextCache
    return kind(url, **settings)
