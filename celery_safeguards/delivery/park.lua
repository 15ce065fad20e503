-- Move an unacknowledged message to those that wait for their time, once.
-- KEYS: unacked, its index, the parked set, the parked messages, the line it stands in.
-- ARGV: the delivery tag; its list, wake list, message and line as JSON; the wait in seconds; its place in the line, or ''.
-- Returns 1, also if this very delivery is parked already; 0 if another worker may have the message.
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    return 1
end
local found = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if found == 0 then
    return 0
end
local now = redis.call('TIME')
redis.call('HSET', KEYS[4], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], string.format('%.6f', now[1] + now[2] / 1000000 + ARGV[3]), ARGV[1])
if ARGV[4] ~= '' then
    redis.call('ZADD', KEYS[5], ARGV[4], ARGV[1])
end
return 1
