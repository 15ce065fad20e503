-- Move what is no message out of the way, once. KEYS: unacked, its index, where it goes. ARGV: the tag, what is noted.
local found = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if found == 1 then
    redis.call('RPUSH', KEYS[3], ARGV[2])
end
return found
