-- Read jobs, or one part of a job's letters. Changes nothing.
--
-- KEYS[1]  hash of a job, or sorted set of all jobs   KEYS[2] list of the job's letters; absent with a sorted set
-- ARGV[1]  'job', 'part' or 'newest'   ARGV[2] number of the part, or how many jobs
-- returns  job: version and job; part: the text, or nil; newest: ids

if ARGV[1] == 'job' then
  return redis.call('HMGET', KEYS[1], 'version', 'job')
elseif ARGV[1] == 'part' then
  return redis.call('LINDEX', KEYS[2], ARGV[2])
end
return redis.call('ZREVRANGE', KEYS[1], 0, ARGV[2] - 1)
