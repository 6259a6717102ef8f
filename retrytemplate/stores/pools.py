"""From a URL to connections of redis-py, with bounded waits; one command, and what errors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.errors import CacheUnavailableError
from retrytemplate.extras import extra

if TYPE_CHECKING:
    Order = tuple[str | None, tuple[Any, ...]]

__all__ = ["AnswerLostError", "ScriptMissingError"]
__all__ += ["ask", "ask_async", "async_pool", "pool", "where"]

PURPOSE = "a context cache on Redis"


class AnswerLostError(CacheUnavailableError):
    """Raised by a cache: the connection was cut; whether the step was taken is not known."""


class ScriptMissingError(CacheUnavailableError):
    """Raised by a cache: the server has not seen the script, or has forgotten it."""


def pool(url: Any, timeout: float) -> Any:
    """The connections of the client that is given, or new ones to the URL."""
    with extra("redis", PURPOSE):
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    if isinstance(url, Redis):
        return url.connection_pool
    return _made(BlockingConnectionPool, Retry(NoBackoff(), 0), url, timeout, timeout)


def async_pool(url: Any, timeout: float) -> Any:
    """The same for asyncio; ``ask_async`` bounds what these wait for."""
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


def where(made: Any) -> str:
    """The server of these connections, without user and password."""
    about = made.connection_kwargs
    place = about.get("path") or f"{about.get('host', 'localhost')}:{about.get('port', 6379)}"
    return f"{place}/{about.get('db', 0)}"


def ask(made: Any, order: Order, step: str) -> Any:
    """The server's answer to one command, sent once."""
    from redis import RedisError

    key, command = order
    try:
        connection = made.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        finally:
            made.release(connection)
    except RedisError as exc:
        raise _failed(exc, step, key) from exc


async def ask_async(made: Any, timeout: float | None, order: Order, step: str) -> Any:
    """The same in a task of asyncio.

    :param timeout: seconds for all of it.  redis-py's own bound is an ``asyncio.wait_for``, which
        on Python 3.11 lets a cancellation go that comes in the wrong moment.
    """
    import asyncio

    from redis import RedisError

    key, command = order
    try:
        async with asyncio.timeout(timeout):
            connection = await made.get_connection()
            try:
                await connection.send_command(*command)
                return await connection.read_response(disable_decoding=True)
            finally:
                await made.release(connection)
    except (RedisError, TimeoutError) as exc:
        raise _failed(exc, step, key) from exc


def _failed(error: Exception, step: str, key: str | None) -> CacheUnavailableError:
    """An error of redis-py as the cache raises it; without what was to be written."""
    from redis.exceptions import ConnectionError, NoScriptError

    tried = step if key is None else f"{step} of {key!r}"
    text = str(error).strip().partition("\n")[0] or "no answer in time"
    message = f"{tried} failed in the store of the context cache: {text}"
    if isinstance(error, NoScriptError):
        return ScriptMissingError(message)
    if isinstance(error, ConnectionError):
        return AnswerLostError(message)
    return CacheUnavailableError(message)
