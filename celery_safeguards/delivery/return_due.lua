-- Give back the parked messages whose time has come.
-- KEYS: the parked set, the parked messages, what is set aside. ARGV: how many at most.
-- Returns how many there were, how many are parked yet, and how many entries are set aside.
local now = redis.call('TIME')
local latest = string.format('%.6f', now[1] + now[2] / 1000000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'LIMIT', 0, tonumber(ARGV[1]))
for _, tag in ipairs(due) do
    unpark(KEYS[1], KEYS[2], tag)
end
return { #due, redis.call('ZCARD', KEYS[1]), redis.call('LLEN', KEYS[3]) }
