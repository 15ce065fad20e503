-- Read names from a sorted set of letters or groups, the newest failure first. Changes nothing.
--
-- KEYS[1]  sorted set, score = last failure in seconds
-- ARGV[1]  how many names below the score
-- ARGV[2]  score to begin below, or '' to begin with the newest
-- returns  two flat arrays of name, score, name, score ...:
--          all names of exactly that score (the caller drops those it has seen), and those below it

if ARGV[2] == '' then
  return {{}, redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')}
end
return {
  redis.call('ZREVRANGEBYSCORE', KEYS[1], ARGV[2], ARGV[2], 'WITHSCORES'),
  redis.call('ZREVRANGEBYSCORE', KEYS[1], '(' .. ARGV[2], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1]),
}
