-- Delete a job that is over, with all that is kept of it.
--
-- KEYS[1]  hash of the job   KEYS[2] list of its letters   KEYS[3] sorted set of all jobs
-- KEYS[4]  string, the id of the group's last job; absent: the job is of no group
-- ARGV[1]  id
-- returns  1: deleted   0: it is not over, or not there (also when this very call was made before)

if redis.call('HGET', KEYS[1], 'over') ~= '1' then
  return 0
end
if KEYS[4] and redis.call('GET', KEYS[4]) == ARGV[1] then
  redis.call('DEL', KEYS[4])
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
