"""Connections of redis-py that are kept ready: one command on one of them, blocking or awaited.

The pools of redis-py ask every connection whether it still lives, before every command, and that
takes half as long as a command.  Here it is asked only before what must not be sent twice.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from retrytemplate._text import one_line
from retrytemplate.errors import CacheUnavailableError
from retrytemplate.stores.owners import CONTEXT_CACHE
from retrytemplate.stores.performers import AnswerLateError, AnswerLostError

if TYPE_CHECKING:
    from retrytemplate.stores.owners import Owner

    # About which key, the command, and whether it may be sent twice.
    Order = tuple[str | None, tuple[Any, ...], bool]

__all__ = ["AsyncConnections", "Connections", "ScriptMissingError"]

MOST_TURNS = 1000  # at once; a pool may say that it has no limit


class ScriptMissingError(CacheUnavailableError):
    """Raised by a cache: the server has not seen the script, or has forgotten it."""


class Connections:
    """Connections of a pool, no more at once than it may have.

    :param timeout: seconds to wait for one that is free; for an answer the pool has its own.
    :param owner: whose store it is.
    """

    def __init__(self, pool: Any, timeout: float, owner: Owner = CONTEXT_CACHE) -> None:
        self._owner = owner
        self._pool = pool
        self._timeout = timeout
        # No semaphore: it is written in Python, and a signal that cuts in may leave it locked.
        self._turns = SimpleQueue[None]()
        for _ in range(min(pool.max_connections, MOST_TURNS)):
            self._turns.put(None)
        self._ready = deque[Any]()

    def ask(self, order: Order, step: str) -> Any:
        """The server's answer to one command, sent once."""
        from redis import RedisError

        key, command, again = order
        try:
            self._turns.get(timeout=self._timeout)
        except Empty:
            why = "no connection is free"
            raise CacheUnavailableError(_failure(step, key, why, self._owner)) from None
        try:
            return self._answer(command, again)
        except RedisError as exc:
            if _is_lost(exc):
                self.let_go(close=True)
            raise _meaning(exc, step, key, self._owner) from exc
        finally:
            self._turns.put(None)

    def _answer(self, command: tuple[Any, ...], again: bool) -> Any:
        from redis import ResponseError

        connection = self._take(again)
        try:
            connection.send_command(*command)
            return connection.read_response(disable_decoding=True)
        except ResponseError:  # that is an answer
            raise
        except BaseException:  # what it has not read, the next one would take for its own answer
            connection.disconnect()
            raise
        finally:
            self._ready.append(connection)

    def _take(self, again: bool) -> Any:
        try:
            connection = self._ready.pop()
        except IndexError:
            return self._pool.get_connection()
        if again:
            return connection
        self._pool.release(connection)
        return self._pool.get_connection()

    def let_go(self, *, close: bool = False) -> None:
        """Release the connections that are ready to the pool.

        :param close: close them first; the next use opens them again.
        """
        while self._ready:
            try:
                connection = self._ready.pop()
            except IndexError:  # another thread was faster
                return
            if close:
                connection.disconnect()
            self._pool.release(connection)


class AsyncConnections:
    """The same in the tasks of one event loop.

    :param timeout: seconds for all of a command.  redis-py's own bound is an ``asyncio.wait_for``,
        which on Python 3.11 lets a cancellation go that comes in the wrong moment.
    """

    def __init__(self, pool: Any, timeout: float) -> None:
        import asyncio

        self._pool = pool
        self._timeout = timeout
        self._turns = asyncio.Semaphore(min(pool.max_connections, MOST_TURNS))
        self._ready = deque[Any]()

    async def ask(self, order: Order, step: str) -> Any:
        """The server's answer to one command, sent once."""
        import asyncio

        from redis import RedisError

        key, command, again = order
        try:
            async with asyncio.timeout(self._timeout), self._turns:
                connection = await self._take(again)
                try:
                    await connection.send_command(*command)
                    return await connection.read_response(disable_decoding=True)
                finally:
                    self._ready.append(connection)
        except (RedisError, TimeoutError) as exc:
            if _is_lost(exc):
                await self.let_go(close=True)
            raise _meaning(exc, step, key, CONTEXT_CACHE) from exc

    async def _take(self, again: bool) -> Any:
        if not self._ready:
            return await self._pool.get_connection()
        connection = self._ready.pop()
        if again:
            return connection
        await self._pool.release(connection)
        return await self._pool.get_connection()

    async def let_go(self, *, close: bool = False) -> None:
        """Release the connections that are ready to the pool."""
        while self._ready:
            connection = self._ready.pop()
            if close:
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)


def _is_lost(error: Exception) -> bool:
    """Whether all connections may lead nowhere: one was cut, or leads to a primary of the past.

    A primary that a failover has made a replica keeps its connections; a new one is opened by name,
    and leads to the new primary.
    """
    from redis import ConnectionError

    return isinstance(error, ConnectionError) or "read only replica" in str(error)


def _meaning(error: Exception, step: str, key: str | None, owner: Owner) -> CacheUnavailableError:
    """An error of redis-py as the cache raises it; without what was to be written."""
    from redis.exceptions import NoScriptError, TimeoutError

    text = one_line(str(error)) or "no answer in time"
    message = _failure(step, key, text, owner)
    if isinstance(error, NoScriptError):
        return ScriptMissingError(message)
    if _is_lost(error):
        return AnswerLostError(message)
    if isinstance(error, TimeoutError):
        return AnswerLateError(message)
    return CacheUnavailableError(message)


def _failure(step: str, key: str | None, why: str, owner: Owner) -> str:
    tried = step if key is None else f"{step} of {key!r}"
    return f"{tried} failed in the store of the {owner.name}: {why}"
