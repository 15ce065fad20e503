-- Give a parked message back to its queue, as the next one. Returns 1, or 0 if it was given back already.
local function unpark(parked_set, parked_messages, tag)
    local parked = redis.call('HGET', parked_messages, tag)
    redis.call('ZREM', parked_set, tag)
    redis.call('HDEL', parked_messages, tag)
    if not parked then
        return 0
    end
    local list, wake_list, message, line = unpack(cjson.decode(parked))
    redis.call('RPUSH', list, message)
    wake(wake_list)
    if line ~= '' then
        redis.call('ZREM', line, tag)
        -- Who is the first now waits its own time from here on, whatever becomes of the one before it.
        local first = redis.call('ZRANGE', line, 0, 0)[1]
        local its = first and redis.call('HGET', parked_messages, first)
        if its then
            local now = redis.call('TIME')
            local due = now[1] + now[2] / 1000000 + tonumber(cjson.decode(its)[5])
            redis.call('ZADD', parked_set, 'XX', 'LT', string.format('%.6f', due), first)
        end
    end
    return 1
end
