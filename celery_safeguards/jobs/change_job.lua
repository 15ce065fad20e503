-- Replace a job if it is still the one that was read.
--
-- KEYS[1]  hash of the job   KEYS[2] list of its letters
-- ARGV[1]  version of this write, unique to it   ARGV[2] the version that was read
-- ARGV[3]  the job as JSON   ARGV[4] '1': it is over   ARGV[5] '1': its letters are forgotten
-- returns  1: replaced (also when this very write was made before: the answer was lost)   0: it has changed meanwhile

local version = redis.call('HGET', KEYS[1], 'version')
if version == ARGV[1] then
  return 1
end
if version ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'job', ARGV[3], 'over', ARGV[4])
if ARGV[5] == '1' then
  redis.call('DEL', KEYS[2])
end
return 1
