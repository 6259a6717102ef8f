"""The Lua of a shared circuit: it counts, hands out permits, and swaps states; it decides nothing.

A circuit is three keys in one slot.  The first is a hash:

``format``               of these keys
``born`` ``generation``  when it was made, and its changes since: together its *era*
``state`` ``since``      how it stands, and since when
``until``                when that ends; empty: when an operator ends it
``opened``               number of consecutive opens
``limited``              1: each call of the era needs a permit
``note``                 who put it into this state, and why, as JSON
``rules`` ``touched``    of those who use it, and when one of them did last
``keep``                 milliseconds after which it is forgotten; 0: never
``total`` ``failures`` ``slow`` ``successes``
                         the counts of the era

The second is the window: of the last calls a list of those that were bad, each its place times four
plus what it was; of the last seconds a hash of what was counted in each step.  The third has the
held permits, by the end of their leases.

Every time is read from the server's own clock and kept as whole microseconds.
"""

from __future__ import annotations

from retrytemplate._storage.redis_script import Script

FORMAT = "1"
TAKEN_OVER = 60
"""Seconds of silence after which who has other rules may take a circuit over."""
NOTED = 10
"""Seconds between two notes that a circuit is used."""

READ = """
local circuit, window, permits = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end

local format, born, generation, state, since, ends, opened, limited, note, rules, touched, keep,
    total, failures, slow, successes, era
local function read()
    format, born, generation, state, since, ends, opened, limited, note, rules, touched, keep,
        total, failures, slow, successes = unpack(redis.call('HMGET', circuit, 'format', 'born',
        'generation', 'state', 'since', 'until', 'opened', 'limited', 'note', 'rules', 'touched',
        'keep', 'total', 'failures', 'slow', 'successes'))
    total, failures, slow = tonumber(total or 0), tonumber(failures or 0), tonumber(slow or 0)
    era = (born or '') .. '.' .. (generation or '')
end
read()
"""

# Counts the window, and encodes the reply.
ENCODE_REPLY = """
local function in_seconds(length)
    local step, calls, failed, late = math.floor(now / length), 0, 0, 0
    local counted = redis.call('HGETALL', window)
    for i = 1, #counted, 2 do
        local at, what = string.match(counted[i], '^(%d+)(%a)$')
        local number = tonumber(counted[i + 1])
        if tonumber(at) <= step - 10 then redis.call('HDEL', window, counted[i])
        elseif what == 'c' then calls = calls + number
        elseif what == 'f' then failed = failed + number
        else late = late + number end
    end
    return calls, failed, late
end
local function in_window(kind, size)
    if limited == '1' or state == 'open' then return tonumber(total), failures, slow end
    if kind == 'seconds' then return in_seconds(size) end
    if kind == 'consecutive' then return failures, failures, slow end
    return math.min(total, size), failures, slow
end
local function describe(kind, size, granted, late, gone)
    local calls, failed, tardy = in_window(kind, size)
    local going = 0
    if limited == '1' then going = redis.call('ZCARD', permits) end
    return table.concat({whole(now), born, generation, state, since, ends, opened,
        successes or '0', whole(calls), whole(failed), whole(tardy), going, granted, late, gone,
        note}, '\\n')
end
"""

# The circuit as it is found: created if it does not exist, taken over if that is allowed.
LOAD_OR_CREATE = (
    READ
    + ENCODE_REPLY
    + f"""
-- In one argument what is always the same: a client takes longer over many than the server does.
local mine, limit, lease, kept = string.match(ARGV[1], '^(.*);(%d+);(%d+);(%d+)$')
local kind, size = string.match(mine, '^(%a+) (%d+)')
local wanted, given = ARGV[2], ARGV[3]
size, limit = tonumber(size), tonumber(limit)
if format and format ~= '{FORMAT}' then return 'format' end
local function fresh()
    redis.call('DEL', window, permits)
    redis.call('HDEL', circuit, 'total', 'failures', 'slow', 'successes')
end
local function use()
    redis.call('HSET', circuit, 'touched', whole(now))
    if keep == '0' then redis.call('PERSIST', circuit)
    else redis.call('PEXPIRE', circuit, keep) end
end
if not format then
    if redis.call('EXISTS', circuit) == 1 then return 'format' end
    fresh()
    keep = kept
    redis.call('HSET', circuit, 'format', '{FORMAT}', 'born', whole(now), 'generation', '0',
        'state', 'closed', 'since', whole(now), 'until', '', 'opened', '0',
        'limited', '0', 'note', '', 'rules', mine, 'keep', keep)
    use()
    read()
elseif rules ~= mine and given ~= '*' then
    if now - touched < {TAKEN_OVER} * 1000000 then return 'rules' end
    fresh()
    redis.call('HINCRBY', circuit, 'generation', 1)
    redis.call('HSET', circuit, 'rules', mine)
    use()
    read()
elseif now - touched > {NOTED} * 1000000 then
    use()
end
local function answer(late)
    local granted, gone = 0, 0
    if limited == '1' and wanted ~= '' then
        gone = redis.call('ZREMRANGEBYSCORE', permits, '-inf', whole(now))
        if redis.call('ZSCORE', permits, wanted) then
            granted = 1
        elseif redis.call('ZCARD', permits) < limit then
            granted = 1
            redis.call('ZADD', permits, whole(now + lease), wanted)
            redis.call('PEXPIRE', permits, whole(lease / 1000 + kept))
        end
    end
    return describe(kind, size, granted, late, gone)
end
"""
)

# Counts ended calls, releases a permit, and requests another one.
CALL = Script(
    LOAD_OR_CREATE
    + """
local returned, good = ARGV[4], ARGV[5]
local function add(what, by)
    return redis.call('HINCRBY', circuit, what, by)
end
local function bad(code)
    failures = add('failures', code % 2)
    slow = add('slow', math.floor(code / 2))
end
local function forget_old()
    local first = tonumber(redis.call('LINDEX', window, 0))
    while first and math.floor(first / 4) <= total - size do
        local code = tonumber(redis.call('LPOP', window)) % 4
        failures = add('failures', -(code % 2))
        slow = add('slow', -math.floor(code / 2))
        first = tonumber(redis.call('LINDEX', window, 0))
    end
end
local function in_last(went_well, code)
    total = add('total', went_well + (code < 0 and 0 or 1))
    if code > 0 then
        redis.call('RPUSH', window, whole(total * 4 + code))
        redis.call('PEXPIRE', window, kept)
        bad(code)
    end
    forget_old()
end
local function in_step(went_well, code)
    local step = whole(math.floor(now / size))
    redis.call('HINCRBY', window, step .. 'c', went_well + (code < 0 and 0 or 1))
    if code > 0 then
        redis.call('HINCRBY', window, step .. 'f', code % 2)
        redis.call('HINCRBY', window, step .. 's', math.floor(code / 2))
    end
    redis.call('PEXPIRE', window, kept)
end
local function in_row(went_well, code)
    if state == 'closed' and failures >= size then return end  -- it is open, but for the word
    if (went_well > 0 or code == 0) and failures > 0 then
        redis.call('HDEL', circuit, 'failures', 'slow')
        failures, slow = 0, 0
    end
    if code > 0 then
        failures = add('failures', 1)
        slow = add('slow', math.floor(code / 2))
    end
end
local counts = {calls = in_last, seconds = in_step, consecutive = in_row}

local late = 0
if given ~= '' and given ~= era then
    late = 1
elseif returned ~= '' then
    if redis.call('ZREM', permits, returned) == 0 then late = 1
    elseif good == '1' then successes = add('successes', 1) end
else
    for i = 6, #ARGV, 2 do counts[kind](tonumber(ARGV[i]), tonumber(ARGV[i + 1])) end
end
return answer(late)
"""
)

# Swaps the state where the era still is the given one; by hand whatever it is.
MOVE = Script(
    LOAD_OR_CREATE
    + """
local after, length, times, limits, clears = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if given == '*' or given == era then
    if clears == '1' then
        fresh()
    else
        if limited ~= '1' then
            local calls, failed, tardy = in_window(kind, size)
            redis.call('HSET', circuit, 'total', whole(calls), 'failures', whole(failed),
                'slow', whole(tardy))
        end
        redis.call('DEL', window, permits)
        redis.call('HDEL', circuit, 'successes')
    end
    redis.call('HINCRBY', circuit, 'generation', 1)
    redis.call('HSET', circuit, 'state', after, 'since', whole(now), 'opened', times,
        'limited', limits,
        'until', length == '' and '' or whole(now + length * 1000000),
        'keep', ARGV[9], 'note', ARGV[10])
    keep = ARGV[9]
    use()
    read()
end
return answer(0)
"""
)

# For who only looks: nothing is made, nothing taken over; the kind and the size of the window come
# from the rules as they are kept.
INSPECT = Script(
    READ
    + ENCODE_REPLY
    + f"""
if not format then return redis.call('EXISTS', circuit) == 1 and 'format' end
if format ~= '{FORMAT}' then return 'format' end
local kind, size = string.match(rules, '^(%a+) (%d+)')
return describe(kind, tonumber(size), 0, 0, 0)
"""
)
