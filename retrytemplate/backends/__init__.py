"""Durable caches: contexts outlive the process.  The packages of each cache come with an extra."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.backends.redis.cache": "AsyncRedisRetryContextCache RedisRetryContextCache",
        "retrytemplate.backends.sql.cache": "AsyncSQLRetryContextCache SQLRetryContextCache",
    },
)
