-- Renew many claims. One run a tick for a whole worker; with none it is the worker's pulse.
--
-- KEYS  meta, records ...
-- ARGV  lease us, candidate epoch, the owner of each record ...
-- Returns  {now, epoch, admit_from, takeover_from}, then for each record {status, the record as JSON or ''}
--          status 'renewed' | 'absent' (no record, or this owner's with an outcome) | 'taken'
--
-- Safe to run twice.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local out = {{text(now), m[1], m[2], m[3]}}
for n = 2, #KEYS do
  local owner = ARGV[n + 1]
  local r = redis.call('HMGET', KEYS[n], 'owner', 'state', 'lost_us')
  if not r[1] or (r[1] == owner and r[2] ~= 'in_progress') then
    out[n] = {'absent', ''}
  elseif r[1] ~= owner or (r[3] or '0') ~= '0' then
    out[n] = {'taken', ''}
  else
    redis.call('HSET', KEYS[n], 'lease_until_us', text(now + lease_us))
    redis.call('HINCRBY', KEYS[n], 'rev', 1)
    out[n] = {'renewed', whole(KEYS[n])}
  end
end
return out
