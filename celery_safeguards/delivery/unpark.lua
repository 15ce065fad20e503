-- Give a parked message back to its queue, as the next one.
-- Returns 1; 0 if it was given back already; an error if its list cannot be written by whoever runs this: another may.
local function unpark(parked_set, parked_messages, tag)
    local parked = redis.call('HGET', parked_messages, tag)
    -- Removed first: a server that is full lets a script add only after it has taken something away.
    redis.call('ZREM', parked_set, tag)
    redis.call('HDEL', parked_messages, tag)
    if not parked then
        return 0
    end
    local list, wake_list, message, line = unpack(cjson.decode(parked))
    local now = redis.call('TIME')
    local pushed = redis.pcall('RPUSH', list, message)
    if type(pushed) == 'table' and pushed.err then
        redis.call('HSET', parked_messages, tag, parked)
        redis.call('ZADD', parked_set, string.format('%.6f', now[1] + now[2] / 1000000 + 10), tag)
        return pushed
    end
    if line ~= '' then
        redis.call('ZREM', line, tag)
        -- Who is the first now waits its own time from here on, whatever becomes of the one before it.
        local first = redis.call('ZRANGE', line, 0, 0)[1]
        local its = first and redis.call('HGET', parked_messages, first)
        if its then
            local due = now[1] + now[2] / 1000000 + tonumber(cjson.decode(its)[5])
            redis.call('ZADD', parked_set, 'XX', 'LT', string.format('%.6f', due), first)
        end
    end
    wake(wake_list)
    return 1
end
