-- Keep a new job, unless its group has one that is not over.
--
-- KEYS[1]  hash of the job: version, job (JSON), over ('1': nothing more will be sent), parts
-- KEYS[2]  list of the job's letters, a text for each part
-- KEYS[3]  sorted set of all jobs, score = when it was made, in seconds
-- KEYS[4]  string, the id of the group's job; absent: the job is of no group
-- ARGV[1]  id   ARGV[2] version of this write, unique to it   ARGV[3] the job as JSON   ARGV[4] score
-- ARGV[5]  prefix of the keys of jobs
-- ARGV[6...]  the parts
-- returns  '': kept (also when this very write was made before: the answer was lost); else the id of the group's job

if redis.call('HGET', KEYS[1], 'version') then
  return ''
end
if KEYS[4] then
  local other = redis.call('GET', KEYS[4])
  if other and redis.call('HGET', ARGV[5] .. other, 'over') == '0' then
    return other
  end
  redis.call('SET', KEYS[4], ARGV[1])
end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'job', ARGV[3], 'over', '0')
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[1])
for i = 6, #ARGV do
  redis.call('RPUSH', KEYS[2], ARGV[i])
end
return ''
