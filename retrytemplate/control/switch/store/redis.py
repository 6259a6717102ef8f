"""A kill switch's store in Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate._storage.column_keys import KEY_PREFIXES
from retrytemplate._storage.redis_connection import Connections
from retrytemplate._storage.redis_script import (
    CLOCK,
    Script,
    eval_script,
    send_idempotent,
    send_once,
)
from retrytemplate.backends.redis.operations import MOST
from retrytemplate.control.switch.store.base import (
    KILL_SWITCH,
    DurableSwitchStore,
    to_stored_record,
    unreadable_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from retrytemplate._internal.validation import Seconds
    from retrytemplate._storage.operation_runner import Operation
    from retrytemplate._storage.redis_script import Send
    from retrytemplate.control.switch.store.base import StoredRecord


class RedisSwitchStore(DurableSwitchStore):
    """Store of a kill switch in Redis or Valkey, shared by processes.

    :param url: of the server (``redis://``, ``rediss://``, ``unix://``, as redis-py has them, or
        ``valkey://``, ``valkeys://``), or a ``redis.Redis``, whose connections and waits are used;
        it keeps those it has taken until it is closed.
    :param prefix: of the keys: ``{prefix}:switch`` and three that begin so, all in one slot of a
        cluster.  None of them has an end: the server must not evict them.
    :param timeout: seconds to wait for a connection, and for an answer.

    A change and its records are one script.  Safe for threads, and across a fork.  It needs the
    extra ``redis``, and Redis 6.2 or Valkey, or a later version.

    Making one connects to nothing yet:

    >>> RedisSwitchStore("redis://:secret@localhost")
    <RedisSwitchStore localhost:6379/0 prefix='retry'>
    """

    _prefixes = KEY_PREFIXES

    def __init__(self, url: str | Redis, prefix: str = "retry", *, timeout: Seconds = 5.0) -> None:
        super().__init__(prefix, timeout)
        self._operations = _RedisOperations(self.prefix)
        self._store = Connections(url, self.timeout, KILL_SWITCH)


class _RedisOperations:
    """The steps of a store on the keys of one prefix."""

    def __init__(self, prefix: str) -> None:
        # In braces, what decides about the slot of a cluster.
        switch = f"{{{prefix}}}:switch"
        self._names = (4, switch, f"{switch}:audit", f"{switch}:pending", f"{switch}:claims")

    def load(self, known: int | None) -> Operation[tuple[int, str] | None]:
        found = yield from self._run(send_idempotent, LOAD, "" if known is None else known)
        if found is None:
            return None
        try:
            version, document = found
            return int(version), document.decode()
        except (ValueError, AttributeError):
            raise unreadable_error("the state") from None

    def commit(
        self, expected: int, document: str, records: Sequence[str], again: bool
    ) -> Operation[bool]:
        texts = [text.encode() for text in (document, *records)]
        answer = yield from self._run(send_once, COMMIT, expected, expected + 1, int(again), *texts)
        return answer is not None

    def records(self, before: int | None, limit: int) -> Operation[list[StoredRecord]]:
        below = "" if before is None else before
        lowest, found, numbers = yield from self._run(send_idempotent, RECORDS, below, limit)
        pending = set(map(int, numbers))
        records = [
            _record(number, text, number not in pending)
            for number, text in enumerate(found, lowest)
        ]
        return records[::-1]

    def claim_pending_notifications(
        self, worker: str, lease: float, limit: int
    ) -> Operation[list[StoredRecord]]:
        arguments = (worker.encode(), min(lease, MOST), limit)
        found = yield from self._run(send_idempotent, CLAIM, *arguments)
        return [_record(int(number), text, False) for number, text in found]

    def mark_notified(self, numbers: Sequence[int], worker: str) -> Operation[None]:
        yield from self._run(send_once, MARK_NOTIFIED, worker.encode(), *numbers)

    def _run(self, send: Send, script: Script, *arguments: Any) -> Operation[Any]:
        return (yield from eval_script(send, script, None, *self._names, *arguments))


def _record(number: int, entry: bytes | None, notified: bool) -> StoredRecord:
    try:
        _, text = (entry or b"").decode().split("\n", 1)
    except ValueError:
        text = None
    return to_stored_record(number, text, notified)


# The Lua of a kill switch's store on Redis: a script a step, each on the same four keys.
#
# ``switch``          a hash: the ``version`` and the ``document``, and the ``schema`` of all this
# ``switch:audit``    a list of the records, each behind the version that it made; its number is its
#                     place, from 1
# ``switch:pending``   a sorted set of the numbers whose notification is pending
# ``switch:claims``   a hash: for such a number, until when it is whose
#
# None of them has an end.  A script that fails at one of them fails before it has written anything.

SCHEMA = 1

PRELUDE = f"""
local switch, audit, pending, claims = unpack(KEYS)
local current = '{SCHEMA}'
local schema, version = unpack(redis.call('HMGET', switch, 'schema', 'version'))
local last = redis.call('LLEN', audit)
redis.call('ZCARD', pending)
redis.call('HLEN', claims)
if schema and schema ~= current then
    return redis.error_reply('ERR the keys ' .. switch .. '* have version ' .. schema
        .. ', this version of the library knows up to ' .. current)
end
if not version and last > 0 then
    return redis.error_reply('ERR ' .. switch .. ' is gone, and with it what is stopped')
end
local function claim(number)
    local ends, worker = string.match(redis.call('HGET', claims, number) or '', '^(%d+) (.*)$')
    return worker, tonumber(ends)
end
"""

LOAD = Script(
    PRELUDE
    + """
if not version then return ARGV[1] ~= '0' and {'0', ''} end
if version == ARGV[1] then return false end
return {version, redis.call('HGET', switch, 'document')}
"""
)

COMMIT = Script(
    PRELUDE
    + """
local expected, made, again, document = unpack(ARGV, 1, 4)
local function was_committed()  -- the same commit, sent again
    if #ARGV == 4 then
        return version == made and redis.call('HGET', switch, 'document') == document
    end
    local at = last - 1
    while at >= 0 do
        local of, record = string.match(redis.call('LINDEX', audit, at), '^(%d+)\\n(.*)$')
        if tonumber(of) <= tonumber(made) then
            return of == made and record == ARGV[#ARGV]
        end
        at = at - 1
    end
    return false
end
if (version or '0') ~= expected then return again == '1' and was_committed() end
redis.call('HSET', switch, 'schema', current, 'version', made, 'document', document)
for at = 5, #ARGV do
    last = last + 1
    redis.call('RPUSH', audit, made .. '\\n' .. ARGV[at])
    redis.call('ZADD', pending, last, last)
end
return true
"""
)

RECORDS = Script(
    PRELUDE
    + """
local highest = math.min(last, (tonumber(ARGV[1]) or last + 1) - 1)
local lowest = math.max(1, highest - ARGV[2] + 1)
if highest < lowest then return {lowest, {}, {}} end
return {lowest, redis.call('LRANGE', audit, lowest - 1, highest - 1),
    redis.call('ZRANGEBYSCORE', pending, lowest, highest)}
"""
)

CLAIM = Script(
    PRELUDE
    + CLOCK
    + """
local worker, lease, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found = {}
local most = redis.call('HLEN', claims) + limit  -- of these at least *limit* are free
for _, number in ipairs(redis.call('ZRANGE', pending, 0, most - 1)) do
    local holder, ends = claim(number)
    if #found < limit and (not holder or holder == worker or ends <= now) then
        found[#found + 1] = {number, redis.call('LINDEX', audit, number - 1)}
    end
end
for _, each in ipairs(found) do
    redis.call('HSET', claims, each[1], whole(after(lease)) .. ' ' .. worker)
end
return found
"""
)

MARK_NOTIFIED = Script(
    PRELUDE
    + """
for at = 2, #ARGV do
    if claim(ARGV[at]) == ARGV[1] then
        redis.call('ZREM', pending, ARGV[at])
        redis.call('HDEL', claims, ARGV[at])
    end
end
return true
"""
)
