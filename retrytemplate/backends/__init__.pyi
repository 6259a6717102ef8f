# The types of the public names; __init__.py imports them on first use.

from retrytemplate.backends.redis.cache import (
    AsyncRedisRetryContextCache as AsyncRedisRetryContextCache,
)
from retrytemplate.backends.redis.cache import RedisRetryContextCache as RedisRetryContextCache
from retrytemplate.backends.sql.cache import AsyncSQLRetryContextCache as AsyncSQLRetryContextCache
from retrytemplate.backends.sql.cache import SQLRetryContextCache as SQLRetryContextCache
