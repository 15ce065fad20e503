-- Write what a person says of a group, if nothing has failed and nobody has said anything since it was read.
-- What the newest failure said, in its head, is a failure's to write: here it is taken away, at most.
--
-- KEYS[1]  hash of the group: head (JSON), first, last, failures, letters:<state>, hour:<hour>,
--          first_release, release:<release> (failures, first and last, with blanks between them),
--          status, reopened, reopened_release, desk (JSON: assignee, note, history), saying
-- ARGV[1]  id of this saying, unique to it
-- ARGV[2]  the saying that was read, or ''   ARGV[3] the failures that were read
-- ARGV[4]  status                           ARGV[5] desk                    ARGV[6] head
-- returns  1: written (also when this very saying was written before: the answer was lost)   0: it has changed meanwhile

local saying, failures = unpack(redis.call('HMGET', KEYS[1], 'saying', 'failures'))
if saying == ARGV[1] then
  return 1
end
if (saying or '') ~= ARGV[2] or (failures or '0') ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[1], 'saying', ARGV[1], 'status', ARGV[4], 'desk', ARGV[5], 'head', ARGV[6])
return 1
