-- Take one message and note it as unacknowledged, in one step: nothing is lost between the two.
-- KEYS: unacked, its index, the lists in the order of their turn, the wake lists of their queues.
-- ARGV: the delivery tag, how many lists, for each list its queue as JSON, or '' where nothing is acknowledged.
-- Returns the number of the list, or of another one of its queue's, and the message, or false.
--
-- Safe to run twice, except for what is not acknowledged.
local lists = tonumber(ARGV[2])
local noted = redis.call('HGET', KEYS[1], ARGV[1])
for i = 1, noted and lists or 0 do
    -- Asked again, since the answer was lost: another message under this tag would take the place of the first.
    local tail = ',"",' .. ARGV[2 + i] .. ']'
    if string.sub(noted, -#tail) == tail then
        return { i, string.sub(noted, 2, -#tail - 1) }
    end
end
for i = 1, lists do
    -- First of all writes: a server that is full refuses a script only before it has written.
    local raw = redis.call('RPOP', KEYS[2 + i])
    if raw then
        local queue = ARGV[2 + i]
        if queue ~= '' then
            local now = redis.call('TIME')
            redis.call('HSET', KEYS[1], ARGV[1], '[' .. raw .. ',"",' .. queue .. ']')
            redis.call('ZADD', KEYS[2], string.format('%d.%06d', now[1], now[2]), ARGV[1])
        end
        return { i, raw }
    end
end
-- All are empty: words that were left of messages taken meanwhile would wake for nothing.
for i = 3 + lists, #KEYS do
    redis.call('DEL', KEYS[i])
end
return false
