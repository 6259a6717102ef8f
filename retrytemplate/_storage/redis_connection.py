"""Connections to Redis with timeouts, and the translation of their errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from queue import Empty, Full, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from retrytemplate._internal.failure_text import summary
from retrytemplate._internal.formatting import one_line
from retrytemplate._internal.imports import extra
from retrytemplate._internal.validation import check_int, check_wait
from retrytemplate._storage.fork_safety import register, retain
from retrytemplate._storage.operation_runner import AnswerLateError, AnswerLostError
from retrytemplate._storage.store_role import CONTEXT_CACHE, StoreRole
from retrytemplate.errors import CacheUnavailableError

if TYPE_CHECKING:
    # The key, the command, and whether the command may be sent twice.
    Order = tuple[str | None, tuple[Any, ...], bool]

# Options of a URL that redis-py reads as text; it has parsers for the others.
TEXTS = ("client_name", "decode_responses", "encoding", "encoding_errors", "password", "username")
OBJECTS = ("retry_on_error",)  # redis-py would split a text into its letters
WAITS = ("socket_connect_timeout", "socket_timeout", "timeout")
VALKEY = {"valkey://": "redis://", "valkeys://": "rediss://"}  # as redis-py knows them
LEAST = {"db": 0, "health_check_interval": 0, "max_connections": 1, "socket_read_size": 1}


def _pool(redis: Any, url: Any, timeout: float, answer: float | None, **options: Any) -> Any:
    """The pool of a given client, or a new one.

    :param redis: the package, that of blocking or of awaited connections.
    :param options: of a new pool.
    """
    from redis.backoff import NoBackoff

    if isinstance(url, redis.Redis):
        return url.connection_pool
    if not isinstance(url, str):
        raise TypeError(f"url must be a Redis URL or a {redis.__name__}.Redis, got {url!r}")
    for own, known in VALKEY.items():
        if url.startswith(own):
            url = known + url.removeprefix(own)
    _check_options(url, redis.connection.URL_QUERY_ARGUMENT_PARSERS)
    try:
        made = redis.BlockingConnectionPool.from_url(
            url,
            timeout=timeout,  # to get a connection
            socket_connect_timeout=timeout,
            socket_timeout=answer,
            retry=redis.retry.Retry(NoBackoff(), 0),
            protocol=2,
            **options,
        )
    except ValueError:  # its text is not shown: it may contain a password
        raise ValueError(
            "url must be redis://, rediss://, valkey://, valkeys:// or unix://, and what follows "
            "as redis-py has it"
        ) from None
    try:  # redis-py checks the rest when it creates a connection object, before it connects
        made.connection_class(**made.connection_kwargs).encoder.encode("")
    except Exception as exc:
        raise ValueError(f"url must have options that go together: {summary(exc)}") from None
    return made


def _check_options(url: str, parsers: Any) -> None:
    """Raise if an option in the URL or its value is not valid; secret values are not shown."""
    for name, text in parse_qsl(url.partition("?")[2]):
        if name in parsers and name not in OBJECTS:
            try:
                value = parsers[name](text)
            except ValueError:
                message = f"{name} in url must be as redis-py has it, got {text!r}"
                raise ValueError(message) from None
            if name in WAITS:
                check_wait(f"{name} in url", value)
            elif name in LEAST:
                check_int(f"{name} in url", value, LEAST[name])
        elif name not in TEXTS and not name.startswith("ssl_"):
            raise ValueError(f"url must have options that redis-py knows, got {name!r}")


class _ConnectionStack:
    """The free connections of a pool: redis-py's ``LifoQueue`` without its lock.

    A signal handler that interrupts ``LifoQueue.get`` and takes a connection waits for ever for
    the lock of its own thread.  The permits of the owner limit the connections in use, so that
    ``get`` need not wait.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self.queue = deque[Any]()  # redis-py reads it

    def put_nowait(self, connection: Any) -> None:
        if len(self.queue) >= self._maxsize:
            raise Full
        self.queue.append(connection)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self.queue.pop()
        except IndexError:
            raise Empty from None


MOST_TURNS = 1000  # concurrent uses of a pool without a limit


class ScriptMissingError(CacheUnavailableError):
    """Raised by a cache: the server does not have the script."""


class _Connections(ABC):
    """Connections of one owner to the server, no more at once than its pool may have.

    :param url: of the server, or a client of redis-py, whose pool is used.
    :param timeout: seconds to wait for a connection, and for an answer.
    """

    pool: Any
    _permits: Any

    def __init__(self, url: Any, timeout: float, owner: StoreRole = CONTEXT_CACHE) -> None:
        self._url = url
        self._timeout = timeout
        self._owner = owner
        self._open()
        register(self)

    @abstractmethod
    def _made(self) -> tuple[Any, Any]:
        """A pool, and the permits to use one of its connections."""

    def _open(self) -> None:
        with extra("redis", f"a {self._owner.name} on Redis"):
            self.pool, self._permits = self._made()
        self._idle = deque[Any]()

    def __str__(self) -> str:
        """The server, without user and password."""
        about = self.pool.connection_kwargs
        place = about.get("path") or getattr(self.pool, "service_name", None)  # of a Sentinel
        place = place or f"{about.get('host', 'localhost')}:{about.get('port', 6379)}"
        return f"{place}/{about.get('db', 0)}"

    def reopen(self) -> object:
        """Use new connections from now on; return the previous ones, which stay open."""
        before = self.pool, self._idle
        self._open()
        return before

    def _forked(self) -> None:
        retain(self.reopen())

    @property
    def _is_pool_shared(self) -> bool:
        return not isinstance(self._url, str)


class Connections(_Connections):
    """Connections for threads."""

    def _made(self) -> tuple[Any, Any]:
        import redis

        pool = _pool(redis, self._url, self._timeout, self._timeout, queue_class=_ConnectionStack)
        # No semaphore: it is written in Python, and a signal handler may leave it locked.
        permits = SimpleQueue[None]()
        for _ in range(min(pool.max_connections, MOST_TURNS)):
            permits.put(None)
        return pool, permits

    def ask(self, order: Order, step: str, _connection: None = None) -> Any:
        """The server's answer to one command, sent once."""
        from redis import RedisError

        key, command, again = order
        try:
            self._permits.get(timeout=self._timeout)
        except Empty:
            why = "no connection is free"
            raise CacheUnavailableError(_failure(step, key, why, self._owner)) from None
        try:
            return self._answer(command, again)
        except RedisError as exc:
            if is_lost(exc):
                self.release_idle(close=True)
            raise translate_error(exc, step, key, self._owner) from exc
        finally:
            self._permits.put(None)

    def _answer(self, command: tuple[Any, ...], again: bool) -> Any:
        from redis import ResponseError

        connection = self._take(again)
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        except ResponseError:  # an answer
            raise
        except BaseException:  # an unread answer would be read by the next command
            connection.disconnect()
            raise
        finally:
            self._idle.append(connection)

    def _take(self, again: bool) -> Any:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self.pool.get_connection()
        if again:
            return connection
        self.pool.release(connection)
        return self.pool.get_connection()

    def release_idle(self, *, close: bool = False) -> None:
        """Return the idle connections to the pool.

        :param close: close them first; the next use opens them again.
        """
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return
            if close:
                connection.disconnect()
            self.pool.release(connection)

    def close(self) -> None:
        """Close the connections that are the owner's; the next use opens others."""
        self.release_idle()
        if not self._is_pool_shared:
            self.pool.disconnect()


class AsyncConnections(_Connections):
    """Connections for the tasks of one event loop.

    The timeout is for all of a command.  redis-py's own bound is an ``asyncio.wait_for``, which on
    Python 3.11 loses a cancellation that comes at the wrong moment.
    """

    def _made(self) -> tuple[Any, Any]:
        from asyncio import Semaphore

        import redis.asyncio

        pool = _pool(redis.asyncio, self._url, self._timeout, None)
        return pool, Semaphore(min(pool.max_connections, MOST_TURNS))

    async def ask(self, order: Order, step: str, _connection: None = None) -> Any:
        """The server's answer to one command, sent once."""
        import asyncio

        from redis import RedisError

        key, command, again = order
        try:
            async with asyncio.timeout(self._timeout), self._permits:
                connection = await self._take(again)
                try:
                    await connection.send_command(*command)
                    return await connection.read_response(disable_decoding=True)
                finally:
                    self._idle.append(connection)
        except (RedisError, TimeoutError) as exc:
            if is_lost(exc):
                await self.release_idle(close=True)
            raise translate_error(exc, step, key, self._owner) from exc

    async def _take(self, again: bool) -> Any:
        if not self._idle:
            return await self.pool.get_connection()
        connection = self._idle.pop()
        if again:
            return connection
        await self.pool.release(connection)
        return await self.pool.get_connection()

    async def release_idle(self, *, close: bool = False) -> None:
        """Return the idle connections to the pool."""
        while self._idle:
            connection = self._idle.pop()
            if close:
                await connection.disconnect(nowait=True)
            await self.pool.release(connection)

    async def close(self) -> None:
        """Close the connections that are the owner's; the next use opens others, in any loop."""
        await self.release_idle()
        if not self._is_pool_shared:
            await self.pool.disconnect()
        self._open()


def is_lost(error: Exception) -> bool:
    """Whether all connections may be useless: one was closed, or leads to a former primary.

    A primary that a failover has made a replica keeps its connections.  A new connection is opened
    by name, and leads to the new primary.
    """
    from redis import ConnectionError

    return isinstance(error, ConnectionError) or "read only replica" in str(error)


def translate_error(
    error: Exception, step: str, key: str | None, owner: StoreRole
) -> CacheUnavailableError:
    """The error of a store for an error of redis-py, without the values of the command."""
    from redis.exceptions import NoScriptError, TimeoutError

    text = one_line(str(error)) or "no answer in time"
    message = _failure(step, key, text, owner)
    if isinstance(error, NoScriptError):
        return ScriptMissingError(message)
    if is_lost(error):
        return AnswerLostError(message)
    if isinstance(error, TimeoutError):
        return AnswerLateError(message)
    return CacheUnavailableError(message)


def _failure(step: str, key: str | None, why: str, owner: StoreRole) -> str:
    tried = step if key is None else f"{step} of {key!r}"
    return f"{tried} failed in the store of the {owner.name}: {why}"
