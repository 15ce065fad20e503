-- Starts without an outcome of a message that has no key.
--
-- KEYS  count
-- ARGV  'begin' | 'end' | 'undo' | 'read', limit or for 'undo' the count, seconds to keep
-- Returns  the count; for 'begin' 0 if the limit is reached and nothing was counted
--
-- Run twice, 'begin' counts one start too many: the message may be buried a start early, it is never started for ever.

local count = tonumber(redis.call('GET', KEYS[1]) or '0')
if ARGV[1] == 'read' then
  return count
end
if ARGV[1] == 'end' then
  redis.call('DEL', KEYS[1])
  return 0
end
if ARGV[1] == 'undo' then
  if count > 0 and count == tonumber(ARGV[2]) then
    redis.call('DECR', KEYS[1])
  end
  return 0
end
if count >= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], count + 1, 'EX', ARGV[3])
return count + 1
