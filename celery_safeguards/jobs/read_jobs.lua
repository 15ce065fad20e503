-- Read jobs, or one part of a job's letters. Changes nothing.
--
-- KEYS[1]  hash of a job, or sorted set of all jobs   KEYS[2] list of the job's letters; absent with a sorted set
-- ARGV[1]  'job', 'part', 'newest' or 'older'   ARGV[2] number of the part, or how many jobs
-- ARGV[3]  older: than this score
-- returns  job: version and job; part: the text, or nil; newest, older: ids

if ARGV[1] == 'job' then
  return redis.call('HMGET', KEYS[1], 'version', 'job')
elseif ARGV[1] == 'part' then
  return redis.call('LINDEX', KEYS[2], ARGV[2])
elseif ARGV[1] == 'older' then
  return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[3], 'LIMIT', 0, ARGV[2])
end
return redis.call('ZREVRANGE', KEYS[1], 0, ARGV[2] - 1)
