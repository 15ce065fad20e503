-- Note that an owner died. The claim is kept: it is the evidence that a body was started.
--
-- KEYS  owner index
-- ARGV  owner
-- Returns  1 if a claim in progress was marked, else 0
--
-- Safe to run twice: the first time of death stays. The index stays too, so that a renewal is told `taken`.

local record = redis.call('GET', KEYS[1])
if not record then
  return 0
end
local r = redis.call('HMGET', record, 'owner', 'state', 'lost_us')
if r[1] ~= ARGV[1] or r[2] ~= 'in_progress' then
  return 0
end
if (r[3] or '0') == '0' then
  redis.call('HSET', record, 'lost_us', text(now_us()))
  redis.call('HINCRBY', record, 'rev', 1)
end
return 1
