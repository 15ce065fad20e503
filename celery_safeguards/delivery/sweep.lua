-- Find the deliveries that nobody has renewed for a visibility timeout.
-- KEYS: unacked, its index, the pulse.
-- ARGV: timeout in seconds, how many at most, seconds between two renewals, how many of the oldest to pass over.
-- Returns the latest time of receipt that is over, then tag and message for each.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local last = tonumber(redis.call('HGET', KEYS[3], 'at'))
local from = tonumber(redis.call('HGET', KEYS[3], 'from')) or 0
-- A server that is full lets a script add only after it has taken something away.
redis.call('HDEL', KEYS[3], 'at')
redis.call('HSET', KEYS[3], 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[3], 604800)
if last and now - last > tonumber(ARGV[3]) then
    -- Nobody was heard: the server was away, or all stood still. Who lives has one interval to say so.
    from = now + tonumber(ARGV[3])
    redis.call('HSET', KEYS[3], 'from', string.format('%.6f', from))
end
-- Not longer, whatever was noted before the server's clock was set back.
if now < from and from - now <= tonumber(ARGV[3]) then
    return { '' }
end
local latest = string.format('%.6f', now - tonumber(ARGV[1]))
local found = { latest }
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', latest, 'LIMIT', ARGV[4], ARGV[2])) do
    local message = redis.call('HGET', KEYS[1], tag)
    if message then
        found[#found + 1] = tag
        found[#found + 1] = message
    else
        redis.call('ZREM', KEYS[2], tag)
    end
end
return found
