-- Move an unacknowledged message to those that wait for their time, once.
-- KEYS: unacked, its index, the parked set, the parked messages, the line it stands in.
-- ARGV: the delivery tag; its list, wake list, message, line and wait as JSON; the wait in seconds; its place in the
-- line, or ''; the least wait in seconds of who stands behind another one.
-- Returns 1, also if this very delivery is parked already; 0 if another worker may have the message.
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    return 1
end
local found = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if found == 0 then
    return 0
end
local wait = tonumber(ARGV[3])
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
if ARGV[4] ~= '' then
    redis.call('ZADD', KEYS[5], ARGV[4], ARGV[1])
    if redis.call('ZRANK', KEYS[5], ARGV[1]) > 0 then
        wait = math.max(wait, tonumber(ARGV[5]))
    end
end
local now = redis.call('TIME')
redis.call('ZADD', KEYS[3], string.format('%.6f', now[1] + now[2] / 1000000 + wait), ARGV[1])
return 1
