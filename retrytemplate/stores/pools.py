"""From a URL to a pool of redis-py, with bounded waits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from retrytemplate._checks import whole
from retrytemplate.extras import extra
from retrytemplate.history import summary
from retrytemplate.stores.owners import CONTEXT_CACHE
from retrytemplate.stores.settings import waiting

if TYPE_CHECKING:
    from retrytemplate.stores.owners import Owner

__all__ = ["async_pool", "pool", "where"]

# What can be said in a URL, beside what redis-py reads as something else than a text.
TEXTS = ("client_name", "decode_responses", "encoding", "encoding_errors", "password", "username")
OBJECTS = ("retry_on_error",)  # of a text redis-py makes its letters
WAITS = ("socket_connect_timeout", "socket_timeout", "timeout")
VALKEY = {"valkey://": "redis://", "valkeys://": "rediss://"}  # as redis-py knows them
LEAST = {"db": 0, "health_check_interval": 0, "max_connections": 1, "socket_read_size": 1}


def pool(url: Any, timeout: float, owner: Owner = CONTEXT_CACHE) -> Any:
    """The pool of the client that is given, or one for the URL."""
    with extra("redis", f"a {owner.name} on Redis"):
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    if isinstance(url, Redis):
        return url.connection_pool
    return _made(BlockingConnectionPool, Retry(NoBackoff(), 0), url, timeout, timeout)


def async_pool(url: Any, timeout: float) -> Any:
    """The same for asyncio, where the wait for an answer is bounded by whoever asks."""
    with extra("redis", f"a {CONTEXT_CACHE.name} on Redis"):
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
    for own, known in VALKEY.items():
        if url.startswith(own):
            url = known + url.removeprefix(own)
    _check_options(url, import_module(kind.__module__).URL_QUERY_ARGUMENT_PARSERS)
    try:
        made = kind.from_url(
            url,
            timeout=timeout,  # to get a connection
            socket_connect_timeout=timeout,
            socket_timeout=answer,
            retry=no_retry,
            protocol=2,
        )
    except ValueError:  # what it says is not shown: a password may be in it
        raise ValueError(
            "url must be redis://, rediss://, valkey://, valkeys:// or unix://, and what follows "
            "as redis-py has it"
        ) from None
    try:  # redis-py looks at the rest when it makes a connection, and connects later
        made.connection_class(**made.connection_kwargs).encoder.encode("")
    except Exception as exc:
        raise ValueError(f"url must have options that go together: {summary(exc)}") from None
    return made


def _check_options(url: str, parsers: Any) -> None:
    """Raise where an option in the URL is none, or its value; what may be secret is not shown."""
    for name, text in parse_qsl(url.partition("?")[2]):
        if name in parsers and name not in OBJECTS:
            try:
                value = parsers[name](text)
            except ValueError:
                message = f"{name} in url must be as redis-py has it, got {text!r}"
                raise ValueError(message) from None
            if name in WAITS:
                waiting(f"{name} in url", value)
            elif name in LEAST:
                whole(f"{name} in url", value, LEAST[name])
        elif name not in TEXTS and not name.startswith("ssl_"):
            raise ValueError(f"url must have options that redis-py knows, got {name!r}")


def where(pool: Any) -> str:
    """The server of a pool, without user and password."""
    about = pool.connection_kwargs
    place = about.get("path") or getattr(pool, "service_name", None)  # of a Sentinel
    place = place or f"{about.get('host', 'localhost')}:{about.get('port', 6379)}"
    return f"{place}/{about.get('db', 0)}"
