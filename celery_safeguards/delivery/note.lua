-- Note a message as unacknowledged that came without being taken from a list. KEYS: unacked, its index.
-- ARGV: the delivery tag, the entry.
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%d.%06d', now[1], now[2]), ARGV[1])
