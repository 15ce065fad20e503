-- Put an unacknowledged message back, once, whoever else tries.
-- KEYS: unacked, its index, for each list it goes to: the list, its queue's wake list.
-- ARGV: the delivery tag, the message, LPUSH or RPUSH, the latest time of receipt that may be put back, or ''.
-- Returns 1, 0 if it was acknowledged, put back or renewed meanwhile, or an error, and then it is where it was.
local received = redis.call('ZSCORE', KEYS[2], ARGV[1])
if ARGV[4] ~= '' and received and tonumber(received) > tonumber(ARGV[4]) then
    return 0
end
for i = 3, #KEYS, 2 do
    local kind = redis.call('TYPE', KEYS[i]).ok
    if kind ~= 'list' and kind ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' holds a ' .. kind .. ' and no messages')
    end
end
local found = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if found == 0 then
    return 0
end
for i = 3, #KEYS, 2 do
    redis.call(ARGV[3], KEYS[i], ARGV[2])
    wake(KEYS[i + 1])
end
return 1
