-- Note that an owner died, and of what. The claim is kept: it is the evidence that a body was started.
--
-- KEYS  record
-- ARGV  owner, failure as the record keeps it, '1' if its right to send what follows must run out
-- Returns  1 if it is this owner's claim in progress, else 0
--
-- An owner that died between its outcome and the sending of what follows gives up its right to send at once, unless
-- somebody else must forget it first.
-- Safe to run twice: the first time of death stays.

local r = redis.call('HMGET', KEYS[1], 'owner', 'state', 'lost_us', 'continuing')
if r[1] == ARGV[1] and r[2] == 'done' and (r[4] or '') ~= '' and ARGV[3] ~= '1' then
  redis.call('HSET', KEYS[1], 'lease_until_us', text(now_us()))
  redis.call('HINCRBY', KEYS[1], 'rev', 1)
end
if r[1] ~= ARGV[1] or r[2] ~= 'in_progress' then
  return 0
end
if (r[3] or '0') == '0' then
  redis.call('HSET', KEYS[1], 'lost_us', text(now_us()), 'failure', ARGV[2])
  redis.call('HINCRBY', KEYS[1], 'rev', 1)
end
return 1
