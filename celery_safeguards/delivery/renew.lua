-- Say that these deliveries are alive. KEYS: the index. ARGV: delivery tags.
-- Returns those that are not there any more: acknowledged, or taken by another worker. None is made anew.
local now = redis.call('TIME')
local score = string.format('%d.%06d', now[1], now[2])
local gone = {}
for i = 1, #ARGV do
    -- Removed first: a server that is full lets a script add only after it has taken something away.
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
        redis.call('ZADD', KEYS[1], score, ARGV[i])
    else
        gone[#gone + 1] = ARGV[i]
    end
end
return gone
