"""Scripts on a stream of Redis: each compares the owner of an entry and changes it in one step.

An entry that was delivered and not settled is *pending*; its owner is a consumer of the group.  The
commands ``XACK`` and ``XCLAIM`` do not compare the owner: with them, a former owner would settle
or take back the delivery of another worker.
"""

from __future__ import annotations

from retrytemplate._storage.redis_script import Script

# KEYS: the stream.  ARGV: the group, the consumer, then those of each script.
OWNED = """
local stream, group, me = KEYS[1], ARGV[1], ARGV[2]

local function pending(id)
    return redis.call('XPENDING', stream, group, id, id, 1)[1]
end

local function remove(deletes, ids)
    if #ids == 0 then return end
    redis.call('XACK', stream, group, unpack(ids))
    if deletes == '1' then redis.call('XDEL', stream, unpack(ids)) end
end
"""


def _owned(text: str) -> Script:
    return Script(OWNED + text)


# Whether to delete the entries; their ids.  Returns those of other owners.  An entry that is not
# pending was acknowledged before: the answer was lost.
ACKNOWLEDGE = _owned("""
local mine, others = {}, {}
for i = 4, #ARGV do
    local entry = pending(ARGV[i])
    if entry and entry[2] == me then
        mine[#mine + 1] = ARGV[i]
    elseif entry then
        others[#others + 1] = ARGV[i]
    end
end
remove(ARGV[3], mine)
return others
""")

# The ids of entries.  Returns those that the consumer does not own.
EXTEND = _owned("""
local lost = {}
for i = 3, #ARGV do
    local entry = pending(ARGV[i])
    if entry and entry[2] == me then
        redis.call('XCLAIM', stream, group, me, 0, ARGV[i], 'JUSTID')
    else
        lost[#lost + 1] = ARGV[i]
    end
end
return lost
""")

# The idle time in milliseconds, above any visibility timeout; the ids of entries.  The next claim
# of any consumer takes them, and the count of deliveries is as before this delivery.
RELEASE = _owned("""
for i = 4, #ARGV do
    local entry = pending(ARGV[i])
    if entry and entry[2] == me and entry[3] < tonumber(ARGV[3]) then
        redis.call('XCLAIM', stream, group, me, 0, ARGV[i], 'IDLE', ARGV[3],
            'RETRYCOUNT', math.max(entry[4] - 1, 0), 'JUSTID')
    end
end
""")

# KEYS: the stream of dead letters, if there is one.  Whether to delete the entry; its id; the id of
# the letter; the letter; the limit of their stream, or nothing.
DEAD_LETTER = _owned("""
local entry = pending(ARGV[4])
if not entry or entry[2] ~= me then return end
if KEYS[2] and ARGV[7] then
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', 'id', ARGV[5], 'body', ARGV[6])
elseif KEYS[2] then
    redis.call('XADD', KEYS[2], '*', 'id', ARGV[5], 'body', ARGV[6])
end
remove(ARGV[3], {ARGV[4]})
""")

# The visibility timeout in milliseconds; where to continue; the limit.  Returns where to continue,
# and id, fields and count of the entries that are the consumer's now.  Redis 6.2 also returns
# entries that were deleted while they were pending, as false.
CLAIM = _owned("""
local reply = redis.call('XAUTOCLAIM', stream, group, me, ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local entries = {}
for _, entry in ipairs(reply[2]) do
    if entry and entry[2] then
        entries[#entries + 1] = {entry[1], entry[2], pending(entry[1])[4]}
    end
end
return {reply[1], entries}
""")

# Another consumer, which does not work any more; the limit.  Deletes it after its last entry, never
# before: that would delete the entry's delivery, and no worker would get it.  Returns whether there
# may be more, and the entries as above.
TAKE = _owned("""
local other, limit = ARGV[3], tonumber(ARGV[4])
local ids, counts, entries = {}, {}, {}
for _, entry in ipairs(redis.call('XPENDING', stream, group, '-', '+', limit, other)) do
    ids[#ids + 1] = entry[1]
    counts[entry[1]] = entry[4] + 1
end
if #ids > 0 then
    for _, entry in ipairs(redis.call('XCLAIM', stream, group, me, 0, unpack(ids))) do
        if entry and entry[2] then
            entries[#entries + 1] = {entry[1], entry[2], counts[entry[1]]}
        end
    end
end
if #ids < limit then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, other)
    return {0, entries}
end
return {1, entries}
""")

# Deletes the consumer if it owns nothing.
DELETE_CONSUMER = _owned("""
if #redis.call('XPENDING', stream, group, '-', '+', 1, me) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, me)
end
""")
