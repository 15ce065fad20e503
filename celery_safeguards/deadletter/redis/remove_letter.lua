-- Remove a letter if it is still the one that was read, with its count in its group and what it is found by.
--
-- KEYS[1]  hash of the letter, see `write_letter.lua`
-- KEYS[2]  sorted set of all letters
-- KEYS[3]  sorted set of the letters that are over
-- KEYS[4]  hash of the group that it is counted in, see `change_group.lua`
-- KEYS[5]  sorted set of that group's letters
-- KEYS     then the sorted sets of the terms that it is found by
-- ARGV[1]  the version that was read   ARGV[2] the letter's stored name   ARGV[3] '1': it is counted in that group
-- returns  1: removed   0: it has changed meanwhile, or is gone (also by this very removal: the answer was lost)

local version, state = unpack(redis.call('HMGET', KEYS[1], 'version', 'state'))
if version ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZREM', KEYS[3], ARGV[2])
if ARGV[3] == '1' then
  redis.call('HINCRBY', KEYS[4], 'letters:' .. state, -1)
  redis.call('ZREM', KEYS[5], ARGV[2])
end
for i = 6, #KEYS do
  redis.call('ZREM', KEYS[i], ARGV[2])
end
return 1
