"""The Lua of a kill switch's store on Redis: a script a step, each on the same four keys.

``switch``          a hash: the ``version`` and the ``document``, and the ``schema`` of all this
``switch:audit``    a list of the records, each behind the version that it made; its number is its
                    place, from 1
``switch:pending``   a sorted set of the numbers whose notification is pending
``switch:claims``   a hash: for such a number, until when it is whose

None of them has an end.  A script that fails at one of them fails before it has written anything.
"""

from __future__ import annotations

from retrytemplate._storage.redis_script import CLOCK, Script

__all__ = ["CLAIM", "COMMIT", "LOAD", "MARK_NOTIFIED", "RECORDS"]

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
