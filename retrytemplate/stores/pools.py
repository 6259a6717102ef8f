"""From a URL to a pool of redis-py, with bounded waits."""

from __future__ import annotations

from typing import Any

from retrytemplate.extras import extra

__all__ = ["async_pool", "pool", "where"]

PURPOSE = "a context cache on Redis"


def pool(url: Any, timeout: float) -> Any:
    """The pool of the client that is given, or one for the URL."""
    with extra("redis", PURPOSE):
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    if isinstance(url, Redis):
        return url.connection_pool
    return _made(BlockingConnectionPool, Retry(NoBackoff(), 0), url, timeout, timeout)


def async_pool(url: Any, timeout: float) -> Any:
    """The same for asyncio, where the wait for an answer is bounded by whoever asks."""
    with extra("redis", PURPOSE):
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    if isinstance(url, Redis):
        return url.connection_pool
    return _made(BlockingConnectionPool, Retry(NoBackoff(), 0), url, timeout, None)


def _made(kind: Any, no_retry: Any, url: Any, timeout: float, answer: float | None) -> Any:
    package = kind.__module__.rpartition(".")[0]
    if not isinstance(url, str):
        raise TypeError(f"url must be a Redis URL or a {package}.Redis, got {url!r}")
    try:
        return kind.from_url(
            url,
            timeout=timeout,  # to get a connection
            socket_connect_timeout=timeout,
            socket_timeout=answer,
            retry=no_retry,
            protocol=2,
        )
    except ValueError:  # what it says is not shown: a password may be in it
        raise ValueError(
            "url must be redis://, rediss:// or unix://, and what follows as redis-py has it"
        ) from None


def where(pool: Any) -> str:
    """The server of a pool, without user and password."""
    about = pool.connection_kwargs
    place = about.get("path") or getattr(pool, "service_name", None)  # of a Sentinel
    place = place or f"{about.get('host', 'localhost')}:{about.get('port', 6379)}"
    return f"{place}/{about.get('db', 0)}"
