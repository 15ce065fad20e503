-- Give a parked message back to its queue, as the next one. Returns 1, or 0 if it was given back already.
local function unpark(parked_set, parked_messages, tag)
    local parked = redis.call('HGET', parked_messages, tag)
    redis.call('ZREM', parked_set, tag)
    redis.call('HDEL', parked_messages, tag)
    if not parked then
        return 0
    end
    local list, wake_list, message, line = unpack(cjson.decode(parked))
    if line ~= '' then
        redis.call('ZREM', line, tag)
    end
    redis.call('RPUSH', list, message)
    wake(wake_list)
    return 1
end
