-- Give back to their queues, as the next ones, the parked messages whose time has come. KEYS: the parked set, the parked
-- messages. ARGV: how many at most. Returns how many.
local now = redis.call('TIME')
local latest = string.format('%.6f', now[1] + now[2] / 1000000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', latest, 'LIMIT', 0, tonumber(ARGV[1]))
for _, tag in ipairs(due) do
    local parked = redis.call('HGET', KEYS[2], tag)
    redis.call('ZREM', KEYS[1], tag)
    redis.call('HDEL', KEYS[2], tag)
    if parked then
        local list, wake_list, message = unpack(cjson.decode(parked))
        redis.call('RPUSH', list, message)
        wake(wake_list)
    end
end
return #due
