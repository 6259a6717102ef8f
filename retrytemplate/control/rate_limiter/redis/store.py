"""Where a rate limit is kept that several processes share: Redis or Valkey."""

from __future__ import annotations

import re
from math import ceil, inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from attrs import frozen

from retrytemplate._internal.awaitables import in_trio
from retrytemplate._internal.validation import check_wait
from retrytemplate._storage.column_keys import KEY_PREFIXES, from_column_key, to_column_key
from retrytemplate._storage.fork_safety import register, retain
from retrytemplate._storage.operation_runner import perform, perform_async, translate_errors
from retrytemplate._storage.redis_connection import AsyncConnections, Connections
from retrytemplate._storage.redis_script import Script, eval_script, send_idempotent
from retrytemplate._storage.store_role import StoreRole
from retrytemplate.backends.redis.operations import scan
from retrytemplate.control._threads import run_in_thread
from retrytemplate.errors import RateLimitStoreError
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Hashable

    from redis import Redis

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation

OWNER = StoreRole("rate limiter")
MICROSECONDS = 1_000_000
NAMED = re.compile(rb"\{(.*)\}(?::(?:pause|key:.*))?", re.DOTALL)
RECORD = re.compile(rb"(\d{1,16}) ([\d.]+) (\d+)")


@frozen
class StoredLimit:
    """A limit of a store as its commands name it.

    :param rule: what the value ends with, interval and burst; and both as arguments.
    """

    name: str
    keys: tuple[bytes, bytes]
    rule: tuple[str, str, int]


@frozen(kw_only=True)
class RateLimitRecord:
    """A limit as the store had it at a moment.

    :param interval: seconds between two permits, and *burst*, of its latest caller; None: all
        permits are free.
    :param debt: seconds until all permits are free.
    :param paused: seconds until the end of a pause; ``resumed``: since the end of the latest one.
    """

    name: str
    interval: float | None
    burst: int | None
    debt: float
    paused: float
    resumed: float

    def available(self, interval: float, burst: int) -> int:
        """The permits that are free at once for a caller with this rate."""
        free = float(burst)
        if self.interval is not None and self.burst is not None:
            free = min(free, self.burst - self.debt / self.interval)
        return max(0, int(min(free, self.resumed / interval) + 1e-3))


class RedisRateLimitStore:
    """Lets the rate limiters of several processes share their limits, in Redis or Valkey.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and waits are used.
    :param prefix: of the keys: those of a limiter begin with ``prefix:rate:{name}`` and have one
        slot in a cluster.
    :param timeout: seconds to wait for a connection, and for an answer; default 1.0.
    :raises ValueError: for what the parameters do not allow.

    Limiters of one name are one limit.  One store serves any number of them.  Safe for threads,
    tasks and across a fork.  Tasks of asyncio use connections of their loop, which
    ``await store.close_async()`` closes; those of trio, and of a store made with a client, call the
    server in a thread.  It needs the extra ``redis``, and Redis 6.2 or Valkey, or a later version.

    Making one connects to nothing yet:

    >>> RedisRateLimitStore("redis://:secret@localhost")
    <RedisRateLimitStore localhost:6379/0 prefix='retry'>
    """

    def __init__(self, url: str | Redis, prefix: str = "retry", *, timeout: Seconds = 1.0) -> None:
        self.prefix: str = KEY_PREFIXES.checked(prefix)
        self.timeout: float = check_wait("timeout", timeout)
        self._url = url
        self._opening = f"{prefix}:rate:"
        self._connections = Connections(url, self.timeout, OWNER)
        self._by_loop: WeakKeyDictionary[Any, AsyncConnections] = WeakKeyDictionary()
        register(self)

    def _forked(self) -> None:
        retain(self._by_loop)
        self._by_loop = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connections} prefix={self.prefix!r}>"

    def close(self) -> None:
        """Close the store's own blocking connections; later use opens new ones."""
        self._connections.close()

    async def close_async(self) -> None:
        """Close the connections of this event loop, and the blocking ones."""
        if not in_trio():
            import asyncio

            connections = self._by_loop.pop(asyncio.get_running_loop(), None)
            if connections is not None:
                await connections.close()
        self.close()

    def names(self) -> list[str]:
        """The names of all limiters with used permits or a pause, in order."""
        with translate_errors(RateLimitStoreError):
            keys = perform(scan(self._opening, "{*}*", "string"), self._connections.ask)
        opening = self._opening.encode()
        found = (NAMED.fullmatch(key.removeprefix(opening)) for key in keys)
        names = {each[1].decode(errors="replace") for each in found if each is not None}
        return sorted(map(from_column_key, names))

    def fetch(self, name: str, key: Hashable = None) -> RateLimitRecord:
        """The record of a limiter, or of one of its keys."""
        limit = self.limit(name, key, 1.0, 1)
        now, stored, paused = self._run(INSPECT, limit)
        return _decode(name, int(now), stored, paused)

    # -- commands of a limiter -------------------------------------------------------------------

    def limit(self, name: str, key: Hashable, interval: float, burst: int) -> StoredLimit:
        """The limit of a key, or of the calls without a key, at this rate."""
        begin = f"{self._opening}{{{to_column_key(name)}}}"
        own = begin
        if key is not None:
            own = f"{begin}:key:{to_column_key(encode_key(key, 'the key of a rate limit'))}"
        length = f"{interval * MICROSECONDS:.6f}"
        rule = f" {length} {burst}", length, burst
        return StoredLimit(name, (own.encode(), f"{begin}:pause".encode()), rule)

    def take(self, limit: StoredLimit, tokens: int, longest: float) -> tuple[float, int]:
        """The seconds until the permits fall due; and for a reservation its number, else 0.

        They are taken if that is 0, and reserved if it is at most *longest*.
        """
        reply = self._run(TAKE, limit, *_arguments(limit, tokens, longest))
        return _taken(limit, reply)

    async def take_async(
        self, limit: StoredLimit, tokens: int, longest: float
    ) -> tuple[float, int]:
        """The same for a task."""
        if in_trio() or not isinstance(self._url, str):
            return await run_in_thread(self.take, limit, tokens, longest)
        step = call(TAKE, limit, *_arguments(limit, tokens, longest))
        with translate_errors(RateLimitStoreError):
            reply = await perform_async(step, self._loop_connections().ask)
        return _taken(limit, reply)

    def give_up(self, limit: StoredLimit, tokens: int, number: int) -> None:
        """Return a reservation, if nothing was reserved after it."""
        self._run(RETURN, limit, number, tokens)

    def pause(self, limit: StoredLimit, seconds: float, capacity: float) -> None:
        """Let no permit fall due for that time, in no process."""
        lengths = ceil(seconds * MICROSECONDS), ceil(capacity * MICROSECONDS)
        _checked(limit, self._run(PAUSE, limit, *lengths))

    def _run(self, script: Script, limit: StoredLimit, *arguments: Any) -> Any:
        with translate_errors(RateLimitStoreError):
            return perform(call(script, limit, *arguments), self._connections.ask)

    def _loop_connections(self) -> AsyncConnections:
        import asyncio

        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = self._by_loop[loop] = AsyncConnections(self._url, self.timeout, OWNER)
        return found


def _arguments(limit: StoredLimit, tokens: int, longest: float) -> tuple[Any, ...]:
    return *limit.rule, tokens, int(longest * MICROSECONDS)


def call(script: Script, limit: StoredLimit, *arguments: Any) -> Operation[Any]:
    """Run a script; repeated, it takes more permits at most, and never exceeds the limit.

    The name of this function is in the messages.
    """
    return (yield from eval_script(send_idempotent, script, limit.name, 2, *limit.keys, *arguments))


def _taken(limit: StoredLimit, reply: Any) -> tuple[float, int]:
    if isinstance(reply, list):
        wait, number = reply
        return wait / MICROSECONDS, number
    return -_checked(limit, reply) / MICROSECONDS, 0


def _checked(limit: StoredLimit, reply: Any) -> int:
    if isinstance(reply, int):
        return reply
    raise _wrong(limit.name)


def _wrong(name: str) -> RateLimitStoreError:
    return RateLimitStoreError(
        f"the record of the rate limiter {name!r} in the store is not a rate limit, or has another "
        "version"
    )


def _decode(name: str, now: int, stored: bytes | None, paused: bytes | None) -> RateLimitRecord:
    try:
        ends = None if paused is None else int(paused)
        tat, interval, burst = now, None, None
        if stored is not None:
            found = RECORD.fullmatch(stored)
            if found is None:
                raise ValueError(stored)
            tat, interval, burst = int(found[1]), float(found[2]) / MICROSECONDS, int(found[3])
            if not interval:
                raise ValueError(stored)
    except ValueError:
        raise _wrong(name) from None
    return RateLimitRecord(
        name=name,
        interval=interval,
        burst=burst,
        debt=max(0, tat - now) / MICROSECONDS,
        paused=max(0, (ends or now) - now) / MICROSECONDS,
        resumed=inf if ends is None else max(0, now - ends) / MICROSECONDS,
    )


# The Lua of a shared rate limit: the rules of ``gcra``, with the server's clock.
#
# The permits of a key are one string: ``tat`` in whole microseconds since the epoch, the interval
# in microseconds, and the burst.  It expires when all permits are free again.  A caller with
# another rate keeps the number of free permits.  A pause is another key: the moment of its end.
#
# A cost is rounded up to whole microseconds, so that rounding never exceeds the limit.

FORMAT = "^(%d+) ([%d.]+) (%d+)$"

READ = f"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end
local function read(text)
    local tat, interval, burst = string.match(text, '{FORMAT}')
    if not tat or #tat > 16 then return nil end
    return tonumber(tat), tonumber(interval), tonumber(burst)
end
"""

# Takes permits, or reserves them: 0; a list of the wait and ``tat``; or minus the wait.
TAKE = Script(
    READ
    + """
local rule, interval, burst = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens, longest = tonumber(ARGV[4]), tonumber(ARGV[5])
local capacity = math.ceil(interval * burst)
local found = redis.call('MGET', KEYS[1], KEYS[2])
local tat, text = now, found[1]
if text then
    local used
    if string.sub(text, 17) == rule then  -- the same rate, as nearly always: no pattern is needed
        used = tonumber(string.sub(text, 1, 16))
        if not used then return 'format' end
    else
        local other, others
        used, other, others = read(text)
        if not used or not other or other <= 0 then return 'format' end
        if used > now then
            local free = math.min(others - (used - now) / other, burst)
            used = math.ceil(now + (burst - free) * interval)
        end
    end
    if used > now then tat = used end
elseif redis.call('EXISTS', KEYS[1]) == 1 then
    return 'format'
end
if found[2] then
    local ends = tonumber(found[2])
    if not ends then return 'format' end
    tat = math.max(tat, ends + capacity)
end
local after = math.ceil(tat + tokens * interval)
local wait = after - capacity - now
-- Costs that were rounded up are no reason to wait.
if wait <= math.min(burst, interval / 2) then
    wait = 0
elseif wait > longest then
    return -wait
end
redis.call('SET', KEYS[1], whole(after) .. rule, 'PX', math.ceil((after - now) / 1000) + 1)
if wait == 0 then return 0 end
return {wait, after}
"""
)

# Returns a reservation if nothing was reserved after it.
RETURN = Script(
    READ
    + """
local found = redis.call('GET', KEYS[1])
if not found then return 0 end
local tat, interval, burst = read(found)
if not tat or tat ~= tonumber(ARGV[1]) then return 0 end
local before = math.floor(tat - ARGV[2] * interval)
if before <= now then
    redis.call('DEL', KEYS[1])
else
    redis.call('SET', KEYS[1], whole(before) .. string.match(found, ' .*'), 'PX',
        whole(math.ceil((before - now) / 1000) + 1))
end
return 1
"""
)

# Sets the end of a pause, unless a later one is set; kept until no burst would follow it.
PAUSE = Script(
    READ
    + """
local ends = now + ARGV[1]
local found = tonumber(redis.call('GET', KEYS[2]) or 0)
if not found then return 'format' end
if found < ends then
    redis.call('SET', KEYS[2], whole(ends), 'PX', whole(math.ceil((ARGV[1] + ARGV[2]) / 1000) + 1))
end
return 0
"""
)

# The present time, and both strings.
INSPECT = Script(
    READ
    + """
return {whole(now), redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}
"""
)
