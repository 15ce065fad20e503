-- Replace a letter if it is still the one that was read.
--
-- KEYS[1]  hash of the letter: version, letter (JSON), state, task, kind
-- KEYS[2]  sorted set of all letters, score = last failure in seconds
-- ARGV[1]  version of this write, unique to it
-- ARGV[2]  the letter as JSON   ARGV[3] state   ARGV[4] task   ARGV[5] kind
-- ARGV[6]  score                ARGV[7] the letter's stored name
-- ARGV[8]  the version that was read
-- returns  1: replaced (also when this very write was made before: the answer was lost)   0: it has changed meanwhile

local version = redis.call('HGET', KEYS[1], 'version')
if version == ARGV[1] then
  return 1
end
if version ~= ARGV[8] then
  return 0
end
redis.call('ZADD', KEYS[2], ARGV[6], ARGV[7])
redis.call('HSET', KEYS[1],
  'version', ARGV[1], 'letter', ARGV[2], 'state', ARGV[3], 'task', ARGV[4], 'kind', ARGV[5])
return 1
