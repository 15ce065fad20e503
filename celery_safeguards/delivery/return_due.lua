-- Give back the parked messages whose time has come.
-- KEYS: the parked set, the parked messages, what is set aside. ARGV: how many at most.
-- Returns how many were given back, how many are parked yet, how many entries are set aside, how many of those that were
-- due could not be given back, and why one of them could not, or ''.
local now = redis.call('TIME')
local latest = string.format('%.6f', now[1] + now[2] / 1000000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'LIMIT', 0, tonumber(ARGV[1]))
local failed, why = 0, ''
for _, tag in ipairs(due) do
    local given = unpark(KEYS[1], KEYS[2], tag)
    if type(given) == 'table' then
        failed, why = failed + 1, given.err
    end
end
return { #due - failed, redis.call('ZCARD', KEYS[1]), redis.call('LLEN', KEYS[3]), failed, why }
