-- Remove a group if it still has no letters, and nothing has failed and nobody has said anything since it was read.
--
-- KEYS[1]  hash of the group, see `change_group.lua`
-- KEYS[2]  sorted set of all groups
-- KEYS[3]  sorted set of its letters
-- ARGV[1]  the saying that was read, or ''   ARGV[2] the failures that were read   ARGV[3] its fingerprint
-- returns  1: removed   0: it has changed meanwhile, or is gone (also by this very removal: the answer was lost)

if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('ZCARD', KEYS[3]) > 0 then
  return 0
end
local saying, failures = unpack(redis.call('HMGET', KEYS[1], 'saying', 'failures'))
if (saying or '') ~= ARGV[1] or (failures or '0') ~= ARGV[2] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('ZREM', KEYS[2], ARGV[3])
return 1
