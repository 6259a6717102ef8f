"""Lua scripts of the Redis context cache."""

from __future__ import annotations

from retrytemplate._internal.values import MAX_STORED_INT
from retrytemplate._storage.redis_script import CLOCK, Script

FENCE_KEPT = 60
"""Seconds for which the fence of a deleted key is kept."""


WORDS = f"""{CLOCK}
local name = KEYS[1]
local function number(text)  -- of digits alone: nothing else is ever written
    if not text or #text > 19 or not string.find(text, '^%d+$') then return nil end
    local value = tonumber(text)
    return value <= {MAX_STORED_INT} and value or nil
end
local function damaged(field)
    return redis.error_reply('DAMAGED the field ' .. field .. ' must be an int from 0 to 2^62')
end
local function keep_until(moment)
    redis.call('PEXPIREAT', name, whole(math.ceil(moment / 1000)))
end
local function forget(fence, token)
    redis.call('DEL', name)
    redis.call('HSET', name, 'fence', fence, 'token', token)
    keep_until(after({FENCE_KEPT}))
end
"""

# A write of a claim: if the claim holds the key, or if the same call has written before.
CLAIM = """
local worker, fence, token = ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HMGET', name, 'worker', 'fence', 'token', 'lease')
local mine = found[1] == worker and found[2] == fence
local repeated = found[2] == fence and found[3] == token
"""


def _script(text: str) -> Script:
    return Script(WORDS + text)


def _claim(text: str) -> Script:
    return _script(CLAIM + text)


BEGIN = _script("""
local worker, token, lease, ttl, fresh = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local process, takeover = ARGV[6], ARGV[7]
local record, fence, ends, lost, phase, holder, last, expires = unpack(redis.call('HMGET', name,
    'record', 'fence', 'lease', 'lost', 'phase', 'worker', 'token', 'expires'))
if fence and not number(fence) then return damaged('fence') end
if holder and not number(ends) then return damaged('lease') end
if (record or phase == 'done') and not number(expires) then return damaged('expires') end
local function taken()  -- in one piece: a client takes a list apart slowly
    local worker = lost or ''
    return table.concat({fence, ends, #worker, worker .. (record or '')}, '\\n')
end
if holder == worker and last == token then
    return taken()
end
if holder and holder ~= worker and holder ~= takeover and tonumber(ends) > now then
    return {holder, ends, redis.call('HGET', name, 'process') or ''}
end
local over = phase == 'done' and tonumber(expires) <= now
if phase == 'done' and not fresh and not over then
    return false
end
if over then
    record = false
    redis.call('HDEL', name, 'record', 'version')
end
if phase == 'attempting' and holder and holder ~= worker and not lost then
    lost = holder
    redis.call('HSET', name, 'lost', lost)
end
if phase ~= 'recovering' and (phase ~= 'done' or over) then
    phase = 'attempting'
end
fence = whole(math.max((tonumber(fence) or 0) + 1, now))
ends = whole(after(lease))
redis.call('HSET', name,
    'worker', worker, 'process', process, 'lease', ends, 'phase', phase, 'fence', fence,
    'token', token)
keep_until(after(lease + ttl))
return taken()
""")

RENEW = _claim("""
if not mine then return false end
local lease, ttl = ARGV[4], ARGV[5]
local ends = whole(after(lease))
redis.call('HSET', name, 'lease', ends)
keep_until(after(lease + ttl))
return ends
""")

FAIL = _claim("""
if not mine then return repeated and '0' or false end
local lease, ttl, held = ARGV[4], ARGV[5], ARGV[6] == '1'
local ends = held and whole(after(lease)) or '0'
redis.call('HSET', name, 'record', ARGV[7], 'version', ARGV[8], 'phase', ARGV[9],
    'expires', whole(after(ttl)), 'token', token)
if held then
    redis.call('HDEL', name, 'lost')
    redis.call('HSET', name, 'lease', ends)
    keep_until(after(lease + ttl))
else
    redis.call('HDEL', name, 'lost', 'worker', 'lease')
    keep_until(after(ttl))
end
return ends
""")

FINISH = _claim("""
if mine then forget(fence, token) end
return mine or repeated
""")

REMEMBER = _claim("""
if mine then
    local ends = after(ARGV[4])
    redis.call('DEL', name)
    redis.call('HSET', name,
        'fence', fence, 'token', token, 'phase', 'done', 'expires', whole(ends))
    if ARGV[5] then redis.call('HSET', name, 'record', ARGV[5], 'version', ARGV[6]) end
    keep_until(ends)
end
return mine or repeated
""")

# A lost attempt that is not recorded yet is restored, so that the next worker finds it.
GIVE_BACK = _claim("""
if not mine then return false end
local record, lost, phase, expires = unpack(
    redis.call('HMGET', name, 'record', 'lost', 'phase', 'expires'))
if lost then
    redis.call('HSET', name, 'worker', lost, 'lease', whole(now))
    redis.call('HDEL', name, 'lost')
    keep_until(after(ARGV[4]))
elseif (not record and phase == 'attempting') or tonumber(expires) <= now then
    forget(fence, token)
else
    redis.call('HDEL', name, 'worker', 'lease')
    if phase == 'attempting' then redis.call('HSET', name, 'phase', 'idle') end
    keep_until(tonumber(expires))
end
return true
""")

HOLDS = _claim("return mine and tonumber(found[4]) > now")

FORGET = _script("""
local fence = redis.call('HGET', name, 'fence')
if redis.call('DEL', name) == 1 then forget(number(fence) and fence or whole(now), '') end
return true
""")

SWAP = _script("""
local expected, ttl = ARGV[1], ARGV[2]
local version, fence, lease = unpack(redis.call('HMGET', name, 'version', 'fence', 'lease'))
if (version or '0') ~= expected then return false end
if not version then
    redis.call('HDEL', name, 'worker', 'lease', 'lost')
    lease = false
end
redis.call('HSET', name, 'record', ARGV[3], 'version', ARGV[4], 'phase', ARGV[5],
    'expires', whole(after(ttl)), 'fence', fence or whole(now))
keep_until(math.max(now, tonumber(lease) or 0) + ttl * 1000000)
return true
""")


def _listing(field: str) -> Script:
    """A page of a scan: the cursor of the next page, and the keys that have the field."""
    return Script(
        f"""
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3], 'TYPE', 'hash')
local names = {{}}
for _, name in ipairs(page[2]) do
    if redis.call('HEXISTS', name, '{field}') == 1 then names[#names + 1] = name end
end
return {{page[1], names}}
"""
    )


# The keys that have a record; the keys that have more than a fence.
LIST = _listing("version")
LIST_ALL = _listing("phase")

LOOK = _script("""
return {whole(now), unpack(redis.call('HMGET', name,
    'record', 'phase', 'fence', 'worker', 'lease', 'expires'))}
""")
