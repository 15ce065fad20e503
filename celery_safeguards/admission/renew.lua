-- Renew the claims of many owners. One run a tick for a whole worker; with none it is the worker's pulse.
--
-- KEYS  meta
-- ARGV  lease us, candidate epoch, prefix of owner index keys, owners ...
-- Returns  {now, epoch, admit_from, takeover_from}, then for each owner {status, the record as JSON or ''}
--          status 'renewed' | 'absent' (nothing claimed, or settled, or gone) | 'taken'
--
-- Safe to run twice.

local now, lease_us = now_us(), tonumber(ARGV[1])
local m = meta(KEYS[1], now, lease_us, ARGV[2], true)
local out = {{text(now), m[1], m[2], m[3]}}
for i = 4, #ARGV do
  local owner = ARGV[i]
  local index = ARGV[3] .. owner
  local record = redis.call('GET', index)
  local r = record and redis.call('HMGET', record, 'owner', 'state', 'lost_us') or {}
  if not record or not r[1] then
    out[#out + 1] = {'absent', ''}
  elseif r[1] ~= owner or (r[3] or '0') ~= '0' then
    out[#out + 1] = {'taken', ''}
  elseif r[2] ~= 'in_progress' then
    out[#out + 1] = {'absent', ''}
  else
    redis.call('HSET', record, 'lease_until_us', text(now + lease_us))
    redis.call('HINCRBY', record, 'rev', 1)
    redis.call('PEXPIRE', index, 86400000)
    out[#out + 1] = {'renewed', whole(record)}
  end
end
return out
