-- KEYS: the list, its queue's wake list. ARGV: the message, or '' to wake only.
if ARGV[1] ~= '' then
    redis.call('LPUSH', KEYS[1], ARGV[1])
end
wake(KEYS[2])
